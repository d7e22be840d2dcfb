"""What is compiled for GPUs gives the same results as what is compiled for CPUs; it runs on a CPU here."""

import keras
import numpy as np
import pytest
from conftest import (
    PRECISIONS,
    TOLERANCE,
    array,
    assert_close,
    normal,
    parametrize_all,
    run,
    slow_on_tensorflow,
    spread,
)

from keras_tfm import ops
from keras_tfm.decoding import NEVER, Beam, Greedy
from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
from keras_tfm.models import bytenet, rnn, transformer
from keras_tfm.runtimes import machine, programs, xla

OF_JAX = pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX compiles loops as they are written")


@pytest.fixture
def accelerated(monkeypatch):
    """Lets programs be compiled as for a GPU."""

    def on_a_gpu():
        monkeypatch.setattr(machine, "current", lambda: machine.Machine(True, 8, "auto"))

    return on_a_gpu


@slow_on_tensorflow
@pytest.mark.parametrize(
    "make, sampler",
    [
        (transformer, Greedy(min_length=3)),
        (transformer, Beam(3, no_repeat_ngram_size=2)),
        (rnn, Beam(3)),
        (bytenet, Greedy()),
    ],
    ids=["transformer-greedy", "transformer-beam", "rnn-beam", "bytenet-greedy"],
)
def test_a_search_for_gpus_finds_the_same_tokens(make, sampler, accelerated):
    model = make(50, size="tiny", num_layers=1, dtype="float32")
    spread(model)
    ids = np.random.default_rng(0).integers(3, 50, (18, 5))
    ids[:6, 3:] = 0
    expected = [model.generate(rows, 20, sampler) for rows in (ids, ids[:1])]
    accelerated()
    model.programs.clear()
    for rows, found in zip((ids, ids[:1]), expected, strict=True):
        np.testing.assert_array_equal(model.generate(rows, 20, sampler), found)


@parametrize_all("dtype", PRECISIONS)
def test_a_few_rows_give_the_same_results_as_many_on_gpus(dtype, monkeypatch):
    calls, product = [], xla._affine_by_sums
    monkeypatch.setattr(xla, "_affine_by_sums", lambda *x: calls.append(x) or product(*x))
    for layer in (
        FeedForward(24, activation="swiglu", dtype=dtype),
        MultiHeadSelfAttention(4, use_bias=False, dtype=dtype),
    ):
        x = ops.cast(normal(5, 1, 16), layer.compute_dtype)
        layer.build(x.shape)
        spread(layer)  # biases, too
        many = layer(x)
        with ops.using(xla.XLA_ON_GPU):
            assert_close(layer(x), many, TOLERANCE[dtype])
            assert not calls
            for rows in (1, 4):
                few = layer(x[:rows])
                assert calls and few.dtype == many.dtype
                assert_close(few, many[:rows], TOLERANCE[dtype])
                calls.clear()


@OF_JAX
def test_loops_compute_beforehand_what_stays_the_same():
    import jax

    from keras_tfm.runtimes.hoisting import hoisted

    def program(inputs):
        def advance(number, x):
            kernel = ops.transpose(ops.cast(inputs["kernel"], "bfloat16"))
            wide = ops.tile(inputs["bias"], (4, 1))  # needs more memory than the bias, so it stays
            return number + 1, ops.tanh(ops.matmul(x, ops.cast(kernel, "float32")) + wide)

        return ops.while_loop(lambda number, x: number < inputs["steps"], advance, (0, inputs["x"]))

    inputs = {"kernel": normal(8, 8), "bias": normal(1, 8), "x": normal(4, 8), "steps": np.int32(3)}
    before, after = (jax.make_jaxpr(function)(inputs) for function in (program, hoisted(program)))
    (inside,) = (str(equation) for equation in after.eqns if equation.primitive.name == "while")
    (all_inside,) = (str(equation) for equation in before.eqns if equation.primitive.name == "while")
    for name in ("transpose", "new_dtype=bfloat16"):
        assert name in all_inside and name not in inside and name in str(after)
    for found, expected in zip(hoisted(program)(inputs), program(inputs), strict=True):
        assert_close(array(found), array(expected), 1e-6)


@OF_JAX
def test_a_program_for_gpus_sees_new_values_of_the_variables(accelerated):
    accelerated()
    variable = keras.Variable(2.0)

    def search(x, size):
        return ops.while_loop(lambda x: x < size, lambda x: (x * variable,), (x,))

    program = programs.compiled(search, [variable])
    assert array(program(ops.convert_to_tensor(3.0), 20)[0]) == 24
    variable.assign(3.0)
    assert array(program(ops.convert_to_tensor(3.0), 20)[0]) == 27


def test_the_best_value_on_gpus_is_the_first_of_equal_ones_and_takes_no_sort():
    x = np.round(normal(5, 300))  # many are equal
    x[4] = np.nan
    without = np.flatnonzero(x[0] == x[0].max())[:1].tolist()
    values, places = map(array, run(xla.XLA_ON_GPU.best_k, ops.convert_to_tensor(x), 1, without))
    x[:, without] += NEVER
    assert values[:4, 0].tolist() == x[:4].max(1).tolist()
    assert places[:4, 0].astype(int).tolist() == x[:4].argmax(1).tolist() and 0 <= places[4, 0] < 300
    if keras.backend.backend() == "jax":
        import jax

        text = jax.jit(lambda x: xla.XLA_ON_GPU.best_k(x, 1, without)).lower(x).compile().as_text()
        assert " sort(" not in text and "topk" not in text.lower()
