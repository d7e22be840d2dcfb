"""Functions compiled for inference."""

import contextlib
import functools

import keras

from keras_tfm import ops
from keras_tfm.ops import xla_flags
from keras_tfm.runtimes import machine
from keras_tfm.runtimes.xla import XLA, XLA_ON_GPU


def uses_xla(jit_compile=True):
    """Whether `compiled` hands a function to XLA."""
    return keras.backend.backend() == "jax" or keras.backend.backend() == "tensorflow" and jit_compile


def compiled(function, variables, locks=(), jit_compile=True):
    """`function(array, size)` with one program for each shape and size, for inference; several threads may call it.

    Args:
        function, variables: a function and the variables that it uses; each call sees their current values.
        locks: those of the models that own the variables, see `SequenceModel.running`; used on JAX.
        jit_compile: whether XLA compiles the program on TensorFlow, or optimizes it on JAX: slow to start, faster
            afterwards.
    """
    if uses_xla(jit_compile):
        function = ops.using(XLA_ON_GPU if machine.current().accelerated else XLA)(function)
    if keras.backend.backend() == "jax":
        return _JaxProgram(function, variables, locks, jit_compile)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=jit_compile, autograph=False)
    import torch

    return torch.no_grad()(function)  # Dynamo would take minutes to compile a search


class _JaxProgram:
    """A function compiled by JAX. Each call passes the current values of the variables."""

    def __init__(self, function, variables, locks, optimize=True):
        import jax

        self.function, self.variables = function, variables
        self.locks = sorted(locks, key=id)  # every thread takes them in the same order
        accelerated = machine.current().accelerated
        if accelerated:
            options = xla_flags.graph_options() if jax.default_backend() == "gpu" else None
        else:
            options = None if optimize else {"xla_backend_optimization_level": 0}
        run = self._run_hoisted if accelerated else self._run
        self.program = jax.jit(run, static_argnums=2, compiler_options=options)

    def _run(self, values, array, size):
        with keras.StatelessScope(state_mapping=list(zip(self.variables, values, strict=True))):
            return self.function(array, size)

    def _run_hoisted(self, values, array, size):
        from keras_tfm.runtimes.hoisting import hoisted

        return hoisted(functools.partial(self._run, size=size))(values, array)

    def __call__(self, array, size):
        with contextlib.ExitStack() as stack:
            for lock in self.locks:
                stack.enter_context(lock)
            return self.program([variable.value for variable in self.variables], array, size)


def require_tensorflow():
    """Raises an error if Keras runs on another backend than TensorFlow, which writes most exports."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "This export needs the TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow."
            f" Received: the {keras.backend.backend()} backend"
        )
