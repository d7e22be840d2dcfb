"""In an RNN, the gradient of a distant word vanishes and the word is not learned; attention reaches it in one step."""

import keras
import numpy as np
from lecture import Result, heat_map, interval, line, panels, run, stated
from measure import input_gradients, trained

from keras_tfm.layers import TransformerEncoder
from keras_tfm.models.conv_s2s import ConvEncoder
from keras_tfm.models.recurrent_layers import RecurrentEncoder

SYMBOLS, WIDTH, BATCH, REACH = 8, 32, 32, 4  # one convolution of 9 reaches back over 4 tokens


def lstm(*biases):
    """An LSTM whose gates (input, forget, cell, output) start with these biases; usual are 0, 1, 0 and 0."""
    start = keras.initializers.Constant(np.repeat(biases, 56))
    return keras.layers.LSTM(56, unit_forget_bias=False, bias_initializer=start, return_sequences=True)


ENCODERS = {
    "RNN": lambda: RecurrentEncoder(112, cell="rnn", dropout=0.0),
    "LSTM": lambda: RecurrentEncoder(56, dropout=0.0),
    "LSTM, forget gates near 1": lambda: lstm(0.0, 5.0, 0.0, 0.0),
    "LSTM, starts by keeping": lambda: lstm(-3.0, 5.0, 0.0, 0.0),  # and lets little in
    "ConvS2S": lambda: ConvEncoder(16, kernel_size=9, num_layers=4, positions="sinusoidal", dropout=0.0),
    "Transformer": lambda: TransformerEncoder(num_layers=2, num_heads=4, ff_dim=64, norm_first=True, dropout=0.0),
}
RNN, LSTM, NEAR, KEEPS, CONV, TRANSFORMER = ENCODERS


def data(count, distance, seed):
    """A symbol, `distance - 1` random letters, and a question mark, whose answer is the symbol."""
    rng = np.random.default_rng(seed)
    ids, symbols = rng.integers(SYMBOLS, 2 * SYMBOLS, (count, distance + 1)), rng.integers(0, SYMBOLS, count)
    ids[:, 0], ids[:, -1] = symbols, 2 * SYMBOLS
    return ids, symbols


def build(name, distance):
    ids = keras.Input((distance + 1,), dtype="int32")
    x = keras.layers.Embedding(2 * SYMBOLS + 1, WIDTH, keras.initializers.RandomNormal(stddev=1.0))(ids)
    return keras.Model(ids, keras.layers.Dense(SYMBOLS)(ENCODERS[name]()(x)[:, -1]))


def recall(name, distance, seeds, steps):
    """Percentage of symbols that are recalled after training at this distance, for each seed."""
    (x, y), title, predict = data(1000, distance, 0), f"{name}, {distance} apart", {"batch_size": 250, "verbose": 0}
    plan = (lambda: build(name, distance), lambda seed: data(steps * BATCH, distance, seed), seeds, 1, BATCH, 3e-3)
    return [100 * (model.predict(x, **predict).argmax(-1) == y).mean() for _, model, _ in trained(title, *plan)]


def draw(norms, found, distances):
    figure, (axis,) = panels("With distance, gradients vanish in an RNN, not in a Transformer", 1, 8, 4.5)
    for number, name in enumerate(ENCODERS):
        logs, look = np.log10(norms[name][:, (norms[name] > 0).all(0)]), {"color": f"C{number}", "lw": 2}
        line(axis, range(logs.shape[1]), logs, label=name, **look)
        if logs.shape[1] <= distances[-1]:
            axis.plot(logs.shape[1] - 1, logs[:, -1].mean(), "x", ms=11, mew=3, label="beyond: none", **look)
    axis.set(xlabel="distance, in tokens", ylabel="norm of d output / d input", ylim=(-10, 1.5), yticks=(-9, -6, -3, 0))
    axis.set_yticklabels([f"$10^{{{power}}}$" for power in axis.get_yticks()])
    axis.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    fail = ", ".join(name for name in ENCODERS if found[name][:, -1].mean() < 200 / SYMBOLS) or "none of the models"
    grid, (cells,) = panels(f"Only guessing at distance {distances[-1]}: {fail}", 1, 8, 4.5)
    means = np.array([found[name].mean(0) for name in ENCODERS])
    heat_map(cells, means, ENCODERS, distances, cmap="Blues", vmin=0, vmax=150)
    for row, column in np.ndindex(*means.shape):
        cells.text(column, row, f"{means[row, column]:.0f}", ha="center", va="center", fontsize=14)
    cells.set_xlabel(f"distance, in tokens (cells: recalled, in %; by chance: {100 / SYMBOLS})", fontsize=12)
    return [figure, grid]


