"""Several devices and processes that train together: `keras.distribution` on JAX, `tf.distribute` on TensorFlow."""

import contextlib
import copy
import os
import re
from typing import NamedTuple

import keras

from keras_tfm.common.arguments import check, positive
from keras_tfm.runtimes import processes
from keras_tfm.runtimes.feeding import Feed

# Path of a weight → the axis, counted from the end, that model parallelism divides; the first pattern that fits counts.
# If the devices do not divide that axis evenly, they divide the last one. All other weights are on every device.
SHARDED_AXES = {
    r".*embeddings?/embeddings": -2,  # the vocabulary
    r".*attention/(query|key|value)/(kernel|bias)": -2,  # the heads
    r".*attention/(output/kernel|\w*kernel)": -3,  # the heads
    r".*feed_forward/outer/kernel": -2,
    r".*(attention/output|feed_forward/outer)/bias": None,  # added to what the devices have summed up
    r".*(kernel|bias|embeddings|table)": -1,
}


class BatchShard(NamedTuple):
    """What this process gets of a batch."""

    process: int  # its number
    processes: int  # how many there are
    parts: int  # the rows of the whole batch are a multiple of this


def join_processes() -> int:
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


def distributed(devices: int | str = "all", model_parallel: int = 1) -> contextlib.AbstractContextManager:
    """A context in which models are made, compiled and trained on several devices.

    Args:
        devices: their number, on all hosts together, or "all".
        model_parallel: number of devices that share one copy of the weights, on JAX: kernels, biases and embeddings are
            divided among them, where their sizes allow it. It must divide the number of devices of each host.

    On JAX this is the scope of a `keras.distribution`, on TensorFlow that of a `MirroredStrategy`. One device needs no
    such thing, and PyTorch trains on one.

    >>> with distributed(1):
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    """
    positive("model_parallel", model_parallel)
    backend = keras.backend.backend()
    listed = {"jax": keras.distribution.list_devices, "tensorflow": _tensorflow_devices}
    available = listed[backend]() if backend in listed else [None]
    number = len(available) if devices == "all" else int(devices)
    rule = f'at most {len(available)}, the number of devices that {backend} trains on here, or "all"'
    check("devices", devices, 0 < number <= len(available), rule)
    check("model_parallel", model_parallel, number % model_parallel == 0, f"a divisor of {number}, the devices")
    if number == 1:
        return contextlib.nullcontext()
    if backend == "jax":
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
        return _DataParallel(devices=devices, auto_shard_dataset=False)
    rule = f"a divisor of {local}, the devices of each host"
    check("model_parallel", model_parallel, local % model_parallel == 0, rule)
    shape = (len(devices) // model_parallel, model_parallel)
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    return _ModelParallel(layout_map=keras.distribution.LayoutMap(mesh), auto_shard_dataset=False)


class _AnyRows:
    """A distribution of batches with any number of rows. Those that the devices cannot divide evenly are on each."""

    divides = True

    def get_data_layout(self, data_shape):
        # each of several processes feeds rows of its own, which must divide evenly
        if self.num_processes > 1 or self.divides and data_shape[0] % self.num_model_replicas == 0:
            return super().get_data_layout(data_shape)
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


class _DataParallel(_AnyRows, keras.distribution.DataParallel):
    pass


class _ModelParallel(_AnyRows, keras.distribution.ModelParallel):
    """Divides the weights as `SHARDED_AXES` says."""

    def get_variable_layout(self, variable):
        axes = [None] * len(variable.shape)
        wanted = next((axis for path, axis in SHARDED_AXES.items() if re.fullmatch(path, variable.path)), None)
        number = self.device_mesh.shape[self.device_mesh.axis_names.index("model")]
        for axis in () if wanted is None else (wanted, -1):
            if -axis <= len(axes) and variable.shape[axis] % number == 0:
                axes[axis] = "model"
                break
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def _tensorflow_devices():
    import tensorflow as tf

    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return [f"{kind}:{number}" for number in range(len(tf.config.list_logical_devices(kind)))]


def batch_shard():
    """The `BatchShard` of this process in each batch, under the current `keras.distribution`.

    >>> batch_shard()
    BatchShard(process=0, processes=1, parts=1)
    """
    distribution = _distribution()
    if distribution is None:
        return BatchShard(0, 1, 1)
    import jax

    return BatchShard(jax.process_index(), jax.process_count(), distribution.num_model_replicas)


def _distribution():
    return keras.distribution.distribution() if keras.backend.backend() == "jax" else None


def sharded_fraction(model):
    """Fraction of the parameters of a model that model parallelism divides; on JAX."""
    replicated = sum(weight.value.size for weight in model.weights if weight.value.sharding.is_fully_replicated)
    return 1 - replicated / model.count_params()


def any_rows(x):
    """A context for Keras' `fit`, `evaluate` and `predict` on `x`, whose batches may have different numbers of rows.

    Keras would divide all batches as it does the first. Here each is on every device, and the model divides it.
    """
    distribution = _distribution()
    if isinstance(x, Feed) or not isinstance(distribution, _AnyRows):
        return contextlib.nullcontext()
    undivided = copy.copy(distribution)
    undivided.divides = False
    return undivided.scope()


def shard_rows(inputs):
    """Inputs of a model, with their rows divided among the devices if that is possible evenly."""
    distribution = _distribution()
    if not isinstance(distribution, _AnyRows):
        return inputs

    def place(x):
        if x.shape[0] is None or x.shape[0] % distribution.num_model_replicas:
            return x
        layout = keras.distribution.TensorLayout([distribution.batch_dim_name], distribution.device_mesh)
        return keras.distribution.distribute_tensor(x, layout)

    return keras.tree.map_structure(place, inputs)


def is_main_process():
    """Whether this is the process that writes files."""
    return not _process_index()


@contextlib.contextmanager
def main_process_first():
    """The first process runs the block while the others wait, so that these find the files that it has written."""
    if not is_main_process():
        _barrier()
    yield
    if is_main_process():
        _barrier()


def _process_index():
    """The number of this process among those that have joined; None if none have."""
    if keras.backend.backend() != "jax":
        return None
    import jax

    return jax.process_index() if jax.distributed.is_initialized() else None


def _barrier():
    """Waits until all processes have come here."""
    if _process_index() is not None:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("keras_tfm")
