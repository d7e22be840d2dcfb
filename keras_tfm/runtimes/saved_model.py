"""SavedModels, which TensorFlow executes operator by operator."""

import functools

import tensorflow as tf
from keras import ops

from keras_tfm.ops import plain
from keras_tfm.ops.plain import is_simple_norm
from keras_tfm.ops.runtime import INFERENCE, affine, dense, logits
from keras_tfm.ops.tensorflow import standardized


def saved_model():
    """The runtime of the graph that is being traced, with as few operators in its loops as possible.

    TensorFlow needs some microseconds for each operator, which for one sentence is longer than it computes.
    """
    graph = tf.compat.v1.get_default_graph()

    def hoist(make):
        with graph.as_default():  # not in the body of a loop, where this would be done at each step
            return make()

    return INFERENCE._replace(
        hoist=hoist,
        dense=functools.partial(dense, affine=functools.partial(affine, add_bias=tf.nn.bias_add)),
        logits=functools.partial(logits, matmul=_matmul_transposed),
        layer_norm=layer_norm,
        embed=embed,
        take=take,
        slice_update=_slice_update,
    )


def take(x, places, axis):
    return tf.gather(x, places, axis=axis)  # without Keras' handling of negative places


def embed(table, ids):
    return tf.gather(ops.convert_to_tensor(table), ids)


def layer_norm(layer, x):
    """Keras' layer norm with fewer operators."""
    if not is_simple_norm(layer, x):
        return plain.layer_norm(layer, x)
    unit, _ = standardized(x, layer.epsilon)
    return ops.cast(unit * ops.cast(layer.gamma, "float32") + ops.cast(layer.beta, "float32"), layer.compute_dtype)


def _matmul_transposed(x, table):  # of a few rows with a long table: this order takes half the time
    return tf.transpose(tf.matmul(ops.convert_to_tensor(table), x, transpose_b=True))


def _slice_update(x, starts, updates):
    """`ops.slice_update` by an operator that does not need XLA, which TensorFlow Serving disables."""
    begin = tf.stack([tf.cast(start, "int32") for start in starts])
    end, value = begin + tf.shape(updates), tf.cast(updates, x.dtype)
    return tf.raw_ops.TensorStridedSliceUpdate(input=x, begin=begin, end=end, strides=tf.ones_like(begin), value=value)
