"""Pictures of what a model does; they need the extra `plot`."""

import textwrap

import numpy as np


def attention_map(weights, query_labels, key_labels, path, title=None, axes_names=("query", "key")):
    """Writes the heads of one attention layer as a PNG, queries downwards and keys across.

    Args:
        weights: (heads, query, key), as `record_attention` gives them for one row of a batch.
        query_labels, key_labels: a word for each query and each key.
        path: file to write.
        title: headline.
        axes_names: what to write beside and below.

    >>> import tempfile, os
    >>> file = os.path.join(tempfile.mkdtemp(), "map.png")
    >>> attention_map(np.eye(3)[None], "abc", "abc", file)
    >>> os.path.getsize(file) > 1000
    True
    """
    weights = np.asarray(weights)
    if weights.ndim != 3 or 0 in weights.shape or weights.shape[1:] != (len(query_labels), len(key_labels)):
        raise ValueError(
            "`weights` must be (heads, query, key), none of them zero, with a label for each query and key. Received: "
            f"weights.shape={weights.shape}, {len(query_labels)} query labels, {len(key_labels)} key labels"
        )
    figure_class = _figure_class()
    query_labels, key_labels = ([_shown(label) for label in labels] for labels in (query_labels, key_labels))
    heads, queries, keys = weights.shape
    columns = min(heads, 4)
    rows = -(-heads // columns)
    width, height = max(2.6, 0.3 * keys), max(2.6, 0.3 * queries)
    figure = figure_class(figsize=(columns * width + 1.5, rows * height + 0.7), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for head, axis in enumerate(axes.flat):
        if head >= heads:
            axis.remove()
            continue
        image = axis.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
        slanted = max(map(len, key_labels)) > 3
        axis.set_xticks(range(keys), key_labels, rotation=45 * slanted, ha="right" if slanted else "center")
        axis.set_yticks(range(queries), query_labels)
        axis.tick_params(length=0, labelsize=9)
        if heads > 1:
            axis.set_title(f"head {head + 1}", fontsize=10)
        axis.spines[:].set_visible(False)
        if head % columns == 0:
            axis.set_ylabel(axes_names[0])
        if head + columns >= heads:
            axis.set_xlabel(axes_names[1])
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="attention")
    if title:
        lines = (textwrap.fill(line, int(11 * figure.get_figwidth())) for line in map(_shown, title.split("\n")))
        figure.suptitle("\n".join(lines), fontsize=11, y=1.02, va="bottom")
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.15)


