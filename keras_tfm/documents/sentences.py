"""Sentences of a text, and the white space between them."""

import functools
import itertools
import re
from collections.abc import Iterable

from keras_tfm.common import extras


def split_sentences(text: str, language: str = "en", spans: Iterable[tuple] = ()) -> tuple[list[str], list[str]]:
    """Splits a text into sentences; line ends, tabs and the " | " between plural forms end them too.

    Args:
        text: one or more paragraphs.
        language: of the text, such as "en".
        spans: (start, end, …) of parts that must not be split, as `find_protected` returns them.

    Returns:
        (sentences, spaces): the white space before, between and after them, so one more than there are sentences.

    >>> sentences, spaces = split_sentences("  Dr. Smith came.  He left.\\n\\nThe end\\n")
    >>> sentences
    ['Dr. Smith came.', 'He left.', 'The end']
    >>> join_sentences(sentences, spaces)
    '  Dr. Smith came.  He left.\\n\\nThe end\\n'
    """
    segment = functools.partial(extras.load("sentencex").segment, language.replace("_", "-").partition("-")[0] or "en")
    lines = re.split(r"([\n\t]| \| )", re.sub("[\ud800-\udfff]", "\ufffd", text))  # sentencex refuses surrogates
    pieces = [piece for line in lines for piece in (segment(line) if line.strip() else [line])]
    inside = {place for start, end, *_ in spans for place in range(start + 1, end)}
    cuts = [cut for cut in itertools.accumulate(map(len, pieces), initial=0) if cut not in inside]
    parts = []  # white space and anything else, in turns
    for start, end in itertools.pairwise(cuts):
        piece = text[start:end]
        inner = piece.strip()
        start = piece.find(inner) if inner else 0
        parts += [piece[:start], inner, piece[start + len(inner) :]]
    sentences: list[str] = []
    spaces = [""]
    for part in parts:
        if part.strip():
            sentences.append(part)
            spaces.append("")
        else:
            spaces[-1] += part
    return sentences, spaces


def join_sentences(sentences: list[str], spaces: list[str]) -> str:
    """Puts sentences, or their translations, and the white space around them together.

    >>> join_sentences(["One.", "Two."], ["", " ", "\\n"])
    'One. Two.\\n'
    """
    return spaces[0] + "".join(part for pair in zip(sentences, spaces[1:], strict=True) for part in pair)
