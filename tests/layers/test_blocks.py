"""Laws of the blocks, and one harness that every public layer goes through."""

import inspect
import itertools
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import (
    BACKEND,
    IN_TENSORFLOW,
    PRECISIONS,
    SLOW_OFF_TENSORFLOW,
    TOLERANCE,
    array,
    assert_close,
    built,
    normal,
    of_any_shape,
    once,
    parametrize_all,
    refused,
    run,
    slow_on_tensorflow,
    spread,
)

from keras_tfm import ops
from keras_tfm.layers import (
    SCORES,
    FeedForward,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    TransformerDecoder,
    TransformerDecoderBlock,
    TransformerEncoder,
    TransformerEncoderBlock,
)
from keras_tfm.layers.attention import HEADS
from keras_tfm.layers.blocks import GATES, NORMS
from keras_tfm.layers.positions import SCHEMES
from keras_tfm.layers.scores import MIXINGS
from keras_tfm.runtimes import programs

X, MEMORY = normal(2, 5, 8), normal(2, 3, 6, seed=1)
SIZES = {"num_heads": 2, "ff_dim": 16}


INITIALIZERS = {"kernel_initializer": keras.initializers.HeNormal(), "bias_initializer": "ones"}

LAYERS = {
    "attention": (lambda **kw: MultiHeadAttention(2, num_kv_heads=1, score="bilinear", **kw), 2),
    "hard attention": (lambda **kw: MultiHeadAttention(2, heads="narrow", mixing="hard", name="hard", **kw), 2),
    "self-attention": (lambda **kw: MultiHeadSelfAttention(2, positions="relative", score="cosine", **kw), 1),
    "local self-attention": (lambda **kw: MultiHeadSelfAttention(2, window=2, causal=True, heads="wide", **kw), 1),
    "sinusoids": (lambda **kw: PositionalEncoding(**kw), 1),
    "learned positions": (lambda **kw: PositionalEncoding("learned", combine="concat", max_length=9, dim=3, **kw), 1),
    "index": (lambda **kw: PositionalEncoding("index", combine="concat", **kw), 1),
    "feed-forward": (lambda **kw: FeedForward(16, activation="swiglu", **kw), 1),
    "encoder block": (
        lambda **kw: TransformerEncoderBlock(**SIZES, attention_dropout=0.1, score="additive", **kw),
        1,
    ),
    "pre-norm encoder block": (
        lambda **kw: TransformerEncoderBlock(
            **SIZES, activation="geglu", norm="rms", norm_first=True, dropout=0.2, window=2, **kw
        ),
        1,
    ),
    "decoder block": (
        lambda **kw: TransformerDecoderBlock(**SIZES, positions="rotary", score="concat", **kw),
        2,
    ),
    "attention of other weights": (lambda **kw: MultiHeadAttention(2, heads="narrow", **INITIALIZERS, **kw), 2),
    "feed-forward of other weights": (lambda **kw: FeedForward(16, activation="mish", **INITIALIZERS, **kw), 1),
    "encoder block without biases": (
        lambda **kw: TransformerEncoderBlock(**SIZES, use_bias=False, **kw),
        1,
    ),
    "decoder block with a callable": (
        lambda **kw: TransformerDecoderBlock(**SIZES, activation=keras.activations.silu, **INITIALIZERS, **kw),
        2,
    ),
    "encoder": (
        lambda **kw: TransformerEncoder(
            num_layers=2,
            num_heads=2,
            ff_dim=16,
            positions="learned",
            positions_in="every_layer",
            positions_combine="concat",
            max_length=9,
            **kw,
        ),
        1,
    ),
    "decoder": (
        lambda **kw: TransformerDecoder(num_layers=1, **SIZES, norm_first=True, norm="rms", **INITIALIZERS, **kw),
        2,
    ),
    "decoder block without memory": (
        lambda **kw: TransformerDecoderBlock(**SIZES, positions="alibi", **kw),
        1,
    ),
}


def functional(make, num_inputs, **kwargs):
    inputs = [keras.Input((None, 8)), keras.Input((None, 6))][:num_inputs]
    return keras.Model(inputs, make(**kwargs)(*inputs))


