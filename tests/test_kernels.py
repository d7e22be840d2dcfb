import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import IN_TENSORFLOW, PRECISIONS, TEXTS, TOLERANCE, array, assert_close, normal, small_translator, spread
from keras import ops

from keras_tfm import kernels
from keras_tfm.backend import compiling
from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
from keras_tfm.models.transformers import TokenEmbedding
from keras_tfm.translator import Translator

OF_FEW = {
    "feed-forward": lambda dtype: FeedForward(24, "swiglu", dtype=dtype),
    "feed-forward without biases": lambda dtype: FeedForward(24, "silu", use_bias=False, dtype=dtype),
    "attention without biases": lambda dtype: MultiHeadSelfAttention(4, num_kv_heads=2, use_bias=False, dtype=dtype),
    "attention": lambda dtype: MultiHeadSelfAttention(4, num_kv_heads=2, positions="alibi", dtype=dtype),
    "logits": lambda dtype: TokenEmbedding(40, 16, dtype=dtype),
}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", OF_FEW)
def test_few_rows_come_out_as_among_many(name, dtype, monkeypatch):
    calls, product = [], kernels._product_of_few
    monkeypatch.setattr(kernels, "_product_of_few", lambda *x, **y: calls.append(x) or product(*x, **y))
    layer, x = OF_FEW[name](dtype), normal(8, 5, 16)
    layer.build(x.shape)
    spread(layer)
    program = kernels.compiled(
        lambda x, size: layer(x, **({"reverse": True} if name == "logits" else {})), layer.variables
    )
    many = program(x, 0)
    assert not calls
    few = program(x[:2], 0)
    assert bool(calls) == compiling.uses_xla() and few.dtype == many.dtype
    assert_close(few, many[:2], TOLERANCE[dtype])


@pytest.mark.parametrize("size", [5, 64, 100, 997, 1003])  # few, in chunks, and some that chunks do not divide
@pytest.mark.parametrize("k", [1, 5])
def test_the_top_k_are_those_of_a_sort(k, size):
    x = np.where(normal(6, size) > 1, -np.inf, normal(6, size, seed=1))
    x[0, 2:], x[1] = -np.inf, kernels.NEVER
    values, places = map(array, kernels.chunked_top_k(ops.convert_to_tensor(x, "float32"), k))
    assert values.tolist() == np.sort(x.astype("float32"))[:, ::-1][:, :k].tolist()
    places = places.astype(int)
    assert all(len(set(row)) == k for row in places) and np.take_along_axis(x, places, 1).tolist() == values.tolist()


def test_kernels_are_those_of_a_context_in_its_own_thread():
    def current_elsewhere():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(kernels.current).result()

    plain = kernels.PLAIN
    with kernels.using(kernels.XLA):
        assert kernels.current() is kernels.XLA and current_elsewhere() is plain
        with pytest.raises(KeyError), kernels.using(plain):
            raise KeyError
        assert kernels.current() is kernels.XLA
    assert kernels.current() is plain


@IN_TENSORFLOW
@pytest.mark.parametrize(
    "form, jit_compile", [("litert", False), pytest.param("saved_model", True, marks=pytest.mark.slow)]
)
def test_an_export_changes_nothing_that_other_threads_translate(form, jit_compile, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "jit_compile", jit_compile)
    model, tokenizer = small_translator("bytes").models[0], small_translator("bytes").source_tokenizer

    def new():
        made = Translator(model, tokenizer, beams=2, max_length=24)
        made.widths = [8, 24]
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
            return new().export(tmp_path / "export", form, compare_on=texts[:2])
        finally:
            exporting.clear()

    exporting.set()
    with ThreadPoolExecutor(3) as pool:
        exported, *threads = pool.submit(write), pool.submit(translate), pool.submit(translate)
    assert exported.result().same == 2
    assert all(answer == expected for thread in threads for answer in thread.result())
    assert translators and all(translator(texts) == expected for translator in translators)
