"""The kernels for GPUs, run without one by Pallas' interpreter, against their plain definitions."""

import functools
import types

import keras
import numpy as np
import pytest
from conftest import BACKEND, TOLERANCE, assert_close, built, normal, parametrize_all, run

from keras_tfm.layers import MultiHeadAttention, TransformerDecoderBlock, TransformerEncoderBlock

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="the kernels for GPUs are written for JAX")
if BACKEND == "jax":
    import jax
    from jax import numpy as jnp

    from keras_tfm.ops import jax as functions
    from keras_tfm.ops import plain, triton

TOLERANCES = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-4}
PACKINGS = {"qkv": [3], "q, kv": [1, 2], "q, k, v": [1, 1, 1]}


def some_inputs(batch, queries, keys, heads, head_dim, dtype="bfloat16"):
    q, k, v = (normal(batch, length, heads, head_dim, seed=n) for n, length in enumerate((queries, keys, keys)))
    mask = np.random.default_rng(0).random((batch, keys)) < 0.7
    mask[0], mask[-1] = False, True  # one row has no token, one no padding
    return [jnp.asarray(x, dtype) for x in (q, k, v)], jnp.asarray(mask)


def packed(q, k, v, packing):
    """Queries, keys and values in as many arrays as products have computed them."""
    parts, arrays = [q, k, v], []
    for count in PACKINGS[packing]:
        arrays.append(jnp.stack(parts[:count], axis=2))
        parts = parts[count:]
    return tuple(arrays)


def with_gradients(function, inputs, upstream):
    output, pull = jax.vjp(function, *inputs)
    return output, *pull(upstream.astype(output.dtype))


@parametrize_all("causal, packing", [False, True], list(PACKINGS))
@pytest.mark.parametrize("length, head_dim", [(16, 16), (20, 32), (100, 64)])
def test_attention_is_that_of_its_definition(length, head_dim, causal, packing):
    (q, k, v), mask = some_inputs(3, length, length, 2, head_dim)
    kernel = functools.partial(triton.attention, key_mask=mask, causal=causal, interpret=True)
    upstream = normal(3, length, 2, head_dim, seed=3)
    # with `causal`, the context of masked queries is undefined
    upstream = jnp.asarray(upstream * np.asarray(mask)[:, :, None, None] if causal else upstream)
    ours = with_gradients(lambda *x: kernel(packed(*x, packing)), (q, k, v), upstream)
    theirs = with_gradients(lambda *x: plain.attention(*x, mask, causal), (q, k, v), upstream)
    if causal:
        ours, theirs = ((jnp.where(mask[:, :, None, None], each[0], 0), *each[1:]) for each in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.astype("float32"), b.astype("float32"), TOLERANCES["bfloat16"])


@parametrize_all("dtype, queries, keys", list(TOLERANCES), [7, 40], [18, 33])
def test_attention_to_a_memory_of_another_length(dtype, queries, keys):
    inputs, mask = some_inputs(3, queries, keys, 2, 16, dtype)
    kernel = functools.partial(triton.attention, key_mask=mask, interpret=True)
    upstream = jnp.asarray(normal(3, queries, 2, 16, seed=3))
    ours = with_gradients(lambda *x: kernel(packed(*x, "q, kv")), inputs, upstream)
    theirs = with_gradients(lambda *x: plain.attention(*x, mask), inputs, upstream)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.astype("float32"), b.astype("float32"), TOLERANCES[dtype])


def test_masked_queries_get_zeros_and_give_no_gradients():
    (q, k, v), mask = some_inputs(3, 20, 20, 2, 16)
    kernel = functools.partial(triton.attention, key_mask=mask, query_mask=mask, interpret=True)
    context, *slopes = with_gradients(lambda *x: kernel(packed(*x, "q, k, v")), (q, k, v), jnp.ones(q.shape))
    assert not np.asarray(context.astype("float32"))[~np.asarray(mask)].any()
    for slope in slopes:
        slope = np.asarray(slope.astype("float32"))
        assert not slope[~np.asarray(mask)].any() and np.isfinite(slope).all()
    nowhere = jnp.where(mask[:, :, None, None], q, jnp.nan)
    assert (context == kernel(packed(nowhere, k, v, "q, k, v"))).all()


