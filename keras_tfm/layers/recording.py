"""Attention maps of any model, recorded while it runs."""

import contextlib
import contextvars
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.ops import take_each

_captures = contextvars.ContextVar("attention maps as tensors: one dict per open context", default=())
_places = contextvars.ContextVar("places of the queries that are recorded", default=None)
_recordings = contextvars.ContextVar("attention maps as arrays: one dict per open context", default=())


@contextlib.contextmanager
def record_attention() -> Iterator[dict[str, list[np.ndarray]]]:
    """Records the maps of all attention layers that this thread calls inside the context, in any model.

    Gives a dict from the path of each layer to a list of arrays (batch, heads, query, key), one per call. Call the
    model itself: `predict`, `evaluate` and `fit` compile it, and compiled layers cannot be recorded. For many rows
    there is `attention_maps`.

    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=2, name="attention")
    >>> with record_attention() as maps:
    ...     y = layer(ops.ones((1, 3, 4)))
    >>> maps["attention"][0].shape
    (1, 2, 3, 3)
    """
    maps = {}
    token = _recordings.set((*_recordings.get(), maps))
    try:
        yield maps
    finally:
        _recordings.reset(token)
    if not maps:
        warnings.warn("No attention was recorded: call the model itself, `model(x)`, in the context.", stacklevel=3)


def attention_maps(model: keras.Model, inputs: Any, batch_size: int = 32) -> dict[str, np.ndarray]:
    """The attention maps of a model for many rows of inputs: {path of a layer: (rows, heads, query, key)}.

    Takes an array, or a list or dict of arrays, as `model.predict` does, and calls the model on `batch_size` rows each.

    >>> from keras_tfm.models import encoder_classifier
    >>> maps = attention_maps(encoder_classifier(9, 2, num_layers=1, model_dim=8, num_heads=2), np.ones((3, 5)), 2)
    >>> maps["encoder/encoder_0/attention"].shape
    (3, 2, 5, 5)
    """
    rows = len(keras.tree.flatten(inputs)[0])
    # Keras on JAX moves the weights out of a model while `fit` or `predict` runs in another thread.
    with getattr(model, "running", contextlib.nullcontext()), record_attention() as maps:
        for first in range(0, rows, batch_size):
            model(keras.tree.map_structure(lambda x: x[first : first + batch_size], inputs))  # noqa: B023
    return {path: np.concatenate(calls) for path, calls in maps.items()}


@contextlib.contextmanager
def capture_attention():
    """Collects the maps of attention layers as tensors, for use within the same compiled function."""
    maps = {}
    token = _captures.set((*_captures.get(), maps))
    try:
        yield maps
    finally:
        _captures.reset(token)


@contextlib.contextmanager
def paused():
    """Nothing that this thread calls inside is recorded."""
    tokens = _captures.set(()), _recordings.set(())
    try:
        yield
    finally:
        _captures.reset(tokens[0])
        _recordings.reset(tokens[1])


@contextlib.contextmanager
def queries_at(places):
    """Queries that this thread records inside are taken from these places (batch, query): where they were moved to."""
    token = _places.set(places)
    try:
        yield
    finally:
        _places.reset(token)


def record(path, weights):
    """Adds the weights (batch, heads, query, key) of a layer to all open contexts."""
    if _places.get() is not None:
        queries = take_each(ops.transpose(weights, (0, 2, 1, 3)), _places.get())
        weights = ops.transpose(queries, (0, 2, 1, 3))
    for maps in _captures.get():
        maps.setdefault(path, []).append(weights)
    if not _recordings.get():
        return
    try:
        weights = ops.convert_to_numpy(weights)
    except Exception as error:  # each backend raises its own for a symbolic tensor
        raise RuntimeError(
            "`record_attention` needs layers that run eagerly: call the model itself, `model(x)`, not `predict` or "
            f"another compiled function. Received: a compiled call of {path!r}"
        ) from error
    for maps in _recordings.get():
        maps.setdefault(path, []).append(weights)


def recording():
    """Whether a context of this thread is open."""
    return bool(_recordings.get() or _captures.get())
