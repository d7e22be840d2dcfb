"""Attention masks: booleans, True = may attend, shaped (batch or 1, query, key)."""

import functools
import inspect
from typing import Any

import keras

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, did_you_mean
from keras_tfm.layers import recording
from keras_tfm.layers.base import Layer, check_sequence
from keras_tfm.ops import take_each
from keras_tfm.ops.private import get_keras_mask

__all__ = ["causal", "combine", "padding", "segments", "window"]


def __dir__():
    return __all__


def distance(query_len, key_len, start=0):
    """How far each key is behind each query, (query, key); query `i` is at position `i + start`.

    >>> ops.convert_to_numpy(distance(2, 3, start=1)).tolist()
    [[1, 0, -1], [2, 1, 0]]
    """
    return ops.expand_dims(ops.arange(query_len, dtype="int32") + start, 1) - ops.arange(key_len, dtype="int32")


def padding(ids: Any, pad_id: int = 0) -> Any:
    """Hides padding keys: token ids (batch, key) → (batch, 1, key).

    >>> ops.convert_to_numpy(padding([[5, 6, 0]])).tolist()
    [[[True, True, False]]]
    """
    return ops.not_equal(ids, pad_id)[:, None, :]


def causal(query_len: int, key_len: int, start: Any = 0) -> Any:
    """Hides later tokens: query `i` sees key `j` if `i + start >= j`.

    >>> ops.convert_to_numpy(causal(2, 3, start=1)).tolist()
    [[[True, True, False], [True, True, True]]]
    """
    return ops.expand_dims(distance(query_len, key_len, start) >= 0, 0)


def window(query_len: int, key_len: int, window: int, start: Any = 0) -> Any:
    """Hides keys that are `window` or more positions away, in either direction.

    >>> ops.convert_to_numpy(window(2, 4, window=2)).tolist()
    [[[True, True, False, False], [True, True, True, False]]]
    """
    return ops.expand_dims(ops.abs(distance(query_len, key_len, start)) < window, 0)


def segments(query_segments: Any, key_segments: Any = None) -> Any:
    """Hides other segments: segment numbers (batch, length) → (batch, query, key).

    >>> ops.convert_to_numpy(segments([[1, 1, 2]])).tolist()
    [[[True, True, False], [True, True, False], [False, False, True]]]
    """
    query_segments = ops.convert_to_tensor(query_segments)
    key_segments = query_segments if key_segments is None else ops.convert_to_tensor(key_segments)
    return ops.equal(query_segments[:, :, None], key_segments[:, None, :])


def combine(*masks: Any, rank: int = 0) -> Any:
    """AND of the masks that are not None; None if there are none.

    A mask (batch, key) applies to every query, a mask (batch, query, key) to every head.

    >>> ops.convert_to_numpy(combine(None, [[True, False]], causal(2, 2))).tolist()
    [[[True, False], [True, False]]]
    """
    masks = [ops.convert_to_tensor(mask) for mask in masks if mask is not None]
    rank = max([rank, *(len(mask.shape) for mask in masks)])
    combined = None
    for mask in masks:
        while len(mask.shape) < rank:
            mask = ops.expand_dims(mask, 1)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def merge(x, mask=None):
    """AND of the mask that Keras attached to `x` and the given mask; either may be None."""
    attached = get_keras_mask(x)
    if mask is None or attached is None:
        return attached if mask is None else mask
    # For a symbolic tensor, this runs again with real tensors, and combines both masks then.
    if attached is mask or isinstance(x, keras.KerasTensor):
        return mask
    return combine(attached, mask)


def check(name, mask, ranks=(2, 3, 4), of=None):
    """The mask as booleans; an error if its type, rank or shape is wrong.

    Float masks are refused: an additive mask converted to booleans would mean its opposite. If the tensor `of` (batch,
    length, features) is given, the mask must have its batch size (or 1) and its length.
    """
    if mask is None:
        return None
    mask = mask if hasattr(mask, "shape") else ops.convert_to_tensor(mask)
    dtype, shape = keras.backend.standardize_dtype(mask.dtype), tuple(mask.shape)
    batch, length = (None, None) if of is None else of.shape[:2]
    suits = len(shape) in ranks and shape[0] in (None, 1, batch or shape[0])
    if "float" in dtype or not suits or shape[-1] not in (None, length or shape[-1]):
        rule = f"boolean (True = may attend) or 0/1 integers, of rank {' or '.join(map(str, ranks))}"
        size = "" if of is None else f", for {batch=} and {length=}"
        raise UserError(f"`{name}` must be {rule}{size}. Received: {dtype=}, {shape=}")
    return mask if dtype == "bool" else ops.not_equal(mask, 0)


def of_memory(memory, memory_mask=None):
    """The mask (batch, key) of a memory that is read step by step: AND of the attached and the given one, or None."""
    mask = merge(memory, check("memory_mask", memory_mask, ranks=(2,), of=memory))
    return ops.broadcast_to(mask, ops.shape(memory)[:2]) if mask is not None and mask.shape[0] == 1 else mask


