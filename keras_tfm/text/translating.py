"""What translators and the runners of exports share: languages, placeholders and glossaries."""

import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keras_tfm.common.arguments import UserError, check, strings
from keras_tfm.text import masking, pieces
from keras_tfm.text.base import SENTENCE_END, Tokenizer, clean, max_tokens
from keras_tfm.text.masking import Translation

SPACE = re.compile(r"(\s*[\t\n\v\f\r]\s*|^\s+|\s+$)")  # between lines, and around a text
LONG_LINE = 300  # characters from which a line is translated sentence by sentence
NUM_CANDIDATES = 4  # hypotheses to choose from if the best one does not keep all placeholders


class TextTranslator:
    """Base of `Translator` and `Runner`.

    Attributes:
        languages: codes of the languages that a multilingual model translates into; empty for a bilingual one.
        target_language: what texts are translated into by default; None if each call names it.
        placeholders: number of slots that the model knows, see `keras_tfm.text.masking`; 0 for none.
    """

    # Subclasses set the attributes, can be called, and define `_hypotheses(texts, tags, n, verbose, **options)`: the
    # `n` best translations of strings, [(string, score), …]; the best one if `n` is None. A tag, or "", belongs before
    # each line or sentence.
    languages: list[str] = []
    placeholders = 0
    max_hypotheses = NUM_CANDIDATES  # of a text
    source_tokenizer: Tokenizer | None = None  # a SavedModel has its own
    unseen_characters: re.Pattern | None = None  # which the model can only copy
    max_length: int  # tokens of a line, with its tag and its end
    _hypotheses: Callable
    __call__: Callable
    _target_language: str | None = None

    @property
    def target_language(self) -> str | None:
        return self._target_language

    @target_language.setter
    def target_language(self, language: str | None) -> None:
        (tag,) = masking.tags(self.languages, language, 1)
        self._target_language = tag[2:-2] or None  # as the model spells it: de for de_DE

    def translate_protected(
        self,
        texts: Iterable[str],
        markups: Iterable[Any] | None = None,
        target_language: str | Iterable[str] | None = None,
        glossary: Mapping[str, str] | None = None,
        verbose: int = 0,
        **options: Any,
    ) -> list[Translation]:
        """Translates strings, and reports which translations do not keep all placeholders, tags and addresses.

        If the best hypothesis does not keep them, others are tried; if none does, the source text is returned.

        Args:
            texts: list of strings.
            markups: for each text a pattern of what else to keep, or None; see `keras_tfm.text.find_protected`.
            target_language, glossary, verbose, **options: as for a call.

        Returns:
            list of `Translation`, (text, problem); a problem is "" or a reason such as "lacks %s".
        """
        tags, masked = self._mask_all(strings(texts), target_language, glossary, markups)
        best = self._translate_lines([each.text for each in masked], tags, None, verbose, **options)
        return self._restore(masked, tags, best, options)

    def _restore(self, masked, tags, best, options):
        """The `Translation` of each text, given its best hypothesis; others are tried if it has a problem."""
        translations = [each.restore(hypotheses[0][0]) for each, hypotheses in zip(masked, best, strict=True)]
        wrong = [number for number, translation in enumerate(translations) if translation.problem]
        if wrong and (n := self._num_candidates(**options)) > 1:
            chosen = [masked[number].text for number in wrong], [tags[number] for number in wrong]
            several = self._translate_lines(*chosen, n, 0, **options)
            for number, hypotheses in zip(wrong, several, strict=True):
                restored = [masked[number].restore(string) for string, _ in hypotheses]
                translations[number] = next((each for each in restored if not each.problem), translations[number])
        for number, each in enumerate(masked):
            if problem := self._limit_problem(each.text) or translations[number].problem:
                translations[number] = Translation(each.source, problem)
        return translations

    def _limit_problem(self, text):
        """Why a text with slots cannot be translated: one of its lines is too much for the model; "" if none is."""
        if not self.placeholders:
            return ""
        lines = [line for line in self._lines(text) if line.text]
        if any(len(line.numbers) > self.placeholders for line in lines):
            return f"can keep at most {self.placeholders} placeholders in a line"
        return "" if all(map(self._fits, lines)) else "would lack the end of a long sentence"

    def _num_candidates(self, **options):
        """How many hypotheses a call with these options can return, up to `NUM_CANDIDATES`."""
        return min(NUM_CANDIDATES, self.max_hypotheses)

    def _call(self, texts, verbose, target_language, glossary, **options):
        """The translations of a call, for a list of strings or a string."""
        one = isinstance(texts, str)
        tags, masked = self._mask_all(clean([texts] if one else strings(texts)), target_language, glossary)
        best = self._translate_lines([each.text for each in masked], tags, None, verbose, **options)
        translations = [hypotheses[0][0] for hypotheses in best]
        if self.placeholders:
            restored = self._restore(masked, tags, best, options)
            translations = [translation.text for translation in restored]
            for text, problem in restored:
                _warn_untranslated(text, problem)
        return translations[0] if one else translations

    def _translate_lines(self, texts, tags, n, verbose, **options):
        """`_hypotheses` of texts with slots, each line of which is translated by itself.

        Models that were trained with placeholders have seen lines without white space around them, and slots from 1
        on. A line that is too long or has too many slots has no translation.
        """
        if not self.placeholders or options.get("prefix") is not None:
            return self._hypotheses(texts, tags, n, verbose, **options)
        by_text = [self._lines(text) for text in texts]
        rows = [(tag, line) for tag, lines in zip(tags, by_text, strict=True) for line in lines if self._fits(line)]
        lines_of_rows, tags_of_rows = [line.text for _, line in rows], [tag for tag, _ in rows]
        hypotheses = iter(self._hypotheses(lines_of_rows, tags_of_rows, n, verbose, **options))
        return [
            pieces.join(
                [(line.restored(next(hypotheses)) if self._fits(line) else [("", 0.0)], line.space) for line in lines]
            )
            for lines in by_text
        ]

    def _lines(self, text):
        return _lines(text, self._is_long)

    def _is_long(self, line):
        """Whether a line is split into sentences. A slot is one character and, whatever its number, one token."""
        return len(masking.SLOT.sub("1", line)) > LONG_LINE or self._exceeds(masking.SLOT.sub("⟦1⟧", line))

    def _fits(self, line):
        return bool(line.text) and len(line.numbers) <= self.placeholders and not self._exceeds(line.text)

    def _exceeds(self, line):
        """Whether a line has more tokens than the model reads, with a tag and the end."""
        if self.source_tokenizer is None:
            return False
        longest = self.max_length - bool(self.languages)
        return max_tokens(line) > longest and len(self.source_tokenizer.encode([line])[0]) >= longest

    def _n_best(self, texts, n, verbose, target_language=None, glossary=None, **options):
        """The `n` best translations of each string, [(string, score), …], as the model wrote them, restored.

        A text that is too long, or has too many placeholders, comes back as it is, with a warning.
        """
        tags, masked = self._mask_all(clean(strings(texts)), target_language, glossary)
        several = self._translate_lines([each.text for each in masked], tags, n, verbose, **options)
        for number, each in enumerate(masked):
            problem = self._limit_problem(each.text)
            _warn_untranslated(each.source, problem)
            restored = [(each.restore(string).text, score) for string, score in several[number]]
            several[number] = [(each.source, 0.0)] if problem else restored
        return several

    def prepare_pairs(
        self, sources: Iterable[str], targets: Iterable[str], target_language: Any = None
    ) -> tuple[list[str], list[str]]:
        """Pairs as the model reads them: sources with the tags of their languages, and both sides with slots."""
        before, after = strings(sources, "sources"), strings(targets, "targets")
        check("targets", len(after), len(after) == len(before), f"one for each of {len(before)} sources")
        tags, masked = self._mask_all(before, target_language, None)
        pairs = [
            masking.mask_pair(each.source, target, self.placeholders) or (each.source, target)
            for each, target in zip(masked, after, strict=True)
        ]
        return [tag + source for tag, (source, _) in zip(tags, pairs, strict=True)], [target for _, target in pairs]

    def _mask_all(self, texts, target_language, glossary, markups=None):
        """The tag of each text, or "", and the texts with slots."""
        texts = list(texts)
        glossary = masking.check_glossary(glossary, self.placeholders)
        default = f">>{self.target_language}<<" if self.target_language else ""
        tags, rests = masking.tags(self.languages, target_language, len(texts)), []
        for number, text in enumerate(texts):
            own, rest = ("", text) if tags[number] else masking.split_tag(text, self.languages)
            tags[number] = tags[number] or own or default
            rests.append(rest)
        if len(self.languages) > 1 and not all(tags):
            raise UserError(f"`target_language` must be one of {self.languages}. Received: target_language=None")
        markups = list(markups) if markups is not None else [None] * len(texts)
        check("markups", len(markups), len(markups) == len(texts), f"one for each of {len(texts)} texts")
        masked = [self._mask(rest, glossary, markup) for rest, markup in zip(rests, markups, strict=True)]
        cleaned = clean([each.text for each in masked])
        return tags, [each._replace(text=text) for each, text in zip(masked, cleaned, strict=True)]

    def _mask(self, text, glossary, markup):
        """The text with slots, also for characters that can only be copied if no line has too many then."""
        if not self.placeholders:
            return masking.Masked(text, text, (), markup)
        masked = masking.mask(text, masking.MAX_SLOTS_OF_TEXT, glossary, markup, self.unseen_characters)
        if all(len(line.numbers) <= self.placeholders for line in self._lines(masked.text)):
            return masked
        return masking.mask(text, masking.MAX_SLOTS_OF_TEXT, glossary, markup)

    def stream(self, lines: Iterable[str], chunk: int = 2048, **options: Any) -> Iterator[str]:
        """Translates an iterable of any length, `chunk` strings at a time; the options are those of a call."""
        lines = iter(lines)
        while texts := list(itertools.islice(lines, chunk)):
            yield from self(texts, **options)