def fold_hypotheses(names=LAYERS, dtypes=("float32",)):
    """One model of many layers, whose outputs it concatenates; the layers take turns with the precisions."""
    inputs = [keras.Input((None, 8)), keras.Input((None, 6))]
    outputs = []
    for name, dtype in zip(names, itertools.cycle(dtypes)):
        make, num_inputs = LAYERS[name]
        outputs.append(make(dtype=dtype)(*inputs[:num_inputs]))
    return keras.Model(inputs, keras.layers.Concatenate(dtype="float32")(outputs))


def assert_trains(model, **options):
    model = keras.Model(model.inputs, keras.layers.Dense(1)(model.outputs[0]))
    model.compile("sgd", "mse", **options)
    before = [array(weight) for weight in model.trainable_variables]
    history = model.fit([X, MEMORY], normal(2, 5, 1), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    unmoved = [w.path for w, old in zip(model.trainable_variables, before, strict=True) if (array(w) == old).all()]
    # a key's bias shifts all scores of a query alike, and hard attention may have a gradient of zero
    assert not [path for path in unmoved if "/key/bias" not in path and "hard" not in path]


# On JAX each layer trains in one precision, on TensorFlow in all of them.
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=SLOW_OFF_TENSORFLOW) for first in (1, 2))])
def test_every_layer_trains(first):
    eager = BACKEND != "jax"  # a graph would take longer to trace than to run once
    model = fold_hypotheses(dtypes=PRECISIONS[first:] + PRECISIONS[:first])
    assert_trains(model, run_eagerly=eager, jit_compile=not eager)


# One layer of each kind of attention, position and norm.
FOR_XLA = ("hard attention", "learned positions", "decoder block")


@IN_TENSORFLOW
@pytest.mark.parametrize("names", [FOR_XLA, pytest.param(LAYERS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_layers_train_compiled_by_xla(names):
    assert_trains(fold_hypotheses(names), jit_compile=True)


@pytest.mark.parametrize("make, num_inputs", LAYERS.values(), ids=LAYERS)
def test_config_round_trip(make, num_inputs):
    layer, inputs = make(), (X, MEMORY)[:num_inputs]
    config = layer.get_config()
    twin = type(layer).from_config(config)
    assert twin.get_config() == config and twin.name == layer.name
    for one in (layer, twin):
        built(one, *inputs)
    twin.set_weights(layer.get_weights())
    assert_close(*run(lambda: [one(*inputs) for one in (twin, layer)]))


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_and_types_symbolic_and_real(name):
    make, num_inputs = LAYERS[name]
    half = PRECISIONS[1:] if BACKEND == "tensorflow" else [PRECISIONS[1 + list(LAYERS).index(name) % 2]]
    inputs, layers = (X, MEMORY)[:num_inputs], [make(dtype=dtype) for dtype in ("float32", *half)]
    symbolic = [layer(*(keras.Input(x.shape[1:]) for x in inputs)) for layer in layers]
    for layer in layers[1:]:
        layer.set_weights(layers[0].get_weights())
    real = run(lambda: [layer(*inputs) for layer in layers])
    for layer, outline, y in zip(layers, symbolic, real, strict=True):
        assert tuple(y.shape) == layer.compute_output_shape(*(x.shape for x in inputs))
        assert tuple(outline.shape) == (None, *y.shape[1:])
        types = {keras.backend.standardize_dtype(x.dtype) for x in (outline, y)}
        assert types == {layer.compute_dtype} and np.isfinite(array(y)).all()
        assert_close(y, real[0], 2 * TOLERANCE[layer.dtype_policy.name])


@slow_on_tensorflow
def test_any_batch_and_length():
    model = fold_hypotheses()
    program = of_any_shape(model)
    for batch, length in ((3, 7), (2, 1)):
        y = program(normal(batch, length, 8), normal(batch, length + 1, 6))
        assert y.shape == (batch, length, model.output_shape[-1]) and np.isfinite(array(y)).all()
    model.summary(print_fn=lambda text: None)


@pytest.mark.slow
@once
def test_saved_models_load_in_a_fresh_process_without_custom_objects(tmp_path):
    model = fold_hypotheses()
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "arrays.npz", X, MEMORY, array(model([X, MEMORY])))
    program = """
import sys, keras, numpy as np, keras_tfm.layers
*inputs, expected = np.load(sys.argv[1] + "/arrays.npz").values()
model = keras.models.load_model(sys.argv[1] + "/model.keras")
np.testing.assert_allclose(keras.ops.convert_to_numpy(model(inputs)), expected, rtol=0, atol=1e-5)
print("equal")
"""
    fresh = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert fresh.stdout.endswith("equal\n"), fresh.stderr


@parametrize_all("norm_first, with_memory, dtype", [False, True], [False, True], PRECISIONS)
def test_cached_decoder_equals_full(norm_first, with_memory, dtype):
    block = TransformerDecoderBlock(**SIZES, norm_first=norm_first, positions="rotary", window=3, dtype=dtype)
    memory, memory_mask = (MEMORY, np.array([[1, 1, 0], [1, 0, 0]], bool)) if with_memory else (None, None)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], bool)
    block.build(X.shape, MEMORY.shape if with_memory else None)

    def by_steps():
        cache = block.init_cache(2, 5, memory, memory_mask)
        step, cache = block(X[:, :2], mask=mask[:, :2], cache=cache)
        steps = [step]
        for t in range(2, 5):
            step, cache = block(X[:, t : t + 1], mask=mask[:, t : t + 1], cache=cache, cache_position=t)
            steps.append(step)
        return ops.concatenate(steps, axis=1)

    full = run(block, X, memory, mask=mask, memory_mask=memory_mask)
    assert_close(run(by_steps), full, TOLERANCE[dtype])


