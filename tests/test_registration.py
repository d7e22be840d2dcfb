import ast
import importlib
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import BACKEND, array, once, spread

import keras_tfm
from keras_tfm import layers, models, registration, training

IDS = {"source": np.array([[5, 6, 2], [7, 2, 0]]), "target": np.array([[1, 4, 5], [1, 6, 0]])}


def registered(file):
    """Names of the classes and functions that a file registers with Keras."""
    for node in ast.walk(ast.parse(file.read_text())):
        decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
        if any("register_keras_serializable" in decorator for decorator in decorators):
            yield node.name


@once
def test_the_table_lists_every_class_that_is_registered():
    package = pathlib.Path(keras_tfm.__file__).parent
    found = {}
    for file in package.rglob("*.py"):
        if names := tuple(sorted(registered(file))):
            found[".".join(file.relative_to(package).with_suffix("").parts)] = names
    assert {module: tuple(sorted(names)) for module, names in registration.CLASSES.items()} == found
    for module, names in found.items():
        for name in names:
            kind = getattr(importlib.import_module(f"keras_tfm.{module}"), name)
            assert keras.saving.get_registered_object(f"keras_tfm>{name}") is kind, name  # not a stand-in for it
            assert registration.StandIn(module, name).load() is kind


def test_a_stand_in_makes_what_its_class_makes():
    stand_in = registration.StandIn("layers.blocks", "FeedForward")
    layer = stand_in(ff_dim=3)
    twin = stand_in.from_config(layer.get_config())
    assert type(layer) is type(twin) is layers.FeedForward and twin.get_config() == layer.get_config()


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
import numpy as np
for name in {names}:
    model, arrays = keras.saving.load_model(name + ".keras"), dict(np.load(name + ".npz"))
    expected, x = arrays.pop("expected"), arrays.get("x", arrays)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(x)), expected, rtol=0, atol=1e-5)
    if model.compiled:
        metrics = [metric["class_name"] for metric in model.get_compile_config()["metrics"]]
        print(*(type(x).__name__ for x in (model, model.loss, model.optimizer._learning_rate)), *metrics)
assert not [finder for finder in sys.meta_path if "keras_tfm" in type(finder).__module__]
print(keras.backend.backend())
"""
ORDERS = {
    "keras_tfm first": "import keras_tfm; assert 'keras' not in sys.modules; CHOOSE; import keras",
    "keras first": "CHOOSE; import keras, keras_tfm",
}


@once
@pytest.mark.parametrize("order", ["keras_tfm first", pytest.param("keras first", marks=pytest.mark.slow)])
def test_saved_models_load_after_import_of_the_package_alone(order, folder):
    imports = ORDERS[order].replace("CHOOSE", f"os.environ['KERAS_BACKEND'] = {BACKEND!r}")  # which is not too late
    names = ("translator", "own") if order == "keras first" else ("own", "translator")
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-c", PROGRAM.format(imports=imports, names=names)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    expected = "Transformer SmoothedCrossentropy InverseSquareRoot TokenAccuracy Perplexity"
    assert run.stdout == f"{expected}\n{BACKEND}\n", run.stderr


@once
def test_an_import_of_keras_that_fails_can_be_repeated(tmp_path):
    """Here of a package of the same name, which fails at first."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("""
import os
assert "ready" in os.environ
class saving:
    objects = {"keras_tfm>FeedForward": "the class itself"}
    def get_custom_objects():
        return saving.objects
""")
    program = """
import inspect, os, sys
before = len(sys.meta_path)
import keras_tfm
try:
    import keras
except AssertionError:
    os.environ["ready"] = "yes"
import keras
print(len(sys.meta_path) - before, inspect.getsource(keras).count("class saving"))
print(keras.__spec__.origin == keras.__file__)
print(keras.saving.objects["keras_tfm>FeedForward"], type(keras.saving.objects["keras_tfm>Dropout"]).__name__)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.stdout == "0 1\nTrue\nthe class itself StandIn\n", run.stderr
