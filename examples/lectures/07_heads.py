"""One head fetches several things at once, if a ReLU layer reads them; for a linear layer it takes several heads."""

import keras
import numpy as np
from lecture import Result, bars, chance, interval, line, panels, run, stated
from measure import trained

from keras_tfm.layers import MultiHeadAttention

HEADS, EPOCHS = (1, 2, 4, 8), 5
THINGS = {1: 1, 2: 3, 4: 4}  # to fetch, and how many of HEADS are tried
NAMES, VALUES, ITEMS, WIDTH, INNER = 16, 10, 8, 64, 256
READERS = {"linear": None, "two linear layers": "linear", "ReLU": "relu"}  # what reads the output of the attention


def data(count, things, seed=0):
    """Items with a name and a value each, queries with the names of several items, and the values of those items."""
    rng = np.random.default_rng(seed)
    names = rng.permuted(np.tile(np.arange(NAMES), (count, 1)), axis=1)[:, :ITEMS]
    values = rng.integers(0, VALUES, (count, ITEMS))
    asked = rng.permuted(np.tile(np.arange(ITEMS), (count, ITEMS, 1)), axis=2)[:, :, :things]
    rows = np.arange(count)[:, None, None]
    queries = names[rows, asked] + NAMES * np.arange(things)  # which name is asked for first, second, …
    return {"names": names, "values": values, "queries": queries}, values[rows, asked]


def build(things, num_heads, heads, reader):
    names, values = (keras.Input((ITEMS,), dtype="int32", name=name) for name in ("names", "values"))
    queries = keras.Input((ITEMS, things), dtype="int32", name="queries")
    items = keras.layers.Embedding(NAMES, WIDTH)(names) + keras.layers.Embedding(VALUES, WIDTH)(values)
    query = keras.ops.sum(keras.layers.Embedding(NAMES * things, WIDTH)(queries), axis=2)
    x = MultiHeadAttention(num_heads, heads=heads, name="attention")(query, items)
    if activation := READERS[reader]:
        x = keras.layers.Dense(INNER, activation)(x)
    x = keras.layers.Reshape((ITEMS, things, VALUES))(keras.layers.Dense(things * VALUES)(x))
    return keras.Model({"names": names, "values": values, "queries": queries}, x)


def train(things, num_heads, examples, longer, heads="standard", reader="linear", **seeds):
    """Values of fresh examples that are right, in %, for each seed; parameters of the attention."""
    right, epochs, title = [], EPOCHS * (longer if things > 2 else 1), f"{things} to fetch, {num_heads} {heads} heads"
    sizes = {"epochs": epochs, "learning_rate": 6e-3, "metrics": ["accuracy"]} | seeds
    fresh = {"validation_data": data(512, things), "validation_batch_size": 512, "validation_freq": epochs}
    makers = (lambda: build(things, num_heads, heads, reader)), (lambda seed: data(examples, things, seed))
    for _, model, history in trained(f"{title}, {reader}", *makers, **sizes, **fresh):
        right.append(100 * history["val_accuracy"][-1])
        parameters = model.get_layer("attention").count_params()
    return np.array(right), parameters


def whose_unknown(things):
    """Values that are right, in %, for who knows which values are asked for, but not which belongs to which name."""
    values = np.indices((VALUES,) * things).reshape(things, -1)  # all that there can be
    return 100 * (values[:, None] == values).sum(0).max(0).mean() / things


def enough(right):
    """How many heads a linear layer needs for 4 values, of the numbers tried, each twice the one before."""
    least = min((n for n in HEADS if np.subtract(*interval(right[4, n])) > 90), default=2 * HEADS[-1])
    return f"{least // 2} heads are too few" + f", {least} are enough" * (least in HEADS)


