"""Checks of arguments; each error names the argument, the rule and the value."""


def one_of(name, value, allowed):
    """Returns `value` if it is among those `allowed`."""
    return _checked(name, value, value in list(allowed), f"one of {list(allowed)}")


def positive(name, value, optional=False):
    """Returns `value` if it is a positive integer, or None where that is optional."""
    fine = value is None and optional or type(value) is int and value > 0
    return _checked(name, value, fine, "a positive integer" + " or None" * optional)


def rate(name, value):
    """Returns `value` if it is a rate of dropout."""
    return _checked(name, value, isinstance(value, (int, float)) and 0 <= value < 1, "at least 0 and less than 1")


def strings(texts):
    """Returns `texts` as a list, if they are several strings."""
    if isinstance(texts, str):
        raise ValueError(f"`texts` must be a list of strings. Received: a string, {texts[:40]!r}")
    texts = list(texts)
    for string in texts:
        if not isinstance(string, str):
            raise ValueError(f"`texts` must be a list of strings. Received: {string!r} in it")
    return texts


def _checked(name, value, fine, rule):
    if not fine:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return value
