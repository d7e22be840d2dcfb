"""Masks what a translation must keep, such as placeholders: the model reads and writes slots in their place.

A slot is a token of its own: "⟦1⟧" for the first protected part of a text. The search copies each slot of the source
exactly once (see `copied_tokens` of `keras_tfm.decoding.Greedy`), and `Masked.restore` puts the parts back.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keras_tfm.common.arguments import check
from keras_tfm.text.protected import Span, compare_protected, find_protected

MAX_SLOTS = 64
MAX_SLOTS_OF_TEXT = 10_000  # of all its lines together, each of which is translated with slots from 1 on
# All with `re.ASCII`, since pages find the same with JavaScript's expressions; see `keras_tfm.export.javascript`.
# Before a source: the language of the translation, as in OPUS-MT's models.
TAG = re.compile(r">>([^<>\s]+)<<", re.ASCII)
SLOT = re.compile(r"⟦(\d+)⟧", re.ASCII)
# Signs that mean the same in all languages, and that a model would seldom have seen: © → ∞ 🙂 and a single μ.
SIGNS = re.compile(
    "[©®°±¬µ×÷²³¹\u2070-\u209f\u2100-\u214f\u2190-\u2bff\U0001f000-\U0001faff\ufe0f\u200d]+"
    "|(?<![\u0370-\u03ff])[\u0370-\u03ff](?![\u0370-\u03ff])"
)
# Placeholders that stand for the first, second, … argument by their order alone.
SEQUENTIAL = re.compile(
    r"%[-+,0#'I]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Lqjzt]|I64)?(?:[diouxXeEfFgGcs@]|<PRI\w+>)|\{\}",
    re.ASCII,
)
OPENING = re.compile(r"<([A-Za-z][\w:.-]*)(?:[^<>]*[^<>/])?>", re.ASCII)
CLOSING = re.compile(r"</([A-Za-z][\w:.-]*)\s*>", re.ASCII)


def slots(count: int) -> list[str]:
    """The names of so many slots, as a tokenizer knows them.

    >>> slots(2)
    ['⟦1⟧', '⟦2⟧']
    """
    return [f"⟦{number}⟧" for number in range(1, count + 1)]


class Translation(NamedTuple):
    """A translation, and what is wrong with it: "" or a reason, such as "lacks %s"."""

    text: str
    problem: str = ""


class Masked(NamedTuple):
    """A text whose protected parts are slots.

    Attributes:
        text: what the model reads.
        source: the text before.
        replacements: what a translation has in place of each slot: the part itself, or a term of a glossary.
        markup: pattern of what else is protected, for `find_protected`, or None.
    """

    text: str
    source: str
    replacements: tuple[str, ...] = ()
    markup: re.Pattern | None = None

    def restore(self, translation: str) -> Translation:
        """A translation by a model, with all that is protected put back.

        >>> mask("Delete %s?", 16).restore("⟦1⟧ löschen?")
        Translation(text='%s löschen?', problem='')
        >>> mask("Delete %s?", 16).restore("Löschen?")
        Translation(text='Löschen?', problem='lacks %s')
        """
        written = [int(number) for number in SLOT.findall(translation)] if self.replacements else []
        known = range(1, len(self.replacements) + 1)
        lacking = [self.replacements[number - 1] for number in known if number not in written]
        repeated = [self.replacements[number - 1] for number in known if written.count(number) > 1]
        if self.replacements:
            translation = SLOT.sub(lambda match: self._replacement(int(match[1])), translation)
        return Translation(translation, _problem(lacking, repeated) or self._difference(translation))

    def _replacement(self, number):
        return self.replacements[number - 1] if 0 < number <= len(self.replacements) else ""

    def _difference(self, translation):
        """What of the source's placeholders, tags and addresses a translation lacks, repeats or misplaces."""
        protected = [find_protected(text, self.markup) for text in (self.source, translation)]
        missing, extra = compare_protected(self.source, translation, self.markup)
        if missing or extra:
            return _problem(missing, extra)
        source, target = (_sequence(spans) for spans in protected)
        if source != target:
            return f"has {' '.join(target)} in place of {' '.join(source)}"
        if _balanced(protected[0]) and not _balanced(protected[1]):
            return "closes a tag that is not open"
        stray = [sign for sign in "<>" if translation.count(sign) > self.source.count(sign)]
        return f"has too many {' '.join(stray)}" if stray else ""


def mask(
    text: str,
    max_slots: int,
    glossary: Mapping[str, str] | None = None,
    markup: re.Pattern | None = None,
    unseen: re.Pattern | None = None,
) -> Masked:
    """Replaces what a translation must keep with slots.

    Args:
        text: source text.
        max_slots: number of slots that the model knows. A text with more protected parts is left as it is.
        glossary: source term → target term. Terms match whole words, as given or capitalized; the longest
            match wins.
        markup: pattern of what else is protected, for `find_protected`.
        unseen: pattern of characters that the model has not seen and can only copy, if there are enough slots; with
            it, signs such as → and 🙂 are protected, too.

    >>> mask("Open %1$s in <b>Files</b>", 16, {"Files": "Dateien"})[:3]
    ('Open ⟦1⟧ in ⟦2⟧⟦3⟧⟦4⟧', 'Open %1$s in <b>Files</b>', ('%1$s', '<b>', 'Dateien', '</b>'))
    """
    spans = _spans(text, glossary, markup, unseen)
    if len(spans) > max_slots and unseen:
        spans = _spans(text, glossary, markup)
    if len(spans) > max_slots:
        return Masked(text, text, (), markup)
    terms = glossary or {}
    replacements = tuple(span.text if span.kind != "term" else terms[span.text] for span in spans)
    return Masked(_with_slots(text, spans, range(1, len(spans) + 1)), text, replacements, markup)


