"""A switchboard: without positions or the mask, the model does little more than guess; without others it learns."""

import keras
import numpy as np
from lecture import Result, chance, heat_map, interval, line, panels, run, stated
from measure import percent, trained

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention, PositionalEncoding, record_attention

DIGITS, LENGTH, BASE, WIDTH, HEADS, BATCH, EPOCHS = 5, 9, 5, 32, 4, 64, 10  # length: 5 digits, =, 3 of the answers
WHOLE, POSITIONS, MASK, RESIDUAL, NORM = "whole model", "no positions", "no mask", "no residuals", "no layer norm"
PLAIN, DEEPER, SCALE, ONE = "no feed-forward", "no feed-forward, 4 blocks", "no √d", "one head"
AGES, PARTS = range(1, EPOCHS + 1), (WHOLE, SCALE, ONE, NORM, RESIDUAL, PLAIN, DEEPER, POSITIONS, MASK)
SHARES = np.bincount(abs(np.subtract.outer(range(BASE), range(BASE))).ravel()) / BASE**2  # of the differences
CHANCE, GUESSING = 100 * SHARES.max(), -SHARES @ np.log(SHARES)  # in % and in nats, for a model that knows only these


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
    for row, (mean, half) in enumerate(interval(found[name][1]) for name in PARTS):
        axis.barh(-row, mean, xerr=[[half], [min(half, 100 - mean)]], capsize=4, color="C0")
    for value, style, label in ((CHANCE, ":", "guessing"), ((CHANCE + found[WHOLE][1].mean()) / 2, "--", "half-way")):
        axis.axvline(value, color="black", linestyle=style, label=label)
    axis.set(xlabel="correct, %", yticks=-np.arange(len(found)), yticklabels=found, xlim=(0, 102), axisbelow=True)
    figure.legend(frameon=False, fontsize=11, ncols=2, loc="outside lower center")
    right = {name: f"{found[name][1].mean():.0f} %" for name in PARTS}
    curves, (axis,) = panels(f"Without the mask, the loss falls first, and {right[MASK]} is written correctly", 1, 9)
    for name, style in ((WHOLE, "-"), (MASK, "--")):
        line(axis, AGES, found[name][0], lw=2, ls=style, marker="o", label=f"{name}: {right[name]} written correctly")
    chance(axis, GUESSING, f"guessing: {CHANCE:.0f} %")
    axis.set(xlabel="epoch", ylabel="loss in training, nats per digit", ylim=(0, 2))
    axis.legend(frameon=False)
    high = " or ".join(name for name in PARTS if found[name][0][:, -1].mean() > GUESSING / 2) or "none of these"
    each, (unused,) = panels(f"The loss stays high only with {high}", 1, 13.2, 6.6)
    unused.remove()
    for axis, name in zip(each.subplots(2, 4, sharex=True, sharey=True).flat, PARTS[1:], strict=True):
        line(axis, AGES, found[WHOLE][0], lw=2, ls="--", color="0.6", label=WHOLE)
        line(axis, AGES, found[name][0], lw=2, label="without the part")
        chance(axis, GUESSING, "guessing")
        axis.set(title=f"{name}\n{right[name]} written correctly", ylim=(0, 2.8), xlabel="epoch", ylabel="loss, nats")
        axis.spines[["top", "right"]].set_visible(False)
        axis.label_outer()
    each.legend(*axis.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    yield from (figure, curves, each)
    names = [*"abcde", "=", "1st", "2nd", "3rd", "4th"]
    first = "The whole model looks at the two digits whose difference it writes", (WHOLE, POSITIONS, MASK)
    second = "Without residuals, the first block hardly looks for the two digits", (SCALE, ONE, NORM, RESIDUAL)
    for title, parts in (first, second):
        maps, places = panels(title, len(parts), 4, 3.8)
        for axis, name in zip(places, parts, strict=True):
            image = heat_map(axis, found[name][2].mean(0), names[-4:], names[:-1], name, cmap="Blues", vmin=0, vmax=0.5)
            axis.set(xlabel="looks at", ylabel="writes")
        maps.colorbar(image, ax=places, label="weight")
        yield maps


def main(seeds=5, steps=300, first_seed=11):
    found = {off: measure(off, steps, seeds=seeds, first_seed=first_seed) for off in PARTS}
    lost = {off: found[WHOLE][1] - accuracy for off, (_, accuracy, _) in found.items()}  # seed by seed
    # A part is needed if, without it, the model is clearly nearer to guessing than to the whole model.
    ends = {off: interval(f[1] - (CHANCE + found[WHOLE][1]) / 2) for off, f in found.items()}  # above half-way
    needed, spared = ([o for o in (POSITIONS, DEEPER, MASK) if np.dot((s, 1), ends[o]) < 0] for s in (1, -1))
    right, less = ({off: percent(x) for off, x in xs.items()} for xs in ({o: f[1] for o, f in found.items()}, lost))
    there = 100 * found[MASK][2][:, range(DIGITS - 2), range(DIGITS + 1, LENGTH)].mean(1)  # at what is to be written
    two = {off: stated(100 * sum(f[2].trace(n, 1, 2) for n in (0, 1)) / (DIGITS - 1)) for off, f in found.items()}
    return Result(
        [*draw(found)],
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
            f"Of the first block's attention, {two[WHOLE]} % goes to the two digits whose difference is written; with "
            f"one head {two[ONE]} %, without residual connections {two[RESIDUAL]} % (spread evenly: 27 %).",
        ],
        f"Two blocks of width {WIDTH}, {steps} steps, one recipe; norms and √d are there for models deeper and wider.",
        verdict="holds here" if len(needed) == 3 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
