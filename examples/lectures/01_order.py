"""Without positions, self-attention cannot see word order: reorder the words, and the outputs move along unchanged."""

import keras
import numpy as np
from lecture import Result, panels, run

from keras_tfm.layers import TransformerEncoder

SCHEMES = (None, "sinusoidal", "learned", "index", "rotary", "relative", "alibi")
WORDS = np.array(["i", "walk", "my", "dog", "every", "day"])
WIDTH = 32


def encode(x, positions, **options):
    """Two untrained encoder blocks, the same for all position schemes."""
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 2, "num_heads": 4, "ff_dim": 64, "max_length": len(WORDS)}
    return np.array(TransformerEncoder(**sizes, positions=positions, **options)(x))


def main(orders=100):
    rng = np.random.default_rng(0)
    words = rng.normal(size=(len(WORDS), WIDTH)).astype("float32")  # a random vector for each
    orders = [np.arange(6), [4, 5, 0, 1, 2, 3], *(rng.permutation(6) for _ in range(orders))]
    x = words[np.array(orders)]  # (orders, words, features)
    outputs = {str(positions or "none"): encode(x, positions) for positions in SCHEMES}
    outputs["none, causal"] = encode(x, None, causal=True)
    moved = {name: y - y[0][np.array(orders)] for name, y in outputs.items()}  # f(P x) - P f(x)
    rows = [
        [name, abs(moved[name]).max(), abs(y - y[0]).max(), abs(y.mean(1) - y[0].mean(0)).max()]
        for name, y in outputs.items()
    ]

    figure, axes = panels("Without positions, self-attention cannot see word order", 4, width=3.6)
    maps = {
        "no positions": (0, outputs["none"], 2.5),
        "no positions, reordered:\neach word keeps its row": (1, outputs["none"], 2.5),
        "sinusoids, reordered:\nchange of each word's row": (1, moved["sinusoidal"], 1),
    }
    for axis, (title, (order, y, limit)) in zip(axes, maps.items(), strict=False):
        image = axis.imshow(y[order], aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit)
        figure.colorbar(image, ax=axis)
        axis.set(xlabel="feature of the output", yticks=range(6), yticklabels=WORDS[orders[order]])
        axis.set_title(title, fontsize=10)
        axis.grid(False)
    changes = {name: change for name, change, *_ in rows[::-1]}
    colors = ["C1" if change < 1e-4 else "C0" for change in changes.values()]
    axes[3].barh(list(changes), changes.values(), color=colors)
    axes[3].set(xscale="log", xlim=(1e-8, 50), xlabel="largest change of a word's output")
    axes[3].set_title(f"by position scheme,\n{len(orders) - 1} orders", fontsize=10)

    _, of_word, of_place, of_mean = rows[0]
    return Result(
        figure,
        ["positions", "largest change of a word's output", "of a place's output", "of the mean output"],
        rows,
        "Attention is position invariant",
        "NLU Lecture 10, A bigger architecture",
        "Without positions, reordering the words changes no word's output, up to rounding "
        f"({of_word:.0e}); it moves along with the word. The exact word for that is equivariant: the output at a given "
        f"place does change (by up to {of_place:.1f}); only what is pooled over all words, such as their mean, is "
        f"invariant ({of_mean:.0e}). Every position scheme makes order visible, and so does a causal mask alone "
        f"({changes['none, causal']:.1f}).",
        agrees=bool(of_place < 1e-4),
    )


if __name__ == "__main__":
    run(__file__, main)