def test_cache_remembers_the_mask_that_keras_attached_to_the_memory():
    x, ids = normal(2, 1, 8), np.array([[3, 4, 0], [5, 0, 0]])
    embedding = built(keras.layers.Embedding(9, 8, mask_zero=True), ids)
    without_mask = array(embedding.embeddings)[ids]
    block = built(TransformerDecoderBlock(**SIZES), x, without_mask)

    def outputs():
        memory = embedding(ids)
        return block(x, memory), block(x, cache=block.init_cache(2, 1, memory))[0], block(x, without_mask)

    full, step, unmasked = run(outputs)
    assert_close(step, full)
    assert np.abs(array(full) - array(unmasked)).max() > 1e-4


def test_cached_step_as_a_functional_model():
    block = built(TransformerDecoderBlock(**SIZES), X, MEMORY)
    full = run(block, X, MEMORY)
    _, cache = run(lambda: block(X[:, :4], cache=block.init_cache(2, 5, MEMORY)))
    inputs = keras.tree.map_structure(lambda x: keras.Input(x.shape[1:], dtype=x.dtype), cache)
    token, start = keras.Input((1, 8)), keras.Input((), batch_size=1, dtype="int32")
    outputs = block(token, cache=inputs, cache_position=start[0])
    model = keras.Model([token, start, inputs], outputs)
    step, new_cache = run(model, [ops.convert_to_tensor(X[:, 4:]), ops.convert_to_tensor([4]), cache])
    assert_close(step, array(full)[:, 4:])
    assert array(new_cache["self"]["mask"]).all()


def test_decoder_block_wants_memory_always_or_never():
    with refused("memory"):
        built(TransformerDecoderBlock(**SIZES), X, MEMORY)(X)
    with refused("memory"):
        built(TransformerDecoderBlock(**SIZES), X)(X, MEMORY)


def test_residuals_are_those_of_the_two_papers():
    for norm_first in (False, True):
        block = built(TransformerEncoderBlock(**SIZES, norm_first=norm_first), X)

        def expected(block, norm_first):
            norms = block.attention_residual.norm, block.feed_forward_residual.norm
            x = ops.convert_to_tensor(X)
            for norm, sublayer in zip(norms, (block.attention, block.feed_forward), strict=True):
                x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
            return x

        assert_close(run(block, X), run(expected, block, norm_first))


@keras.saving.register_keras_serializable(package="tests")
def squared_relu(x):
    return ops.square(ops.relu(x))