class _Line(NamedTuple):
    """A line with slots from 1 on, their numbers in the text, and the white space behind the line."""

    text: str
    numbers: tuple[str, ...]
    space: str

    def restored(self, hypotheses):
        """Hypotheses, [(string, score), …], with the slots of the text."""
        return [(masking.SLOT.sub(self._slot, string), score) for string, score in hypotheses]

    def _slot(self, match):
        number = int(match[1])
        return f"⟦{self.numbers[number - 1]}⟧" if 0 < number <= len(self.numbers) else ""


def _warn_untranslated(text, problem):
    if problem:
        warnings.warn(f"not translated, since the translation {problem}: {text[:80]!r}", stacklevel=4)


def _lines(text, is_long):
    """The lines of a text, and the sentences of those that are long.

    >>> [(line.text, line.space) for line in _lines("  Open ⟦7⟧\\n\\tSave ", lambda line: False)]
    [('', '  '), ('Open ⟦1⟧', '\\n\\t'), ('Save', ' '), ('', '')]
    """
    parts = SPACE.split(text)
    lines = []
    for line, space in zip(parts[::2], [*parts[1::2], ""], strict=True):
        *sentences, (last, _) = pieces.split_with_separators(SENTENCE_END, line) if is_long(line) else [(line, "")]
        for sentence, behind in [*sentences, (last, space)]:
            numbers = tuple(dict.fromkeys(masking.SLOT.findall(sentence)))
            own = masking.SLOT.sub(lambda match, known=numbers: f"⟦{known.index(match[1]) + 1}⟧", sentence)
            lines.append(_Line(own, numbers, behind))
    return lines
