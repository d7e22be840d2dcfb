"""Without positions, self-attention cannot see word order; without queries and keys, a word looks at itself."""

import keras
import numpy as np
from lecture import Result, bars, chance, heat_map, interval, panels, run, stated
from measure import trained

from keras_tfm.layers import TransformerEncoder

SCHEMES = (None, "sinusoidal", "learned", "index", "rotary", "relative", "alibi")
WORDS = np.array(["i", "walk", "my", "dog", "every", "day"])
WIDTH, LETTERS, COLOURS = 32, 8, 4
OTHER = [4, 5, 0, 1, 2, 3]  # every day i walk my dog
CHANGED = "a word's output", "the output at a place", "the mean"
PARTS = {"": "none: softmax(XXᵀ) X", "q": "W_q", "qk": "W_q and W_k", "qkv": "W_q, W_k and W_v"}


def encode(x, positions, seed, **options):
    """Two untrained encoder blocks, the same for all position schemes."""
    keras.utils.set_random_seed(seed)
    sizes = {"num_layers": 2, "num_heads": 4, "ff_dim": 64, "max_length": len(WORDS)}
    return np.array(TransformerEncoder(**sizes, positions=positions, **options)(x))


def reorder(orders, seed):
    """Outputs without positions; the largest change of a word's row, of a place's and of the mean; the schemes."""
    rng = np.random.default_rng(seed)
    words = rng.normal(size=(len(WORDS), WIDTH)).astype("float32")  # a random vector for each
    orders = np.array([np.arange(6), OTHER, *(rng.permutation(6) for _ in range(orders))])
    outputs = {str(positions or "none"): encode(words[orders], positions, seed) for positions in SCHEMES}
    outputs["none, causal"] = encode(words[orders], None, seed, causal=True)
    changes = [[y - y[0][orders], y - y[0], y.mean(1) - y[0].mean(0)] for y in outputs.values()]  # f(PX) − P f(X), …
    return outputs["none"], [[abs(change).max() for change in each] for each in changes], [*outputs]


def neighbours(count, seed):
    """All letters in random order, each in a colour; for each, the colour of the next letter of the alphabet."""
    rng = np.random.default_rng(seed)
    letters = rng.permuted(np.tile(np.arange(LETTERS), (count, 1)), axis=1)
    colours = rng.integers(0, COLOURS, (count, LETTERS))  # of A, B, …
    return [letters, np.take_along_axis(colours, letters, 1)], np.take_along_axis(colours, (letters + 1) % LETTERS, 1)


def one_layer(parts):
    """A layer of self-attention with the matrices of `parts`, and a linear layer that names the colours."""
    letters, colours = (keras.Input((LETTERS,), dtype="int32") for _ in range(2))
    x = keras.layers.Embedding(LETTERS, WIDTH)(letters) + keras.layers.Embedding(COLOURS, WIDTH)(colours)
    q, k, v = (keras.layers.Dense(WIDTH, use_bias=False)(x) if part in parts else x for part in "qkv")
    weights = keras.layers.Softmax(name="weights")(keras.ops.matmul(q, keras.ops.swapaxes(k, 1, 2)))
    return keras.Model([letters, colours], keras.layers.Dense(COLOURS)(keras.ops.matmul(weights, v)))


def learn(parts, seeds, examples):
    """Share of colours named correctly, in %, by seed, and the weights of A to H in this order."""
    right, (x, y) = [], neighbours(500, 99)
    sizes = {"seeds": seeds, "epochs": 5, "learning_rate": 1e-2}
    for _, model, _ in trained(PARTS[parts], lambda: one_layer(parts), lambda n: neighbours(examples, n), **sizes):
        right.append(100 * (model.predict(x, verbose=0).argmax(-1) == y).mean())
    weights = keras.Model(model.inputs, model.get_layer("weights").output)
    return np.array(right), weights.predict([np.sort(x[0]), x[1]], verbose=0).mean(0)