def _shown(text):
    """Text as it is to be drawn: control characters by their codes, and dollars that begin no formula."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).replace("$", r"\$")


def translation_map(translator, text, path, layer=-1, mean=False):
    """Translates a sentence and writes what each token of the translation attends to, as a PNG.

    Args:
        translator: a `Translator`.
        text: a sentence.
        path: file to write.
        layer: block of the decoder, counted from 0; -1 is the last.
        mean: whether to draw the mean of the heads, an alignment, in place of each head.

    Returns:
        the translation.
    """
    from keras_tfm.batches import model_inputs, padded
    from keras_tfm.recording import record_attention

    model = translator.models[0]
    names = [layer.name for layer in model.layers if layer.name.startswith("decoder_") and hasattr(layer, "attention")]
    if not -len(names) <= layer < len(names):
        raise ValueError(f"`layer` must be one of {-len(names)} … {len(names) - 1}. Received: {layer=}")
    if not text.strip():
        raise ValueError(f"`text` must have a word. Received: {text=}")
    (translation,) = translator([text])
    (source,), (target,) = translator.source_tokenizer.encode([text]), translator.target_tokenizer.encode([translation])
    with record_attention() as maps:
        model(model_inputs(*(padded([ids], len(ids) + 1) for ids in (source, target)), model.arguments.get("packed")))
    weights = maps[model.get_layer(names[layer]).memory_attention.path][0][0]  # (heads, target, source)
    sides = ((translator.target_tokenizer, translation), (translator.source_tokenizer, text))
    labels = [
        [piece.replace("▁", " ").strip() or "␣" for piece in tokenizer.pieces(string)] + ["end"]
        for tokenizer, string in sides
    ]
    weights = weights.mean(0, keepdims=True) if mean else weights
    attention_map(weights, *labels, path, f"{text}\n→ {translation}", ("translation", "source"))
    return translation


def mask_map(mask, path, title=None):
    """Writes a mask (query, key) or (1, query, key) as a PNG: where attention may go is dark.

    >>> import tempfile, os
    >>> from keras_tfm.layers import masks
    >>> file = os.path.join(tempfile.mkdtemp(), "mask.png")
    >>> mask_map(masks.causal(6, 6), file)
    >>> os.path.getsize(file) > 1000
    True
    """
    mask = np.asarray(mask)
    if mask.ndim < 2 or 0 in mask.shape or mask.size != np.prod(mask.shape[-2:]):
        raise ValueError(f"`mask` must be one of (query, key), none of them zero. Received: mask.shape={mask.shape}")
    mask = mask.reshape(mask.shape[-2:])
    figure = _figure_class()(figsize=(1.5 + 0.3 * mask.shape[1], 1.2 + 0.3 * mask.shape[0]), layout="constrained")
    axis = figure.subplots()
    axis.pcolormesh(mask, cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=1)
    axis.invert_yaxis()
    axis.set_aspect("equal")
    axis.set(xlabel="key", ylabel="query", title=title)
    axis.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
    axis.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)


def position_curves(encoding, path, title=None):
    """Writes an encoding of positions (length, dim) as a PNG: all of it as a map, and some of its curves.

    >>> import tempfile, os
    >>> from keras_tfm.layers import sinusoids
    >>> file = os.path.join(tempfile.mkdtemp(), "positions.png")
    >>> position_curves(sinusoids(np.arange(60), 32), file)
    >>> os.path.getsize(file) > 1000
    True
    """
    encoding = np.asarray(encoding)
    if encoding.ndim != 2 or 0 in encoding.shape:
        raise ValueError(f"`encoding` must be (length, dim). Received: encoding.shape={encoding.shape}")
    figure = _figure_class()(figsize=(10, 3.4), layout="constrained")
    whole, some = figure.subplots(1, 2)
    limit = np.abs(encoding).max() or 1
    image = whole.imshow(encoding.T, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    whole.set(xlabel="position", ylabel="feature")
    figure.colorbar(image, ax=whole)
    for feature in sorted({0, encoding.shape[1] // 8, encoding.shape[1] // 4, encoding.shape[1] // 2}):
        some.plot(encoding[:, feature], label=f"feature {feature}")
    some.set(xlabel="position")
    some.spines[["top", "right"]].set_visible(False)
    some.grid(alpha=0.3)
    some.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)


def schedule_curve(schedules, steps, path):
    """Writes learning rates by step as a PNG.

    Args:
        schedules: a dict, name → `keras.optimizers.schedules.LearningRateSchedule`.
        steps: how many steps to draw.
        path: file to write.

    >>> import tempfile, os
    >>> from keras_tfm.training import SCHEDULES
    >>> file = os.path.join(tempfile.mkdtemp(), "schedule.png")
    >>> schedule_curve({name: make(0.002, 100, 1000) for name, make in SCHEDULES.items()}, 1000, file)
    >>> os.path.getsize(file) > 1000
    True
    """
    figure = _figure_class()(figsize=(5.5, 3.2), layout="constrained")
    axis = figure.subplots()
    places = np.unique(np.linspace(0, steps - 1, 200).astype(int))
    for name, schedule in schedules.items():
        axis.plot(places, [float(schedule(int(step))) for step in places], label=name)
    axis.set(xlabel="step", ylabel="learning rate")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def learning_curve(history, path):
    """Writes loss and accuracy by epoch as a PNG, of training and, where there is one, of validation.

    Args:
        history: a list of dicts, one for each epoch, with `epoch`, `loss`, `accuracy`, `val_loss`, `val_accuracy`.
        path: file to write.

    >>> import tempfile, os
    >>> file = os.path.join(tempfile.mkdtemp(), "curve.png")
    >>> learning_curve([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0}], file)
    >>> os.path.getsize(file) > 1000
    True
    """
    names = [name for name in ("loss", "accuracy") if history and name in history[0]]
    if not names:
        raise ValueError(f"`history` must have `epoch` and `loss` of each epoch. Received: {history}")
    figure = _figure_class()(figsize=(4.5 * len(names), 3.2), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            points = [(row["epoch"], row[key]) for row in history if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else None)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(name)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _figure_class():
    try:
        from matplotlib.figure import Figure  # without pyplot: no display, no global state
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'keras_tfm[plot]'") from error
    return Figure
