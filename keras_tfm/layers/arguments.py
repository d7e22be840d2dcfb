"""Checks of constructor arguments; each error names the argument, the rule and the value."""


def one_of(name, value, allowed):
    """Returns `value` if it is among the words `allowed`."""
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {list(allowed)}. Received: {name}={value!r}")
    return value


def positive(name, value, optional=False):
    """Returns `value` if it is a positive integer, or None where that is optional."""
    if value is None and optional or type(value) is int and value > 0:
        return value
    raise ValueError(f"`{name}` must be a positive integer{' or None' * optional}. Received: {name}={value!r}")
