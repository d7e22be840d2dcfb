"""Feeding batches to Keras' trainers."""

import collections
import concurrent.futures

import keras

from keras_tfm.ops.private import DataAdapter, get_torch_dataloader


class Feed(DataAdapter):
    """Batches of NumPy arrays for `fit` and `evaluate`, which may differ in length.

    Subclasses provide `num_batches`, None for an endless feed, and `one_pass()`, a generator of batches. A `PyDataset`
    cannot do this: on TensorFlow, Keras takes the shapes of its first batches for those of all.
    """

    batch_size = has_partial_batch = partial_batch_size = None

    def get_numpy_iterator(self):
        return self.one_pass()

    def get_jax_iterator(self):
        return prefetch(self.one_pass())

    def get_torch_dataloader(self):
        return get_torch_dataloader(self.one_pass())

    def get_tf_dataset(self):
        import tensorflow as tf

        first = next(self.one_pass())
        signature = keras.tree.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), first)
        return tf.data.Dataset.from_generator(self.one_pass, output_signature=signature).prefetch(tf.data.AUTOTUNE)


def prefetch(items, number=2):
    """What a generator yields; it runs in a thread, some items ahead of whoever takes them.

    >>> list(prefetch(n * n for n in range(4)))
    [0, 1, 4, 9]
    """
    # Keras keeps the distribution by thread, and batches depend on it.
    same = {"initializer": keras.distribution.set_distribution, "initargs": (keras.distribution.distribution(),)}
    with concurrent.futures.ThreadPoolExecutor(1, **same) as pool:
        waiting = collections.deque(pool.submit(next, items, None) for _ in range(number))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, items, None))
            yield item
