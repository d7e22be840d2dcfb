"""Kernels for NVIDIA GPUs, written in Pallas, which hands them to Triton: attention over short rows, and layer norms.

cuDNN's kernels are made for long rows: for 128 tokens, they spend more time on preparing and converting buffers than on
attention, and take the number of keys instead of a mask, so that tokens must be moved. Here one program of the GPU
holds all scores of a row and head, forwards and backwards.
"""

import functools
import math

import jax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from keras_tfm.ops import plain

WARPS = {16: 4, 32: 4, 64: 4, 128: 8}  # by the size of a block or head: matrix units multiply no smaller ones
LONGEST = {"bfloat16": 128, "float16": 128, "float32": 64}  # what registers hold
NEVER = -1e30

# Pallas compiles each call outside of a program anew; JAX keeps a program for each shape, and inlines it into others.
_program = functools.partial(jax.jit, inline=True)


def suits(shapes, heads, dtype):
    """Whether `attention` can be computed here: a row of each fits into a block, and all have the same heads.

    Args:
        shapes: of queries and keys, (batch, length, …); the batches must be the same, and nothing be empty.
        heads: [(number, head_dim)] of queries, keys and values.
    """
    (batch, queries, *_), (others, keys, *_) = shapes
    fits = batch == others and batch > 0 and keys > 0 and queries > 1
    # Triton's products in float32 have 10 bits, as those of XLA on GPUs unless a user wants more.
    usual = dtype != "float32" or jax.config.jax_default_matmul_precision is None
    same = len({*map(tuple, heads)}) == 1 and heads[0][1] in WARPS
    return fits and usual and same and max(queries, keys) <= LONGEST.get(str(dtype), 0)


def attention(projections, key_mask, query_mask=None, causal=False, interpret=False):
    """Scaled dot-product attention of what one, two or three products have computed.

    Args:
        projections: (qkv,), (q, kv) or (q, k, v), each (batch, length, parts, heads, head_dim). All in one array, as
            one product writes them, need not be taken apart, and neither need their gradients be joined.
        key_mask, query_mask: (batch, key), and None or (batch, query); True = may attend.
        causal: whether query `i` sees only the keys 0 … i.
        interpret: whether to run without a GPU, for tests.

    Returns:
        context (batch, query, heads, head_dim), zero for queries that may attend to nothing.
    """
    return _forwards(projections, key_mask, query_mask, causal, interpret)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
@_program(static_argnums=(3, 4))
def _forwards(projections, key_mask, query_mask, causal, interpret):
    """The context, and for each query the logarithm of the sum of its powers of two, (batch, heads, query)."""
    (batch, queries, _, heads, head_dim), dtype = projections[0].shape, projections[0].dtype
    outputs = [((batch, queries, heads, head_dim), dtype), ((batch, heads, queries), "float32")]
    query_mask = jnp.ones((batch, queries), "bool") if query_mask is None else query_mask
    return tuple(_call(_attend, projections, (key_mask, query_mask), outputs, causal, interpret))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
@_program(static_argnums=(4, 5))
def _gradient(projections, key_mask, normalizers, upstream, causal, interpret):
    """The gradients of the projections, for that of the context."""
    arrays = *projections, upstream[:, :, None]
    like = [(x.shape, x.dtype) for x in projections]
    return tuple(_call(_attend_backwards, arrays, (key_mask, normalizers), like, causal, interpret))


def _second_gradient(causal, interpret, given, slopes):
    """That of the definition: it is needed too seldom for a kernel."""
    projections, key_mask, normalizers, upstream = given
    some = jnp.swapaxes(normalizers, 1, 2)[..., None] < -NEVER / 2

    def context(projections):
        q, k, v = (x[:, :, part] for x in projections for part in range(x.shape[2]))
        return jnp.where(some, plain.attention(q, k, v, key_mask, causal), 0)

    def gradient(projections, upstream):
        return jax.vjp(context, projections)[1](upstream)[0]

    to_projections, to_upstream = jax.vjp(gradient, projections, upstream)[1](slopes)
    return to_projections, None, None, to_upstream


def _saving(projections, key_mask, query_mask, causal, interpret):
    context, normalizers = _forwards(projections, key_mask, query_mask, causal, interpret)
    return (context, normalizers), (projections, key_mask, normalizers)


_forwards.defvjp(
    _saving, lambda causal, interpret, saved, upstream: (_gradient(*saved, upstream[0], causal, interpret), None, None)
)
_gradient.defvjp(lambda *given: (_gradient(*given), given[:4]), _second_gradient)


