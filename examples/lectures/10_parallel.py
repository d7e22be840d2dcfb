"""An RNN takes as many steps in a row as there are tokens; a Transformer takes a few, but looks at every pair."""

import time

import keras
import numpy as np
from lecture import Result, panels, run

from keras_tfm.common.progress import Progress
from keras_tfm.layers import TransformerEncoder
from keras_tfm.models.recurrent_layers import RecurrentEncoder

TOKENS = 2048
WIDTH, INNER, WINDOW = 64, 128, 16
TRANSFORMER = {"num_layers": 1, "num_heads": 4, "ff_dim": INNER, "dropout": 0.0}
ENCODERS = {
    "RNN (LSTM)": lambda: RecurrentEncoder(WIDTH, dropout=0.0),
    "Transformer": lambda: TransformerEncoder(**TRANSFORMER),
    f"Transformer, window of {WINDOW}": lambda: TransformerEncoder(**TRANSFORMER, window=WINDOW),
}
RNN, FULL, LOCAL = ENCODERS
DENSE = 4 * WIDTH**2 + 2 * WIDTH * INNER  # weights of the projections and of the feed-forward network
# Multiply-adds per token of matrix products in the forward pass; a window's queries meet three blocks of keys.
WORK = {RNN: lambda n: 8 * WIDTH**2, FULL: lambda n: DENSE + 2 * n * WIDTH}
WORK[LOCAL] = lambda n: DENSE + 2 * (n if n <= 2 * WINDOW else 3 * WINDOW) * WIDTH
# Matrix products of the forward pass that wait for one another: q, k and v; scores; values; output; two dense layers.
CHAIN = {RNN: lambda n: n, FULL: lambda n: 6, LOCAL: lambda n: 6}


def build(name, length):
    """A compiled encoder and a batch for it, always of the same number of tokens."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((length, WIDTH)), ENCODERS[name]()])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(TOKENS // length, length, WIDTH)).astype("float32")
    model.train_on_batch(x, x)
    return model, x


def measure(lengths, repeats):
    """Milliseconds per training step, by name and length: medians of calls in random order."""
    with Progress(len(ENCODERS) * len(lengths), "compiling", "encoder", 1) as bar:
        built = {}
        for name in ENCODERS:
            for length in lengths:
                built[name, length] = build(name, length)
                bar.add(1)
    times, shuffled = {key: [] for key in built}, np.random.default_rng(0).permutation
    with Progress(repeats, "timing", "round", 1) as bar:
        for _ in range(repeats):
            for key in map([*built].__getitem__, shuffled(len(built))):
                (model, x), start = built[key], time.perf_counter()
                model.train_on_batch(x, x)
                times[key].append(1000 * (time.perf_counter() - start))
            bar.add(1)
    parameters = {name: built[name, lengths[0]][0].count_params() for name in ENCODERS}
    return {name: np.median([times[name, n] for n in lengths], axis=1) for name in ENCODERS}, parameters


def slower(lengths, first, second):
    """In words, at which lengths the first of two encoders takes longer."""
    lengths = [str(n) for n, *times in zip(lengths, first, second, strict=True) if times[0] > times[1]]
    return f"slower at {' and '.join(lengths)} tokens" if lengths else "at none of these lengths slower"


def main(repeats=21, longest=1024):
    lengths = [2**power for power in range(3, longest.bit_length())]
    times, parameters = measure(lengths, repeats)
    chain, work = ({name: [count[name](n) for n in lengths] for name in ENCODERS} for count in (CHAIN, WORK))
    figure, axes = panels("An RNN waits for every token; a Transformer looks at every pair of tokens", 3, 4.8, 4)
    for axis, lines in zip(axes, (times, chain, work), strict=True):
        for name, style in zip(ENCODERS, ("o-", "o-", "s--"), strict=True):
            axis.plot(lengths, lines[name], style, label=f"{name}, {parameters[name]:,} parameters")
        axis.loglog(base=2)
        axis.set(xlabel="tokens in each sequence", xticks=lengths)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_major_formatter("{x:,.0f}")
    axes[0].set_ylabel(f"ms per training step of {TOKENS} tokens")
    axes[1].set_ylabel("matrix products that wait for one another")
    axes[2].set_ylabel("multiply-adds per token")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    rnn, full, local = times.values()
    return Result(
        figure,
        ["tokens", *(f"{name}, ms" for name in ENCODERS), "RNN: products in a row", "Transformer"],
        [[str(n), *row] for n, *row in zip(lengths, rnn, full, local, chain[RNN], chain[FULL], strict=True)],
        "Forward and backward passes have O(sequence length) unparallelizable operations",
        "CS224N, Lecture 9, Lack of parallelizability",
        f"The RNN does the same work for {TOKENS} tokens in sequences of any length, but takes {rnn[0]:.0f} ms in "
        f"sequences of {lengths[0]} and {rnn[-1]:.0f} ms in sequences of {lengths[-1]}, where more steps wait for one "
        f"another. The Transformer goes from {full[0]:.0f} to {full[-1]:.0f} ms, by its pairs of tokens: “$O(n^2)$ vs "
        f"$O(n)$” (CS 182); with a window, from {local[0]:.0f} to {local[-1]:.0f} ms. On a CPU with the "
        f"{keras.backend.backend()} backend, the RNN is {slower(lengths, rnn, full)} than the Transformer, and "
        f"{slower(lengths, rnn, local)} than the one with a window.",
        agrees=bool(rnn[-1] > 1.5 * np.median(rnn[:4])),
    )


if __name__ == "__main__":
    run(__file__, main)
