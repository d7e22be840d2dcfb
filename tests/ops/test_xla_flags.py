import os
import subprocess
import sys

import pytest
from conftest import BACKEND

from keras_tfm.ops import xla_flags

OFF = "--xla_gpu_enable_triton_gemm=false"


@pytest.mark.parametrize(
    "before, after",
    [
        ("", OFF),
        ("--xla_cpu_use_fusion_emitters=false", f"--xla_cpu_use_fusion_emitters=false {OFF}"),
        ("--xla_gpu_enable_triton_gemm_int4=true", f"--xla_gpu_enable_triton_gemm_int4=true {OFF}"),
        ("--xla_gpu_enable_triton_gemm=true", "--xla_gpu_enable_triton_gemm=true"),
        ("--xla_gpu_enable_triton_gemm", "--xla_gpu_enable_triton_gemm"),
        ("flags.txt", "flags.txt"),  # a file with flags
    ],
)
def test_the_flag_joins_those_of_the_user_unless_they_name_it(before, after, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", before)
    xla_flags.set_flags()
    assert os.environ["XLA_FLAGS"] == (after if BACKEND == "jax" else before)


@pytest.mark.skipif(BACKEND != "jax", reason="the flag is for JAX")
def test_graphs_of_searches_are_left_to_a_user_who_names_their_flag(monkeypatch):
    assert xla_flags.are_known()  # or they are compiled without this flag
    for flags, empty in (
        ("", False),
        ("--xla_gpu_enable_command_buffer=", True),
        ("--xla_gpu_autotune_level=1", False),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert (xla_flags.graph_options() is None) == empty


@pytest.mark.skipif(BACKEND != "jax", reason="the flag is for JAX")
def test_importing_layers_sets_the_flag_before_jax_reads_it():
    program = """
import os
from keras_tfm.layers import TransformerEncoder
print(os.environ["XLA_FLAGS"])
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=3"
import jax
print(jax.device_count())
"""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.stdout.split() == [OFF, "3"], run.stderr
