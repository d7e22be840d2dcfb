"""Small helpers for tensors whose shape or value may not be known yet."""

from keras import ops

from keras_tfm.ops.private import set_keras_mask


def without_mask(x):
    """`x`, after removing its Keras mask."""
    set_keras_mask(x, None)
    return x


def static_reshape(x, shape):
    """`ops.reshape`, but a graph need not compute the one size that it does not know."""
    known = [size for size in shape if isinstance(size, int)]
    if len(known) == len(shape) - 1 and all(known):
        shape = [size if isinstance(size, int) else -1 for size in shape]
    return ops.reshape(x, shape)


def known_value(value):
    """`value` as an int, or None if it is only known when a graph runs."""
    try:
        return int(value)
    except (TypeError, NotImplementedError):  # raised by JAX and TensorFlow for symbolic tensors
        return None


def additive_mask(mask):
    """A mask as a bias to add to scores: 0 where it is True, -1e30 where it is False. Each query must see some key.

    >>> ops.convert_to_numpy(additive_mask([[True, False]]) < -1e29).tolist()
    [[False, True]]
    """
    return ops.cast(ops.logical_not(mask), "float32") * -1e30


def masked_softmax(scores, mask=None):
    """Softmax over the last axis, where the mask is True; each row must have such a place."""
    scores = scores if mask is None else scores + additive_mask(mask)
    single = scores.shape[-1] == 1  # Keras' softmax warns about an axis of size one
    return scores - scores + 1 if single else ops.softmax(scores)


def group_heads(x, heads):
    """Regroups rows under another number of heads: (b, g, n, d) → (b, heads, n · g / heads, d)."""
    batch, groups, rows, dim = ops.shape(x)
    return x if groups == heads else static_reshape(x, (batch, heads, rows * groups // heads, dim))


def swap_heads(x):
    """(b, t, g, d) ↔ (b, g, t, d); without a copy if there is one token or one head."""
    if 1 in x.shape[1:3]:
        batch, first, second, dim = ops.shape(x)
        return static_reshape(x, (batch, second, first, dim))
    return ops.transpose(x, (0, 2, 1, 3))
