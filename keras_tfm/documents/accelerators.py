"""Accelerators: markers before the letter that is the key of a menu entry or a button, as in "_File" or "E&xit".

A marker is removed before a text is translated, and put before a letter of the translation.
"""

import collections
import re
import unicodedata
from collections.abc import Iterable

from keras_tfm.text.protected import MARKERS, find_accelerator, find_protected

MAX_LENGTH = 80  # characters of a text with an accelerator: a menu entry, a button, the label of a field
IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")  # and kana and Hangul
APPENDED = re.compile(rf"\s?\(([{MARKERS}])(\w)\)")  # where the script has no letters: ファイル(_F)
TAIL = re.compile(r"(?:\s|\.\.\.|…|:|：)*\Z")
NAME = re.compile(r"\w*(?:[a-z0-9]_[a-z0-9]|[A-Z]_[A-Z])\w*")  # such as file_name, or an accelerator inside a word
CONSTANT = re.compile(r"[A-Z]{3,}_[A-Z]{3,}")


class Accelerators:
    """The accelerators of an application, by its texts.

    Args:
        texts: all of its texts, or most.

    Attributes:
        marker: "_", "&" or "~", whichever most texts have before a word; "" if none has.

    >>> accelerators = Accelerators(["_File", "_Edit", "E_xit", "Guide co_lor:", "Color", "file_name"])
    >>> accelerators.strip("E_xit"), accelerators.strip("Guide co_lor:"), accelerators.strip("file_name")
    (('Exit', 'x'), ('Guide color:', 'l'), ('file_name', ''))
    >>> accelerators.add("Beenden", "x"), accelerators.add("Farbe der Linien:", "l"), accelerators.add("終了…", "x")
    ('_Beenden', 'Farbe der _Linien:', '終了(_X)…')
    """

    def __init__(self, texts: Iterable[str]):
        texts, evidence = list(texts), collections.Counter[str]()
        word = re.compile(rf"(?<![\w{MARKERS}])[^\W\d_]+(?![\w{MARKERS}])")
        self.words = {match for text in texts for match in word.findall(text.lower())}
        for text in texts:
            for marker in (marker for marker in MARKERS if marker in text):
                evidence[marker] += starts_word(text, marker, 2) - (marker == "_" and self._has_name(text))
        marker, count = evidence.most_common(1)[0] if evidence else ("", 0)
        self.marker = marker if count > 0 else ""

    def strip(self, text: str, loosely: bool = False) -> tuple[str, str]:
        """A text without its accelerator, and the key, which is "" if there is none.

        Args:
            text: a text of the application, or a translation.
            loosely: whether to accept any marker before a letter, since the other text of the pair has an accelerator.
        """
        if not self.marker or self.marker not in text:
            return text, ""
        appended = APPENDED.search(text)
        if appended and appended[1] == self.marker:
            return text[: appended.start()] + text[appended.end() :], appended[2]
        span = find_accelerator(text, self.marker) if len(text) <= MAX_LENGTH else None
        if span and (loosely or starts_word(text, self.marker) or self._is_inside_word(text, span)):
            return text[: span.start] + text[span.start + 1 :], text[span.start + 1]
        return text, ""

    def add(self, text: str, key: str) -> str:
        """Puts the marker before a letter of a translation: the key at the start of a word, or else anywhere, or else
        the first letter of a word, without an accent if there is one: not every keyboard has the others. Chinese,
        Japanese and Korean have the key in parentheses."""
        if IDEOGRAPHS.search(text):
            tail = TAIL.search(text).start()
            return f"{text[:tail]}({self.marker}{key.upper()}){text[tail:]}"
        protected = {place for span in find_protected(text) for place in range(span.start, span.end)}
        letters = [place for place, letter in enumerate(text) if letter.isalpha() and place not in protected]
        starts = [place for place in letters if not re.match(r"\w", text[place - 1 : place] if place else "")]
        same = [place for place in (*starts, *letters) if text[place].lower() == key.lower()]
        plain = [place for place in (*starts, *letters) if not unicodedata.decomposition(text[place])]
        place = next(iter([*same, *plain, *letters]), None)
        return text if place is None else text[:place] + self.marker + text[place:]

    def _has_name(self, text):
        return any(name.replace("_", "").lower() not in self.words for name in NAME.findall(text))

    def _is_inside_word(self, text, span):
        """Whether a marker inside a word, as in "E_xit", is an accelerator and not part of a name."""
        before, after = re.search(r"\w*\Z", text[: span.start])[0], re.match(r"\w*", text[span.start + 1 :])[0]
        if (before + after).lower() in self.words:
            return not CONSTANT.fullmatch(f"{before}_{after}")
        return after[0].islower() and after.lower() not in self.words and (self.marker != "_" or before[:1].isupper())


def starts_word(text, marker, letters=1):
    """Whether a text has one accelerator, at the start of a word with at least this number of letters."""
    span = find_accelerator(text, marker) if len(text) <= MAX_LENGTH else None
    if span is None or re.match(r"[\w.'\">]", text[span.start - 1 : span.start] if span.start else ""):
        return False
    return letters == 1 or re.match(rf"[^\W\d_]{{{letters}}}", text[span.start + 1 :]) is not None
