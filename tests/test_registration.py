import ast
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import array, once, spread

import keras_tfm
from keras_tfm import layers, models, training

IDS = {"source": np.array([[5, 6, 2], [7, 2, 0]]), "target": np.array([[1, 4, 5], [1, 6, 0]])}


def registered(file):
    """Names of the classes and functions that a file registers with Keras."""
    for node in ast.walk(ast.parse(file.read_text())):
        decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
        if any("register_keras_serializable" in decorator for decorator in decorators):
            yield node.name


@once
def test_every_class_is_registered():
    package = pathlib.Path(keras_tfm.__file__).parent
    names = {name for file in package.rglob("*.py") for name in registered(file)}
    assert "FeedForward" in names and "SmoothedCrossentropy" in names
    program = "import keras_tfm.layers, keras; print(*keras.saving.get_custom_objects())"
    environment = {**os.environ, "KERAS_BACKEND": "jax"}  # it starts sooner
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert {f"keras_tfm>{name}" for name in names} <= {*run.stdout.split()}, run.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A compiled translator, a model of one's own with one of our layers, and what they answer."""
    keras.utils.set_random_seed(1)
    folder, sizes = tmp_path_factory.mktemp("saved"), {"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8}
    translator = spread(models.transformer(9, **sizes))
    rate = training.InverseSquareRoot(0.1, warmup_steps=5)
    metrics = [training.TokenAccuracy(), training.Perplexity()]
    translator.compile(keras.optimizers.Adam(rate), training.SmoothedCrossentropy(), metrics=metrics)
    inputs = keras.Input((3, 8))
    own = spread(keras.Model(inputs, layers.TransformerEncoderBlock(num_heads=2, ff_dim=8)(inputs)))
    for name, model, x in (("translator", translator, IDS), ("own", own, {"x": np.ones((1, 3, 8), "float32")})):
        model.save(folder / f"{name}.keras")
        np.savez(folder / name, expected=array(model(x.get("x", x))), **x)
    return folder


PROGRAM = """
import os, sys
{imports}
import jax, keras, numpy as np
for name in ("own", "translator"):
    model, arrays = {load}(name + ".keras"), dict(np.load(name + ".npz"))
    expected, x = arrays.pop("expected"), arrays.get("x", arrays)
    np.testing.assert_allclose(jax.jit(model)(x), expected, rtol=0, atol=1e-5)
    if model.compiled:
        metrics = [metric["class_name"] for metric in model.get_compile_config()["metrics"]]
        print(*(type(x).__name__ for x in (model, model.loss, model.optimizer._learning_rate)), *metrics)
print(keras.backend.backend())
"""


@once
@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("layers", "models", "training")), "load_model"],
)
def test_saved_models_load_after_one_import(name, folder):
    # JAX starts sooner
    imports = "import keras_tfm; assert 'keras' not in sys.modules; os.environ['KERAS_BACKEND'] = 'jax'; "
    imports += "keras_tfm.load_model" if name == "load_model" else f"import keras_tfm.{name}"
    load = "keras_tfm.load_model" if name == "load_model" else "keras.saving.load_model"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-c", PROGRAM.format(imports=imports, load=load)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    expected = "Transformer SmoothedCrossentropy InverseSquareRoot TokenAccuracy Perplexity"
    assert run.stdout == f"{expected}\njax\n", run.stderr
