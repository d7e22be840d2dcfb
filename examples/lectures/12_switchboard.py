"""A switchboard: without positions or the mask, the model little more than guesses; without other parts it learns."""

import keras
import numpy as np
from lecture import Result, heat_map, interval, line, panels, run, stated
from measure import percent, trained

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention, PositionalEncoding, record_attention

DIGITS, BASE, WIDTH, HEADS, BATCH, EPOCHS = 5, 5, 32, 4, 64, 10
LENGTH, EXAMPLE = 2 * DIGITS - 1, [1, 4, 0, 2, 2, BASE, 3, 4, 2]  # whose attention is drawn
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
    query, key = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    mask = ((key <= query) | (key < DIGITS) | (off == MASK))[None]  # all may see the digits in front of the =
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
        logits = model.predict(ids[:, :LENGTH], batch_size=len(ids), verbose=0)
        ids[:, DIGITS + 1 + place] = logits[:, place].argmax(-1)
    return ids[:, DIGITS + 1 :]


def measure(off, seeds, steps):
    """For each seed, losses in training by epoch, and accuracy of what is written; a map of the first block's heads."""
    losses, accuracy, (x, y) = [], [], data(500, 0)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=6e-3, warmup_steps=steps // 10 or 1)
    plan = (lambda: build(off), lambda seed: data(steps * BATCH // EPOCHS, seed), seeds, EPOCHS, BATCH, rate)
    for _, model, history in trained(off, *plan):
        losses.append(history["loss"])
        accuracy.append(100 * (written(model, x) == y).mean())
    with record_attention() as maps:
        model(np.array([EXAMPLE]))
    return np.array(losses), np.array(accuracy), next(iter(maps.values()))[0][0, :, DIGITS:].mean(0)


def draw(found, harmless):
    useless = " or ".join(off.removeprefix("no ") for off in found if found[off][1].mean() < CHANCE + 15)
    figure, (axis,) = panels(f"Little better than guessing without {useless or 'several parts'}", 1, 8, 4.7)
    for row, (name, (_, accuracy, _)) in enumerate(found.items()):
        mean, half = interval(accuracy)
        axis.barh(-row, mean, xerr=half, color="C0" if name in harmless else "C3", capsize=4)
    axis.axvline(CHANCE, color="black", linestyle=":", label="guessing")
    axis.set(xlabel="correct, % (red: it may cost over 10 points)", yticks=-np.arange(len(found)), yticklabels=found)
    axis.legend(frameon=False, fontsize=11)
    curves, (side,) = panels("Loss in training: without the mask it is misleading", 1, 8, 4.4)
    for name in (WHOLE, MASK, PLAIN, POSITIONS):
        line(side, range(1, EPOCHS + 1), found[name][0], label=name, color="black" if name == WHOLE else None)
    side.set(xlabel="epoch", ylabel="nats per digit", ylim=(0, 2.2))
    side.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    maps, places = panels(f"Where the first block looks: one example, mean of {HEADS} heads", 3)
    ticks = ["=" if digit == BASE else str(digit) for digit in EXAMPLE]
    for place, name in zip(places, (WHOLE, POSITIONS, MASK), strict=True):
        image = heat_map(place, found[name][2], ticks[DIGITS:], ticks, name, cmap="Blues", vmin=0, vmax=1)
        place.set(xlabel="looks at", ylabel="the token that writes")
    maps.colorbar(image, ax=places, label="weight")
    return [figure, curves, maps]


def main(seeds=5, steps=300):
    found = {off: measure(off, seeds, steps) for off in PARTS}
    lost = {off: found[WHOLE][1] - accuracy for off, (_, accuracy, _) in found.items()}  # seed by seed
    harmless = [off for off in PARTS if np.dot((1, 1), interval(lost[off])) < 10]
    needed = [off for off in (POSITIONS, DEEPER, MASK) if np.dot((1, -1), interval(lost[off])) > 10]
    right, less = ({off: percent(x) for off, x in xs.items()} for xs in ({o: f[1] for o, f in found.items()}, lost))
    sooner = {off: stated(found[off][0][:, EPOCHS // 2 - 1]) for off in (WHOLE, MASK)}
    return Result(
        draw(found, harmless),
        ["part", "parameters", "loss in training", "written correctly, %", "less than the whole model"],
        [[off, f"{build(off).count_params():,}", stated(found[off][0][:, -1]), right[off], less[off]] for off in PARTS],
        "overall, necessities for a self-attention building block",
        "CS224N, Lecture 9",
        [
            f"The whole model writes {right[WHOLE]} % of digits correctly (guessing: {CHANCE:.0f} %). It loses "
            f"{less[POSITIONS]} points without positions, {less[MASK]} without the mask, {less[DEEPER]} without "
            f"feed-forward networks at equal parameters: for {len(needed)} of these 3 clearly more than 10.",
            f"Without the mask the loss falls sooner ({sooner[MASK]} nats halfway, against {sooner[WHOLE]}), as the "
            f"model reads the answer; when it has to write one, {right[MASK]} % is correct.",
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
