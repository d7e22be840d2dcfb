"""Sinusoids make a shift a rotation, but do not tell even from odd and do not extrapolate to longer sequences."""

import keras
import numpy as np
from lecture import Result, bars, chance, heat_map, interval, line, panels, run, stated
from measure import trained

from keras_tfm.layers import TransformerEncoder
from keras_tfm.layers.positions import sinusoids

LETTERS, WIDTH, EPOCHS = 8, 32, 5
TRAINED, LENGTH, RANGES = 16, 128, ((0, 16), (16, 32), (32, 64), (64, 128))  # positions in training and in the test
SCHEMES = {name: {"positions": name} for name in ("sinusoidal", "learned", "index", "rotary", "relative", "alibi")}
SCHEMES["no positions"], CAPITALS = {"positions": None}, 0.25  # the share of capitals
CONCAT, EVERY = "sinusoidal, concatenated", "sinusoidal, in every layer"
WAYS = {CONCAT: {"positions_combine": "concat"}, EVERY: {"positions_in": "every_layer"}}
OWN = 100 * (CAPITALS + (1 - CAPITALS) / LETTERS)  # right, in %, for naming the letter at the position itself


def shifted(encoding, k):
    """The encoding of position t + k, from that of t: each pair of columns turns by an angle that depends on k only."""
    angle = k * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    turned = (encoding[:, 1::2] + 1j * encoding[:, 0::2]) * np.exp(1j * angle)  # cos + i sin
    return np.stack([turned.imag, turned.real], axis=-1).reshape(encoding.shape)


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
    x = TransformerEncoder(**sizes, norm_first=True, causal=True, **options)(x)
    return keras.Model(ids, keras.layers.Dense(LETTERS)(x))


def train(name, options, seeds, examples):
    """Accuracy at each position of long sequences, in %, (seeds, positions); loss on short ones after an epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    fresh = {"validation_data": sequences(98, 512, TRAINED), "validation_batch_size": 512, "loss": loss}
    makers = (lambda: build(options)), (lambda seed: sequences(seed, examples, TRAINED))
    (x, y), right, losses = sequences(99, 256, LENGTH), [], []
    for _, model, history in trained(f"{name} positions", *makers, seeds, EPOCHS, learning_rate=3e-3, **fresh):
        hits = model.predict(x, batch_size=64, verbose=0).argmax(-1) == y
        right.append(100 * np.ma.masked_array(hits, y < 0).mean(0).filled(np.nan))
        losses.append(history["val_loss"][0])
    return np.array(right), np.array(losses)


def main(seeds=5, examples=4800):
    t, steps = np.arange(LENGTH), examples // 64
    now = (encoding := np.array(sinusoids(np.arange(2 * LENGTH), WIDTH), dtype="float64"))[:LENGTH]
    error = max(abs(shifted(now, k) - encoding[k : k + LENGTH]).max() for k in range(LENGTH))
    above = now[:, :, None] > now.T[None]  # (position, column, threshold)
    shares = [(above == label[:, None, None]).mean(0) for label in (t % 2 == 0, t < LENGTH // 2)]
    parity, half = (100 * max(share.max(), 1 - share.min()) for share in shares)  # of the best column
    found = {name: train(name, options, seeds, examples) for name, options in (SCHEMES | WAYS).items()}
    near, far = ({n: np.nanmean(v[:, a:b], axis=1) for n, (v, _) in found.items()} for a, b in (RANGES[0], RANGES[-1]))
    early, last = {name: loss for name, (_, loss) in found.items()}, {name: stated(v) for name, v in far.items()}
    there = f"positions {RANGES[-1][0]} to {LENGTH - 1}"
    works = ", ".join(name for name in SCHEMES if np.subtract(*interval(far[name])) > 80)
    first, (axis,) = panels(f"Trained on {TRAINED} positions, right up to {LENGTH}: {works or 'none'}", 1, 7.5, 4.8)
    for name, marker in zip(SCHEMES, "os*v^Dx", strict=True):
        line(axis, t[4::8], np.nanmean(found[name][0].reshape(seeds, -1, 8), axis=-1), marker=marker, label=name)
    axis.axvspan(0, TRAINED, color="gray", alpha=0.2, linewidth=0, label="trained")
    axis.axhline(OWN, color="black", linestyle=":", label="own letter only")
    axis.set(xlabel="position", ylabel="last capital named correctly, %", ylim=(0, 105))
    sooner = "" if np.subtract(*interval(early["sinusoidal"] - early[CONCAT])) > 0 else "not clearly "
    second, (below,) = panels(f"Concatenated sinusoids are {sooner}learned sooner than added ones", 1, 6, 4.4)
    values = np.stack([early[name] for name in ("sinusoidal", *WAYS)], axis=1)
    bars(below, ("added", "concatenated", "added in\nevery layer"), values)
    below.set(ylabel=f"loss after {steps} steps, nats (guessing: {np.log(LETTERS):.1f})", ylim=(0, None))
    third, (curves, right) = panels("A column tells the first half from the second, none even from odd", 2, 5, 4.4)
    third.colorbar(heat_map(curves, now, title="the encodings", cmap="RdBu", vmin=-1, vmax=1))
    curves.set(xlabel="column", ylabel="position", yticks=t[::16], yticklabels=t[::16])
    right.bar(("even or odd", "first or second half"), (parity, half), 0.5, zorder=2)
    right.set(ylabel="told apart by the best column, %", ylim=(0, 105))
    for each, level in ((axis, 100 / LETTERS), (right, 50)):
        chance(each, level)
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
            f"number of the place in {last['index']} %, the untrained rows of a learned table in {last['learned']} %; "
            f"naming the letter at hand, without any context, gets {OWN:.1f} %, guessing {100 / LETTERS:.1f} %.",
            f"Of three relative schemes, trained on {TRAINED} positions, ALiBi, which favours near tokens as the task "
            f"does, is right in {last['alibi']} % of cases at {there}, T5's relative bias in {last['relative']} %, "
            f"rotary positions in {last['rotary']} %; no positions, but a causal mask, in {last['no positions']} %.",
            f"At the positions of training, all schemes get {min(map(np.mean, near.values())):.1f} % or more right.",
            f"After {steps} steps, the loss is {stated(early['sinusoidal'])} nats with sinusoids that are added, "
            f"{stated(early[CONCAT])} concatenated, {stated(early[EVERY])} added in every layer; at {there}, they are "
            f"right in {last['sinusoidal']} %, {last[CONCAT]} % and {last[EVERY]} % of cases.",
            f"“the” at 2 and at 7 get vectors that are {np.linalg.norm(now[2] - now[7]):.1f} apart (their length is "
            f"{np.linalg.norm(now[2]):.0f}); a shift by k is the same rotation at all places (error: {error:.0e}).",
            f"The best column tells first-half from second-half places in {half:.0f} % of cases, but even from odd in "
            f"{parity:.0f} % (guessing: 50 %): even the fastest column has a period of 2π, not 2. Apart from that, i "
            "starts at 0, not at 1 as in the formula of CS 182.",
        ],
        "One task, which asks for the nearest capital and so suits ALiBi. Longer training, or sinusoids that start at "
        "random positions, may extrapolate better, and which way of joining them translates best is not measured.",
        verdict="holds here" if works and sum(interval(far["sinusoidal"])) < 50 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
