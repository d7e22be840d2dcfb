"""Positions: encodings that join the features of each token, and schemes that act inside self-attention.

Axes: b batch, t time, h heads, d head_dim.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, one_of, positive
from keras_tfm.layers.base import Layer, as_integer, check_sequence, options_of

ENCODINGS = ("sinusoidal", "learned", "index")  # kinds of `PositionalEncoding`
COMBINATIONS = ("add", "concat")  # how they join the features


def sinusoids(positions: Any, dim: int, max_wavelength: float = 10000.0) -> Any:
    """The paper's curves, positions (…) → (…, dim): `sin(pos / 10000^(2i/dim))` in column 2i, `cos` in column 2i + 1.

    The longest wave has about 2π `max_wavelength` positions.

    >>> print(sinusoids([0, 1, 2], 5).shape)
    (3, 5)
    """
    column = ops.arange(dim, dtype="int32")
    frequency = ops.exp(ops.cast(column // 2, "float32") * (-2 * math.log(max_wavelength) / dim))
    angle = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequency
    return ops.where(column % 2 == 0, ops.sin(angle), ops.cos(angle))


@keras.saving.register_keras_serializable(package="keras_tfm")
class PositionalEncoding(Layer):
    """Adds each token's position to its features, or appends it; can be used before any layer of a model.

    Args:
        kind: "sinusoidal" (any length), "learned" (up to `max_length`) or "index" (the position itself, as a number).
        combine: "add" to the features, or "concat" to append to them.
        max_length: number of learned positions.
        dim: width of what "concat" appends: by default the width of the input, always 1 for "index".
        max_wavelength: of the sinusoidal kind, the base of its wavelengths, as for `sinusoids`.

    Call arguments:
        inputs: (batch, length, features); the output has the same width, or `dim` more for "concat".
        position_ids: (batch, length) integers, for packed sequences; `start_index, start_index + 1, …` by default.
        start_index: position of the first token, for cached decoding.

    >>> print(PositionalEncoding(combine="concat", dim=3)(ops.zeros((2, 5, 8))).shape)
    (2, 5, 11)
    """

    def __init__(
        self,
        kind: str = "sinusoidal",
        *,
        combine: str = "add",
        max_length: int | None = None,
        dim: int | None = None,
        max_wavelength: float = 10000.0,
        **kwargs: Any,
    ):
        super().__init__(options_of(PositionalEncoding, locals()), **kwargs)
        one_of("kind", kind, ENCODINGS)
        one_of("combine", combine, COMBINATIONS)
        if kind == "learned":
            positive("max_length", max_length)
        if dim is not None and (combine == "add" or kind == "index"):
            raise UserError(f"`dim` must be None for {combine=} and {kind=}. Received: {dim=}")
        if max_length is not None and kind != "learned":
            raise UserError(f"`max_length` must be None for {kind=}. Received: {max_length=}")

    def build(self, inputs_shape):
        check_sequence("inputs", inputs_shape)
        if self.kind == "learned":
            normal = keras.initializers.RandomNormal(stddev=0.02)
            self.table = self.add_weight((self.max_length, self.dim or inputs_shape[-1]), normal, name="table")

    def call(self, inputs, *, position_ids=None, start_index=0):
        length = ops.shape(inputs)[1]
        if position_ids is None:
            start = as_integer("start_index", start_index)
            position_ids = ops.expand_dims(ops.arange(length, dtype="int32") + start, 0)
            last = ops.known_value(start + length - 1)
        else:
            position_ids = as_integer("position_ids", position_ids)
            last = ops.known_value(ops.max(position_ids))
        if self.kind == "learned" and last is not None and last >= self.max_length:
            received = f"max_length={self.max_length}, last position={last}"
            raise UserError(f"`max_length` must exceed the position of every token. Received: {received}")
        encoding = ops.cast(self.encode(position_ids, self.dim or inputs.shape[-1]), inputs.dtype)
        if self.combine == "add":
            return inputs + encoding
        encoding = ops.broadcast_to(encoding, (*ops.shape(inputs)[:2], encoding.shape[-1]))
        return ops.concatenate([inputs, encoding], axis=-1)

    def encode(self, positions: Any, dim: int) -> Any:
        """Positions (…) → (…, dim)."""
        if self.kind == "sinusoidal":
            return sinusoids(positions, dim, self.max_wavelength)
        if self.kind == "index":
            return ops.cast(positions, "float32")[..., None]
        rows = ops.take(self.table, ops.clip(positions, 0, self.max_length - 1), axis=0)
        inside = ops.logical_and(positions >= 0, positions < self.max_length)
        # NaN, not the wrong row, for positions that a graph could not check
        return ops.where(inside[..., None], rows, math.nan)

    def compute_output_shape(self, inputs_shape):
        extra = 1 if self.kind == "index" else self.dim or inputs_shape[-1]
        return inputs_shape if self.combine == "add" else (*inputs_shape[:-1], inputs_shape[-1] + extra)


def rotate(x, positions, max_wavelength=10000.0):
    """Rotary positions (https://arxiv.org/abs/2104.09864): rotates pairs of features by angles that grow with position.

    Takes queries or keys (b, t, h, d) and positions (t,) or (b, t); feature `i` is paired with feature `i + d/2`.

    >>> print(rotate(ops.ones((1, 3, 2, 4)), ops.arange(3)).shape)
    (1, 3, 2, 4)
    """
    half = x.shape[-1] // 2
    frequency = ops.exp(ops.arange(half, dtype="float32") * (-math.log(max_wavelength) / half))
    angle = ops.cast(positions, "float32")[..., None, None] * frequency  # (t, 1, d/2)
    sin, cos = ops.sin(angle), ops.cos(angle)
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    return ops.cast(ops.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1), x.dtype)


def relative_buckets(distance, causal, num_buckets=32, max_distance=128):
    """T5's buckets of distances (https://arxiv.org/abs/1910.10683): exact for small ones, then logarithmic.

    >>> ops.convert_to_numpy(relative_buckets(ops.arange(-2, 3), causal=False)).tolist()
    [18, 17, 0, 1, 2]
    """
    distance, future = ops.cast(distance, "int32"), 0
    if not causal:
        num_buckets //= 2
        future = ops.where(distance < 0, num_buckets, 0)
        distance = ops.abs(distance)
    distance = ops.maximum(distance, 0)
    exact = num_buckets // 2
    growth = ops.log(ops.cast(ops.maximum(distance, exact), "float32") / exact) / math.log(max_distance / exact)
    far = exact + ops.cast(growth * (num_buckets - exact), "int32")
    return future + ops.where(distance < exact, distance, ops.minimum(far, num_buckets - 1))


def relative_bias(distance, num_heads, causal, table):
    """A learned bias for each bucket and head: distances (query, key), table (buckets, heads) → (heads, query, key)."""
    rows = ops.take(table, relative_buckets(distance, causal, table.shape[0]), axis=0)
    return ops.transpose(rows, (2, 0, 1))  # (query, key, heads) → (heads, query, key)


def alibi_slopes(num_heads):
    """Slope of each head (https://arxiv.org/abs/2108.12409): geometric, completed from the next power of two.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def alibi_bias(distance, num_heads, causal):
    """A penalty that grows with distance, with one slope per head: distances (query, key) → (heads, query, key)."""
    slopes = ops.convert_to_tensor(alibi_slopes(num_heads), dtype="float32")
    return -slopes[:, None, None] * ops.cast(ops.abs(distance), "float32")


class Scheme(NamedTuple):
    """How self-attention uses positions."""

    rotate: Callable = lambda x, positions: x  # queries or keys (b, t, h, d)
    bias: Callable | None = None  # (distance, num_heads, causal, **weights) → a bias for the scores
    weights: Callable = lambda num_heads: {}  # → {name: shape}


SCHEMES = {
    None: Scheme(),
    "rotary": Scheme(rotate=rotate),
    "relative": Scheme(bias=relative_bias, weights=lambda num_heads: {"table": (32, num_heads)}),
    "alibi": Scheme(bias=alibi_bias),
}
