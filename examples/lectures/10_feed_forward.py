"""Without the feed-forward network, only softmax and layer norm are not linear: enough for two small tasks."""

import keras
import numpy as np
from lecture import Result, interval, line, panels, run, stated
from measure import trained

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
from keras_tfm.layers.scores import MIXINGS, soft

WIDTH, LENGTH, FILLERS, EPOCHS, BATCH = 32, 8, 8, 12, 128
RULES = 16  # two letters of 16 kinds each: 256 random answers

MIXINGS["fixed"] = lambda scores, mask=None: soft(0 * scores, mask)  # the mean of all values
# Name → number of layers, mixing of attention, activation of the feed-forward network (None: there is none).
FIXED, ALONE, RELU = "fixed weights, 2 layers", "attention, 2 layers", "attention + ReLU, 1 layer"
MODELS = {FIXED: (2, "fixed", None), ALONE: (2, "soft", None), RELU: (1, "soft", "relu")}


def answers(kinds):
    """The answer to each pair of letters: with two kinds, whether they differ; with more, a fixed random table."""
    return 1 - np.eye(2, dtype=int) if kinds == 2 else np.random.default_rng(0).integers(2, size=(kinds, kinds))


def linear_fit(kinds):
    """Answers, in %, that a number for the one letter plus a number for the other gets right, by least squares."""
    letters = np.hstack([np.eye(kinds)[each] for each in np.indices((kinds, kinds)).reshape(2, -1)])
    weights = np.linalg.lstsq(letters, 2.0 * answers(kinds).ravel() - 1, rcond=1e-6)[0]
    return 100 * ((letters @ weights > 1e-9) == answers(kinds).ravel()).mean()


def sequences(seed, count, kinds):
    """A question, then letters in random order, two of which are of one of several kinds; an answer to these two."""
    rng = np.random.default_rng(seed)
    letters, two = rng.integers(1, 1 + FILLERS, size=(count, LENGTH)), rng.integers(kinds, size=(count, 2))
    letters[:, :2] = 1 + FILLERS + two + (0, kinds)
    return np.pad(rng.permuted(letters, axis=1), ((0, 0), (1, 0))), answers(kinds)[tuple(two.T)]  # 0 is the question


def build(name, norm, kinds):
    layers, mixing, activation = MODELS[name]
    normalized = (lambda x: keras.layers.LayerNormalization()(x)) if norm else (lambda x: x)
    ids = keras.Input((LENGTH + 1,), dtype="int32")
    x = keras.layers.Embedding(1 + FILLERS + 2 * kinds, WIDTH)(ids)
    for _ in range(layers):
        x = x + MultiHeadSelfAttention(num_heads=4, mixing=mixing)(normalized(x))
        if activation:
            x = x + FeedForward(2 * WIDTH, activation=activation)(normalized(x))
    return keras.Model(ids, keras.layers.Dense(2)(normalized(x)[:, 0]))


def accuracies(name, norm, kinds, seeds, steps, first_seed):
    """Accuracy on other sequences after each epoch of `steps`, (seeds, epochs), in %; the number of parameters."""
    options = {"metrics": ["accuracy"], "validation_data": sequences(99, 1024, kinds), "validation_batch_size": 1024}
    title, curves = f"{name}{', layer norm' * norm}, {kinds} kinds", []
    makers = (lambda: build(name, norm, kinds)), (lambda seed: sequences(seed, steps * BATCH, kinds))
    for _, model, history in trained(title, *makers, seeds, EPOCHS, BATCH, 3e-3, first_seed=first_seed, **options):
        curves.append(history["val_accuracy"])
        parameters = model.count_params()
    return 100 * np.array(curves), parameters