def main(seeds=5, orders=50, examples=6400):
    found = [reorder(orders, seed) for seed in range(seeds)]
    changes, names = np.array([each for _, each, _ in found]), found[0][2]  # (seeds, schemes, 3)
    learned = {parts: learn(parts, seeds, examples) for parts in PARTS}
    cells = ["< 0.00001" if max(v) < 1e-5 else stated(v) for v in changes.T.reshape(-1, seeds)]
    rows = [[name, *cells[number :: len(names)], "–"] for number, name in enumerate(names)]
    rows += [[f"none; {PARTS[parts]}", "–", "–", "–", stated(right)] for parts, (right, _) in learned.items()]
    first, axes = panels("Reorder the words: without positions, the outputs only move along", 2)
    for axis, number, title in zip(axes, (0, 1), ("as they are", "reordered: each row moves along"), strict=True):
        words = WORDS if number == 0 else WORDS[OTHER]
        heat_map(axis, found[0][0][number], words, title=title, cmap="RdBu", vmin=-2.5, vmax=2.5)
        axis.set_xlabel("feature of the output")
    mean, half = interval(changes[:, ::-1, 0])
    title = "Every position scheme shows word order, and so does a causal mask"
    second, (axis,) = panels(title if mean[:-1].min() > 1e-4 else "Not every scheme shows word order", 1, 6.5, 4.2)
    axis.errorbar(mean, names[::-1], xerr=[np.minimum(half, 0.9 * mean), half], fmt="o", capsize=4)
    axis.set(xscale="log", xlim=(1e-8, 50), xticks=(1e-6, 1e-3, 1), xlabel="largest change of a word's output")
    third, axes = panels("Queries and keys let a letter look at another: here, the next one", 2, 4.6, 4.2)
    for axis, parts, title in zip(axes, ("", "qkv"), ("no matrices", "W_q, W_k and W_v"), strict=True):
        heat_map(axis, learned[parts][1], "ABCDEFGH", "ABCDEFGH", title, cmap="Blues", vmin=0, vmax=1)
        axis.set(xlabel="looks at", ylabel="letter")
    third.colorbar(axis.images[0], ax=axes, label="weight")
    right = {parts: right for parts, (right, _) in learned.items()}
    enough = "enough" if right["q"].mean() > 99 else "not enough"
    fourth, (axis,) = panels(f"One matrix is {enough} to look at another word", 1, 5.5, 4.2)
    bars(axis, ["none", "W_q", "W_q,\nW_k", "W_q, W_k,\nW_v"], np.stack([*right.values()], axis=1))
    axis.set(ylabel="colours of the next letter, % correct", ylim=(0, 105), xlabel="matrices of the layer")
    chance(axis, 100 / COLOURS)
    axis.legend(loc="upper left", frameon=False)
    (word, place, pooled), seen = changes[:, 0].max(0), changes[:, 1:, 0].min()
    none, *some = (f"{stated(values)} %" for values in right.values())
    return Result(
        [first, second, third, fourth],
        ["positions; matrices", *map("change of {}".format, CHANGED), "% correct"],
        rows,
        "Attention is position invariant",
        "NLU Lecture 10, A bigger architecture",
        [
            "Attention without positions is not invariant, which would be f(PX) = f(X) for every reordering P, but "
            f"equivariant, f(PX) = P f(X): the output at a given place changes by up to {place:.1f}.",
            "Without positions, word order is invisible: in any order, each word's output is the same up to rounding "
            f"(at most {word:.0e} in {seeds} random models), and so is what is pooled over all words ({pooled:.0e}).",
            f"Every position scheme shows the order of the words, by {seen:.2g} or more; so does a causal mask alone.",
            "Asked for the colour of the next letter of the alphabet, attention without matrices, softmax(XXᵀ) X, is "
            f"right in {none} (chance: {100 / COLOURS:.0f} %), as xᵢ · xⱼ is the same in both directions; with W_q, in "
            f"{some[0]}, with W_k as well, in {some[1]}, and with W_v, in {some[2]}. A score needs one matrix between "
            "two words, W_q W_kᵀ; behind one head, W_v adds nothing that the linear layer after it could not.",
        ],
        limits="The equation holds for any weights; the sizes of the changes are those of untrained blocks, and say "
        "nothing about how well a model learns with a scheme. The letters are one task, which needs a direction.",
        verdict="the notes are wrong" if word < 1e-4 < place else "holds" if place < 1e-4 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
