"""Helpers shared by the tests; each run has one backend, that of KERAS_BACKEND."""

import collections
import concurrent.futures
import contextlib
import functools
import gc
import itertools
import os
import warnings
from importlib.metadata import version
from importlib.util import find_spec

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests compile thousands of small kernels and run each a few times, so compile as fast as possible. XLA aborts at a
# flag that it does not know, and later versions do not know all of these.
if os.environ.get("KERAS_BACKEND") != "torch":
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0"
        + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        * version("jaxlib").startswith("0.10."),
    )

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decoding
from keras_tfm.common.arguments import UserError
from keras_tfm.data import encode_pairs
from keras_tfm.models import transformer
from keras_tfm.text import UNKNOWN, ByteTokenizer, train_tokenizer
from keras_tfm.translator import Translator

BACKEND = keras.backend.backend()
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
BYTES = ByteTokenizer()
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 6e-3}


# For tests in which no backend takes part.
once = pytest.mark.skipif(BACKEND != "tensorflow", reason="the same on each backend: runs beside TensorFlow's tests")
SLOW_OFF_TENSORFLOW = [] if BACKEND == "tensorflow" else [pytest.mark.slow]  # quick on TensorFlow only
# A further case of a law that another case holds for `make test`; PyTorch, which has no slow tests, runs all.
SLOW_ON_TENSORFLOW = [pytest.mark.slow] if BACKEND == "tensorflow" else []
SLOW_OFF_JAX = [] if BACKEND == "jax" else [pytest.mark.slow]  # trains; TensorFlow traces for longer than it trains
# Tests that `make test` runs on JAX, since TensorFlow traces for much longer.
slow_on_tensorflow = pytest.mark.slow if BACKEND == "tensorflow" else lambda test: test
IN_TENSORFLOW = pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs are exported by the TensorFlow backend")
TRACED = pytest.mark.skipif(BACKEND == "torch", reason="PyTorch runs eagerly here, and so knows every value")

# What `make test` runs on JAX after it has run everything on TensorFlow; `make test-slow` runs the rest.
QUICK_ON_JAX = {
    f"test_{name}"
    for name in ("masks", "positions", "attention", "blocks", "stacks", "beam", "losses", "trainer", "keras_user")
}

# Sizes of the translators that are exported, and texts for them.
SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
TEXTS = ["a dog", "two cats run over the grass, and then more", "", "b", "über 🙂 你好", "  ", "the end", "a " * 25]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What takes hours is slow, too, so that `-m "not slow"` leaves it out; and so is most of what JAX repeats."""
    for item in items:
        repeated = BACKEND == "jax" and find_spec("tensorflow") and item.path.stem not in QUICK_ON_JAX
        if item.get_closest_marker("hours") or repeated:
            item.add_marker("slow")


def pytest_collection_finish():
    """Exempts the imported modules from garbage collection: Keras collects once for each layer that it quantizes."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Says what was not tested, and why: a browser or a package that is missing should not go unnoticed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = collections.Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"not tested ({count} test{'s' * (count > 1)}): {reason}")


@pytest.fixture(autouse=True)
def same_seed():
    keras.utils.set_random_seed(7)


@pytest.fixture
def little_garbage():
    """Keras collects garbage once for each layer that it quantizes: here not that of all tests before this one."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """Seeds what tests share too: it is made before `same_seed`, and would depend on the tests that ran earlier."""
    if fixturedef.scope != "function":
        keras.utils.set_random_seed(7)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server of small requests, for tests that neither change nor disturb it."""
    from http_server import served

    flags = ["--max_texts=8", "--max_queue=8", "--max_characters=100"]
    with served(tmp_path_factory.mktemp("server") / "log", *flags) as server:
        yield server


@pytest.fixture
def clients():
    """Threads of clients."""
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.fixture
def one_width(monkeypatch):
    """Translators use one width for all sources, and no XLA on TensorFlow: fewer programs to compile."""
    monkeypatch.setattr("keras_tfm.translator.WIDTHS", ())
    monkeypatch.setattr(Translator, "jit_compile", False)


def covering(strength, *choices):
    """Few combinations in which every `strength` choices meet."""

    def parts(values):
        return {*itertools.combinations(enumerate(values), min(strength, len(choices)))}

    combinations = [*itertools.product(*choices)]
    missing, chosen = set().union(*map(parts, combinations)), []
    while missing:
        chosen.append(max(combinations, key=lambda values: len(parts(values) & missing)))
        missing -= parts(chosen[-1])
    return chosen


def parametrize_all(names, *choices, group=False, strength=1):
    """Parametrizes with combinations of some choices.

    `make test` runs a few in which every `strength` choices meet: by default each choice. `make test-slow` runs those
    in which one choice more meets, so every pair, on TensorFlow. A choice may be a dict, whose keys are then the ids.
    With `group`, tests of the same combination share a worker.
    """
    cases, quick = [], covering(strength, *choices)
    slow = covering(strength + 1, *choices) if BACKEND == "tensorflow" else []
    for values in dict.fromkeys(quick + slow):
        name = "-".join(map(str, values))
        marks = [] if values in quick else [pytest.mark.slow]
        marks += [pytest.mark.xdist_group(name)] * group
        values = [of[value] if isinstance(of, dict) else value for of, value in zip(choices, values, strict=True)]
        cases.append(pytest.param(*values, id=name, marks=marks))
    return pytest.mark.parametrize(names, cases)


def built(layer, *inputs):
    """A layer with the weights that it needs for some inputs; building it inside a compiled program would lose them."""
    layer.build(*(x.shape for x in inputs))
    return layer