def main(seeds=5, examples=4096, longer=3, first_seed=6):
    sizes = {"seeds": seeds, "first_seed": first_seed, "examples": examples, "longer": longer}
    linear = {(n, heads): train(n, heads, **sizes) for n, most in THINGS.items() for heads in HEADS[:most]}
    one = {(n, reader): train(n, 1, **sizes, reader=reader) for n in (2, 4) for reader in list(READERS)[1:]}
    kinds = {kind: train(4, 8, **sizes, heads=kind) for kind in ("narrow", "wide")}
    right = {key: values for key, (values, _) in (linear | one).items()}
    able = np.subtract(*interval(right[2, "ReLU"])) > max(90, right[2, "two linear layers"].mean())
    does = "fetches several values at once," if able else "does not fetch several values at once, even"
    first, (axis,) = panels(f"One head {does} if a ReLU layer reads them", 1, 7, 4.6)
    second, (below,) = panels(f"Linear read-out of 4 values: {enough(right)}", 1, 7, 4.6)
    for number, (things, color) in enumerate({2: "C0", 4: "C1"}.items()):
        style, names = {"label": f"{things} to fetch", "color": color}, [f"{name}\n(one head)" for name in READERS]
        values = np.stack([right[things, key] for key in (1, *list(READERS)[1:])], axis=1)
        bars(axis, names, values, 0.38 * number - 0.19, 0.36, **style)
        values = np.stack([right[things, n] for n in HEADS[: THINGS[things]]], axis=1)
        line(below, range(THINGS[things]), values, marker="o^"[number], ms=10 - 3 * number, **style)
        black = {"color": "black", "linestyle": ("--", "-.")[number], "linewidth": 2, "zorder": 3}
        for each in (axis, below):
            each.axhline(whose_unknown(things), label=f"knows the {things} values,\nnot their order", **black)
    below.set(xticks=range(len(HEADS)), xticklabels=HEADS, xlabel="heads, with the same number of parameters")
    for each in (axis, below):
        chance(each, 100 / VALUES)
        each.set(ylabel="values that are correct, %", ylim=(0, 105))
        each.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    said = {key: stated(values) for key, values in right.items()}
    weights, only = f"{linear[1, 1][1]:,}", [f"{100 / n + (100 - 100 / n) / VALUES:.1f} %" for n in (2, 4)]
    rows = [[f"{n} standard", "linear", weights, *(said.get((things, n), "–") for things in THINGS)] for n in HEADS]
    rows += [["1 standard", r, weights, "–", said[2, r], said[4, r]] for r in list(READERS)[1:]]
    rows += [[f"8 {kind}", "linear", f"{n:,}", "–", "–", stated(values)] for kind, (values, n) in kinds.items()]
    return Result(
        [first, second],
        ["heads", "read by", "weights of attention", *(f"{things} to fetch: correct, %" for things in THINGS)],
        rows,
        "q_l k_t cannot focus two things e.g. get verb and noun in one time",
        "CS 182, Lecture 12, Multi-headed attention",
        [
            f"One head followed by a ReLU layer, as in every block of a Transformer, gets {said[2, 'ReLU']} % of two "
            f"values right and, with {longer} times the steps, {said[4, 'ReLU']} % of four. Two linear layers of the "
            f"same size, trained as long, are the control: {said[2, 'two linear layers']} % and "
            f"{said[4, 'two linear layers']} %; guessing gets {100 / VALUES:.0f} %.",
            f"One head and a linear layer get {said[2, 1]} % of two values and {said[4, 1]} % of four. A model that "
            f"knew which values are asked for, but not which belongs to which name, would get {whose_unknown(2):.1f} % "
            f"and {whose_unknown(4):.1f} %; one that knew only one of them, {only[0]} and {only[1]}.",
            f"With two values and a linear layer, one head gets {said[2, 1]} %, two heads {said[2, 2]} %, four "
            f"{said[2, 4]} %. With four values: one head {said[4, 1]} %, two {said[4, 2]} %, four {said[4, 4]} %, "
            f"eight {said[4, 8]} %. All have the same number of parameters.",
            f"Of four values, 8 wide heads with a linear layer get {stated(kinds['wide'][0])} %, 8 standard ones "
            f"{said[4, 8]} %, 8 narrow ones {stated(kinds['narrow'][0])} %; these differ in parameters, too.",
        ],
        "Items are few and the ReLU layer is wide; with more to fetch, one head may need more training than several.",
        verdict="not on this task" if able else "holds",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
