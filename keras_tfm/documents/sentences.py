"""Sentences of a text, and the white space between them."""

import functools
import re

from keras_tfm.common import extras


def split_sentences(text, language="en"):
    """Splits a text into sentences; lines end them too.

    Args:
        text: one or more paragraphs.
        language: of the text, such as "en".

    Returns:
        (sentences, spaces): the white space before, between and after them, so one more than there are sentences.

    >>> sentences, spaces = split_sentences("  Dr. Smith came.  He left.\\n\\nThe end\\n")
    >>> sentences
    ['Dr. Smith came.', 'He left.', 'The end']
    >>> join_sentences(sentences, spaces)
    '  Dr. Smith came.  He left.\\n\\nThe end\\n'
    """
    segment = functools.partial(extras.load("sentencex").segment, language.replace("_", "-").partition("-")[0] or "en")
    parts = []  # white space and anything else, in turns
    for line in re.split(r"(\n)", text):
        for piece in segment(line) if line.strip() else [line]:
            inner = piece.strip()
            start = piece.find(inner) if inner else 0
            parts += [piece[:start], inner, piece[start + len(inner) :]]
    sentences, spaces = [], [""]
    for part in parts:
        if part.strip():
            sentences.append(part)
            spaces.append("")
        else:
            spaces[-1] += part
    return sentences, spaces


def join_sentences(sentences, spaces):
    """Puts sentences, or their translations, and the white space around them together.

    >>> join_sentences(["One.", "Two."], ["", " ", "\\n"])
    'One. Two.\\n'
    """
    return spaces[0] + "".join(part for pair in zip(sentences, spaces[1:], strict=True) for part in pair)
