"""`keras.ops`, and what it lacks or does slowly. Use it in its place: `from keras_tfm import ops`.

Each function below looks up, in one place, how the program that is being traced computes it: by the backend of Keras
(`jax.py`, `tensorflow.py`, `torch.py`, or the definition in `plain.py`), or by the runtime of an export
(`keras_tfm.runtimes`).
"""

from keras.ops import *  # noqa: F403

from keras_tfm.ops.chosen import crossentropy, random_bits, relu, to_numpy
from keras_tfm.ops.runtime import current, take_each, using
from keras_tfm.ops.tensors import (
    as_integer,
    group_heads,
    hide,
    known_value,
    static_reshape,
    swap_heads,
    without_mask,
)


def dense(x, *layers):
    """Outputs of dense layers of Keras that share their input (…, features)."""
    return current().dense(x, *layers)


def logits(x, table):
    """Products of x (…, features) with all rows of a table (size, features): (…, size)."""
    return current().logits(x, table)


def attention(q, k, v, key_mask=None, causal=False):
    """Scaled dot-product attention; see `plain.attention`."""
    return current().attention(q, k, v, key_mask, causal)


def layer_norm(layer, x):
    """The output of Keras' `LayerNormalization`."""
    return current().layer_norm(layer, x)


def embed(table, ids):
    """Rows of a table (size, features) for ids (…): (…, features)."""
    return current().embed(table, ids)


def best_k(x, k, without=()):
    """The k highest values of x (rows, size), highest first, and their places; columns in `without` count as -1e9."""
    return current().best_k(x, k, without)


def log_normalizer(logits, values, ids):
    """log Σ exp(logits), (rows, 1), given the values and ids of some of the highest logits."""
    return current().log_normalizer(logits, values, ids)


def recurrent(layer, x, states):
    """Runs a recurrent layer of Keras over x (b, t, features) from its states: outputs (b, t, units), new states."""
    return current().recurrent(layer, x, states)


def take(x, places, axis=None):
    """Entries of x along an axis; places are not negative."""
    return current().take(x, places, axis=axis)


def slice_update(x, starts, updates):
    """x with a slice that begins at `starts` replaced by `updates`."""
    return current().slice_update(x, starts, updates)
