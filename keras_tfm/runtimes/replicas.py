"""Training steps that several replicas take together."""

import keras
from keras import ops


def num_replicas():
    """Number of replicas of the current `tf.distribute` strategy."""
    if keras.backend.backend() != "tensorflow":
        return 1  # JAX computes on the whole batch, however many devices share it
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def mean_over_replicas(total, count):
    """total / count over the whole batch, where each replica knows its own rows only; 0 if the count is 0.

    `tf.distribute` adds up the gradients of the replicas and averages the losses that it reports. So the gradient of
    the result is that of a replica's own part, while its value is the same on every replica.
    """
    if num_replicas() > 1:
        import tensorflow as tf

        if replica := tf.distribute.get_replica_context():  # None while Keras builds the model
            sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(tf.stack([total, count])))
            own = tf.math.divide_no_nan(total, sums[1])
            return own + tf.stop_gradient(tf.math.divide_no_nan(sums[0], sums[1]) / num_replicas() - own)
    return ops.divide_no_nan(total, count)