@parametrize_all("shape, dtype", [(1, 1, 64), (3, 5, 128), (70, 256)], ["float32", "bfloat16"])
def test_layer_norm_is_that_of_its_definition(shape, dtype):
    x, scale, offset = jnp.asarray(3 * normal(*shape) + 2, dtype), *jnp.asarray(normal(2, shape[-1], seed=1))
    kernel = functools.partial(triton.layer_norm, epsilon=1e-5, interpret=True)

    def definition(x, scale, offset):
        centred = (x := x.astype("float32")) - x.mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + offset

    upstream = jnp.asarray(normal(*shape, seed=2), dtype)
    ours, theirs = (with_gradients(f, (x, scale, offset), upstream) for f in (kernel, definition))
    tolerance = TOLERANCES[dtype]
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.astype("float32"), b.astype("float32"), tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_gradients(causal):
    (q, k, v), mask = some_inputs(3, 5, 5, 2, 16, "float32")
    x, scale, offset = jnp.asarray(normal(4, 64)), *jnp.asarray(normal(2, 64, seed=1))

    def second(attention, norm):
        def slope(q, k, v, x, scale):
            context = jnp.where(mask[:, :, None, None], attention(q, k, v), 0)
            return jnp.sum(jnp.sin(context)) + jnp.sum(jnp.sin(norm(x, scale, offset)))

        def penalty(*given):
            return sum(jnp.sum(each**2) for each in jax.grad(slope, range(5))(*given))

        return jax.grad(penalty, range(5))(q, k, v, x, scale)

    ours = second(
        lambda *x: triton.attention(packed(*x, "q, kv"), mask, mask, causal, True),
        lambda *x: triton.layer_norm(*x, 1e-5, True),
    )
    theirs = second(
        lambda *x: plain.attention(*x, mask, causal),
        lambda x, scale, offset: triton._standardized(x, 1e-5)[0] * scale + offset,
    )
    for a, b in zip(ours, theirs, strict=True):
        assert abs(np.asarray(b)).max() > 1e-3
        assert_close(a, b, 1e-3)


@pytest.fixture
def interpreted(monkeypatch):
    """Lets layers use the kernels as on a GPU, run by the interpreter; returns the list of their calls."""
    calls = []

    def counted(kernel, *arguments):
        calls.append(kernel)
        return getattr(triton, kernel)(*arguments, interpret=True)

    kernels = {name: functools.partial(counted, name) for name in ("attention", "layer_norm")}
    kernels |= {"suits": triton.suits, "suits_norm": triton.suits_norm}

    def on_a_gpu():
        monkeypatch.setattr(functions, "_find_triton", lambda device: types.SimpleNamespace(**kernels))
        return calls

    return on_a_gpu


@parametrize_all("dtype, num_kv_heads", ["mixed_bfloat16", "float32"], [2, 1])
def test_blocks_compute_the_same_with_the_kernels(dtype, num_kv_heads, interpreted):
    options = {"num_heads": 2, "ff_dim": 32, "num_kv_heads": num_kv_heads, "dtype": dtype}
    x, memory = normal(3, 20, 64), normal(3, 7, 64, seed=1)
    mask, memory_mask = (np.arange(length) < np.array([[length], [3], [1]]) for length in (20, 7))
    encoder = built(TransformerEncoderBlock(**options), x)
    decoder = built(TransformerDecoderBlock(**options), x, memory)
    given = {"mask": mask, "memory_mask": memory_mask}
    expected = run(encoder, x, mask=mask), run(decoder, x, memory, **given)
    calls = interpreted()
    found = run(encoder, x, mask=mask), run(decoder, x, memory, **given)
    # heads that share keys are left to other ways
    assert calls.count("attention") == (3 if num_kv_heads == 2 else 0) and calls.count("layer_norm") == 5
    for a, b in zip(found, expected, strict=True):
        a, b = (np.where(mask[:, :, None], np.asarray(each, "float32"), 0) for each in (a, b))
        assert_close(a, b, max(TOLERANCE[dtype], TOLERANCES["float32"]))