def mean_of(memory, mask=None):
    """The mean (batch, features) of a memory (batch, length, features) over its tokens; zeros if there are none."""
    if mask is None:
        return ops.mean(memory, axis=1)
    tokens = ops.cast(mask, "float32")[:, :, None]
    mean = ops.sum(ops.cast(memory, "float32") * tokens, axis=1) / ops.maximum(ops.sum(tokens, axis=1), 1)
    return ops.cast(mean, memory.dtype)


def tokens_first(mask):
    """Two gather indices (batch, length): the first moves tokens before padding, in their order; the other undoes it.

    >>> first, back = tokens_first([[False, True, False, True]])
    >>> ops.convert_to_numpy(first).tolist(), ops.convert_to_numpy(back).tolist()
    ([[1, 3, 0, 2]], [[2, 0, 3, 1]])
    """
    tokens = ops.cast(mask, "int32")
    seen = ops.cumsum(tokens, axis=1)  # tokens up to each place
    padding = ops.arange(ops.shape(tokens)[1], dtype="int32") - seen + ops.sum(tokens, axis=1, keepdims=True)
    back = ops.where(mask, seen - 1, padding)
    return ops.argsort(back, axis=1), back


def in_front(mask):
    """The mask (batch, length) of the same number of tokens, all before the padding."""
    return ops.arange(ops.shape(mask)[1], dtype="int32") < ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)


def over_tokens(function, x, mask=None):
    """Moves the tokens of x (batch, length, features) before its padding, applies `function`, and moves them back.

    For functions in which a token must not see how much padding there is before it, or between tokens.

    Returns:
        (batch, length, any features), zeros where the mask is False.
    """
    if mask is None:
        return function(x)
    first, back = tokens_first(mask)
    with recording.queries_at(back):
        y = function(take_each(x, first))
    return ops.where(ops.expand_dims(mask, 2), take_each(y, back), 0)


_signature = functools.cache(inspect.signature)


class MaskedLayer(Layer):
    """A layer that ANDs the masks given by the caller with those that Keras attached to its inputs.

    Keras itself fills in `mask` only in calls with a single tensor, and ignores an attached mask if the caller gives
    another. Subclasses define `call` with `mask`, or with `memory`, `mask` and `memory_mask`.
    """

    def __call__(self, *args, **kwargs):
        return super().__call__(**self._with_masks(*args, **kwargs))

    def stateless_call(self, *args, return_losses=False, **kwargs):
        arguments = self._with_masks(*args[2:], **kwargs)
        return super().stateless_call(*args[:2], return_losses=return_losses, **arguments)

    def _with_masks(self, *args, **kwargs):
        signature = _signature(type(self).call)
        if "return_attention_scores" in kwargs.keys() - signature.parameters.keys():
            raise UserError(
                "`return_attention_scores` is for attention layers: `keras_tfm.record_attention` collects the "
                "attention weights of any layer or model:\n"
                "    with record_attention() as maps:\n        y = layer(x)\n    next(iter(maps.values()))\n"
                f"Received: return_attention_scores={kwargs['return_attention_scores']}"
            )
        _, first, *names = signature.parameters
        unknown = [name for name in kwargs if name not in (first, *names, "training", "mask")]
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            hint = did_you_mean(unknown[0], names)
            raise TypeError(f"{type(self).__name__} takes {', '.join([first, *names])}. Received: {unknown[0]}{hint}")
        try:
            given = signature.bind_partial(self, *args).arguments
        except TypeError as error:
            raise TypeError(f"{type(self).__name__} takes {', '.join([first, *names])}: {error}") from None
        del given["self"]
        return self._merged(first, **given, **kwargs)

    def _merged(self, first, /, memory=None, mask=None, memory_mask=None, attention_mask=None, **kwargs):
        x = kwargs.pop(first)  # the first parameter of `call` may have any name
        check_sequence(first, x.shape)
        if memory is not None:
            check_sequence("memory", memory.shape)
        if len(getattr(attention_mask, "shape", ())) == 2:
            rule = "(batch or 1, query, key) or (batch or 1, heads, query, key): pass a (batch, length) mask as `mask`"
            raise UserError(f"`attention_mask` must be {rule}. Received: shape={tuple(attention_mask.shape)}")
        attention_mask = check("attention_mask", attention_mask, ranks=(3, 4))
        mask = merge(x, check("mask", mask, (2,), of=x))
        if mask is not None and mask.shape[0] == 1:
            mask = ops.broadcast_to(mask, ops.shape(x)[:2])
        memory_mask = merge(memory, check("memory_mask", memory_mask, of=memory))
        given = {"memory": memory, "mask": mask, "memory_mask": memory_mask, "attention_mask": attention_mask}
        return {first: x, **{name: value for name, value in given.items() if value is not None}, **kwargs}

    def check_built(self, method):
        if not self.built:
            raise UserError(f"{self.name!r} must be built before `{method}`: call it or its `build` first.")

    def compute_output_spec(self, *args, cache=None, **kwargs):
        if cache is None and not kwargs.get("return_attention_scores"):
            return super().compute_output_spec(*args, **kwargs)
        kwargs |= {} if cache is None else {"cache": cache}
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # the output is a tuple: trace `call`

    def compute_output_shape(self, inputs_shape, *other_shapes):
        return inputs_shape