def _call(kernel, arrays, vectors, outputs, causal, interpret):
    """Runs a kernel once for each row and head of `arrays`, of which it is given each part as a block of its own."""
    (batch, queries, _, heads, _), keys = arrays[0].shape, vectors[0].shape[1]
    if {x.shape[0] for x in (*arrays, *vectors)} != {batch}:  # a GPU would read what is behind the shorter ones
        raise ValueError(f"all arrays must have {batch} rows. Received: {[x.shape for x in (*arrays, *vectors)]}")

    def spec(shape):
        if len(shape) == 5:
            return pl.BlockSpec((None, _block(shape[1]), shape[2], None, shape[4]), lambda b, h: (b, 0, 0, h, 0))
        if len(shape) == 4:
            return pl.BlockSpec((None, _block(shape[1]), None, shape[3]), lambda b, h: (b, 0, h, 0))
        if len(shape) == 3:
            return pl.BlockSpec((None, None, _block(shape[2])), lambda b, h: (b, h, 0))
        return pl.BlockSpec((None, _block(shape[1])), lambda b, h: (b, 0))

    def part_spec(shape, part):
        return pl.BlockSpec((None, _block(shape[1]), None, None, shape[4]), lambda b, h: (b, 0, part, h, 0))

    parts = [(x, part) for x in arrays for part in range(x.shape[2])]
    return pl.pallas_call(
        functools.partial(kernel, queries=queries, keys=keys, causal=causal),
        grid=(batch, heads),
        in_specs=[*(part_spec(x.shape, part) for x, part in parts), *(spec(x.shape) for x in vectors)],
        out_specs=[spec(shape) for shape, _ in outputs],
        out_shape=[jax.ShapeDtypeStruct(*output) for output in outputs],
        compiler_params=triton.CompilerParams(num_warps=WARPS[_block(max(queries, keys))], num_stages=1),
        interpret=interpret,
        name=kernel.__name__.strip("_"),
    )(*(x for x, _ in parts), *(x.astype("int32") if x.dtype == "bool" else x for x in vectors))


def _block(length):
    """The number of rows of a block for so many tokens."""
    return next(size for size in WARPS if size >= length)


def _attend(q_ref, k_ref, v_ref, mask_ref, query_mask_ref, context_ref, normalizer_ref, *, queries, keys, causal):
    k, v = _rows(k_ref, keys), _rows(v_ref, keys)
    scores = _scores(_rows(q_ref, queries), k, mask_ref, keys, causal)
    highest = jnp.max(scores, axis=1)
    powers = jnp.exp2(scores - highest[:, None])
    query = jnp.arange(q_ref.shape[0])
    asks = triton.load(query_mask_ref, mask=query < queries, other=0) > 0
    total, some = jnp.sum(powers, axis=1), (highest > NEVER / 2) & asks
    context = jnp.where(some[:, None], triton.dot(powers.astype(v.dtype), v) / total[:, None], 0.0)
    _store(context_ref, context, queries)
    # Of a query that attends to nothing, all weights that are computed from its normalizer are zero.
    triton.store(normalizer_ref, jnp.where(some, highest + jnp.log2(total), -NEVER), mask=query < queries)


def _attend_backwards(
    q_ref, k_ref, v_ref, upstream_ref, mask_ref, normalizer_ref, *gradient_refs, queries, keys, causal
):
    to_q, to_k, to_v = [(ref, part) for ref in gradient_refs for part in range(ref.shape[1])]
    q, upstream = _rows(q_ref, queries), _rows(upstream_ref, queries)
    k, v = _rows(k_ref, keys), _rows(v_ref, keys)
    normalizers = triton.load(normalizer_ref, mask=jnp.arange(q.shape[0]) < queries, other=-NEVER)
    weights = jnp.exp2(_scores(q, k, mask_ref, keys, causal) - normalizers[:, None])
    _store_part(*to_v, triton.dot(weights.astype(q.dtype).T, upstream), keys)
    slope = triton.dot(upstream, v.T)
    slope = weights * (slope - jnp.sum(weights * slope, axis=1, keepdims=True)) * k.shape[1] ** -0.5
    slope = slope.astype(q.dtype)
    _store_part(*to_q, triton.dot(slope, k), queries)
    _store_part(*to_k, triton.dot(slope.T, q), keys)


def _scores(q, k, mask_ref, keys, causal):
    """log₂ of the weights (query, key), but for a constant of each query."""
    scores = triton.dot(q, k.T) * (k.shape[1] ** -0.5 * math.log2(math.e))
    key = jnp.arange(k.shape[0])
    allowed = triton.load(mask_ref, mask=key < keys, other=0)[None, :] > 0
    if causal:
        allowed = allowed & (key[None, :] <= jnp.arange(q.shape[0])[:, None])
    return jnp.where(allowed, scores, NEVER)


def _rows(ref, length):
    """The rows of a block, zeros after the last one."""
    return triton.load(ref, mask=(jnp.arange(ref.shape[0]) < length)[:, None], other=0.0)


def _store(ref, value, length):
    triton.store(ref, value.astype(ref.dtype), mask=(jnp.arange(ref.shape[0]) < length)[:, None])


def _store_part(ref, number, value, length):
    """Stores one part of a block (length, parts, head_dim)."""
    part = pl.ds(0, ref.shape[0]), pl.ds(number, 1)  # Pallas interprets no index that is a number
    inside = (jnp.arange(ref.shape[0]) < length)[:, None, None]
    triton.store(ref.at[part], value.astype(ref.dtype)[:, None], mask=inside)


