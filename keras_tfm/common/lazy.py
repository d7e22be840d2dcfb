"""Packages whose public names are imported on first use."""

import importlib


def attach(package, modules):
    """`__getattr__`, `__dir__` and `__all__` of a package, given {module: names that it defines}.

    So importing the package is quick, and Keras' backend can still be chosen after it.
    """
    owners = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name):
        if name in owners:
            return getattr(importlib.import_module(f"{package}.{owners[name]}"), name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    names = sorted({*owners, *(module for module in modules if "." not in module)})
    return __getattr__, lambda: names, names
