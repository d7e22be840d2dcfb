"""What editors, type checkers and `dir()` show of the package."""

import importlib
import inspect
import pathlib
from importlib.util import find_spec

import pytest
from conftest import once

import keras_tfm

PACKAGE = pathlib.Path(keras_tfm.__file__).parent


def public_modules(module=keras_tfm):
    yield module
    for name in module.__all__ if hasattr(module, "__path__") else ():
        if find_spec(f"{module.__name__}.{name}"):
            yield from public_modules(importlib.import_module(f"{module.__name__}.{name}"))


by_module = pytest.mark.parametrize("module", [*public_modules()], ids=lambda module: module.__name__)


@by_module
def test_dir_shows_the_public_names_only(module):
    assert dir(module) == sorted(module.__all__)
    assert not [name for name in module.__all__ if name.startswith("_")]


@once
@by_module
def test_a_star_imports_the_public_names(module):
    names = {}
    exec(f"from {module.__name__} import *", names)
    assert names.keys() - {"__builtins__"} == {*module.__all__}


def test_type_checkers_find_the_names():
    assert (PACKAGE / "py.typed").exists()
    for module in public_modules():
        if "_attach(" in inspect.getsource(module):
            lines = pathlib.Path(f"{module.__file__}i").read_text().splitlines()
            names = [line.split()[3] for line in lines if line.startswith("from ")]
            assert sorted(names) == module.__all__  # so none twice
            assert all(line.endswith(f" import {name} as {name}") for line, name in zip(lines, names, strict=False))


def is_ours(value):
    return (getattr(value, "__module__", None) or "").startswith("keras_tfm")


def functions(value):
    """The function itself; of a class, its constructor, and its methods unless it is a layer, a model or a callback."""
    if not inspect.isclass(value):
        return [value]
    of_keras = any(base.__module__.startswith("keras.") for base in value.__mro__)
    names = [name for name in vars(value) if not of_keras and not name.startswith("_")]
    members = [getattr(value, name) for name in ("__init__", *names)]
    return [member for member in members if inspect.isroutine(member) and is_ours(member)]


@once
@by_module
def test_public_functions_and_constructors_are_annotated(module):
    for name in module.__all__:
        value = getattr(module, name)
        for function in functions(value) if callable(value) and is_ours(value) else ():
            signature = inspect.signature(function)
            missing = [one.name for one in signature.parameters.values() if one.annotation is one.empty]
            assert {*missing} <= {"self", "cls"}, (name, function.__qualname__, missing)
            assert signature.return_annotation is not signature.empty or function.__name__ == "__init__", function


# ── completion ──

NO_JEDI = "jedi is not installed, so completion is not tested"


@pytest.fixture(scope="module")
def jedi(tmp_path_factory):
    """With a cache of its own: it reads entries that another process has only half written."""
    jedi = pytest.importorskip("jedi", reason=NO_JEDI)
    jedi.settings.cache_directory = str(tmp_path_factory.mktemp("jedi"))
    return jedi


@pytest.fixture(scope="module")
def script(jedi):
    project = jedi.Project(PACKAGE.parent, sys_path=[str(PACKAGE.parent)])
    return lambda code: jedi.Script(code, project=project)


def completions(script):
    """What is offered before private names; modules that are no public name are there too, as jedi reads the folder."""
    return [one.name for one in script.complete() if not one.name.startswith("_")]


@once
@by_module
def test_completion_shows_the_public_names(module, script):
    shown = completions(script(f"import {module.__name__}\n{module.__name__}."))
    if not hasattr(module, "__path__"):
        assert {*module.__all__} <= {*shown}
        return
    modules = {path.stem for path in pathlib.Path(module.__file__).parent.iterdir()}
    assert {*module.__all__} <= {*shown} <= {*module.__all__} | modules


@once
@by_module
def test_completion_in_a_notebook_shows_nothing_else(module, jedi):
    assert {*completions(jedi.Interpreter("module.", [{"module": module}]))} == {*module.__all__}


@once
def test_completion_of_part_of_a_name(script):
    names = ["Translator", "train", "training", "transformer"]
    assert completions(script("import keras_tfm\nkeras_tfm.Tr"))[:4] == names
    names = ["MultiHeadAttention", "MultiHeadSelfAttention"]
    assert completions(script("from keras_tfm import layers\nlayers.Multi")) == names


@once
def test_completion_shows_signatures_and_documentation(script):
    (signature,) = script("from keras_tfm import Translator\nTranslator(").get_signatures()
    names = [parameter.name for parameter in signature.params]
    assert names[:4] == ["model", "source_tokenizer", "target_tokenizer", "sampler"]
    assert "source_tokenizer: " in signature.to_string()
    (signature,) = script("import keras_tfm\nkeras_tfm.train(").get_signatures()
    assert "folder: str | os.PathLike" in signature.to_string()
    assert signature.docstring(raw=True).startswith("Trains a translator in a folder")
    (kind,) = script("import keras_tfm\nt = keras_tfm.train([], '')\nt").infer()
    assert kind.full_name == "keras_tfm.translator.Translator"
