import ast
import os
import pathlib
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import BACKEND, once

import keras_tfm

PACKAGE = pathlib.Path(keras_tfm.__file__).parent
ORDER = ["common", "sizes", "ops", "runtimes", "layers", "text", "documents", "options", "data", "artifacts"]
ORDER += ["decoding", "models", "convert", "export", "translator", "plots", "training", "serving", "cli"]
LAYERS = ["masks", "positions", "scores", "attention", "blocks", "stacks"]


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only type checkers import."""

    def visit_If(self, node):
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported(file):
    """Modules of the package that a file imports, wherever in it."""
    for node in ast.walk(WithoutTypes().visit(ast.parse(file.read_text()))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_tfm"):
            path = node.module.split(".")[1:]
            yield from ([path] if path not in ([], ["layers"]) else [[*path, alias.name] for alias in node.names])
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1:] for name in node.names if name.name.startswith("keras_tfm."))


def modules():
    return [file for file in PACKAGE.rglob("*.py") if not file.name.startswith("__")]


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_one_way(file):
    own = file.relative_to(PACKAGE).with_suffix("").parts
    for path in imported(file):
        assert ORDER.index(path[0]) <= ORDER.index(own[0]), path
        if own[0] == path[0] == "layers" and len(path) > 1 and path[1] in LAYERS:
            assert LAYERS.index(path[1]) < LAYERS.index(own[1]), path
        if own[0] in ("text", "documents", "data", "decoding"):
            assert path[0] not in ("layers", "models"), path


@once
def test_public_names_are_imported_when_they_are_used():
    program = (
        "import sys, keras_tfm; dir(keras_tfm); keras_tfm.Recipe(); print({*sys.modules} & {'keras', 'tensorflow'})"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
    for name in dir(keras_tfm):
        assert getattr(keras_tfm, name).__doc__, name
    with pytest.raises(AttributeError, match="module 'keras_tfm' has no attribute 'attention'"):
        keras_tfm.attention  # noqa: B018


@pytest.mark.skipif(BACKEND != "jax", reason="the same on each backend; JAX starts faster and prints nothing")
def test_layers_import_nothing_that_they_do_not_use():
    # beyond what Keras imports by itself, matplotlib among it where that is installed
    program = "import sys, keras; old = {*sys.modules}; from keras_tfm.layers import *; print(*{*sys.modules} - old)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = set(run.stdout.split())
    assert "keras_tfm.layers.blocks" in names
    assert not names & {"tensorflow_text", "keras_hub", "keras_nlp", "matplotlib", "keras_tfm.plots", "keras_tfm.data"}
    assert run.stderr == ""


@pytest.mark.skipif(find_spec("tensorflow"), reason="make test-bare-torch and test-bare-jax run it without TensorFlow")
def test_other_backends_train_resume_translate_and_evaluate_where_tensorflow_is_not_installed(tmp_path):
    program = """
import pathlib, sys
from keras_tfm.cli import commands
folder, backend = pathlib.Path(sys.argv[1]), f"--backend={sys.argv[2]}"  # which the environment does not override
source, target, run = (str(folder / name) for name in ("source", "target", "run"))
for file in (source, target):
    pathlib.Path(file).write_text("a b\\nc\\n" * 8)
flags = "--num_layers=1 --model_dim=16 --num_heads=2 --ff_dim=32 --batch_tokens=512 --num_shapes=1 --steps_per_epoch=2"
for steps in (2, 4):
    files = f"--source={source}", f"--target={target}", f"--valid_source={source}", f"--valid_target={target}"
    commands.run(["train", f"--out={run}", *files, *flags.split(), "--tokenizer=char", f"--steps={steps}", backend])
commands.run(["translate", run, "--text=a b", "--max_length=8", backend])
found = commands.run(["evaluate", run, f"--source={source}", f"--reference={target}", "--max_length=8", backend])
assert found["perplexity"] > 1
"""
    command = [sys.executable, "-c", program, str(tmp_path), BACKEND]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "resuming after step 2 of 4" in run.stdout


def test_every_public_layer_is_documented_with_an_example():
    from keras_tfm import layers

    for name in layers.__all__:
        if callable(value := getattr(layers, name)):
            assert value.__doc__ and ">>>" in value.__doc__, name
