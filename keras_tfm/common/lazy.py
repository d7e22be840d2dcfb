"""Packages whose public names are imported on first use."""

import importlib

# Modules that register all classes of this package with Keras.
REGISTERING = "keras_tfm.models.builders", "keras_tfm.training.losses"


def attach(package, file):
    """`__getattr__`, `__dir__` and `__all__` of a package, given its `__name__` and `__file__`.

    The names are those that its stub, `__init__.pyi`, imports: one line each, `from module import name as name`. Type
    checkers and editors read the same stub. So `import keras_tfm` is quick, and Keras' backend can still be chosen
    after it.
    """
    owners = {}
    with open(f"{file}i", encoding="utf-8") as stub:
        for line in stub:
            match line.split():
                case "from", module, "import", name, "as", _:
                    owners[name] = module
    modules = {*owners.values()}

    def __getattr__(name):
        submodule = f"{package}.{name}"
        if name in owners and owners[name] != package:
            return getattr(importlib.import_module(owners[name]), name)
        if name in owners or submodule in modules:
            return importlib.import_module(submodule)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    names = sorted(owners)
    return __getattr__, lambda: names, names


def register_classes():
    """Registers all classes with Keras, so that `keras.saving.load_model` knows them whichever package is imported."""
    for module in REGISTERING:
        importlib.import_module(module)
