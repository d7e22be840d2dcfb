import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BACKEND

from keras_tfm import cli
from keras_tfm.cli import MODEL_FLAGS

SMALL = "--num_layers 1 --model-dim 16 --num_heads 2 --ff_dim 32 --steps 6 --batch-tokens 512 --num_shapes 2"
SMALL += " --jit-compile" if BACKEND == "jax" else " --no-jit-compile"  # the quicker start


def keras_tfm(*arguments, **environment):
    command = [pathlib.Path(sys.executable).with_name("keras-tfm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_flags_are_the_arguments_of_the_builder():
    from keras_tfm.layers import MultiHeadSelfAttention, TransformerEncoderBlock
    from keras_tfm.models.transformer import Stack, transformer

    functions = transformer, Stack.__init__, TransformerEncoderBlock.__init__
    names = {name for function in functions for name in inspect.signature(function).parameters}
    names |= set(MultiHeadSelfAttention.OPTIONS)
    not_flags = {"self", "name", "block", "options", "kwargs", "vocab_size", "target_vocab_size", "causal"}
    assert names - not_flags == set(MODEL_FLAGS)


def test_training_from_two_files(tmp_path):
    for name, line in (("source", "ein {} hund"), ("target", "a {} dog")):
        (tmp_path / name).write_text("".join(line.format(chr(97 + n % 26)) + "\n" for n in range(80)))
    flags = ["--source", tmp_path / "source", "--target", tmp_path / "target", "--tokenizer", "bpe", "--separate"]
    flags += ["--valid-source", tmp_path / "source", "--valid-target", tmp_path / "target", "--vocab_size", 320]
    other = "jax" if BACKEND == "tensorflow" else "tensorflow"
    out = ["--out", tmp_path / "run", "--backend", BACKEND, "--precision", "mixed_float16"]
    run = keras_tfm("train", *flags, *SMALL.split(), *out, KERAS_BACKEND=other)
    assert run.returncode == 0, run.stderr
    assert f"{BACKEND}, " in run.stdout and "val_perplexity" in run.stdout
    files = {file.name for file in (tmp_path / "run").iterdir()}
    assert files >= {
        "config.json",
        "model.keras",
        "metrics.csv",
        "learning_curve.png",
        "state.npz",
        "checkpoints",
        "tensorboard",
    }
    assert json.loads((tmp_path / "run/config.json").read_text())["model_dim"] == 16
    with pytest.raises(SystemExit, match="with other ff_dim"):
        cli.run(["train", *map(str, [*flags, *SMALL.split(), *out, "--ff_dim", 64])])


@pytest.mark.parametrize(
    "arguments, word",
    [
        ((), "command"),
        (("train", "--backend", "abacus"), "abacus"),
        (("train", "--steps", "0"), "--steps: invalid positive value: '0'"),
        (("train", "--task", "chess"), "chess"),
        (("sing",), "sing"),
    ],
)
def test_bad_command_lines(arguments, word):
    run = keras_tfm(*arguments)
    assert run.returncode == 2 and word in run.stderr and "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "arguments, word",
    [
        ((), "`task` or `source` must be given"),
        (("--source", "missing.txt", "--target", "missing.txt"), "missing.txt: there is no such file"),
    ],
)
def test_errors_are_one_line(arguments, word, tmp_path):
    with pytest.raises(SystemExit, match=f"^keras-tfm: error: {word}"):
        cli.run(["train", "--out", str(tmp_path / "run"), *arguments])
    assert not (tmp_path / "run/config.json").exists()


def test_help_needs_no_backend():
    run = keras_tfm("train", "--help", KERAS_BACKEND="none")
    assert run.returncode == 0 and "--model_dim" in run.stdout
