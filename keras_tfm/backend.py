"""What Keras leaves to its backends: the one place that asks which of them is running."""

import contextlib
from typing import NamedTuple

import keras
from keras import ops

# Keras has no public reader for the mask that it attaches to a tensor; JAX tracers keep theirs in a side table.
from keras.src.backend import get_keras_mask as get_keras_mask
from keras.src.backend import set_keras_mask

# Nor a public name for what `fit` takes as it is, without looking at the shapes of the first batches.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import get_torch_dataloader

from keras_tfm import kernels


def fused_attention(q, k, v, key_mask=None, causal=False):
    """Scaled dot-product attention (batch, query, heads, head_dim) by a fused kernel, or None where none is exact.

    Args:
        q, k, v: queries (batch, query, heads, head_dim), keys and values (batch, key, kv_heads, head_dim).
        key_mask: None or (batch, key). With `causal`, queries that it hides get any value.
    """
    if key_mask is None:
        if _jax_on_cpu() and keras.backend.standardize_dtype(q.dtype) == "float16":
            return None  # XLA has no such product there
        if keras.backend.backend() == "tensorflow" and k.shape[2] == 1:  # Keras there knows no head that all share
            k, v = (ops.repeat(x, q.shape[2], axis=2) for x in (k, v))
        q = q * q.shape[-1] ** -0.5  # before the product, which would overflow float16 sooner
        return ops.dot_product_attention(q, k, v, scale=1.0, is_causal=causal)
    if keras.backend.backend() == "jax":
        return _cudnn_attention(q, k, v, key_mask, causal)
    return None


def _jax_on_cpu():
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu"


def _cudnn_attention(q, k, v, key_mask, causal):
    """cuDNN takes the number of keys, not a mask: put the tokens first, in their order, and padding last."""
    import jax
    from jax import numpy as jnp

    if jax.default_backend() != "gpu":
        return None

    def gather(x, order):
        return jnp.take_along_axis(x, order[:, :, None, None], axis=1, mode="promise_in_bounds")

    # JAX's own gradient of a gather adds up, for which the GPU is slow; that of a permutation is its inverse.
    permute = jax.custom_vjp(lambda x, order, inverse: gather(x, order))
    permute.defvjp(
        lambda x, order, inverse: (gather(x, order), inverse), lambda inverse, g: (gather(g, inverse), None, None)
    )

    order = jnp.argsort(~key_mask, axis=1, stable=True)
    inverse = jnp.argsort(order, axis=1)
    k, v = permute(k, order, inverse), permute(v, order, inverse)
    if causal:
        q = permute(q, order, inverse)
    lengths = key_mask.sum(axis=1, dtype="int32")
    try:
        context = jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, key_value_seq_lengths=jnp.maximum(lengths, 1), implementation="cudnn"
        )
    except (NotImplementedError, RuntimeError):  # a type, length or head_dim that cuDNN lacks, or no cuDNN
        return None
    if causal:
        context = permute(context, inverse, order)
    return jnp.where(lengths[:, None, None, None] > 0, context, 0)


def compiled(function, variables, locks=()):
    """`function(array, size)` with one program for each shape and size; it sees new values of the variables.

    Several threads may call it. Locks are those of models that own the variables, for JAX: see `SequenceModel.running`.
    """
    if keras.backend.backend() == "jax":
        import jax

        def run(values, array, size):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return _for_xla(function)(array, size)

        program = jax.jit(run, static_argnums=2)

        def call(array, size):
            with contextlib.ExitStack() as stack:
                for lock in sorted(locks, key=id):  # one order for all threads
                    stack.enter_context(lock)
                return program([variable.value for variable in variables], array, size)

        return call
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(_for_xla(function) if JIT_COMPILE else function, jit_compile=JIT_COMPILE, autograph=False)
    return function


JIT_COMPILE = True  # whether XLA compiles TensorFlow's programs: slower to begin with, faster then


def _for_xla(function):
    def traced(*arguments):
        with kernels.using(kernels.XLA):
            return function(*arguments)

    return traced


def without_mask(x):
    """`x`, from which Keras' mask has been taken."""
    set_keras_mask(x, None)
    return x


def reshape(x, shape):
    """`ops.reshape`, by which a graph does not work out the one size that it may not know."""
    known = [size for size in shape if isinstance(size, int)]
    if len(known) == len(shape) - 1 and all(known):
        shape = [size if isinstance(size, int) else -1 for size in shape]
    return ops.reshape(x, shape)


def whole(name, value):
    """`value` as an int or as a tensor of integers."""
    if isinstance(value, int):
        return value
    value = ops.convert_to_tensor(value)
    if "int" not in keras.backend.standardize_dtype(value.dtype):
        raise ValueError(f"`{name}` must be whole. Received: {name} of dtype {value.dtype}")
    return ops.cast(value, "int32")


def known(value):
    """`value` as an int, or None while a graph is traced that has yet to learn it."""
    try:
        return int(value)
    except (TypeError, NotImplementedError):  # what JAX and TensorFlow raise for a tensor without a value
        return None


class Feed(DataAdapter):
    """Batches of NumPy arrays that `fit` and `evaluate` take, though each may have lengths of its own.

    Subclasses have `num_batches`, None if there is no end, and `one_pass()`, a generator of batches. A `PyDataset`
    would not do: on TensorFlow, Keras takes the shapes of its first two batches for those of all.
    """

    batch_size = has_partial_batch = partial_batch_size = None

    def get_numpy_iterator(self):
        return self.one_pass()

    get_jax_iterator = get_numpy_iterator

    def get_torch_dataloader(self):
        return get_torch_dataloader(self.one_pass())

    def get_tf_dataset(self):
        import tensorflow as tf

        first = next(self.one_pass())
        signature = keras.tree.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), first)
        return tf.data.Dataset.from_generator(self.one_pass, output_signature=signature).prefetch(tf.data.AUTOTUNE)


def num_replicas():
    """How many replicas of a `tf.distribute` strategy take each step together."""
    if keras.backend.backend() != "tensorflow":
        return 1  # JAX sees the whole batch, however many devices share it
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def mean_over_replicas(total, count):
    """total / count of the whole batch, of which each replica knows its own rows; 0 if there is nothing to count.

    Replicas' gradients are added up, and their losses are reported times their number. So each has the gradient of its
    own part, and an equal share of the value.
    """
    if num_replicas() > 1:
        import tensorflow as tf

        if replica := tf.distribute.get_replica_context():  # None while Keras builds the model
            whole = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(tf.stack([total, count])))
            own = tf.math.divide_no_nan(total, whole[1])
            return own + tf.stop_gradient(tf.math.divide_no_nan(whole[0], whole[1]) / num_replicas() - own)
    return ops.divide_no_nan(total, count)


class Machine(NamedTuple):
    """What suits the machine that Keras computes on."""

    accelerated: bool  # by a GPU or TPU
    shapes: int  # of batches: few where each is compiled by itself
    jit_compile: bool | str


def machine():
    """The machine as training sees it."""
    if keras.backend.backend() == "jax":
        import jax

        accelerated = jax.default_backend() != "cpu"
        return Machine(accelerated, 8 if accelerated else 4, "auto")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if not any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU")):
            return Machine(False, 14, False)  # one program for all shapes, which runs as fast as XLA's many
    return Machine(True, 8, "auto")