@pytest.mark.parametrize("activation", [squared_relu, keras.activations.mish, keras.layers.LeakyReLU(0.3)])
def test_any_activation_is_saved(activation, tmp_path):
    model = functional(lambda: FeedForward(16, activation=activation), 1)
    layer = model.layers[-1]
    assert_close(*run(lambda: (layer.inner(X), activation(ops.matmul(X, layer.inner.kernel)))))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(*run(lambda: (loaded([X]), model([X]))))


def weights_of(block, name):
    return {weight.path: array(weight) for weight in block.weights if weight.name == name and "norm" not in weight.path}


@once
@pytest.mark.parametrize("heads", HEADS)
def test_initializers_reach_every_kernel_and_bias(heads):
    block = TransformerDecoderBlock(
        num_heads=4, ff_dim=512, heads=heads, kernel_initializer="he_normal", bias_initializer="ones"
    )
    block.build((None, 5, 128), (None, 5, 128))
    assert all((bias == 1).all() for bias in weights_of(block, "bias").values())
    kernels = weights_of(block, "kernel")
    assert len(kernels) == 10
    for path, kernel in kernels.items():
        inputs = kernel.shape[0]  # (inputs, outputs) or (inputs, heads, head_dim)
        if "/output/" in path:  # (heads, head_dim, outputs)
            inputs = kernel.shape[0] * kernel.shape[1]
        elif kernel.ndim == 3 and heads == "narrow":  # (heads, inputs, head_dim)
            inputs = kernel.shape[1]
        np.testing.assert_allclose(kernel.std(), (2 / inputs) ** 0.5, rtol=0.05, err_msg=path)
        assert len(np.unique(kernel)) > kernel.size / 2, path


def test_layers_without_biases_have_none():
    block = TransformerDecoderBlock(**SIZES, use_bias=False)
    block.build((None, 5, 8), (None, 3, 6))
    assert not weights_of(block, "bias")


@parametrize_all("activation, norm", ["relu", "gelu", "swish", "silu", *GATES], list(NORMS))
def test_feed_forward_and_norm(activation, norm):
    layer = spread(built(FeedForward(16, activation=activation), X))
    block = built(TransformerEncoderBlock(**SIZES, activation=activation, norm=norm), X)

    def dense(x, layer):
        return x @ array(layer.kernel) + array(layer.bias)

    function = keras.activations.get(GATES.get(activation, activation))
    inner = array(run(lambda: function(ops.convert_to_tensor(dense(X, layer.inner)))))
    if activation in GATES:
        inner = inner * dense(X, layer.gated)
    y, of_block = run(lambda: (layer(X), block(X)))
    assert_close(y, dense(inner, layer.outer))
    assert_close((array(of_block) ** 2).mean(-1), np.ones((2, 5)), 1e-3)  # both norms leave features of unit size


@pytest.mark.parametrize("width, ff_dim", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_feed_forward_of_any_width(width, ff_dim, activation):
    x, layer = normal(2, 1, width), FeedForward(ff_dim, activation=activation)
    layer.build(x.shape)
    spread(layer, 0.5)
    inner = array(run(layer.inner, x)) * (array(run(layer.gated, x)) if layer.is_gated else 1)
    expected = inner @ array(layer.outer.kernel) + array(layer.outer.bias)
    assert_close(run(layer, x), expected)
    assert_close(programs.compiled(lambda x, size: layer(x), layer.variables)(x, 0), expected)  # another product


def test_norms_are_those_of_the_papers():
    centred = X - X.mean(-1, keepdims=True)
    for norm, x in {"layer": centred, "rms": X}.items():  # RMSNorm does not subtract the mean
        block = built(TransformerEncoderBlock(**SIZES, norm=norm), X)
        assert_close(run(block.attention_residual.norm, X), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), 1e-3)