def draw(what, late, found, kinds, steps):
    """A figure of two panels, without and with layer norm."""
    names = {False: "without layer norm", True: "with layer norm"}
    where = " and ".join(text for norm, text in names.items() if late[norm, kinds])
    figure, axes = panels(f"{what}: attention alone is {f'late {where}' if where else 'not late'}", 2, 4.6, 4.4)
    for axis, (norm, text) in zip(axes, names.items(), strict=True):
        for name, look in zip(MODELS, (("x", ":", "C7", 7), ("o", "-", "C0", 10), ("^", "--", "C1", 6)), strict=True):
            if (name, norm, kinds) in found:
                options = dict(zip(("marker", "linestyle", "color", "markersize"), look, strict=True), label=name)
                line(axis, steps * np.arange(1, EPOCHS + 1), found[name, norm, kinds][0], each=True, **options)
        axis.axhline(linear_fit(kinds), color="black", linestyle="-.", label="linear fit", zorder=3)
        axis.set(xlabel="training step", ylabel="answers that are correct, %", ylim=(30, 103))
        axis.set_title(text, fontsize=12)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
    return figure


def main(seeds=5, steps=40, longer=3, first_seed=6):
    each = {2: steps, RULES: steps * longer}  # steps of an epoch
    cases = [(name, norm, n) for n in each for norm in (False, True) for name in MODELS if (name, n) != (FIXED, RULES)]
    found = {case: accuracies(*case, seeds, each[case[2]], first_seed) for case in cases}
    rows, needed, said = [], {}, {}
    for (name, norm, kinds), (curves, parameters) in found.items():
        after = np.append(curves >= 99, np.ones((seeds, 1), bool), axis=1).argmax(axis=1) + 1  # EPOCHS + 1 is never
        needed[name, norm, kinds], there = after * each[kinds], (after <= EPOCHS).sum()
        text = stated(after * each[kinds]) if there == seeds else f"reached by {there} of {seeds} seeds"
        said[name, norm, kinds], task = text, "do two bits differ?" if kinds == 2 else f"a table of {kinds}²"
        rows.append([task, name, "yes" if norm else "no", f"{parameters:,}", stated(curves[:, -1]), text])
    end = {case: stated(curves[:, -1]) for case, (curves, _) in found.items()}
    ratios = {case[1:]: needed[case] / needed[RELU, *case[1:]] for case in cases if case[0] == ALONE}
    late = {setting: bool(np.subtract(*interval(ratio)) > 1.2) for setting, ratio in ratios.items()}
    return Result(
        [draw("One rule", late, found, 2, each[2]), draw(f"{RULES**2} rules", late, found, RULES, each[RULES])],
        ["task", "layers", "layer norm", "parameters", "correct, %", "steps to 99 %"],
        rows,
        '"if ... and ... then..." is hard to do.',
        "CS 182, Lecture 12, Adding nonlinearities",
        [
            "Attention alone needs clearly more steps than attention with a ReLU network of as many parameters in "
            f"{sum(late.values())} of {len(late)} settings. Steps until 99 % are right on whether two bits differ: "
            f"{said[ALONE, False, 2]} (with a network: {said[RELU, False, 2]}) without layer norm, and "
            f"{said[ALONE, True, 2]} (with a network: {said[RELU, True, 2]}) with it, read every {each[2]} steps.",
            f"Of random answers to {RULES**2} pairs of letters, attention alone gets {end[ALONE, False, RULES]} % "
            f"(with a network: {end[RELU, False, RULES]} %) without layer norm, {end[ALONE, True, RULES]} % (with a "
            f"network: {end[RELU, True, RULES]} %) with it, and a linear fit {linear_fit(RULES):.0f} %.",
            "The control, fixed attention weights and nothing else, is linear: on whether two bits differ it is right "
            f"in {end[FIXED, False, 2]} % of cases (guessing: 50 %), with layer norm in {end[FIXED, True, 2]} %.",
        ],
        "That attention does as well on two toy tasks does not show that the feed-forward network is unnecessary: it "
        "has two thirds of the weights of a block in a Transformer, and these tasks need few. Lecture 12 removes it.",
        verdict="holds" if all(late.values()) else "holds here" if sum(late.values()) > 1 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
