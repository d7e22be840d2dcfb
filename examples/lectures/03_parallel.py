"""An RNN takes as many steps in a row as there are tokens: it beats full attention on two CPU cores, not on a GPU."""

import json
import pathlib
import time
from itertools import product

import keras
import numpy as np
from lecture import Result, interval, line, panels, run, stated

from keras_tfm.common.progress import Progress
from keras_tfm.layers import TransformerEncoder
from keras_tfm.models.recurrent_layers import RecurrentEncoder

TOKENS, WIDTH, HEADS, WINDOW = 2048, 64, 4, 16
RNN, FULL, LOCAL = ENCODERS = "RNN (LSTM)", "Transformer", f"Transformer, window of {WINDOW}"
STYLES = {RNN: {"marker": "o"}, FULL: {"marker": "s"}, LOCAL: {"marker": "^", "linestyle": "--"}}
MEASURED = pathlib.Path(__file__).with_name("parallel.json")  # on a GPU, by benchmarks/parallel.py
# Multiply-adds per token of matrix products in the forward pass; a window's queries meet three blocks of keys. All have
# about as many weights, 8 · width²: a Transformer has 4 · width² in its projections, and as many in its dense layers.
WORK = {RNN: lambda n: 8 * WIDTH**2, FULL: lambda n: (8 * WIDTH + 2 * n) * WIDTH}
WORK[LOCAL] = lambda n: WORK[FULL](n if n <= 2 * WINDOW else 3 * WINDOW)
# Matrix products of the forward pass that wait for one another: q, k and v; scores; values; output; two dense layers.
CHAIN = {RNN: lambda n: n, FULL: lambda n: 6, LOCAL: lambda n: 6}


def encoder(name, width=WIDTH, heads=HEADS):
    if name == RNN:
        return RecurrentEncoder(width, dropout=0.0)
    window = WINDOW if name == LOCAL else None
    return TransformerEncoder(num_layers=1, num_heads=heads, ff_dim=2 * width, dropout=0.0, window=window)


