"""Attention maps of any model, while it runs."""

import contextlib
import contextvars
import threading
import warnings

from keras import ops

_COMPILED = {"run_eagerly": True, "train_function": None, "test_function": None, "predict_function": None}
_lock, _before = threading.Lock(), {}  # model's id → number of contexts that name it, and its state before the first
_captures = contextvars.ContextVar("attention maps as tensors, one dict for each context", default=())
_recordings = contextvars.ContextVar("attention maps, one dict for each context", default=())


@contextlib.contextmanager
def record_attention(*models):
    """Collects the maps of all attention layers that run inside the context, in any model, which stays as it is.

    Gives a dict: path of the layer → a list of arrays (batch, heads, query, key), one for each call. Name the models
    whose `predict` and `evaluate` are to be recorded, beside plain calls; they run eagerly meanwhile. Several threads
    may record the models of this package, each its own calls. Other models must not run in another thread when a
    context that names them begins or ends.

    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=2, name="attention")
    >>> with record_attention() as maps:
    ...     y = layer(ops.ones((1, 3, 4)))
    >>> maps["attention"][0].shape
    (1, 2, 3, 3)
    """
    maps = {}
    token = _recordings.set((*_recordings.get(), (maps, bool(models))))
    try:
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.enter_context(_eager(model))
            yield maps
        if not maps:
            warnings.warn("No attention layer ran eagerly: name the model in `record_attention(model)`.", stacklevel=3)
    finally:
        _recordings.reset(token)


@contextlib.contextmanager
def _eager(model):
    """`predict` and `evaluate` of a model run eagerly, until the last of these contexts ends, in whatever thread."""
    idle = getattr(model, "running", contextlib.nullcontext())  # so that no function is replaced between look and call
    with idle, _lock:
        count, before = _before.get(id(model), (0, {name: getattr(model, name) for name in _COMPILED}))
        _before[id(model)] = count + 1, before
        for name, value in () if count else _COMPILED.items():
            setattr(model, name, value)
    try:
        yield
    finally:
        with idle, _lock:
            count, before = _before.pop(id(model))
            if count > 1:
                _before[id(model)] = count - 1, before
            for name, value in () if count > 1 else before.items():
                setattr(model, name, value)


@contextlib.contextmanager
def capture_attention():
    """Collects the maps of attention layers as tensors, for use inside of the same compiled function."""
    maps = {}
    token = _captures.set((*_captures.get(), maps))
    try:
        yield maps
    finally:
        _captures.reset(token)


def record(path, weights):
    """Keeps the weights (batch, heads, query, key) of a layer, if anyone is recording."""
    for maps in _captures.get():
        maps.setdefault(path, []).append(weights)
    if not _recordings.get():
        return
    try:
        weights = ops.convert_to_numpy(weights)
    except Exception as error:  # each backend has its own for a tensor without a value
        if any(named for _, named in _recordings.get()):  # Keras tries a model out before it runs it eagerly
            return
        raise RuntimeError(
            "`record_attention` needs layers that run eagerly: call the model itself, or name the model in "
            f"`record_attention(model)` before `model.predict`. Received: a compiled call of {path!r}"
        ) from error
    for maps, _ in _recordings.get():
        maps.setdefault(path, []).append(weights)


def recording():
    """Whether anyone is."""
    return bool(_recordings.get() or _captures.get())
