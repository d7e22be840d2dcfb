"""Splits a text into what is translated: its sentences, without accelerators; of an ICU message, those of each case."""

import re

from keras_tfm.documents import icu
from keras_tfm.documents.sentences import join_sentences, split_sentences
from keras_tfm.text.protected import find_protected

WORD = re.compile(r"[^\W\d_]{2}|[\u3040-\u30ff\u3400-\u9fff]")  # without one, there is nothing to translate
# Names and paths, such as max_length and /etc/fstab, once accelerators such as that of "E_xit" are removed.
NAME = re.compile(
    r"""_*(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9]+(?:_[A-Za-z0-9]{2,})+(?![A-Za-z0-9])|(?<![\w/<:.])~?(?:/[\w.+-]*\w){2,}"""
)
WIDE_SPACE = re.compile(r"(?<=[。！？]) (?=[\u3040-\u30ff\u3400-\u9fff])")  # Japanese stops are as wide as a space


class Source:
    """A text to translate: its sentences, the white space around them, and the key of its accelerator."""

    def __init__(self, text, markup, accelerators, language):
        plain, self.key = accelerators.strip(text) if accelerators else (text, "")
        self.markup = either(markup, NAME.pattern) if NAME.search(plain) else markup
        spans = find_protected(plain, self.markup)
        self.sentences, self.spaces = split_sentences(plain, language, spans)
        self.accelerators = accelerators

    def segments(self):
        """The (sentence, markup) that have something to translate."""
        return [(sentence, self.markup) for sentence in self.sentences if has_words(sentence, self.markup)]

    def translation(self, translations):
        """The translation and what is wrong with it, given {(sentence, markup): (translation, problem)}."""
        results = [translations.get((sentence, self.markup), (sentence, "")) for sentence in self.sentences]
        problem = next((problem for _, problem in results if problem), "")
        lines = [
            text if "\n" in sentence else " ".join(text.split("\n"))
            for sentence, (text, _) in zip(self.sentences, results, strict=True)
        ]
        text = WIDE_SPACE.sub("", join_sentences(lines, self.spaces))
        return self.accelerators.add(text, self.key) if self.key else text, problem


class MessageSource:
    """An ICU message to translate: a `Source` for each of its cases."""

    def __init__(self, cases, make):
        self.cases, self.sources = cases, {key: make(text) for key, text in cases.texts.items()}

    def segments(self):
        return [segment for source in self.sources.values() for segment in source.segments()]

    def translation(self, translations):
        results = {key: source.translation(translations) for key, source in self.sources.items()}
        problem = next((problem for _, problem in results.values() if problem), "")
        return self.cases.joined({key: text for key, (text, _) in results.items()}), problem


class UnreadableMessage:
    """An ICU message whose cases could not be read, and which is not translated."""

    def __init__(self, text):
        self.text = text

    def segments(self):
        return []

    def translation(self, translations):
        return self.text, "would keep the cases of the source, which could not be read"


def make_source(text, markup, accelerators, source_language, target_language):
    """The `Source` of a text, or of an ICU message."""
    if not icu.has_cases(text):
        return Source(text, markup, accelerators, source_language)
    cases = icu.read_cases(text)
    if cases is None:
        return UnreadableMessage(text)
    inner = either(markup, re.escape(icu.NUMBER)) if cases.kind != "select" else markup
    options = (inner, None, source_language, target_language)
    return MessageSource(cases.for_language(target_language), lambda part: make_source(part, *options))


def either(markup, pattern):
    """A pattern of a format, or None, with an alternative."""
    return re.compile(f"(?:{markup.pattern})|{pattern}", markup.flags) if markup else re.compile(pattern)


def has_words(text, markup=None):
    """Whether there is something to translate in a text, besides what is protected.

    >>> has_words("%s: %d"), has_words("Save %s")
    (False, True)
    """
    position, parts = 0, []
    for span in find_protected(text, markup):
        parts.append(text[position : span.start])
        position = span.end
    return any(map(WORD.search, [*parts, text[position:]]))