def main(seeds=5, steps=200, longest=64):
    distances = [4 * 2**power for power in range(9) if 4 * 2**power <= longest]
    gradients = {name: (f"{name}, gradients", make, WIDTH, longest + 1, seeds) for name, make in ENCODERS.items()}
    norms = {name: input_gradients(*plan) for name, plan in gradients.items()}
    found = {name: np.array([recall(name, n, seeds, steps) for n in distances]).T for name in ENCODERS}
    # by how many powers of ten the gradient falls from distance 1 to the longest: infinitely many where it is 0
    with np.errstate(divide="ignore"):
        falls = {name: np.log10(values[:, 1]) - np.log10(values[:, -1]) for name, values in norms.items()}
    fall = {name: "∞" if np.isinf(values).any() else stated(values) for name, values in falls.items()}
    in_a_row = dict.fromkeys(ENCODERS, longest) | {CONV: f"would need {-(-longest // REACH)}", TRANSFORMER: 1}
    rows = [[name, f"{build(name, 1).count_params():,}", str(in_a_row[name]), fall[name]] for name in ENCODERS]
    rows = [[*row, *map(stated, found[row[0]].T)] for row in rows]
    ends = {name: interval(values) for name, values in falls.items() if name != CONV}
    low, high = ({name: np.dot((1, sign), ends[name]) for name in ends} for sign in (-1, 1))
    far, chance = {name: values[:, -1] for name, values in found.items()}, 100 / SYMBOLS
    forgets = [low[name] > 3 and np.dot((1, 1), interval(far[name])) < 3 * chance for name in (RNN, LSTM)]
    recalls = [high[name] < 3 and np.dot((1, -1), interval(far[name])) > 3 * chance for name in (TRANSFORMER, KEEPS)]
    share = {name: f"{stated(values)} %" for name, values in far.items()}
    return Result(
        draw(norms, found, distances),
        ["model", "parameters", f"steps between words {longest} apart", "fall of the gradient, powers of ten"]
        + [f"{n} apart: recalled, %" for n in distances],
        rows,
        "RNNs and their variants suffer from vanishing gradients",
        "NLU Lecture 10, RNN problem",
        [
            "Before training, the gradient of the last output with respect to an input falls from distance 1 to "
            f"{longest} by {fall[RNN]} powers of ten in an RNN, by {fall[LSTM]} in an LSTM; in a Transformer it "
            f"changes by {stated(-falls[TRANSFORMER])}.",
            f"Trained for {steps} steps to recall a symbol from {longest} tokens back, an RNN, that many steps away, "
            f"gets {share[RNN]} right, an LSTM {share[LSTM]}, and a Transformer, which is one step away, "
            f"{share[TRANSFORMER]}; guessing gets {chance} %.",
            "The control is an LSTM that starts by keeping what it has, with forget gates near 1 and input gates near "
            f"0. It takes as many steps, but its gradient changes by {stated(-falls[KEEPS])} powers of ten, and from "
            f"{longest} tokens back it gets {share[KEEPS]} right; with forget gates near 1 alone, {share[NEAR]}. So it "
            "is not the number of steps alone that makes a gradient vanish, but also how weights start.",
            f"ConvS2S needs a layer for every {REACH} tokens: its 4 see {4 * REACH} tokens back, and no gradient comes "
            f"from further; from {longest} tokens back it gets {share[CONV]} right.",
        ],
        limits="One task, one learning rate, few steps: it may be learned later, and real sentences give more clues.",
        verdict="not on this task" if not all([*forgets, recalls[0]]) else "holds here" if recalls[1] else "holds",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
