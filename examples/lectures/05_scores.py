"""Six scores all learn to look things up; a plain cosine does not, as its softmax cannot focus on one key."""

import time

import keras
import numpy as np
from lecture import Result, fit, panels, run

from keras_tfm.layers import SCORES, MultiHeadAttention, MultiHeadSelfAttention

PLAIN, SYMBOLS, ITEMS, LENGTH, FAR, WINDOW, WIDTH, HEADS = "plain cosine", 16, 32, 64, 16, 8, 64, 4
MIXINGS = {"soft": {}, "hard": {"mixing": "hard"}, f"local, window {WINDOW}": {"window": WINDOW}}


def lookup(count, seed):
    """Items with a name and a symbol each, in random order; names to look up; their symbols."""
    rng = np.random.default_rng(seed)
    names = rng.permuted(np.tile(np.arange(2 * ITEMS), (count, 1)), axis=1)[:, :ITEMS]
    symbols, asked = rng.integers(0, SYMBOLS, (count, ITEMS)), rng.integers(0, ITEMS, (count, 8))
    return [names, symbols, np.take_along_axis(names, asked, 1)], np.take_along_axis(symbols, asked, 1)


def lookup_model(score):
    keras.utils.set_random_seed(1)
    names, symbols, queries = (keras.Input((None,), dtype="int32") for _ in range(3))
    items = keras.layers.Embedding(2 * ITEMS, WIDTH)(names) + keras.layers.Embedding(SYMBOLS, WIDTH)(symbols)
    attention = MultiHeadAttention(HEADS, score="cosine" if score == PLAIN else score)
    x = attention(keras.layers.Embedding(2 * ITEMS, WIDTH)(queries), items)
    if score == PLAIN:  # the layer's cosine is multiplied by √d and divided by a learned temperature
        attention.score_weights["log_temperature"].assign([np.log(attention.head_dim) / 2] * HEADS)
        attention.score_weights["log_temperature"].trainable = False
    return keras.Model([names, symbols, queries], keras.layers.Dense(SYMBOLS)(x))


def sequences(count, seed):
    """Symbols with a distance each; the symbol that far back; the share of even symbols in the sequence."""
    rng = np.random.default_rng(seed)
    symbols = rng.integers(0, SYMBOLS, (count, LENGTH))
    back = np.minimum(rng.integers(1, FAR + 1, (count, LENGTH)), np.arange(LENGTH))
    even = np.mean(symbols % 2 == 0, axis=1)[:, None, None].repeat(LENGTH, 1)
    return [symbols, back], np.take_along_axis(symbols, np.arange(LENGTH) - back, 1), even


def sequence_model(outputs, options):
    keras.utils.set_random_seed(1)
    symbols, back = (keras.Input((None,), dtype="int32") for _ in range(2))
    x = keras.layers.Embedding(SYMBOLS, WIDTH)(symbols) + keras.layers.Embedding(FAR + 1, WIDTH)(back)
    x = MultiHeadSelfAttention(HEADS, positions="rotary", **options)(x)
    return keras.Model([symbols, back], keras.layers.Dense(outputs)(x))


def main(steps=32, repeats=30):
    models = {score: lookup_model(score) for score in (*SCORES, PLAIN)}
    curves, times, right, errors, batch = {}, {}, {}, {}, lookup(64, 2)
    for score, model in models.items():
        history = fit(score, model, *lookup(64 * steps, 1), 8, learning_rate=5e-3, metrics=["accuracy"])
        curves[score], times[score] = 100 * np.array(history["accuracy"]), []
    for score, model in list(models.items()) * repeats:  # in turns, so that other programs slow all of them
        start = time.perf_counter()
        model.train_on_batch(*batch)
        times[score].append(1000 * (time.perf_counter() - start))
    for name, options in MIXINGS.items():
        copier, counter = sequence_model(SYMBOLS, options), sequence_model(1, options)
        x, copies, even = sequences(64 * steps, 1)
        fit(f"copying, {name}", copier, x, copies, 7, learning_rate=5e-3)
        fit(f"counting, {name}", counter, x, even, 5, learning_rate=5e-3, loss="mse")
        x, copies, even = sequences(256, 2)
        hits = 100.0 * (copier.predict(x, verbose=0).argmax(-1) == copies)
        right[name] = np.array([hits[x[1] == back].mean() for back in range(1, FAR + 1)])
        errors[name] = LENGTH * np.abs(counter.predict(x, verbose=0) - even).mean()
    figure, axes = panels("Plain cosine cannot focus, hard attention cannot count, local attention cannot see far", 3)
    axes[0].plot(steps * np.arange(1, 9), np.array([*curves.values()]).T, "o-", ms=4, label=list(curves))
    axes[0].set(xlabel="training steps", xlim=(0.6 * steps, 10 * steps), ylim=(0, 105))
    axes[0].set_ylabel("symbols looked up correctly, %")
    axes[0].legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.93))
    for (name, values), marker in zip(right.items(), "os^", strict=True):
        axes[1].plot(range(1, FAR + 1), values, marker=marker, label=name, alpha=0.7)
    axes[1].set(xlabel="distance of the symbol to copy, tokens", ylabel="symbols copied correctly, %", ylim=(0, 105))
    axes[1].legend(frameon=False, loc="center left")
    axes[2].bar(errors.keys(), errors.values(), color=["C0", "C1", "C2"], zorder=2)
    axes[2].set_ylabel(f"mean error of a count from 0 to {LENGTH}")
    _, hard, local = right.values()
    return Result(
        figure,
        ["score", "parameters", "ms per step", *(f"correct by step {steps * epochs}, %" for epochs in (2, 4, 8))],
        [[s, f"{models[s].count_params():,}", np.median(times[s]), *curves[s][[1, 3, 7]]] for s in models],
        "the measure of the distance that you have is the cosine similarity distance",
        "Applied Deep Learning, L56.1",
        "The Transformer uses the dot product, divided by √d. A cosine lies between −1 and 1, so its softmax gives one "
        f"of {ITEMS} keys at most {1 / (1 + (ITEMS - 1) * np.exp(-2)):.0%} of the weight: plain cosine ends "
        f"at {curves[PLAIN][-1]:.0f}%, cosine times a learned factor at {curves['cosine'][-1]:.0f}%. Hard attention "
        f"copies {hard.mean():.0f}% but miscounts by {errors['hard']:.1f} (soft: {errors['soft']:.1f}); local copies "
        f"{local[: WINDOW - 1].mean():.0f}% inside its window and {local[WINDOW - 1 :].mean():.0f}% outside.",
        agrees=bool(curves[PLAIN][-1] > curves["scaled_dot"][-1] - 5),
    )


if __name__ == "__main__":
    run(__file__, main)
