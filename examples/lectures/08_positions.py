"""Sinusoids make a shift a rotation, but do not tell even from odd and do not extrapolate to longer sequences."""

import keras
import numpy as np
from lecture import Result, chance, heat_map, interval, line, panels, run, stated
from measure import trained

from keras_tfm.layers import PositionalEncoding, TransformerEncoder
from keras_tfm.layers.positions import sinusoids

LETTERS, CAPITALS, WIDTH, EPOCHS = 8, 0.25, 32, 5  # CAPITALS is their share
TRAINED, LENGTH, RANGES = 16, 128, ((0, 16), (16, 32), (32, 64), (64, 128))  # positions in training and in the test
INDEX, SCALED, CONCAT, EVERY = "t appended", f"t / {TRAINED} appended", "sinusoidal, concatenated", "… in every layer"
SCHEMES = {name: {"positions": name.lower()} for name in ("sinusoidal", "learned", "rotary", "relative", "ALiBi")}
SCHEMES |= {INDEX: {"positions": "index", "positions_combine": "concat"}, "no positions": {"positions": None}}
WAYS = {SCALED: None, CONCAT: {"positions_combine": "concat"}, EVERY: {"positions_in": "every_layer"}}
OWN = 100 * (CAPITALS + (1 - CAPITALS) / LETTERS)  # right, in %, for naming the letter at the position itself


def sequences(seed, count, length):
    """Letters, some of them capitals. The answer at each position is the last capital so far, -1 if there is none."""
    rng = np.random.default_rng(seed)
    letters, capital = rng.integers(LETTERS, size=(count, length)), rng.random((count, length)) < CAPITALS
    last = np.maximum.accumulate(np.where(capital, np.arange(length), -1), axis=1)
    return letters + LETTERS * capital, np.where(last < 0, -1, np.take_along_axis(letters, last, axis=1))


def build(options):
    ids = keras.Input((None,), dtype="int32")
    sizes = {"num_layers": 2, "num_heads": 4, "ff_dim": 64, "dropout": 0.0, "max_length": LENGTH}
    x = keras.layers.Embedding(2 * LETTERS, WIDTH, keras.initializers.RandomNormal(stddev=1.0))(ids)
    if options is None:  # as the package appends t, and a dense layer goes back to the width, but t / TRAINED
        x = PositionalEncoding("index", combine="concat")(x) * np.float32([1] * WIDTH + [1 / TRAINED])
        x, options = keras.layers.Dense(WIDTH)(x), {"positions": None}
    x = TransformerEncoder(**sizes, norm_first=True, causal=True, **options)(x)
    return keras.Model(ids, keras.layers.Dense(LETTERS)(x))


