"""JAX: gradients of our own where JAX' would copy, transpose or scatter large arrays; on GPUs, kernels of our own."""

import functools

import jax
import keras
import numpy as np
from jax import lax
from jax import numpy as jnp
from keras import ops

from keras_tfm.ops import plain, xla_flags
from keras_tfm.ops.plain import *  # noqa: F403


def matmul(x, kernel):
    return _contract(x, kernel, 0)


def matmul_transposed(x, table):
    return _contract(x, table, 1)


def _contract(x, factor, axis):
    """Contracts the last axis of x with an axis of the factor.

    JAX would compute the gradient of the factor as upstreamᵀ x, and XLA copies the upstream, which may be as large as
    the logits, to transpose it on CPUs; in xᵀ upstream it copies x.
    """
    x, factor = ops.convert_to_tensor(x), ops.convert_to_tensor(factor)

    def contracted(a, b, axis_a, axis_b):
        return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())))

    def gradient(saved, upstream):
        x, factor = saved
        to_factor = contracted(x, upstream, 0, 0)
        return contracted(upstream, factor, 1, 1 - axis), to_factor.T if axis else to_factor

    multiply = jax.custom_vjp(lambda x, factor: contracted(x, factor, 1, axis))
    multiply.defvjp(lambda x, factor: (multiply(x, factor), (x, factor)), gradient)
    return multiply(x, factor)


def relu(x):
    """JAX would keep x for the gradient, and could not write only the output after a matrix product."""

    @jax.custom_vjp
    def rectified(x):
        return jnp.maximum(x, 0)

    def forwards(x):
        y = rectified(x)
        return y, y

    # XLA would compute `y > 0` from x, which then had two uses, and could not be joined to the matrix product.
    rectified.defvjp(forwards, lambda y, upstream: (jnp.where(y == 0, 0, upstream),))
    return rectified(ops.convert_to_tensor(x))


def embed(table, ids):
    """The gradient adds up the rows of equal ids, sorted first.

    JAX would do so by a scatter, which on GPUs waits wherever two ids are the same, as padding and frequent words are.
    """
    table, ids = ops.convert_to_tensor(table), ops.convert_to_tensor(ids)

    @jax.custom_vjp
    def take(table, ids):
        return jnp.take(table, ids, axis=0, mode="clip")

    def gradient(ids, upstream):
        order = jnp.argsort(ids)
        rows = jnp.take(upstream, order, axis=0).astype("float32")
        total = jax.ops.segment_sum(rows, jnp.take(ids, order), table.shape[0], indices_are_sorted=True)
        return total.astype(table.dtype), None

    take.defvjp(lambda table, ids: (take(table, ids), ids), gradient)
    return take(table, ids.reshape(-1)).reshape(*ids.shape, table.shape[1])


def layer_norm(layer, x):
    """By one kernel on GPUs, where XLA needs three, and seven for the gradient."""
    kernels = triton()
    if kernels is None or not plain.is_simple_norm(layer, x) or not kernels.suits_norm(x):
        return plain.layer_norm(layer, x)
    scale, offset = ops.cast(layer.gamma, "float32"), ops.cast(layer.beta, "float32")
    return ops.cast(kernels.layer_norm(x, scale, offset, layer.epsilon), layer.compute_dtype)


def crossentropy(labels, logits, smoothing=0.0):
    """Holds no second copy of the logits in float32."""
    labels, logits = ops.cast(labels, "int32"), ops.convert_to_tensor(logits)
    share = smoothing / logits.shape[-1]
    sums = _sums_in_one_pass if _device().platform == "gpu" else _sums

    def forwards(logits):
        wide = logits.astype("float32")
        normalizer, mean = sums(wide)
        chosen = jnp.take_along_axis(wide, labels[..., None], axis=-1)[..., 0]
        losses = normalizer - (1 - smoothing) * chosen
        return losses - smoothing * mean if smoothing else losses, (logits, normalizer)

    def gradient(saved, upstream):
        logits, normalizer = saved
        wanted = jnp.where(jnp.arange(logits.shape[-1]) == labels[..., None], 1 - smoothing + share, share)
        slope = jnp.exp(logits.astype("float32") - normalizer[..., None]) - wanted
        return ((slope * upstream[..., None]).astype(logits.dtype),)

    losses = jax.custom_vjp(lambda logits: forwards(logits)[0])
    losses.defvjp(forwards, gradient)
    return losses(logits)


def _sums(x):
    """log Σ exp(x) and the mean of x (…, n)."""
    highest = jnp.max(x, axis=-1, keepdims=True)
    lowered = x - highest  # both sums read it, in one pass
    return highest[..., 0] + jnp.log(jnp.sum(jnp.exp(lowered), axis=-1)), jnp.mean(x, axis=-1)


def _sums_in_one_pass(x):
    """`_sums`, with a sum of exponentials that changes its scale whenever it meets a higher value."""

    def add(left, right):
        (highest, total, plain_sum), (other, other_total, other_sum) = left, right
        factor = jnp.exp(-jnp.abs(highest - other))
        total = jnp.where(highest > other, total + other_total * factor, total * factor + other_total)
        return jnp.maximum(highest, other), total, plain_sum + other_sum

    lowest, zero = np.float32(-1e30), np.float32(0)
    highest, total, plain_sum = lax.reduce((x, jnp.ones_like(x), x), (lowest, zero, zero), add, (x.ndim - 1,))
    return highest + jnp.log(total), plain_sum / x.shape[-1]


