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
    content = getattr(sys.modules.get(f"{PACKAGE}.{module}"), table, None)
    if content is None:
        node = _statements(module)[table]
        content = [item.value for item in (node.keys if isinstance(node, ast.Dict) else node.elts)]
    return [word for word in content if word is not None]


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
            plain, named = item.args.args, item.args.kwonlyargs
            required = [None] * (len(plain) - len(item.args.defaults))
            values = zip([*plain, *named], [*required, *item.args.defaults, *item.args.kw_defaults], strict=True)
            return {argument.arg: _literal(value) for argument, value in values if argument.arg != "self"}
    base = parameters(f"{module}.{node.bases[-1].id}") if node.bases else {}
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]  # of a dataclass
    return base | {field.target.id: _literal(field.value) for field in fields}


def _literal(node):
    return ast.literal_eval(node) if isinstance(node, (ast.Constant, ast.UnaryOp)) else None


@functools.cache
def _statements(module):
    """Classes and assignments of a module, by name."""
    file = importlib.resources.files(PACKAGE).joinpath(*module.split(".")[:-1], f"{module.rpartition('.')[2]}.py")
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    names = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    assignments = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return names | {node.targets[0].id: node.value for node in assignments}