@once
@pytest.mark.xdist_group("keras_hub")  # which takes seconds to import
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_block_equals_keras_hub_with_the_same_weights(norm_first):
    keras_hub = pytest.importorskip("keras_hub")
    theirs = keras_hub.layers.TransformerEncoder(16, 2, dropout=0.1, activation="relu", normalize_first=norm_first)
    ours = TransformerEncoderBlock(**SIZES, norm_first=norm_first)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    theirs(X), ours(X)
    spread(theirs, 0.2)
    ours.attention.set_weights(theirs._self_attention_layer.get_weights())
    ours.attention_residual.norm.set_weights(theirs._self_attention_layer_norm.get_weights())
    ours.feed_forward.inner.set_weights(theirs._feedforward_intermediate_dense.get_weights())
    ours.feed_forward.outer.set_weights(theirs._feedforward_output_dense.get_weights())
    ours.feed_forward_residual.norm.set_weights(theirs._feedforward_layer_norm.get_weights())
    assert_close(ours(X), theirs(X))
    assert_close(array(ours(X, mask=mask))[mask], array(theirs(X, padding_mask=mask))[mask])


@once
@pytest.mark.xdist_group("keras_hub")
def test_decoder_block_equals_keras_hub_with_the_same_weights():
    keras_hub = pytest.importorskip("keras_hub")
    memory = normal(2, 3, 8, seed=3)
    theirs = keras_hub.layers.TransformerDecoder(16, 2, dropout=0.1)
    ours = TransformerDecoderBlock(**SIZES)
    theirs(X, memory), ours(X, memory)
    spread(theirs, 0.2)
    ours.attention.set_weights(theirs._self_attention_layer.get_weights())
    ours.attention_residual.norm.set_weights(theirs._self_attention_layer_norm.get_weights())
    ours.memory_attention.set_weights(theirs._cross_attention_layer.get_weights())
    ours.memory_residual.norm.set_weights(theirs._cross_attention_layer_norm.get_weights())
    ours.feed_forward.inner.set_weights(theirs._feedforward_intermediate_dense.get_weights())
    ours.feed_forward.outer.set_weights(theirs._feedforward_output_dense.get_weights())
    ours.feed_forward_residual.norm.set_weights(theirs._feedforward_layer_norm.get_weights())
    memory_mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    theirs_out = theirs(X, memory, encoder_padding_mask=memory_mask)
    assert_close(ours(X, memory, memory_mask=memory_mask), theirs_out)


@once
@pytest.mark.parametrize("option", ["score", "heads", "positions", "mixing", "head_dim", "num_kv_heads", "window"])
def test_blocks_hand_every_option_to_their_attention(option):
    words = {
        "score": SCORES,
        "heads": HEADS,
        "positions": SCHEMES,
        "mixing": MIXINGS,
        "head_dim": [6],
        "num_kv_heads": [1, 2],
        "window": [2],
    }
    for value in words[option]:
        block = TransformerDecoderBlock(**SIZES, **{option: value})
        block(X, MEMORY)
        assert getattr(block.attention, option) == value
        if option in inspect.signature(MultiHeadAttention).parameters:
            assert getattr(block.memory_attention, option) == value
        assert getattr(TransformerEncoderBlock(**SIZES, **{option: value}).attention, option) == value


@pytest.mark.parametrize("norm, default", [("layer", 1e-5), ("rms", 1e-6)])
def test_epsilon_reaches_every_norm(norm, default):
    for epsilon in (None, 0.5):
        options = {"norm": norm, "norm_epsilon": epsilon, "norm_first": True, "embedding_norm": True}
        stack = TransformerDecoder(num_layers=1, **SIZES, **options)
        norms = [layer for layer in stack._flatten_layers() if "Normalization" in type(layer).__name__]
        assert [layer.epsilon for layer in norms] == [epsilon or default] * 5


def test_options_are_spelled_out_readable_and_keyword_only_where_an_order_could_be_mistaken():
    block, stack = TransformerDecoderBlock(**SIZES, window=3), TransformerEncoder(num_layers=1, **SIZES, head_dim=6)
    assert (block.num_heads, block.ff_dim, block.window, block.causal, block.dropout) == (2, 16, 3, True, 0.1)
    assert (stack.num_layers, stack.num_heads, stack.head_dim, stack.positions) == (1, 2, 6, "sinusoidal")
    assert (stack.dropout, stack.norm, stack.embedding_norm) == (0.1, "layer", False)
    assert MultiHeadAttention(2, attention_dropout=0.2).attention_dropout == 0.2
    for kind, positional in {
        FeedForward: ["ff_dim"],
        MultiHeadAttention: ["num_heads"],
        MultiHeadSelfAttention: ["num_heads"],
        PositionalEncoding: ["kind"],
        TransformerDecoder: [],
        TransformerDecoderBlock: [],
        TransformerEncoder: [],
        TransformerEncoderBlock: [],
    }.items():
        parameters = inspect.signature(kind).parameters.values()
        assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == positional
    with pytest.raises(TypeError, match="positional"):
        TransformerEncoderBlock(16, 2)


