"""Plots of attention and of training, written as PNG files; they need matplotlib (`pip install 'keras_tfm[plot]'`)."""

from __future__ import annotations

import os
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, check

if TYPE_CHECKING:
    import keras_tfm

__all__ = ["attention_map", "learning_curve", "translation_map"]


def __dir__():
    return __all__


def attention_map(
    weights: np.ndarray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    path: str | os.PathLike[str],
    title: str | None = None,
    axes_names: tuple[str, str] = ("query", "key"),
) -> None:
    """Plots each head of an attention layer, queries from top to bottom and keys from left to right.

    Args:
        weights: (heads, query, key), as `record_attention` returns them for one row of a batch.
        query_labels, key_labels: a string for each query and each key.
        path: file to write.
        title: title of the figure.
        axes_names: labels of the two axes.

    >>> import tempfile, os
    >>> file = os.path.join(tempfile.mkdtemp(), "map.png")
    >>> attention_map(np.eye(3)[None], "abc", "abc", file)
    >>> os.path.getsize(file) > 1000
    True
    """
    weights = np.asarray(weights)
    if weights.ndim != 3 or 0 in weights.shape or weights.shape[1:] != (len(query_labels), len(key_labels)):
        raise UserError(
            "`weights` must have the shape (heads, query, key), with no dimension of size zero, and a label per query "
            f"and key. Received: shape {weights.shape}, {len(query_labels)} query labels, {len(key_labels)} key labels"
        )
    labels = [[_printable(label) for label in labels] for labels in (query_labels, key_labels)]
    columns, size = _layout(*weights.shape, *labels)
    figure = _figure(*size, "compressed")
    axes = figure.subplots(-(-len(weights) // columns), columns, squeeze=False)
    for head, axis in enumerate(axes.flat):
        if head >= len(weights):
            axis.set_visible(False)
            continue
        image = _draw_head(axis, weights[head], *labels)
        if len(weights) > 1:
            axis.set_title(f"head {head + 1}", fontsize=10, pad=4)
        if head % columns == 0:
            axis.set_ylabel(axes_names[0])
        if head + columns >= len(weights):
            axis.set_xlabel(axes_names[1])
    bar = figure.colorbar(image, ax=axes[0], label="attention", ticks=(0, 0.5, 1), fraction=0.05, pad=0.02)
    bar.outline.set(edgecolor="lightgray", linewidth=0.5)
    if title:
        lines = (textwrap.fill(line, max(40, int(11 * size[0]))) for line in map(_printable, title.split("\n")))
        figure.text(0, 1, "\n".join(lines), fontsize=12, va="bottom")
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)


def _draw_head(axis, weights, query_labels, key_labels):
    slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _slanted(key_labels) else {}
    axis.set_xticks(range(len(key_labels)), key_labels, **slant)
    axis.set_yticks(range(len(query_labels)), query_labels)
    axis.tick_params(length=0, labelsize=9)
    axis.spines[:].set_visible(False)
    return axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)


def _slanted(key_labels):
    return max(map(len, key_labels)) > 3


WIDE, SMALLEST, LARGEST = 16, 0.17, 0.45  # inches: all columns, where squares can be so small; side of a square


def _layout(heads, queries, keys, query_labels, key_labels):
    """In how many columns the heads are drawn, and the size of the figure in inches."""
    left, below = (0.09 * max(map(_width, labels)) for labels in (query_labels, key_labels))
    left, below = left + 0.35, (0.7 * below if _slanted(key_labels) else 0.1) + 0.5
    readable = max(0.28, 2 / max(queries, keys))  # a map of few tokens has larger squares
    square = max(SMALLEST, min(LARGEST, readable, (WIDE - left) / keys))
    width, height = keys * square + left, queries * square + below
    rows = -(-heads // max(1, int(WIDE / width)))
    columns = -(-heads // rows)
    return columns, (columns * width + 0.8, rows * height)  # 0.8 for the colour bar


def translation_map(
    translator: keras_tfm.Translator, text: str, path: str | os.PathLike[str], layer: int = -1, mean: bool = False
) -> str:
    """Translates a sentence, plots what each token of the translation attends to, and returns the translation.

    Args:
        translator: a `Translator`. For an ensemble, the first model is plotted.
        text: a sentence.
        path: file to write.
        layer: index of the attention layer, one per decoder block, from 0; -1 is the last.
        mean: plots the mean of the heads, an alignment, instead of each head.
    """
    from keras_tfm.layers.recording import record_attention
    from keras_tfm.text.arrays import model_inputs, padded

    model = translator.models[0]
    attentions = model.decoder.memory_attentions
    check("translator", model.name, attentions, "one whose model attends to the source")
    layers = range(-len(attentions), len(attentions))
    check("layer", layer, layer in layers, f"one of {layers[0]} … {layers[-1]}")
    check("text", text, text.strip(), "a text that is not blank")
    (translation,) = translator([text])
    (source,), (target,) = translator.source_tokenizer.encode([text]), translator.target_tokenizer.encode([translation])
    with record_attention() as maps:
        model(model_inputs(*(padded([ids], len(ids) + 1) for ids in (source, target)), model.arguments.get("packed")))
    weights = maps[attentions[layer].path][0][0]  # (heads, target, source)
    weights = weights.mean(0, keepdims=True) if mean else weights
    labels = [
        [piece.replace("▁", " ").strip() or "␣" for piece in tokenizer.pieces(string)] + ["end"]
        for tokenizer, string in ((translator.target_tokenizer, translation), (translator.source_tokenizer, text))
    ]
    attention_map(weights, *labels, path, f"{text}\n→ {translation}", ("translation", "source"))
    return translation


def learning_curve(history: Sequence[Mapping[str, float]], path: str | os.PathLike[str]) -> None:
    """Plots loss and accuracy by epoch, for training and, if there is any, for validation.

    Args:
        history: a dict for each epoch: `epoch`, `loss` and, optionally, `accuracy`, `val_loss`, `val_accuracy`.
        path: file to write.

    >>> import tempfile, os
    >>> file = os.path.join(tempfile.mkdtemp(), "curve.png")
    >>> learning_curve([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0}], file)
    >>> os.path.getsize(file) > 1000
    True
    """
    names = [name for name in ("loss", "accuracy") if history and name in history[0]]
    if not names:
        raise UserError(f"`history` must contain `epoch` and `loss` for each epoch. Received: {history}")
    figure = _figure(4.5 * len(names), 3.2)
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            points = [(row["epoch"], row[key]) for row in history if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else None)
        axis.set(xlabel="epoch", ylabel=name)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _figure(width, height, layout="constrained"):
    # not by pyplot, which needs a display and keeps global state
    return extras.load("matplotlib.figure").Figure(figsize=(width, height), layout=layout)


def _width(text):
    """Width of a text, in characters of Latin letters."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _printable(text):
    """Escapes control characters, and dollar signs, which would start a formula."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).replace("$", r"\$")
