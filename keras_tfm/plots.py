"""Plots of attention and of training, written as PNG files; they need matplotlib (`pip install 'keras_tfm[plot]'`)."""

import textwrap

import numpy as np

from keras_tfm import extras
from keras_tfm.arguments import check


def attention_map(weights, query_labels, key_labels, path, title=None, axes_names=("query", "key")):
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
        raise ValueError(
            "`weights` must have the shape (heads, query, key), with no dimension of size zero, and a label per query "
            f"and key. Received: shape {weights.shape}, {len(query_labels)} query labels, {len(key_labels)} key labels"
        )
    query_labels, key_labels = ([_printable(label) for label in labels] for labels in (query_labels, key_labels))
    heads, queries, keys = weights.shape
    columns = min(heads, 4)
    rows = -(-heads // columns)
    figure = _figure(columns * max(2.6, 0.3 * keys) + 1.5, rows * max(2.6, 0.3 * queries) + 0.7)
    slanted = max(map(len, key_labels)) > 3
    for head, axis in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        if head >= heads:
            axis.remove()
            continue
        image = axis.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(keys), key_labels, rotation=45 * slanted, ha="right" if slanted else "center")
        axis.set_yticks(range(queries), query_labels)
        axis.tick_params(length=0, labelsize=9)
        axis.spines[:].set_visible(False)
        if heads > 1:
            axis.set_title(f"head {head + 1}", fontsize=10)
        if head % columns == 0:
            axis.set_ylabel(axes_names[0])
        if head + columns >= heads:
            axis.set_xlabel(axes_names[1])
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="attention")
    if title:
        lines = (textwrap.fill(line, int(11 * figure.get_figwidth())) for line in map(_printable, title.split("\n")))
        figure.suptitle("\n".join(lines), fontsize=11, y=1.02, va="bottom")
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)


def translation_map(translator, text, path, layer=-1, mean=False):
    """Translates a sentence, plots what each token of the translation attends to, and returns the translation.

    Args:
        translator: a `Translator`. For an ensemble, the first model is plotted.
        text: a sentence.
        path: file to write.
        layer: index of the attention layer, one per decoder block, from 0; -1 is the last.
        mean: plots the mean of the heads, an alignment, instead of each head.
    """
    from keras_tfm.batches import model_inputs, padded
    from keras_tfm.recording import record_attention

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


def learning_curve(history, path):
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
        raise ValueError(f"`history` must contain `epoch` and `loss` for each epoch. Received: {history}")
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


def _figure(width, height):
    # not by pyplot, which needs a display and keeps global state
    return extras.load("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _printable(text):
    """Escapes control characters, and dollar signs, which would start a formula."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).replace("$", r"\$")