@pytest.mark.parametrize("heads", HEADS)
def test_the_width_of_heads_is_an_option(heads):
    layer = MultiHeadAttention(2, head_dim=3, heads=heads, num_kv_heads=1)
    assert run(lambda: layer(X, MEMORY)).shape == X.shape
    assert layer.head_dim == 3 and layer.output_dense.kernel.shape == (2, 3, 8)
    default, same = (MultiHeadAttention(2, head_dim=dim, heads=heads) for dim in (None, 8 if heads == "wide" else 4))
    for one in (default, same):
        built(one, X, MEMORY)
    same.set_weights(default.get_weights())
    assert_close(*run(lambda: [one(X, MEMORY) for one in (default, same)]))


def remembering(call):
    """Calls a built decoder block with a cache of its own."""
    block = built(TransformerDecoderBlock(**SIZES), X, MEMORY)
    return call(block, block.init_cache(X.shape[0], X.shape[1], ops.convert_to_tensor(MEMORY)))


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: TransformerEncoderBlock(**SIZES, activation="tanhh"),
            ["activation", "swiglu", "any Keras activation", "'tanhh'"],
        ),
        (lambda: FeedForward(16, kernel_initializer="he"), ["`kernel_initializer`", "Keras initializer", "'he'"]),
        (lambda: MultiHeadAttention(2, use_bias="no"), ["`use_bias`", "False, True", "'no'"]),
        (lambda: TransformerEncoderBlock(**SIZES, norm="batch"), ["norm", "rms", "'batch'"]),
        (lambda: TransformerEncoderBlock(**SIZES, norm_epsilon=-1), ["norm_epsilon", "positive number", "-1"]),
        (lambda: TransformerEncoderBlock(num_heads=2, ff_dim=0), ["ff_dim", "positive", "0"]),
        (lambda: TransformerEncoderBlock(num_heads=2, ff_dim=2.5), ["ff_dim", "positive", "2.5"]),
        (lambda: TransformerEncoderBlock(**SIZES, score="dots"), ["score", "cosine", "'dots'"]),
        (lambda: TransformerEncoderBlock(**SIZES, windw=3), ["windw"]),
        (lambda: TransformerDecoderBlock(**SIZES, causal=False), ["causal", "False"]),
        (lambda: TransformerEncoderBlock(num_heads=3, ff_dim=16)(X), ["num_heads", "divide", "3", "8"]),
        (
            lambda: TransformerEncoderBlock(**SIZES, norm_first="yes"),
            ["norm_first", "False, True", "'yes'"],
        ),
        (lambda: TransformerEncoderBlock(**SIZES, dropout=-1), ["`dropout`", "at least 0", "-1"]),
        (lambda: TransformerDecoderBlock(**SIZES).init_cache(2, 4), ["init_cache", "build"]),
        (
            lambda: TransformerDecoderBlock(**SIZES)(X, memory_mask=np.ones((2, 5), bool)),
            ["memory_mask", "memory=None"],
        ),
        (lambda: remembering(lambda block, cache: block(X, MEMORY, cache=cache)), ["`memory`", "cache", "both"]),
        (lambda: remembering(lambda block, cache: block(X, cache={"self": cache["self"]})), ["without memory"]),
        (
            lambda: TransformerEncoderBlock(**SIZES)(X[0]),
            ["`inputs` must be (batch, length, features)", "(5, 8)"],
        ),
        (
            lambda: TransformerEncoder(num_layers=1, **SIZES)(keras.Input((8,))),
            ["`inputs` must be (batch, length, features)", "(None, 8)"],
        ),
        (
            lambda: TransformerDecoderBlock(**SIZES)(X, X[None]),
            ["`memory` must be (batch, length, features)"],
        ),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
