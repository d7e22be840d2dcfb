"""Attention maps of any model, recorded while it runs."""

import contextlib
import contextvars
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.ops.runtime import setting

# The dicts that attention maps are added to, and whether as arrays: (maps, as_arrays) for each open context.
_open = contextvars.ContextVar("open contexts", default=())
_places = contextvars.ContextVar("places of the queries that are recorded", default=None)


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
    with setting(_open, (*_open.get(), (maps, True))):
        yield maps
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
    with setting(_open, (*_open.get(), (maps, False))):
        yield maps


def paused():
    """A context in which nothing that this thread calls is recorded."""
    return setting(_open, ())


def queries_at(places):
    """A context in which recorded queries are taken from these places (batch, query): where they were moved to."""
    return setting(_places, places)


def is_on():
    """Whether a context of this thread is open."""
    return bool(_open.get())


def record(path, weights):
    """Adds the weights (batch, heads, query, key) of a layer to all open contexts."""
    if is_on() and _places.get() is not None:
        queries = ops.take_each(ops.transpose(weights, (0, 2, 1, 3)), _places.get())
        weights = ops.transpose(queries, (0, 2, 1, 3))
    for maps, as_arrays in _open.get():
        maps.setdefault(path, []).append(_array(path, weights) if as_arrays else weights)


def _array(path, weights):
    try:
        return ops.convert_to_numpy(weights)
    except Exception as error:  # each backend raises its own for a symbolic tensor
        raise RuntimeError(
            "`record_attention` needs layers that run eagerly: call the model itself, `model(x)`, not `predict` or "
            f"another compiled function. Received: a compiled call of {path!r}"
        ) from error
