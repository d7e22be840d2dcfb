"""Inductive bias: what a model assumes saves examples where it is true of the task, and costs some where it is not."""

import keras
import numpy as np
from lecture import Result, interval, line, panels, run
from measure import percent, trained

from keras_tfm.layers import TransformerEncoder
from keras_tfm.models.conv_s2s import ConvEncoder
from keras_tfm.models.recurrent_layers import RecurrentEncoder

LENGTH, LETTERS, WIDTH, BATCH = 10, 14, 32, 32
OPTIONS = {"num_layers": 2, "num_heads": 4, "ff_dim": 64, "norm_first": True, "dropout": 0.0}
ENCODERS = {
    "LSTM": lambda: RecurrentEncoder(48, bidirectional_layers=1, dropout=0.0),
    "ConvS2S": lambda: ConvEncoder(32, kernel_size=3, num_layers=2, positions=None, dropout=0.0),
    "Transformer": lambda: TransformerEncoder(**OPTIONS),
    "Transformer without positions": lambda: TransformerEncoder(**OPTIONS, positions=None),
}
LSTM, CONV, TRANSFORMER, BAG = ENCODERS
NEAR, FAR = "Is it of the same kind as the letter before?", "Does it occur once more?"
KINDS = np.random.default_rng(0).permutation(LETTERS) % 2


def data(seed, task, count):
    """Random letters, and for each the answer to the question of the task, 0 or 1."""
    letters = np.random.default_rng(seed).integers(0, LETTERS, (count, LENGTH))
    if task == NEAR:
        return letters, (np.diff(KINDS[letters], axis=1, prepend=0) == 0).astype(int)
    return letters, ((letters[:, :, None] == letters[:, None]).sum(-1) > 1).astype(int)


def build(name):
    letters = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(LETTERS, WIDTH, keras.initializers.RandomNormal(stddev=1.0))(letters)
    return keras.Model(letters, keras.layers.Dense(2)(ENCODERS[name]()(x)))


def measure(name, seeds, steps, counts):
    """Percentage of right answers about fresh letters after training, {task: (seeds, counts)}."""
    found = {task: np.zeros((seeds, len(counts))) for task in (NEAR, FAR)}

    def batches(seed, size):  # the same number of steps for any number of examples
        letters, answers = data(seed, *size)
        rows = np.random.default_rng(seed).integers(0, len(letters), steps * BATCH)
        return letters[rows], answers[rows]

    plan, sizes = (lambda: build(name), batches, seeds, 1, BATCH, 3e-3), [(task, n) for task in found for n in counts]
    for (task, count), seed, model, _ in trained(name, *plan, sizes=sizes):
        letters, answers = data(0, task, 1000)
        right = model.predict(letters, batch_size=250, verbose=0).argmax(-1) == answers
        found[task][seed - 1, counts.index(count)] = 100 * right.mean()
    return found


def draw(found, counts, leads):
    near, far = (("ConvS2S", "the Transformer") if lead > 0 else ("the Transformer", "ConvS2S") for lead in leads)
    figure, axes = panels(f"{near[0]} needs fewer examples for near letters, {far[0]} for far ones", 2, 6, 4.6)
    for axis, task in zip(axes, (NEAR, FAR), strict=True):
        for number, name in enumerate(ENCODERS):
            line(axis, counts, found[name][task], label=name, marker="os^D"[number], lw=2, ls=("-", "--")[number % 2])
        answers = data(0, task, 1000)[1].mean()
        axis.axhline(100 * max(answers, 1 - answers), color="black", linestyle=":", label="guessing")
        axis.set_title(f"{'near' if task == NEAR else 'far'}: {task[0].lower()}{task[1:]}", fontsize=12)
        axis.set(xlabel="examples to learn from", ylabel="right answers, %", ylim=(40, 103))
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    return figure


def main(seeds=5, steps=400, smallest=32, largest=2048):
    counts = [smallest * 8**power for power in range(9) if smallest * 8**power <= largest]
    found = {name: measure(name, seeds, steps, counts) for name in ENCODERS}
    columns = [f"{task}, {count:,} examples" for task in ("near", "far") for count in counts]
    rows = [
        [name, f"{build(name).count_params():,}", *(percent(values) for task in (NEAR, FAR) for values in own[task].T)]
        for name, own in found.items()
    ]
    cases = [(name, task) for name in (CONV, LSTM) for task in (NEAR, FAR)]
    ahead = {(name, task): found[name][task] - found[TRANSFORMER][task] for name, task in cases}  # in points
    best = np.argmax(ahead[CONV, NEAR].mean(0)[:-1])
    low, high = ({case: np.dot((1, sign), interval(x)) for case, x in ahead.items()} for sign in (-1, 1))
    saves = {task: min(low[name, task][best] for name in (CONV, LSTM)) > 5 for task in (NEAR, FAR)}
    turns = any((low[CONV, task] > 0).any() and (high[CONV, task] < 0).any() for task in saves)
    leads = {task: [percent(x).replace("-", "−") for x in ahead[CONV, task][:, [best, -1]].T] for task in saves}
    at = {(name, task): [f"{percent(x)} %" for x in own[task].T] for name, own in found.items() for task in own}
    few, many = f"{counts[best]:,}", f"{counts[-1]:,}"
    return Result(
        [draw(found, counts, [ahead[CONV, task][:, best].mean() for task in (NEAR, FAR)])],
        ["model", "parameters", *columns],
        rows,
        "there is more inductive bias in those two models and those two models are good for small … Data sets",
        "Applied Deep Learning, L56.1",
        [
            f"Where the answer depends on the letter before, ConvS2S gets {at[CONV, NEAR][best]} right with {few} "
            f"examples, the LSTM {at[LSTM, NEAR][best]}, the Transformer, which assumes less, "
            f"{at[TRANSFORMER, NEAR][best]}; with {many}, the Transformer gets {at[TRANSFORMER, NEAR][-1]}.",
            f"In the control, where the answer may be anywhere, {few} examples give ConvS2S {at[CONV, FAR][best]}, the "
            f"LSTM {at[LSTM, FAR][best]} and the Transformer {at[TRANSFORMER, FAR][best]}; ConvS2S, which sees two "
            f"letters on each side, has {at[CONV, FAR][-1]} with {many}.",
            f"From {few} to {many} examples, the lead of ConvS2S over the Transformer goes from {leads[NEAR][0]} to "
            f"{leads[NEAR][1]} points where the letter before decides, and from {leads[FAR][0]} to {leads[FAR][1]} "
            "where any letter may: data makes up for a bias that is missing, but not for one that is wrong. It changes "
            f"{'the winner' if turns else 'no winner: the task decides that, not the amount of data'}.",
            f"A Transformer without positions assumes that order does not matter: with {few} and {many} examples it "
            f"gets {at[BAG, FAR][best]} and {at[BAG, FAR][-1]} where that is true, {at[BAG, NEAR][best]} and "
            f"{at[BAG, NEAR][-1]} where the letter before matters.",
        ],
        limits=f"Two questions about random letters, and {steps} steps for each model whatever the number of examples: "
        "how much data is a lot for a language, and what training for longer changes, is not shown.",
        verdict="holds" if all(saves.values()) else "holds here" if saves[NEAR] else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