def test_a_mask_for_all_rows_and_a_memory_for_all_rows(interpreted):
    """A GPU would read the masks of other rows from memory that is not the mask's."""
    x, memory, mask = normal(3, 5, 64), normal(3, 7, 64, seed=1), np.array([[1, 1, 1, 0, 0, 0, 1]], bool)
    layer = built(MultiHeadAttention(num_heads=2), x, memory)
    cases = [(memory, mask), (memory, np.repeat(mask, 3, axis=0)), (memory[:1], mask)]
    expected = [run(layer, x, memory, memory_mask=mask) for memory, mask in cases]
    calls = interpreted()
    for (memory, mask), wanted in zip(cases, expected, strict=True):
        assert_close(run(layer, x, memory, memory_mask=mask), wanted, TOLERANCES["float32"])
    assert calls == ["attention"] * 2  # heads would find no second row of the memory
    (q, k, v), mask = some_inputs(3, 4, 4, 2, 16)
    with pytest.raises(ValueError, match="must have 3 rows"):
        triton.attention((q[:, :, None], k[:, :, None], v[:, :, None]), mask[:1], interpret=True)


def test_nothing_is_compiled_anew_outside_of_programs():
    (q, k, v), mask = some_inputs(2, 16, 16, 2, 16)
    x, scale, compiled = normal(2, 3, 64), np.ones(64, "float32"), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **details: compiled.append(details) if event.endswith("backend_compile_duration") else None
    )

    def all_kernels():
        attend = lambda *x: triton.attention(packed(*x, "qkv"), mask, interpret=True)  # noqa: E731
        with_gradients(attend, (q, k, v), jnp.ones(q.shape))
        with_gradients(lambda *x: triton.layer_norm(*x, 1e-5, True), (jnp.asarray(x), scale, scale), jnp.ones(x.shape))

    all_kernels()
    before = len(compiled)
    assert before
    all_kernels()
    assert compiled[before:] == []


def test_the_kernels_are_for_programs_of_one_device(interpreted):
    calls, x, norm = interpreted(), jnp.asarray(normal(2, 3, 64)), keras.layers.LayerNormalization()
    norm.build(x.shape)
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "x"), jax.sharding.PartitionSpec("x")
    divided = jax.shard_map(lambda x: functions.layer_norm(norm, x), mesh=mesh, in_specs=spec, out_specs=spec)(x)
    assert not calls
    assert_close(functions.layer_norm(norm, x), divided, TOLERANCES["float32"])
    assert calls == ["layer_norm"]


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_attention_without_projections_uses_the_kernel(dtype, interpreted):
    """Where queries are rotated first, or keys are those of a cache."""
    (q, k, v), mask = some_inputs(3, 4, 20, 2, 16, dtype)
    calls = interpreted()
    context = functions.attention(q, k, v, mask)
    assert calls == ["attention"]
    assert_close(context.astype("float32"), plain.attention(q, k, v, mask).astype("float32"), TOLERANCES[dtype])


def test_sums_in_one_pass_are_those_of_two():
    for x in (5 * normal(3, 4, 1000) + 20, np.array([[1e4, -1e4, 0.0]], "float32")):
        for a, b in zip(functions._sums(jnp.asarray(x)), functions._sums_in_one_pass(jnp.asarray(x)), strict=True):
            assert_close(a, b, 1e-4)


def test_triton_can_express_the_kernels():
    (q, k, v), mask = some_inputs(2, 100, 100, 8, 64)
    x, scale = jnp.ones((2, 100, 512), "bfloat16"), jnp.ones(512)

    def loss(q, x):
        context = triton.attention((jnp.stack([q, k, v], axis=2),), mask, mask, True)
        return context.astype("float32").sum() + triton.layer_norm(x, scale, scale, 1e-5).astype("float32").sum()

    program = jax.jit(jax.grad(loss, (0, 1))).trace(q, x).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("triton") >= 3


@parametrize_all("dtype, head_dim", list(TOLERANCES), [16, 128])
def test_triton_can_express_the_longest_rows(dtype, head_dim):
    longest = triton.LONGEST[dtype]
    (q, k, v), mask = some_inputs(2, longest, longest, 2, head_dim, dtype)

    def loss(q):
        return triton.attention(packed(q, k, v, "qkv"), mask, mask, True).astype("float32").sum()

    program = jax.jit(jax.grad(loss)).trace(q).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("triton") >= 2