@contextlib.contextmanager
def eagerly():
    """TensorFlow traces nothing in this block: up to about four steps of training end sooner than they are traced."""
    if BACKEND != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions_eagerly`")
            yield
    finally:
        tf.config.run_functions_eagerly(False)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def spread(layer, by=0.1):
    """Moves all weights of a layer or model, so that biases, scales and temperatures matter too."""
    for weight in layer.trainable_variables:  # by NumPy, which `set_random_seed` seeds too: no kernel to compile
        weight.assign(array(weight) + by * np.random.normal(size=weight.shape))
    return layer


def array(x):
    return ops.convert_to_numpy(x).astype("float32")  # by NumPy: no kernel to compile


def assert_close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(array(actual), array(expected), rtol=0, atol=tolerance)


def gradients(function, *arrays):
    """Gradients of the sum of `function(*arrays)` with respect to each array."""
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    if BACKEND == "jax":
        import jax

        total = lambda *xs: ops.sum(ops.cast(function(*xs), "float32"))  # noqa: E731
        return [array(g) for g in jax.jit(jax.grad(total, argnums=tuple(range(len(tensors)))))(*tensors)]
    if BACKEND == "torch":
        import torch

        tensors = [x.detach().requires_grad_() for x in tensors]
        total = ops.sum(ops.cast(function(*tensors), "float32"))
        slopes = torch.autograd.grad(total, tensors, allow_unused=True)
        return [np.zeros(x.shape) if g is None else array(g) for x, g in zip(tensors, slopes, strict=True)]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total = ops.sum(ops.cast(function(*tensors), "float32"))
    return [
        np.zeros(x.shape) if g is None else array(g)
        for x, g in zip(tensors, tape.gradient(total, tensors), strict=True)
    ]


def quick(function):
    """`function` in the way that starts soonest: as one program on JAX, which otherwise compiles every operation."""
    return compiled(function) if BACKEND == "jax" else function


def run(function, *arguments, **options):
    """`function(*arguments, **options)` as one program on JAX, and as it is on other backends."""
    return quick(lambda: function(*arguments, **options))()


def compiled(function):
    """`function` of arrays, compiled by XLA; as it is on PyTorch, which takes minutes to compile."""
    if BACKEND == "torch":
        return function
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def of_any_shape(model):
    """A functional model as one graph for every batch size and length on TensorFlow; JAX compiles one for each."""
    if BACKEND != "tensorflow":
        return quick(lambda *inputs: model(list(inputs)))
    import tensorflow as tf

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs]
    return tf.function(lambda *inputs: model(list(inputs)), input_signature=specs)


def largest_tensor(function, x):
    """Elements of the largest tensor that appears when `function(x)` is traced."""
    if BACKEND == "jax":
        import jax
        from jax.extend.core import jaxprs_in_params

        def sizes(jaxpr):
            for equation in jaxpr.eqns:
                yield from (variable.aval.size for variable in equation.outvars)
                for inner in jaxprs_in_params(equation.params):
                    yield from sizes(inner)

        return max(sizes(jax.make_jaxpr(function)(x).jaxpr))
    if BACKEND == "torch":
        from torch.utils._python_dispatch import TorchDispatchMode

        counts = []

        class Sizes(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                outputs = function(*args, **(kwargs or {}))
                several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
                counts.extend(x.numel() for x in several if hasattr(x, "numel"))
                return outputs

        with Sizes():
            function(x)
        return max(counts)
    import tensorflow as tf

    graph = tf.function(function).get_concrete_function(tf.TensorSpec(x.shape, x.dtype)).graph
    outputs = [output for operation in graph.get_operations() for output in operation.outputs]
    return max(output.shape.num_elements() or 0 for output in outputs if output.shape.rank is not None)


@functools.cache
def random_texts(count, longest=12, seed=0):
    """Pairs of texts that are all different: each begins with its number."""
    rng = np.random.default_rng(seed)
    words = lambda: "".join(rng.choice(list("abc "), rng.integers(0, longest + 1)))  # noqa: E731
    return [(f"{number}{words()}", f"{number}{words()}") for number in range(count)]


def encode(pairs, folder, *tokenizers, **options):
    return encode_pairs(pairs, folder, *(tokenizers or [BYTES]), verbose=0, **options)


def texts_of(pairs):
    return [tuple(BYTES.decode(side[n] for side in (pairs.sources, pairs.targets))) for n in range(len(pairs))]


def small_translator(kind, sizes=None, symbols=(), **options):
    """An untrained translator with a tokenizer of a kind, "bytes" or "bpe"."""
    tokenizer = BYTES if kind == "bytes" else train_tokenizer(TEXTS * 20, kind, 300 + len(symbols), symbols)
    model = spread(transformer(tokenizer.vocab_size, **(SIZES | (sizes or {}))), 0.2)
    made = Translator(model, tokenizer, max_length=64, **options)
    made.widths = [16, 64] if kind == "bytes" else [64]  # fewer programs
    return made


def several_translator(**options):
    """An untrained translator into de and fr, which keeps up to three placeholders and otherwise writes letters."""
    symbols = [">>de<<", ">>fr<<", "⟦1⟧", "⟦2⟧", "⟦3⟧"]
    made = small_translator("bpe", symbols=symbols, **{"no_repeat_ngram_size": 2, "num_beams": 2, **options})
    others = [number for number, name in enumerate(made.target_tokenizer.names(), 4) if name.startswith(("<", ">>"))]
    made.sampler = decoding.with_options(made.sampler, suppress_tokens=(UNKNOWN, *others))
    return made


@contextlib.contextmanager
def refused(argument):
    """The block raises an error that names this argument; how it says so is up to `tests/common/test_arguments.py`."""
    with pytest.raises(UserError) as error:
        yield error
    assert error.value.argument == argument, error.value
