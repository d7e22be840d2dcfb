"""A switchboard: without positions or the mask, the model does little more than guess; without others it learns."""

import keras
import numpy as np
from lecture import Result, heat_map, interval, line, panels, run, stated
from measure import percent, trained

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention, PositionalEncoding, record_attention

DIGITS, LENGTH, BASE, WIDTH, HEADS, BATCH, EPOCHS = 5, 9, 5, 32, 4, 64, 10  # length: 5 digits, =, 3 of the answers
WHOLE, POSITIONS, MASK, RESIDUAL, NORM = "whole model", "no positions", "no mask", "no residuals", "no layer norm"
PLAIN, DEEPER, SCALE, ONE = "no feed-forward", "no feed-forward, 4 blocks", "no √d", "one head"
PARTS = (WHOLE, SCALE, ONE, NORM, RESIDUAL, PLAIN, DEEPER, POSITIONS, MASK)
CHANCE = 100 * 2 * (BASE - 1) / BASE**2  # the most frequent difference is 1


def data(count, seed):
    """Digits such as 1 4 0 2 2, then = and the differences between neighbours, 3 4 2 0, which the model is to write."""
    digits = np.random.default_rng(seed).integers(0, BASE, (count, DIGITS))
    differences = abs(np.diff(digits))
    return np.concatenate([digits, np.full((count, 1), BASE), differences[:, :-1]], axis=1), differences