def _device():
    """The device that JAX computes on: that of `jax.default_device` and `keras.device`, else the first one."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if isinstance(device, str) else device or jax.devices()[0]


@functools.cache
def _find_triton(device):
    """The kernels for GPUs, or None where they have not been tried: only Hopper GPUs and known versions of JAX."""
    if getattr(device, "compute_capability", None) != "9.0" or not xla_flags.are_known():
        return None
    from keras_tfm.ops import triton

    return triton


def triton():
    """The kernels for GPUs, or None: on other devices, and on several, among which XLA cannot divide them."""
    several = keras.distribution.distribution() is not None or not jax.sharding.get_abstract_mesh().empty
    return None if several else _find_triton(_device())


def attention(q, k, v, key_mask=None, causal=False):
    """By kernels for GPUs, unless there is one query per row; XLA on CPUs cannot multiply float16 matrices."""
    if key_mask is not None and packs_attention(q, k, [x.shape[2:] for x in (q, k, v)], q.dtype):
        return packed_attention([x[:, :, None] for x in (q, k, v)], key_mask, None, causal)
    platform, one_memory_each = _device().platform, q.shape[0] == k.shape[0]
    if key_mask is not None and platform == "gpu" and q.shape[1] > 1 and one_memory_each:
        return _cudnn_attention(q, k, v, jnp.broadcast_to(key_mask, k.shape[:2]), causal)
    if platform == "cpu" and q.dtype == "float16":
        return plain.attention(q, k, v, key_mask, causal)
    return plain.keras_attention(q, k, v, key_mask, causal)


short_attention = attention


def packs_attention(inputs, memory, heads, dtype):
    kernels = triton()
    return kernels is not None and kernels.suits((inputs.shape, memory.shape), heads, dtype)


def packed_attention(projections, key_mask, query_mask, causal):
    """Attention of what one, two or three products have computed, (batch, length, 3 or less, heads, head_dim) each."""
    key_mask = jnp.broadcast_to(True if key_mask is None else key_mask, projections[-1].shape[:2])
    return triton().attention(tuple(projections), key_mask, query_mask, causal)


def _cudnn_attention(q, k, v, key_mask, causal):
    """cuDNN takes the number of keys instead of a mask, so tokens move to the front and padding to the end."""

    def gather(x, order):
        return jnp.take_along_axis(x, order[:, :, None, None], axis=1, mode="promise_in_bounds")

    # JAX differentiates a gather into a scatter-add, which is slow on GPUs; a permutation only needs its inverse.
    permute = jax.custom_vjp(lambda x, order, inverse: gather(x, order))
    permute.defvjp(
        lambda x, order, inverse: (gather(x, order), inverse), lambda inverse, g: (gather(g, inverse), None, None)
    )

    order = jnp.argsort(~key_mask, axis=1, stable=True)
    inverse = jnp.argsort(order, axis=1)
    keys, values = permute(k, order, inverse), permute(v, order, inverse)
    queries = permute(q, order, inverse) if causal else q
    lengths = key_mask.sum(axis=1, dtype="int32")
    # Where no key may be attended to, all attend to the first one, with a value of zero: the context needs no mask.
    values = jnp.where(lengths[:, None, None, None] > 0, values, 0)
    try:
        context = jax.nn.dot_product_attention(
            queries,
            keys,
            values,
            is_causal=causal,
            key_value_seq_lengths=jnp.maximum(lengths, 1),
            implementation="cudnn",
        )
    except (NotImplementedError, RuntimeError):  # cuDNN is missing, or does not support this dtype, length or head_dim
        return plain.attention(q, k, v, key_mask, causal)
    return permute(context, inverse, order) if causal else context


def random_bits(shape, seed_generator):
    """The places of the values, mixed twice with keys made from the seed.

    XLA computes this inside the kernel that drops the values, forwards and backwards. The numbers of JAX' generators
    it writes to memory and reads again, which takes a fifth of the time of a training step on a GPU.
    """
    first, second = mixed_keys(*seed_generator.next().astype("uint32"))
    places = jnp.zeros(shape, "uint32")
    for axis, size in enumerate(shape):
        places = places * np.uint32(size) + lax.broadcasted_iota("uint32", shape, axis)
    # Without the second `places`, keys that differ in `first` alone would give the same numbers in another order.
    mixed = _mix(_mix(places ^ first) + places + second)
    return (mixed >> np.uint32(16)).astype("uint16")


def mixed_keys(seed, counter):
    """Two keys from the seed of a layer and its count of calls: a Feistel network, so no two pairs give the same keys.

    Used as they are, seeds that are close to each other would only exchange places.
    """
    seed = seed + _mix(counter)
    counter = counter ^ _mix(seed)
    return seed + _mix(counter), counter


def _mix(x):
    """MurmurHash3's last step, a bijection in which each bit of `x` changes about half of the bits."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def to_numpy(variables):
    """All variables are on their way from the device at the same time."""
    for variable in variables:
        for shard in variable.value.addressable_shards:
            shard.data.copy_to_host_async()
    return [_whole_array(variable.value) for variable in variables]


def _whole_array(value):
    """The array of a JAX value, of which other processes may hold copies, but no part that this one does not have."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return ops.convert_to_numpy(value)
    parts = [(shard.index, ops.convert_to_numpy(shard.data)) for shard in value.addressable_shards]
    array = np.empty(value.shape, parts[0][1].dtype)
    for index, part in parts:
        array[index] = part
    return array
