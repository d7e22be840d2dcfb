import os
import subprocess
import sys

import pytest
from conftest import BACKEND


def keras_tfm(*arguments, **environment):
    command = [sys.executable, "-m", "keras_tfm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_demo_learns_to_reverse_and_draws_it(tmp_path):
    other = "jax" if BACKEND == "tensorflow" else "tensorflow"
    run = keras_tfm("demo", "--out", str(tmp_path), "--length", "6", "--backend", BACKEND, KERAS_BACKEND=other)
    assert run.returncode == 0, run.stderr
    assert f"backend {BACKEND}" in run.stdout
    assert float(run.stdout.split("new sequences: ")[1].split("%")[0]) > 99
    assert (tmp_path / "attention.png").stat().st_size > 1000 and (tmp_path / "reverse.keras").exists()


@pytest.mark.parametrize(
    "arguments, word",
    [
        ((), "command"),
        (("demo", "--backend", "abacus"), "abacus"),
        (("demo", "--length", "0"), "--length: invalid positive value: '0'"),
        (("sing",), "sing"),
    ],
)
def test_bad_command_lines(arguments, word):
    run = keras_tfm(*arguments)
    assert run.returncode == 2 and word in run.stderr and "Traceback" not in run.stderr


def test_help_needs_no_backend():
    run = keras_tfm("demo", "--help", KERAS_BACKEND="none")
    assert run.returncode == 0 and "--epochs" in run.stdout
