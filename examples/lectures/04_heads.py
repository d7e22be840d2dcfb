"""One head cannot fetch several things at once; several heads can, with the same number of parameters."""

import keras
import numpy as np
from lecture import Result, fit, panels, run

from keras_tfm.layers import MultiHeadAttention

HEADS, THINGS, EPOCHS = (1, 2, 4, 8), (1, 2, 4), 10
NAMES, VALUES, ITEMS, WIDTH = 16, 10, 8, 64


def data(count, things, seed=0):
    """Items with a name and a value each, queries with the names of several items, and the values of those items."""
    rng = np.random.default_rng(seed)
    names = rng.permuted(np.tile(np.arange(NAMES), (count, 1)), axis=1)[:, :ITEMS]
    values = rng.integers(0, VALUES, (count, ITEMS))
    asked = rng.permuted(np.tile(np.arange(ITEMS), (count, ITEMS, 1)), axis=2)[:, :, :things]
    rows = np.arange(count)[:, None, None]
    queries = names[rows, asked] + NAMES * np.arange(things)  # which name is asked for first, second, …
    return {"names": names, "values": values, "queries": queries}, values[rows, asked]


def build(things, num_heads, heads):
    names, values = (keras.Input((ITEMS,), dtype="int32", name=name) for name in ("names", "values"))
    queries = keras.Input((ITEMS, things), dtype="int32", name="queries")
    items = keras.layers.Embedding(NAMES, WIDTH)(names) + keras.layers.Embedding(VALUES, WIDTH)(values)
    query = keras.ops.sum(keras.layers.Embedding(NAMES * things, WIDTH)(queries), axis=2)
    x = MultiHeadAttention(num_heads, heads=heads, name="attention")(query, items)
    x = keras.layers.Reshape((ITEMS, things, VALUES))(keras.layers.Dense(things * VALUES)(x))
    return keras.Model({"names": names, "values": values, "queries": queries}, x)


def train(things, num_heads, heads, seeds, examples):
    """Share of correct values after each epoch, then in fresh data, (seeds, epochs + 1); the attention's parameters."""
    accuracies = []
    for seed in range(1, seeds + 1):
        keras.utils.set_random_seed(seed)
        model = build(things, num_heads, heads)
        title = f"{things} things, {num_heads} {heads} heads, seed {seed}"
        history = fit(title, model, *data(examples, things, seed), EPOCHS, learning_rate=6e-3, metrics=["accuracy"])
        fresh = model.evaluate(*data(1024, things), batch_size=256, verbose=0)[1]
        accuracies.append([*history["accuracy"], fresh])
    return 100 * np.array(accuracies), model.get_layer("attention").count_params()


def spread(curves):
    """How an accuracy is written in the table: mean over the seeds, and the range if it is not tiny."""
    fresh = curves[:, -1]
    return f"{fresh.mean():.1f}" + (f" ({fresh.min():.0f} to {fresh.max():.0f})" if np.ptp(fresh) > 1 else "")


def draw(axis, x, values, label):
    """A line for the mean over the seeds, (seeds, x), in a band from the worst to the best."""
    line = axis.plot(x, values.mean(0), marker="o", label=label)[0]
    axis.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2)


def main(seeds=2, examples=4096):
    sizes = {"seeds": seeds, "examples": examples}
    found = {(things, heads): train(things, heads, "standard", **sizes) for things in THINGS for heads in HEADS}
    kinds = {kind: train(4, 8, kind, **sizes) for kind in ("narrow", "wide")} | {"standard": found[4, 8]}
    figure, axes = panels("One head cannot fetch several things at once", 2, width=5)
    for things in THINGS:
        fresh = np.array([found[things, heads][0][:, -1] for heads in HEADS])  # (heads, seeds)
        draw(axes[0], HEADS, fresh.T, f"{things} thing{'s' * (things > 1)}")
    axes[0].set(xticks=HEADS, xlabel="heads, at the same number of parameters")
    axes[0].legend(frameon=False, title="to fetch", loc="lower right")
    for kind, (curves, parameters) in sorted(kinds.items()):
        draw(axes[1], range(1, EPOCHS + 1), curves[:, :-1], f"{kind}, {parameters:,} parameters")
    axes[1].set(xlabel="epochs of training, 8 heads, 4 things to fetch")
    axes[1].legend(frameon=False, title="heads", loc="lower right")
    for axis in axes:
        axis.set(ylabel="fetched values that are correct, %", ylim=(0, 105))
    rows = [
        [f"{heads} standard", f"{found[1, heads][1]:,}", *(spread(found[things, heads][0]) for things in THINGS)]
        for heads in HEADS
    ]
    rows += [[f"8 {kind}", f"{kinds[kind][1]:,}", "–", "–", spread(kinds[kind][0])] for kind in ("narrow", "wide")]
    correct = {key: curves[:, -1] for key, (curves, _) in found.items()}
    early = {kind: curves[:, 4].mean() for kind, (curves, _) in kinds.items()}
    return Result(
        figure,
        ["heads", "parameters", *(f"{things} to fetch: correct, %" for things in THINGS)],
        rows,
        "q_l k_t cannot focus two things e.g. get verb and noun in one time",
        "CS 182, Lecture 12, Multi-headed attention",
        f"With two values to fetch, one head gets {spread(found[2, 1][0])}% of them right, two heads "
        f"{spread(found[2, 2][0])}% and four {spread(found[2, 4][0])}%; with four values, one head gets "
        f"{spread(found[4, 1][0])}%, two {spread(found[4, 2][0])}%, four {spread(found[4, 4][0])}%. One head can look "
        "at two items, but it returns their average, and which value belongs to which name is lost. After 5 epochs, "
        f"wide heads are at {early['wide']:.0f}%, standard heads at {early['standard']:.0f}% and narrow heads at "
        f"{early['narrow']:.0f}%; the table has where they end.",
        agrees=bool(correct[1, 1].min() > 95 and correct[2, 1].max() < 75 and correct[2, 4].min() > 95),
    )


if __name__ == "__main__":
    run(__file__, main)
