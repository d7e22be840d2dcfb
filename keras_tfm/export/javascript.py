"""Converts Python's regular expressions to JavaScript's syntax, for the page."""

import re

from keras_tfm.text import masking, protected

ESCAPE, SET = r"\\.", r"\[(?:\\.|[^\]\\])+\]"
COMMENT = re.compile(rf"({ESCAPE}|{SET})|\#[^\n]*|\s", re.DOTALL)  # or white space; neither inside an escape or a set
ESCAPE_OR_SET = re.compile(f"{SET}|{ESCAPE}", re.DOTALL)
# What Python's `\s` matches with `re.ASCII`, and without; that of JavaScript is neither.
SPACE = r" \t-\r"
ANY_SPACE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def expressions(tokenizer) -> dict[str, tuple[str, str]]:
    """The patterns of `keras_tfm.text.masking` that a page needs, by name: source and flags of a `RegExp`."""
    patterns = {"protected": protected.PATTERN, "slot": masking.SLOT, "tag": masking.TAG}
    patterns |= {"sequential": masking.SEQUENTIAL, "opening": masking.OPENING, "closing": masking.CLOSING}
    patterns |= {"unseen": tokenizer.unseen_characters, "signs": masking.SIGNS} if tokenizer.unseen_characters else {}
    return {name: expression(pattern) for name, pattern in patterns.items()}


def expression(pattern: re.Pattern) -> tuple[str, str]:
    r"""The source and the flags of a `RegExp` that matches as a pattern does.

    >>> expression(re.compile(r"(?P<sign>\#) # a comment", re.VERBOSE | re.ASCII))
    ('(?<sign>#)', 'gu')
    """
    source, ascii_only = pattern.pattern, pattern.flags & re.ASCII
    if not ascii_only and re.search(r"\\[bBdDwW]", source):
        raise ValueError(f"{source!r} must have the flag re.ASCII, as JavaScript's \\b, \\d and \\w do")
    if pattern.flags & re.VERBOSE:
        source = COMMENT.sub(lambda match: match[1] or "", source)
    source = re.sub(r"\(\?P=(\w+)\)", r"\\k<\1>", source).replace("(?P<", "(?<")
    source = ESCAPE_OR_SET.sub(lambda match: _converted(match[0], SPACE if ascii_only else ANY_SPACE), source)
    return source, "gsu" if pattern.flags & re.DOTALL else "gu"


def _converted(part, space):
    """An escape or a set as JavaScript writes it, which refuses escapes of characters that need none."""
    space = space if part.startswith("[") else f"[{space}]"
    part = re.sub(r"\\([^\w^$\\.*+?()[\]{}|/-])", r"\1", part)
    return re.sub(ESCAPE, lambda escape: space if escape[0] == r"\s" else escape[0], part, flags=re.DOTALL)