def build(name, length):
    """A function that trains an encoder for one step; its batch always has the same number of tokens."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((length, WIDTH)), encoder(name)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(TOKENS // length, length, WIDTH)).astype("float32")
    return lambda: model.train_on_batch(x, x)


def measure(lengths, seeds, repeats, build=build, steps=1):
    """Milliseconds per step, by name: (seeds, lengths). `build(name, length)` makes what trains for `steps`."""
    built = {key: build(*key) for key in product(ENCODERS, lengths)}
    with Progress(len(built), "compiling", "encoder", 1) as bar:
        for train in built.values():
            train()
            bar.add(1)
    times, order = {key: np.zeros((seeds, repeats)) for key in built}, np.random.default_rng(0)
    with Progress(seeds * repeats, "timing", "round", 1) as bar:
        for seed, number in product(range(seeds), range(repeats)):
            for key in map([*built].__getitem__, order.permutation(len(built))):
                train, start = built[key], time.perf_counter()
                train()
                times[key][seed, number] = 1000 * (time.perf_counter() - start) / steps
            bar.add(1)
    return {name: np.stack([np.median(times[name, n], 1) for n in lengths], 1) for name in ENCODERS}


def slower(lengths, first, second):
    """At which lengths the first of two encoders takes longer, beyond the interval, as text."""
    mean, half = interval(first - second)
    some = [n for n, low in zip(lengths, mean - half, strict=True) if low > 0]
    if len(some) in (0, len(lengths)):
        return "at every length" if some else "at no length"
    if some == lengths[-len(some) :]:
        return f"from {some[0]:,} tokens on"
    return f"at {', '.join(f'{n:,}' for n in some)} tokens"


def draw(axis, lengths, values, label):
    """Lines of the encoders, of values (seeds, lengths)."""
    for name, style in STYLES.items():
        line(axis, lengths, values[name], label=name, **style)
    axis.loglog(base=2)
    axis.set(xlabel="tokens in each sequence", ylabel=label, xticks=lengths[::2])
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter("{x:,.6g}")


def compare(where, lengths, times):
    """Whether full attention is slower or faster than the RNN, at which lengths, the finding, and rows of the table."""
    pairs = (times[FULL], times[RNN]), (times[RNN], times[FULL]), (times[RNN], times[LOCAL])
    longer, less, beaten = (slower(lengths, *pair) for pair in pairs)
    how, at = ("slower", longer) if times[FULL].sum() > times[RNN].sum() else ("faster", less)
    took = {name: f"{stated(values[:, 0])} → {stated(values[:, -1])} ms" for name, values in times.items()}
    parts = [f"{word} {at}" for word, at in (("slower", longer), ("faster", less)) if at != "at no length"]
    finding = (
        f"On {where}: a training step with full attention is {' and '.join(parts) or 'not clearly slower or faster'} "
        f"than one of the RNN. From {lengths[0]} to {lengths[-1]:,} tokens, full attention: {took[FULL]}; RNN: "
        f"{took[RNN]}; window of {WINDOW}: {took[LOCAL]}. With the window, it is faster than the RNN {beaten}."
    )
    rows = [[where, f"{n:,}", *(stated(values[:, k]) for values in times.values())] for k, n in enumerate(lengths)]
    return how, f"{where}\n{how} {at}".replace(", ", "\n", 1), finding, rows


def main(seeds=5, repeats=9, longest=1024):
    lengths = [2**power for power in range(3, longest.bit_length())]
    machines = {f"two CPU cores, {TOKENS:,} tokens of width {WIDTH}": (lengths, measure(lengths, seeds, repeats))}
    for row in json.loads(MEASURED.read_text()):
        times = {name: np.array(values) for name, values in row["times"].items()}
        machines[f"a GPU ({row['device']}), {row['tokens']:,} tokens of width {row['width']}"] = row["lengths"], times
    hows, titles, found, rows = zip(*(compare(where, *each) for where, each in machines.items()), strict=True)
    title = f"Full attention trains {hows[0]} than an RNN on two CPU cores, and {hows[-1]} on a GPU"
    figure, panes = panels(title, len(machines), 3.6, 4.8)
    for axis, name, each in zip(panes, titles, machines.values(), strict=True):
        draw(axis, *each, "ms per training step" if axis is panes[0] else None)
        axis.set_title(name, fontsize=12)
    last, axes = panels("An RNN waits for each token; a Transformer looks at each pair", 2, 4.8, 4.4)
    labels = "matrix products in a row", "multiply-adds per token"
    for axis, count, label in zip(axes, (CHAIN, WORK), labels, strict=True):
        draw(axis, lengths, {name: np.tile([count[name](n) for n in lengths], (2, 1)) for name in ENCODERS}, label)
    for each, axis in ((figure, panes[0]), (last, axes[0])):
        each.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return Result(
        [figure, last],
        ["machine and batch", "length", f"{RNN}, ms", f"{FULL}, ms", f"window of {WINDOW}, ms"],
        sum(rows, []),
        "Forward and backward passes have O(sequence length) unparallelizable operations",
        "CS224N, Lecture 9, Lack of parallelizability",
        [
            "Counted, it is so: in a forward pass of an RNN, as many matrix products wait for one another as there are "
            "tokens, and the backward pass goes through them again in reverse; in the forward pass of a Transformer "
            f"layer, {CHAIN[FULL](0)}, whatever the length.",
            *found,
        ],
        "Encoders are compared round by round, so one can be clearly slower where single intervals overlap. All rounds "
        "are on one machine of each kind. On the GPU, cuDNN computes an LSTM by one call for all tokens; layer norms, "
        "and full attention to up to 64 tokens, are kernels of this package.",
        verdict="holds",  # a count
        seeds=seeds,
        unit="rounds of timing",
    )


if __name__ == "__main__":
    run(__file__, main)
