"""Several devices and processes that train together: `keras.distribution` on JAX, `tf.distribute` on TensorFlow."""

import contextlib
import os
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.arguments import check, positive
from keras_tfm.backend import processes

# Axes of the weights that model parallelism divides; all others are on every device. The path of a weight → its axes.
DIVIDED = {
    r".*embeddings?/embeddings": ("model", None),
    r".*(query|key|value)/kernel": (None, "model", None),
    r".*(query|key|value)/bias": ("model", None),
    r".*attention/output/kernel": ("model", None, None),
    r".*feed_forward/(inner|gate)/kernel": (None, "model"),
    r".*feed_forward/(inner|gate)/bias": ("model",),
    r".*feed_forward/outer/kernel": ("model", None),
}


class Share(NamedTuple):
    """What this process gets of a batch."""

    process: int  # its number
    processes: int  # how many there are
    parts: int  # the rows of the whole batch are a multiple of this


def join_processes():
    """Joins the other processes of the job, if its environment says that there are any; returns how many there are.

    Call it before anything else that uses Keras. The variables are those of `keras.distribution.initialize`, or those
    that JAX knows from SLURM, Open MPI, Cloud TPU and GKE.

    >>> join_processes()
    1
    """
    expected = processes.expected()
    if keras.backend.backend() != "jax":
        rule = '"jax" for several processes: with TensorFlow, Keras\' `fit` fails under `MultiWorkerMirroredStrategy`'
        check("backend", keras.backend.backend(), expected == 1 and "TF_CONFIG" not in os.environ, rule)
        return 1
    import jax

    if expected > 1 and not jax.distributed.is_initialized():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        keras.distribution.initialize()
    if jax.process_count() < expected:
        raise RuntimeError(f"{jax.process_count()} of {expected} processes have joined; each would train on its own")
    return jax.process_count()


def distributed(devices="all", model_parallel=1):
    """A context in which models are made, compiled and trained on several devices.

    Args:
        devices: their number, on all hosts together, or "all".
        model_parallel: number of devices that share one copy of the weights, on JAX: heads, feed-forward networks and
            embeddings are divided among them, where their sizes allow it. It must divide the number of devices of each
            host.

    On JAX this is the scope of a `keras.distribution`, on TensorFlow that of a `MirroredStrategy`. One device needs no
    such thing.

    >>> with distributed(1):
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    """
    positive("model_parallel", model_parallel)
    available = keras.distribution.list_devices() if keras.backend.backend() == "jax" else _tensorflow_devices()
    number = len(available) if devices == "all" else int(devices)
    rule = f'at most {len(available)}, the number of devices, or "all"'
    check("devices", devices, 0 < number <= len(available), rule)
    check("model_parallel", model_parallel, number % model_parallel == 0, f"a divisor of {number}, the devices")
    if number == 1:
        return contextlib.nullcontext()
    if keras.backend.backend() == "jax":
        return _jax_distribution(available[:number], model_parallel).scope()
    check("model_parallel", model_parallel, model_parallel == 1, "1 on TensorFlow; JAX divides models")
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(available[:number]).scope()


def _jax_distribution(devices, model_parallel):
    import jax

    local, several = jax.local_device_count(), jax.process_count() > 1
    all_devices = len(devices) == jax.device_count()
    check("devices", len(devices), all_devices or not several, '"all" for several processes, which share each batch')
    if model_parallel == 1:
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    rule = f"a divisor of {local}, the devices of each host"
    check("model_parallel", model_parallel, local % model_parallel == 0, rule)
    shape = (len(devices) // model_parallel, model_parallel)
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in DIVIDED.items():
        layouts[path] = axes
    return _WhereItFits(layout_map=layouts, auto_shard_dataset=False)


class _WhereItFits(keras.distribution.ModelParallel):
    """Divides only weights whose sizes are multiples of the number of devices."""

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        fits = all(size % sizes.get(axis, 1) == 0 for size, axis in zip(variable.shape, layout.axes, strict=True))
        return layout if fits else keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)


def _tensorflow_devices():
    import tensorflow as tf

    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return [f"{kind}:{number}" for number in range(len(tf.config.list_logical_devices(kind)))]


def share():
    """The `Share` of this process in each batch, under the current `keras.distribution`.

    >>> share()
    Share(process=0, processes=1, parts=1)
    """
    distribution = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
    if distribution is None:
        return Share(0, 1, 1)
    import jax

    return Share(jax.process_index(), jax.process_count(), distribution.num_model_replicas)


def filled_up(inputs):
    """Arrays with rows of padding at the end, if the devices do not divide the rows evenly; and the number of rows.

    Other inputs, such as batches, stay as they are, with None for the number.
    """
    arrays, parts = keras.tree.flatten(inputs), share().parts
    if parts == 1 or not all(isinstance(array, np.ndarray) for array in arrays):
        return inputs, None
    rows = len(arrays[0])
    extra = -rows % parts
    return keras.tree.map_structure(lambda x: np.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1)), inputs), rows


def filled_up_pairs(x, y, batch_size=None):
    """Inputs and targets of `fit` whose every batch the devices can divide: arrays get rows of padding at the end.

    Losses and metrics of this package do not count padding.
    """
    (x, y), rows = filled_up((x, y))
    if rows is not None:
        parts, size = share().parts, batch_size or 32  # Keras' default
        check("batch_size", size, size % parts == 0, f"a multiple of {parts}, the devices that share a batch")
    return x, y


def is_first():
    """Whether this is the process that writes files."""
    return _process() == 0


@contextlib.contextmanager
def first_before_others():
    """The first process runs the block while the others wait, so that these find the files that it has written."""
    if not is_first():
        _meet()
    yield
    if is_first():
        _meet()


def _process():
    if keras.backend.backend() != "jax":
        return 0
    import jax

    return jax.process_index() if jax.distributed.is_initialized() else 0


def _meet():
    """Waits until all processes have come here."""
    if keras.backend.backend() != "jax":
        return
    import jax

    if jax.distributed.is_initialized():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("keras_tfm")