def build(off):
    """Two blocks of a Transformer, pre-norm, in which the part named `off` is left out."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(BASE + 1, WIDTH, keras.initializers.RandomNormal(stddev=1.0))(ids)
    x = x if off == POSITIONS else PositionalEncoding()(x)
    mask = (np.tri(LENGTH, dtype=bool) | (np.arange(LENGTH) < DIGITS) | (off == MASK))[None]  # all see the five digits
    norm = keras.layers.Identity if off == NORM else keras.layers.LayerNormalization
    heads, score = 1 if off == ONE else HEADS, "dot" if off == SCALE else "scaled_dot"
    for _ in range(4 if off == DEEPER else 2):
        y = MultiHeadSelfAttention(heads, score=score)(norm()(x), attention_mask=mask)
        x = y if off == RESIDUAL else x + y
        if off not in (PLAIN, DEEPER):
            y = FeedForward(2 * WIDTH)(norm()(x))
            x = y if off == RESIDUAL else x + y
    return keras.Model(ids, keras.layers.Dense(BASE)(norm()(x)[:, DIGITS:]))


def written(model, x):
    """What the model writes after the =, one digit after the other, each of which it then reads."""
    ids = np.pad(x[:, : DIGITS + 1], ((0, 0), (0, DIGITS - 1)), constant_values=BASE)
    for place in range(DIGITS - 1):
        ids[:, DIGITS + 1 + place] = model.predict(ids[:, :LENGTH], len(ids), verbose=0)[:, place].argmax(-1)
    return ids[:, DIGITS + 1 :]


def measure(off, steps, **seeds):
    """For each seed: losses in training, by epoch; accuracy of what is written; weights of the first block."""
    found, (x, y) = [], data(500, 0)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=6e-3, warmup_steps=steps // 10 or 1)
    makers = (lambda: build(off)), (lambda seed: data(steps * BATCH // EPOCHS, seed))
    for _, model, history in trained(off, *makers, epochs=EPOCHS, batch_size=BATCH, learning_rate=rate, **seeds):
        with record_attention() as maps:
            model(x)
        looks = np.mean(next(iter(maps.values()))[0], axis=(0, 1))[DIGITS:]  # of all sentences and heads
        found.append((history["loss"], 100 * (written(model, x) == y).mean(), looks))
    return [np.array(each) for each in zip(*found, strict=True)]


def draw(found):
    useless = " or ".join(off.removeprefix("no ") for off in found if found[off][1].mean() < CHANCE + 15)
    figure, (axis,) = panels(f"Little better than guessing without {useless or 'several parts'}", 1, 8, 4.7)
    for row, name in enumerate(PARTS):
        mean, half = interval(found[name][1])
        axis.barh(-row, mean, xerr=[[half], [min(half, 100 - mean)]], capsize=4, color="C0")
    for value, style, label in ((CHANCE, ":", "guessing"), ((CHANCE + found[WHOLE][1].mean()) / 2, "--", "half-way")):
        axis.axvline(value, color="black", linestyle=style, label=label)
    axis.set(xlabel="correct, %", yticks=-np.arange(len(found)), yticklabels=found, xlim=(0, 102), axisbelow=True)
    figure.legend(frameon=False, fontsize=11, ncols=2, loc="outside lower center")
    curves, (side,) = panels(f"Without the mask, the loss falls to {found[MASK][0][:, -1].mean():.1g}", 1, 10, 4.4)
    for name in sorted((WHOLE, MASK, PLAIN, POSITIONS), key=lambda name: -found[name][0][:, -1].mean()):
        line(side, range(1, EPOCHS + 1), found[name][0], lw=2, label=f"{name}: {found[name][1].mean():.0f} %")
    side.set(xlabel="epoch", ylabel="loss in training, nats per digit", ylim=(0, 2))
    side.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), title="written correctly", alignment="left")
    maps, places = panels("Where each place looks in the first block", 3, 4.4, 4)
    names = [*"abcde", "=", "1st", "2nd", "3rd", "4th"]
    for place, name in zip(places, (WHOLE, POSITIONS, MASK), strict=True):
        image = heat_map(place, found[name][2].mean(0), names[-4:], names[:-1], name, cmap="Blues", vmin=0, vmax=0.5)
        place.set(xlabel="looks at", ylabel="writes")
    maps.colorbar(image, ax=places, label="weight")
    return [figure, curves, maps]


def main(seeds=5, steps=300, first_seed=11):
    found = {off: measure(off, steps, seeds=seeds, first_seed=first_seed) for off in PARTS}
    lost = {off: found[WHOLE][1] - accuracy for off, (_, accuracy, _) in found.items()}  # seed by seed
    # A part is needed if, without it, the model is clearly nearer to guessing than to the whole model.
    ends = {off: interval(f[1] - (CHANCE + found[WHOLE][1]) / 2) for off, f in found.items()}  # above half-way
    needed, spared = ([o for o in (POSITIONS, DEEPER, MASK) if np.dot((s, 1), ends[o]) < 0] for s in (1, -1))
    right, less = ({off: percent(x) for off, x in xs.items()} for xs in ({o: f[1] for o, f in found.items()}, lost))
    there = 100 * found[MASK][2][:, range(DIGITS - 2), range(DIGITS + 1, LENGTH)].mean(1)  # at what is to be written
    return Result(
        draw(found),
        ["part", "parameters", "loss in training", "written correctly, %", "less than the whole model"],
        [[off, f"{build(off).count_params():,}", stated(found[off][0][:, -1]), right[off], less[off]] for off in PARTS],
        "overall, necessities for a self-attention building block",
        "CS224N, Lecture 9",
        [
            f"The whole model writes {right[WHOLE]} % of digits correctly (guessing: {CHANCE:.0f} %). It loses "
            f"{less[POSITIONS]} points without positions, {less[MASK]} without the mask, {less[DEEPER]} without "
            f"feed-forward networks at equal parameters. Clearly nearer to guessing: {' and '.join(needed) or 'none'}; "
            f"clearly nearer to the whole model: {' and '.join(spared) or 'none'}.",
            f"Without the mask, the model can read the answer in training: {stated(there)} % of the first block's "
            f"attention goes to the digit that is to be written. When it has to write, {right[MASK]} % is correct.",
            f"Without feed-forward networks, {right[PLAIN]} % is correct; with two more blocks of attention instead, "
            f"for the same number of parameters, {right[DEEPER]} %.",
            f"Beyond the list, {right[RESIDUAL]} % is correct without residual connections, {right[NORM]} % without "
            f"norms, {right[SCALE]} % without √d, {right[ONE]} % with one head.",
        ],
        f"Two blocks of width {WIDTH}, {steps} steps, one recipe; norms and √d are there for models deeper and wider.",
        verdict="holds here" if len(needed) == 3 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
