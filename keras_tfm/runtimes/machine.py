"""The machine that Keras computes on."""

from typing import NamedTuple

import keras


class Machine(NamedTuple):
    """Training settings that suit a machine."""

    accelerated: bool  # by a GPU or TPU
    shapes: int  # number of batch shapes: small where every shape is compiled separately
    jit_compile: bool | str  # for `model.compile`


def current():
    """The settings for this machine."""
    if keras.backend.backend() == "jax":
        import jax

        accelerated = jax.default_backend() != "cpu"
        return Machine(accelerated, 8 if accelerated else 4, "auto")
    if keras.backend.backend() == "torch":
        import torch

        return Machine(torch.cuda.is_available(), 14, False)  # not compiled, so any number of shapes will do
    import tensorflow as tf

    if any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU")):
        return Machine(True, 8, "auto")
    return Machine(False, 14, False)  # on a CPU, one program for all shapes is as fast as XLA's one for each


def random_state(state=None):
    """The state of PyTorch's random generator, which its dropout uses; sets it if `state` is given.

    None on other backends, where the seeds of dropout are variables of its layers.
    """
    if keras.backend.backend() != "torch":
        return None
    import torch

    device = torch.cuda if torch.cuda.is_available() else torch
    if state is not None:
        device.set_rng_state(torch.from_numpy(state))
    return device.get_rng_state().numpy()