NORM_WARPS = 4
ROWS = 8  # of a tile of `layer_norm`
TILES = 4  # that one program adds up for the gradients of scale and offset


def suits_norm(x):
    """Whether `layer_norm` can normalize x: a few rows fit into registers."""
    return x.shape[-1] in (64, 128, 256, 512, 1024, 2048) and x.dtype in ("float32", "bfloat16", "float16")


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
@_program(static_argnums=(3, 4))
def layer_norm(x, scale, offset, epsilon, interpret=False):
    """x (…, features), normalized in float32, times `scale` plus `offset`, both (features,)."""
    rows = x.reshape(-1, x.shape[-1])
    count, width = rows.shape
    height = min(ROWS, pl.next_power_of_2(count))
    tile, vector = pl.BlockSpec((height, width), lambda n: (n, 0)), pl.BlockSpec((width,), lambda n: (0,))
    normalized = pl.pallas_call(
        functools.partial(_normalize, count=count, epsilon=epsilon),
        grid=(pl.cdiv(count, height),),
        in_specs=[tile, vector, vector],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        compiler_params=triton.CompilerParams(num_warps=NORM_WARPS, num_stages=1),
        interpret=interpret,
        name="layer_norm",
    )(rows, scale, offset)
    return normalized.reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
@_program(static_argnums=(0, 1))
def _norm_gradient(epsilon, interpret, saved, upstream):
    x, scale = saved
    rows, upstream = (each.reshape(-1, x.shape[-1]) for each in (x, upstream))
    count, width = rows.shape
    programs = pl.cdiv(count, ROWS * TILES)
    tiles, vector = pl.BlockSpec((ROWS * TILES, width), lambda n: (n, 0)), pl.BlockSpec((width,), lambda n: (0,))
    sums = pl.BlockSpec((None, width), lambda n: (n, 0))
    to_x, *partial = pl.pallas_call(
        functools.partial(_norm_backwards, count=count, epsilon=epsilon),
        grid=(programs,),
        in_specs=[tiles, vector, tiles],
        out_specs=[tiles, sums, sums],
        out_shape=[jax.ShapeDtypeStruct(rows.shape, x.dtype)]
        + [jax.ShapeDtypeStruct((programs, width), "float32")] * 2,
        compiler_params=triton.CompilerParams(num_warps=NORM_WARPS, num_stages=1),
        interpret=interpret,
        name="layer_norm_backwards",
    )(rows, scale, upstream)
    return to_x.reshape(x.shape), *(each.sum(axis=0).astype(scale.dtype) for each in partial)


def _second_norm_gradient(epsilon, interpret, given, slopes):
    """That of the definition."""

    def normalized(x, scale, offset):
        return (_standardized(x, epsilon)[0] * scale + offset).astype(x.dtype)

    def gradient(saved, upstream):
        x, scale = saved
        return jax.vjp(normalized, x, scale, jnp.zeros_like(scale))[1](upstream)

    return jax.vjp(gradient, *given)[1](tuple(slopes))


layer_norm.defvjp(lambda x, scale, offset, *static: (layer_norm(x, scale, offset, *static), (x, scale)), _norm_gradient)
_norm_gradient.defvjp(lambda *arguments: (_norm_gradient(*arguments), arguments[2:]), _second_norm_gradient)


def _normalize(x_ref, scale_ref, offset_ref, y_ref, *, count, epsilon):
    left = count - pl.program_id(0) * x_ref.shape[0]
    unit, _ = _standardized(_rows(x_ref, left), epsilon)
    y = unit * scale_ref[...].astype("float32")[None] + offset_ref[...].astype("float32")[None]
    _store(y_ref, y, left)


def _norm_backwards(x_ref, scale_ref, upstream_ref, to_x_ref, to_scale_ref, to_offset_ref, *, count, epsilon):
    scale, start = scale_ref[...].astype("float32")[None], pl.program_id(0) * ROWS * TILES

    def add_tile(n, totals):
        tile = pl.ds(n * ROWS, ROWS)
        left = count - start - n * ROWS
        unit, inverse = _standardized(_rows(x_ref.at[tile], left), epsilon)
        upstream = _rows(upstream_ref.at[tile], left).astype("float32")
        to_unit = upstream * scale
        along = jnp.mean(to_unit * unit, axis=1, keepdims=True)
        _store(to_x_ref.at[tile], (to_unit - jnp.mean(to_unit, axis=1, keepdims=True) - unit * along) * inverse, left)
        return totals[0] + jnp.sum(upstream * unit, axis=0), totals[1] + jnp.sum(upstream, axis=0)

    zeros = jnp.zeros(x_ref.shape[1], "float32")
    to_scale_ref[...], to_offset_ref[...] = jax.lax.fori_loop(0, TILES, add_tile, (zeros, zeros))


def _standardized(x, epsilon):
    """Rows of x with mean 0 and variance 1 in float32, and the factor that made their variance 1."""
    x = x.astype("float32")
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse
