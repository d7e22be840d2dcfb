"""Sinusoids make a shift linear, but do not tell even from odd and do not extrapolate to longer sequences."""

import keras
import numpy as np
from lecture import Result, fit, panels, run

from keras_tfm.layers import TransformerEncoder
from keras_tfm.layers.positions import sinusoids

SCHEMES = ("sinusoidal", "learned", "rotary", "relative", "alibi", None)
LETTERS, WIDTH = 8, 32
TRAINED, LENGTH = 16, 128  # lengths in training and in the test
RANGES = ((0, 16), (16, 32), (32, 64), (64, 128))  # positions


def read(encoding, label):
    """Accuracy of the best column with the best threshold, and of a linear read-out; both fitted to these positions."""
    above = encoding[:, :, None] > encoding.T[None]  # (position, column, threshold)
    accuracy = (above == label[:, None, None]).mean(0)
    features = np.pad(encoding, ((0, 0), (0, 1)), constant_values=1)  # the last column is for the bias
    weights = np.linalg.lstsq(features, 2.0 * label - 1, rcond=1e-6)[0]
    return max(accuracy.max(), 1 - accuracy.min()), ((features @ weights > 0) == label).mean()


def shifted(encoding, k):
    """The encoding of position t + k, from that of t: each pair of columns turns by an angle that depends on k only."""
    angle = k * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    turned = (encoding[:, 1::2] + 1j * encoding[:, 0::2]) * np.exp(1j * angle)  # cos + i sin
    return np.stack([turned.imag, turned.real], axis=-1).reshape(encoding.shape)


def sequences(seed, count, length):
    """Letters, some of them capitals. The answer at each position is the last capital so far, -1 if there is none."""
    rng = np.random.default_rng(seed)
    letters, capital = rng.integers(LETTERS, size=(count, length)), rng.random((count, length)) < 0.25
    last = np.maximum.accumulate(np.where(capital, np.arange(length), -1), axis=1)
    return letters + LETTERS * capital, np.where(last < 0, -1, np.take_along_axis(letters, last, axis=1))


def accuracies(positions, seed, count):
    """Accuracy at each position of long sequences, after training on short ones."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(2 * LETTERS, WIDTH)(ids)
    sizes = {"num_layers": 2, "num_heads": 4, "ff_dim": 64, "dropout": 0.0, "max_length": LENGTH}
    x = TransformerEncoder(**sizes, positions=positions, norm_first=True, causal=True)(x)
    model = keras.Model(ids, keras.layers.Dense(LETTERS)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    fit(f"{positions} positions", model, *sequences(seed, count, TRAINED), epochs=5, learning_rate=3e-3, loss=loss)
    x, y = sequences(99, 256, LENGTH)
    right = model.predict(x, batch_size=64, verbose=0).argmax(-1) == y
    return np.ma.masked_array(right, y < 0).mean(0).filled(np.nan)  # (position,)


def main(seeds=3, examples=6400):
    t, encoding = np.arange(LENGTH), np.array(sinusoids(np.arange(2 * LENGTH), WIDTH), dtype="float64")
    now = encoding[:LENGTH]
    error = max(abs(shifted(now, k) - encoding[k : k + LENGTH]).max() for k in range(LENGTH))
    parity, half = read(now, t % 2 == 0), read(now, t < LENGTH // 2)
    found = {
        str(name or "none"): np.array([accuracies(name, seed, examples) for seed in range(seeds)]) for name in SCHEMES
    }

    figure, axes = panels("Sinusoids do not tell even from odd, and do not extrapolate", 3)
    axes[0].grid(False)
    figure.colorbar(axes[0].imshow(now, aspect="auto", cmap="RdBu", vmin=-1, vmax=1), ax=axes[0])
    axes[0].set(title="the sinusoids", xlabel="column", ylabel="position")
    for n, reader in enumerate(("best column", "linear read-out")):
        axes[1].bar(np.arange(2) + 0.35 * n - 0.175, [parity[n], half[n]], 0.35, label=reader)
    axes[1].axhline(0.5, color="gray", linestyle=":", label="guessing")
    axes[1].set(title="what they tell", ylabel="accuracy")
    axes[1].set_xticks((0, 1), ("even or odd", "first or second half"))
    axes[1].legend(frameon=False, loc="upper left", fontsize=9)
    for name, values in found.items():
        curves = np.nanmean(values.reshape(seeds, -1, 8), axis=-1)  # over 8 positions
        axes[2].plot(t[4::8], curves.mean(0), label=name)
        axes[2].fill_between(t[4::8], curves.min(0), curves.max(0), alpha=0.15)
    axes[2].axvline(TRAINED, color="gray", linestyle=":")
    axes[2].set(title=f"the last capital: trained on {TRAINED} positions", xlabel="position", ylabel="accuracy")
    axes[2].legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))

    rows = [[name, *(np.nanmean(v[:, first:last]) for first, last in RANGES)] for name, v in found.items()]
    near, far = min(row[1] for row in rows), {row[0]: row[-1] for row in rows}
    return Result(
        figure,
        ["accuracy", *(f"positions {first}–{last - 1}" for first, last in RANGES)],
        rows,
        "Not learnable; also the extrapolation doesn’t really work",
        "CS224N, Lecture 9, Position representation vectors through sinusoids",
        f"All schemes learn to name the last capital at the positions of training (accuracy {near:.2f} or more). At "
        f"positions {RANGES[-1][0]} to {LENGTH - 1}, sinusoids reach {far['sinusoidal']:.2f}, the untrained rows of a "
        f"learned table {far['learned']:.2f}, and ALiBi, which favours near tokens as the task does, "
        f"{far['alibi']:.2f}. A shift by k is a rotation (error at most {error:.0e}). CS 182 lists an “even-odd” and a "
        f"“first-half / second-half” indicator: the best column gets {half[0]:.0%} of the halves right, but "
        f"{parity[0]:.0%} of even and odd (linear read-out {parity[1]:.0%}): the fastest column has a period of 2π, "
        "not 2.",
        agrees=bool(far["sinusoidal"] < near / 2),
    )


if __name__ == "__main__":
    run(__file__, main)