def train(name, options, seeds, examples, first_seed):
    """Accuracy at each position of long sequences, in %, (seeds, positions); loss on short ones after an epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    fresh = {"validation_data": sequences(98, 512, TRAINED), "validation_batch_size": 512, "loss": loss}
    makers = (lambda: build(options)), (lambda seed: sequences(seed, examples, TRAINED))
    (x, y), right, losses = sequences(99, 256, LENGTH), [], []
    for _, model, history in trained(name, *makers, seeds, EPOCHS, 64, 3e-3, first_seed=first_seed, **fresh):
        hits = model.predict(x, batch_size=64, verbose=0).argmax(-1) == y
        right.append(100 * np.ma.masked_array(hits, y < 0).mean(0).filled(np.nan))
        losses.append(history["val_loss"][0])
    return np.array(right), np.array(losses)


def main(seeds=5, examples=4800, first_seed=6):
    t, steps, there = np.arange(LENGTH), examples // 64, f"positions {RANGES[-1][0]} to {LENGTH - 1}"
    now = (encoding := np.array(sinusoids(np.arange(2 * LENGTH), WIDTH), dtype="float64"))[:LENGTH]
    pairs, turn = encoding[:, 1::2] + 1j * encoding[:, 0::2], 1j * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    error = max(abs(pairs[:LENGTH] * np.exp(s * turn) - pairs[s : s + LENGTH]).max() for s in range(LENGTH))
    above = now[:, :, None] > now.T[None]  # (position, column, threshold)
    shares = [(above == label[:, None, None]).mean(0) for label in (t % 2 == 0, t < LENGTH // 2)]
    parity, half = (100 * max(share.max(), 1 - share.min()) for share in shares)  # of the best column
    found = {name: train(name, way, seeds, examples, first_seed) for name, way in (SCHEMES | WAYS).items()}
    near, far = ({n: np.nanmean(v[:, a:b], axis=1) for n, (v, _) in found.items()} for a, b in (RANGES[0], RANGES[-1]))
    early, last = {name: loss for name, (_, loss) in found.items()}, {name: stated(v) for name, v in far.items()}
    works = [name for name in SCHEMES if np.subtract(*interval(far[name])) > 80]
    do = f"only {works[0]} still works" if len(works) == 1 else f"{', '.join(works) or 'none'} still work"
    first, (axis,) = panels(f"Trained on positions 0 to {TRAINED - 1}, {do} at {there}", 1, 7.5, 4.6)
    for name, style in zip(SCHEMES, ("o-", "s--", "*:", "v-.", "^-", "D--", "x:"), strict=True):
        each = np.nanmean(found[name][0].reshape(seeds, -1, 8), axis=-1)
        line(axis, t[4::8], each, label=name, marker=style[0], linestyle=style[1:])
    axis.axvspan(0, TRAINED, color="gray", alpha=0.2, linewidth=0, label="trained")
    axis.axhline(OWN, color="black", linestyle=":", label="own letter only")
    axis.set(xlabel="position", ylabel="last capital named correctly, %", ylim=(0, 105))
    leads = {way: early["sinusoidal"] - early[way] for way in (CONCAT, EVERY)}  # seed by seed
    lower = f"{stated(leads[CONCAT])} nats" if np.subtract(*interval(leads[CONCAT])) > 0 else "not clearly"
    second, (below,) = panels(f"After {steps} steps, the loss of concatenated sinusoids is {lower} lower", 1, 7.5, 4.6)
    for marker, (way, lead) in zip("os", leads.items(), strict=True):
        below.plot(range(first_seed, first_seed + seeds), lead, marker, ms=11, label=way)
    below.set(xlabel="seed", xticks=range(first_seed, first_seed + seeds), ylabel="lead over added ones, nats")
    third, (curves, right) = panels("A column tells the first half from the second, none even from odd", 2, 5, 4.4)
    third.colorbar(heat_map(curves, now, title="the encodings", cmap="RdBu", vmin=-1, vmax=1))
    curves.set(xlabel="column", ylabel="position", yticks=t[::16], yticklabels=t[::16])
    right.bar(("even or odd", "first or second half"), (parity, half), 0.5, zorder=2)
    right.set(ylabel="told apart by the best column, %", ylim=(0, 105))
    for each, *level in ((axis, 100 / LETTERS), (right, 50), (below, 0, "sinusoidal, added")):
        chance(each, *level)
        each.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    rows = [[name, *(stated(np.nanmean(v[:, a:b], axis=1)) for a, b in RANGES)] for name, (v, _) in found.items()]
    return Result(
        [first, second, third],
        ["accuracy, %", *(f"positions {first}–{last - 1}" for first, last in RANGES)],
        rows,
        "Not learnable; also the extrapolation doesn’t really work",
        "CS224N, Lecture 9, Position representation vectors through sinusoids",
        [
            f"Trained on {TRAINED} positions, at {there} sinusoids are right in {last['sinusoidal']} % of cases, the "
            f"untrained rows of a learned table in {last['learned']} %, the number of the place, appended, in "
            f"{last[INDEX]} %, and divided by {TRAINED}, in {last[SCALED]} %; naming the letter at hand, without any "
            f"context, gets {OWN:.1f} %, guessing {100 / LETTERS:.1f} %.",
            f"Of three relative schemes, trained on {TRAINED} positions, ALiBi, which favours near tokens as the task "
            f"does, is right in {last['ALiBi']} % of cases at {there}, T5's relative bias in {last['relative']} %, "
            f"rotary positions in {last['rotary']} %; no positions, but a causal mask, in {last['no positions']} %.",
            f"At the positions of training, all schemes get {min(map(np.mean, near.values())):.1f} % or more right.",
            f"After {steps} steps, the loss is {stated(early['sinusoidal'])} nats with sinusoids that are added, "
            f"{stated(early[CONCAT])} concatenated, {stated(early[EVERY])} added in every layer; seed by seed, the "
            f"lead over the first is {stated(leads[CONCAT])} and {stated(leads[EVERY])}. At {there}, they are right in "
            f"{last['sinusoidal']} %, {last[CONCAT]} % and {last[EVERY]} % of cases.",
            f"“the” at 2 and at 7 get vectors that are {np.linalg.norm(now[2] - now[7]):.1f} apart (their length is "
            f"{np.linalg.norm(now[2]):.0f}); a shift by s is the same rotation at all places (error: {error:.0e}).",
            f"The best column tells first-half from second-half places in {half:.0f} % of cases, but even from odd in "
            f"{parity:.0f} % (guessing: 50 %): even the fastest column has a period of 2π, not 2.",
        ],
        "One task, which asks for the nearest capital and so suits ALiBi. Longer training, or sinusoids that start at "
        "random positions, may extrapolate better, and which way of joining them translates best is not measured.",
        verdict="holds here" if works and sum(interval(far["sinusoidal"])) < 50 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
