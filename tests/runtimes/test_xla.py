import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from conftest import (
    BYTES,
    IN_TENSORFLOW,
    PRECISIONS,
    TEXTS,
    TOLERANCE,
    array,
    assert_close,
    normal,
    parametrize_all,
    run,
    small_translator,
    spread,
)

from keras_tfm import ops
from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
from keras_tfm.models.encoder_decoder import TokenEmbedding
from keras_tfm.ops import runtime
from keras_tfm.runtimes import programs, xla
from keras_tfm.translator import Translator

OF_FEW = {
    "feed-forward": lambda dtype: FeedForward(24, activation="swiglu", dtype=dtype),
    "feed-forward without biases": lambda dtype: FeedForward(24, activation="silu", use_bias=False, dtype=dtype),
    "attention without biases": lambda dtype: MultiHeadSelfAttention(4, num_kv_heads=2, use_bias=False, dtype=dtype),
    "attention": lambda dtype: MultiHeadSelfAttention(4, num_kv_heads=2, positions="alibi", dtype=dtype),
    "logits": lambda dtype: TokenEmbedding(40, 16, dtype=dtype),
}


@parametrize_all("name, dtype", list(OF_FEW), PRECISIONS)
def test_few_rows_give_the_same_results_as_many(name, dtype, monkeypatch):
    calls, product = [], xla._product_of_few
    monkeypatch.setattr(xla, "_product_of_few", lambda *x, **y: calls.append(x) or product(*x, **y))
    layer, x = OF_FEW[name](dtype), normal(xla.FEW_ROWS + 1, 1, 16)
    layer.build(x.shape)
    spread(layer)
    program = programs.compiled(
        lambda x, size: layer(x, **({"reverse": True} if name == "logits" else {})), layer.variables
    )
    many, one = program(x, 0), program(x[:1], 0)
    assert not calls
    assert_close(one, many[:1], TOLERANCE[dtype])
    few = program(x[:2], 0)
    assert bool(calls) == programs.uses_xla() and few.dtype == many.dtype
    assert_close(few, many[:2], TOLERANCE[dtype])


@parametrize_all("k, size", [1, 5], [5, 64, 100, 997, 1003])  # few, in chunks, and some that chunks do not divide
def test_the_top_k_are_those_of_a_sort(k, size):
    x = np.where(normal(6, size) > 1, -np.inf, normal(6, size, seed=1))
    x[0, 2:], x[1] = -np.inf, runtime.NEVER
    values, places = map(array, run(runtime.chunked_top_k, ops.convert_to_tensor(x, "float32"), k))
    assert values.tolist() == np.sort(x.astype("float32"))[:, ::-1][:, :k].tolist()
    places = places.astype(int)
    assert all(len(set(row)) == k for row in places) and np.take_along_axis(x, places, 1).tolist() == values.tolist()


def test_a_runtime_is_that_of_a_context_in_its_own_thread():
    def current_elsewhere():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ops.current).result()

    plain = runtime.DEFAULT
    with ops.using(xla.XLA):
        assert ops.current() is xla.XLA and current_elsewhere() is plain
        with pytest.raises(KeyError), ops.using(plain):
            raise KeyError
        assert ops.current() is xla.XLA
    assert ops.current() is plain


@pytest.mark.slow
@IN_TENSORFLOW
@pytest.mark.parametrize("format, jit_compile", [("litert", False), ("saved_model", True)])
def test_an_export_does_not_change_translations_in_other_threads(format, jit_compile, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "jit_compile", jit_compile)
    (model,) = small_translator("bytes").models

    def new():
        made = Translator(model, BYTES, num_beams=2, max_length=24)
        made.widths = [24]
        return made

    texts = [text[:20] for text in TEXTS]
    expected, translators, exporting = new()(texts), [], threading.Event()

    def translate():
        answers = []
        while exporting.is_set():
            translators.append(new())
            answers.append(translators[-1](texts))
        return answers

    def write():
        try:
            return new().export(tmp_path / "export", format, compare_on=texts[:2])
        finally:
            exporting.clear()

    exporting.set()
    with ThreadPoolExecutor(2) as pool:
        exported, answers = pool.submit(write), pool.submit(translate)
    assert exported.result().same == 2
    assert all(answer == expected for answer in answers.result())
    assert translators and all(translator(texts) == expected for translator in translators)


@pytest.mark.parametrize("use_bias", [False, True])
def test_joined_dense_layers_give_what_each_gives(use_bias):
    x, options = normal(2, 3, 8), {"bias_axes": "hd"} if use_bias else {}
    heads = [keras.layers.EinsumDense("btc,chd->bthd", (None, n, 4), **options) for n in (2, 1, 1)]
    units = keras.layers.Dense(5, "relu", use_bias=use_bias)
    for layer in (*heads, units):
        layer.build(x.shape)
        spread(layer)
    for actual, layer in zip([*ops.dense(x, *heads), *ops.dense(x, units)], [*heads, units], strict=True):
        assert_close(actual, layer(x))
