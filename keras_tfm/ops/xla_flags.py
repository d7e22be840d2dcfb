"""Flags of XLA. It reads those of the environment when JAX makes its backend, and others with each program."""

import os
from importlib.metadata import version

import keras

KNOWN = "0.10.", "0.11."  # versions of jaxlib that know these flags; XLA aborts at a flag that it does not know
# On GPUs, JAX then trains a Transformer 6 to 10 % faster, and compiles it in half the time.
NAME, VALUE = "--xla_gpu_enable_triton_gemm", "false"
# A CUDA graph of a whole search: otherwise the GPU waits for the host, which decides about each step.
GRAPHS = "xla_gpu_enable_command_buffer"
COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION"


def are_known():
    """Whether the installed version of XLA knows the flags of this module."""
    return version("jaxlib").startswith(KNOWN)


def graph_options():
    """Options for XLA to compile a search on a GPU; the environment variable XLA_FLAGS has precedence."""
    return {GRAPHS: COMMANDS} if are_known() and f"--{GRAPHS}=" not in os.environ.get("XLA_FLAGS", "") else None


def set_flags():
    """Adds the flag to the environment variable XLA_FLAGS, unless that names it or is the name of a file with flags."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    if keras.backend.backend() != "jax" or not are_known():
        return
    if NAME not in [flag.partition("=")[0] for flag in flags] and all(flag.startswith("-") for flag in flags):
        os.environ["XLA_FLAGS"] = " ".join([*flags, f"{NAME}={VALUE}"])