def mask_pair(source: str, target: str, max_slots: int) -> tuple[str, str] | None:
    """Both sides of a training pair with slots, or None if they do not have the same placeholders.

    >>> mask_pair("%s of {n}", "{n}: %s", 16)
    ('⟦1⟧ of ⟦2⟧', '⟦2⟧: ⟦1⟧')
    >>> mask_pair("Delete %s", "Löschen", 16) is None
    True
    """
    spans, others = _spans(source), _spans(target)
    if not spans and not others:
        return source, target
    if collections.Counter(span.text for span in spans) != collections.Counter(span.text for span in others):
        return None
    if len(spans) > max_slots:
        return None
    numbers = collections.defaultdict(list)
    for number, span in enumerate(spans, 1):
        numbers[span.text].append(number)
    theirs = [numbers[span.text].pop(0) for span in others]
    return _with_slots(source, spans, range(1, len(spans) + 1)), _with_slots(target, others, theirs)


def check_glossary(glossary: Mapping[str, str] | None, max_slots: int) -> dict[str, str]:
    """The terms of a glossary, also capitalized; raises an error if it is not one, or if the model cannot use it."""
    glossary = {} if glossary is None else glossary
    fine = isinstance(glossary, Mapping) and all(isinstance(term, str) for pair in glossary.items() for term in pair)
    check("glossary", glossary, fine and all(map(str.strip, glossary)), "a dict, source term → target term")
    check("glossary", glossary, max_slots or not glossary, "None for a model that was not trained with placeholders")
    capitals = {term[0].upper() + term[1:]: glossary[term][:1].upper() + glossary[term][1:] for term in glossary}
    return capitals | dict(glossary)


def characters_except(known: str) -> re.Pattern:
    """Pattern of all characters except these and white space.

    >>> characters_except("abc-").findall("a 5-b 日本")
    ['5', '日本']
    """
    return re.compile(rf"[^\s{re.escape(known)}]+")


def split_tag(text: str, languages: Iterable[str]) -> tuple[str, str]:
    """The language tag that a text begins with, or "", and the rest.

    >>> split_tag(">>de<<Open", ["de", "fr"])
    ('>>de<<', 'Open')
    """
    match = TAG.match(text)
    return (match[0], text[match.end() :]) if match and match[1] in languages else ("", text)


def tags(languages: list[str], target_language, count: int) -> list[str]:
    """The language tags of `count` texts.

    Args:
        languages: those that a model knows; none for a bilingual model.
        target_language: one of them, or a list with one for each text; None if all texts have tags.
    """
    one = target_language is None or isinstance(target_language, str)
    given = [target_language] * count if one else list(target_language)
    check("target_language", given, len(given) == count, f"a code, or one for each of {count} texts")
    given = [language and _known_code(language, languages) for language in given]
    for language in dict.fromkeys(given):
        rule = f"one of {languages}" if languages else "None for a model that translates into only one language"
        check("target_language", language, language is None or language in languages, rule)
    return [f">>{language}<<" if language else "" for language in given]


def _known_code(language, languages):
    """The code by which a model knows a language: de for de_DE and DE; other codes stay as they are."""
    codes = {code.lower(): code for code in languages}
    code = str(language).lower().replace("_", "-")
    return codes.get(code) or codes.get(code.partition("-")[0]) or language


def _spans(text, glossary=None, markup=None, unseen=None):
    """The protected parts of a text: spans of `find_protected`, terms, and what looks like a slot or tag; in order."""
    matches = find_protected(text, markup)
    for pattern in (unseen, SIGNS) if unseen else ():
        matches += [Span(*match.span(), "sign", match[0]) for match in pattern.finditer(text)]
    for pattern in (SLOT, TAG) if "⟦" in text or ">>" in text else ():
        matches += [Span(match.start(), match.end(), "markup", match[0]) for match in pattern.finditer(text)]
    if glossary:
        terms = "|".join(re.escape(term) for term in sorted(glossary, key=len, reverse=True))
        matches += [Span(*match.span(), "term", match[0]) for match in re.finditer(rf"(?<!\w)(?:{terms})(?!\w)", text)]
    spans, position = [], 0
    for span in sorted(matches, key=lambda span: (span.start, -span.end, span.kind != "term")):
        if span.start >= position:
            spans.append(span)
            position = span.end
    return spans


def _with_slots(text, spans, numbers):
    parts, position = [], 0
    for span, number in zip(spans, numbers, strict=True):
        parts += [text[position : span.start], f"⟦{number}⟧"]
        position = span.end
    return "".join([*parts, text[position:]])


def _problem(missing, extra):
    reasons = [f"{verb} {' '.join(parts)}" for verb, parts in (("lacks", missing), ("has too many", extra)) if parts]
    return ", ".join(reasons)


def _sequence(spans):
    return [span.text for span in spans if SEQUENTIAL.fullmatch(span.text)]


def _balanced(spans):
    """Whether each closing tag follows its opening one."""
    opened = collections.Counter()
    for span in spans:
        if match := OPENING.fullmatch(span.text):
            opened[match[1]] += 1
        elif match := CLOSING.fullmatch(span.text):
            opened[match[1]] -= 1
            if opened[match[1]] < 0:
                return False
    return True
