"""Tables and constructors of this package, read from its source.

So the command can list the words of an option, and its default, without importing Keras.
"""

import ast
import functools
import importlib.resources
import sys

PACKAGE = __package__.partition(".")[0]


def words(path):
    """The words of a table, which is a dict or tuple of a module, without None.

    Once the module has been imported, they are those of the table as it is then, with what was added to it.

    >>> words("layers.positions.ENCODINGS")
    ['sinusoidal', 'learned', 'index']
    """
    module, _, table = path.rpartition(".")
    found = getattr(sys.modules.get(f"{PACKAGE}.{module}"), table, None)
    if found is None:
        node = _statements(module)[table]
        found = [item.value for item in (node.keys if isinstance(node, ast.Dict) else node.elts)]
    return [word for word in found if word is not None]


@functools.cache
def parameters(path):
    """The arguments of a class: name → default, which is None for those without one.

    >>> parameters("layers.attention.MultiHeadAttention")["score"]
    'scaled_dot'
    """
    module, _, name = path.rpartition(".")
    node = _statements(module)[name]
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            plain, defaults = [argument.arg for argument in item.args.args], item.args.defaults
            given = dict(zip(plain[len(plain) - len(defaults) :], defaults, strict=True))
            given |= dict(zip([argument.arg for argument in item.args.kwonlyargs], item.args.kw_defaults, strict=True))
            required = dict.fromkeys(name for name in plain[1:] if name not in given)
            return required | {name: default and ast.literal_eval(default) for name, default in given.items()}
    return parameters(f"{module}.{node.bases[-1].id}")  # the constructor of a base class of the same module


@functools.cache
def _statements(module):
    """Classes and assignments of a module, by name."""
    file = importlib.resources.files(PACKAGE).joinpath(*module.split(".")[:-1], f"{module.rpartition('.')[2]}.py")
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    names = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    return names | {node.targets[0].id: node.value for node in nodes if _is_assignment(node)}


def _is_assignment(node):
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
