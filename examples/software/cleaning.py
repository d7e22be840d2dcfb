"""Cleaning of pairs of texts: which are kept, and why the others are not."""

import functools
import re

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import split_sentences
from keras_tfm.text import compare_protected, find_accelerator, find_protected

LONGEST = 400  # characters
IDENTIFIED = {"ja": 10}  # characters from which the language of a text is identified
RATIOS = {"ja": (0.12, 1.4)}  # of characters, target to source
CJK = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"
SCRIPTS = {"ja": re.compile("[\u3040-\u30ff\u3400-\u9fff]"), "ru": re.compile("[\u0400-\u04ff]")}
FOREIGN = re.compile("[\u0370-\u1dff\u3040-\u9fff\uac00-\ud7af]")  # letters of neither Latin nor phonetic alphabets
LETTER = re.compile(r"[^\W\d_]")
SPECIAL = re.compile(r"[<%{$&@]|://|www\.|mailto:|__")  # without any of these, nothing is protected
LANGUAGES = ["en", "de", "fr", "es", "it", "pt", "nl", "pl", "sv", "ru", "ja"]
CREDITS = re.compile(
    r"(?:your|names?|emails?) (?:of translators|names|emails)|translators?(?:[-_ ]credits)?", re.IGNORECASE
)
OPENED = re.compile(r"<(?!br|hr|img)[A-Za-z][^<>]*(?<!/)>")
ACCELERATOR = re.compile(r"(?<![^\s(])[_&~](?=[^\W\d_])")
LETTER_KEY = re.compile(rf"(?<=[{CJK}])\s?[(（][A-Z][)）]")
NOT_LANGUAGE = re.compile(
    r"""(?:(?:Ctrl|Control|Shift|Alt|Meta|Super|Cmd|Command|Primary)\s?[+-]\s?)+\S+    # keys
      | (?=.{4})[A-Z0-9_.:()\s-]*[A-Z][A-Z0-9_.()-]{3,}                               # VLOOKUP
      | \S*[_\\=|]\S* | [./~-]\S* | \S+\.\w{1,5} | \S*\w\(.*\)                        # names, files, options, calls
      | [\w\s*.;,]*\*\.\w+.*                                                          # suffixes of files
      | [a-z]+(?:[A-Z]\w*)+                                                           # camelCase
      | [a-z-]+:\s?[^\s;]+;.* | .*[{;]\s*[a-z-]+\s*:[^;]*;\s*\}?.*                    # CSS
      | .*\w\s\|\s\w.* | [\w\s]{1,24}\|.*                                             # alternatives, "Script|Tamil"
      | .*\#\d.*;.*                                                                   # plural forms of Mozilla
    """,
    re.VERBOSE | re.DOTALL,
)


def clean(pairs, language, marker, counts):
    """Cleans the texts of one application.

    Args:
        pairs: (file, source, target).
        language: of the targets.
        marker: characters that mark accelerators.
        counts: counter of what was kept and of the reasons for what was not.

    Yields:
        (file, source, target, whether it is only a sentence of another text).
    """
    for file, original, translation in pairs:
        for pair in pairs_of(original, translation, marker):
            reason = reason_against(*pair, language)
            counts[reason or "kept"] += 1
            if not reason:
                yield file, *pair, False
            if reason in ("", "too long"):
                for sentence in sentences_of(*pair, language):
                    reason = reason_against(*sentence, language)
                    counts[f"sentence: {reason or 'kept'}"] += 1
                    if not reason:
                        yield file, *sentence, True


def pairs_of(source, target, marker):
    """The pairs that are made of a text and its translation: one, or one for each paragraph or line."""
    source, target = without_accelerators(source.strip(), target.strip(), marker)
    paragraphs = [re.split(r"\n\s*\n", text) for text in (source, target)]
    if len(paragraphs[0]) != len(paragraphs[1]):
        paragraphs = [source], [target]
    for texts in zip(*paragraphs, strict=True):
        lines = [[line.strip() for line in text.split("\n") if line.strip()] for text in texts]
        if len(lines[0]) == len(lines[1]) and all(map(_is_complete, *lines)):
            yield from (without_column(_joined([line]), _joined([other])) for line, other in zip(*lines, strict=True))
        else:
            yield without_column(*map(_joined, lines))


def _is_complete(source, target):
    """Whether two lines are a pair, not parts of a sentence, which begin in small letters or differ in placeholders."""
    return re.match(r"[A-Z\d<*•-]", source) and not differ(source, target)


def differ(source, target):
    """Whether what is protected differs in two texts, or Chromium's $1, which is an amount of money elsewhere."""
    if not SPECIAL.search(source) and not SPECIAL.search(target):
        return False
    numbers = [sorted(re.findall(r"\$\d", text)) for text in (source, target)]
    return numbers[0] != numbers[1] or bool(compare_protected(source, target))


def _joined(lines):
    """Lines as one, without the spaces that Japanese does not have."""
    text = re.sub(r"[\x00-\x1f\x85\u2028\u2029]+", " ", " ".join(lines))
    return re.sub(rf"(?<=[{CJK}]) (?=[{CJK}])", "", text) if len(lines) > 1 else text


def without_column(source, target):
    """Both texts without a first column, such as the options of a command before their descriptions."""
    parts = [re.split(r"\s{2,}", text, maxsplit=1) for text in (source, target)]
    if all(len(part) == 2 for part in parts) and (parts[0][0] == parts[1][0] or source[0] == "-"):
        return without_column(parts[0][1], parts[1][1])
    return source, target


def without_accelerators(source, target, marker):
    """Both texts without the marker of a menu entry's key; in Japanese also without "(_F)"."""
    texts = [source, target]
    if not marker or not set(marker) & set(source + target):
        return texts
    texts[1] = re.sub(rf"\s*[(（][{marker}]\w[)）]", "", target)
    names = [set(re.findall(rf"\w+[{marker}]\w+", text)) for text in texts]
    for place, text in enumerate(texts):
        span = find_accelerator(text, marker)
        if span and not names[0] & names[1]:  # what is in both, such as file_name, is no accelerator
            texts[place] = text[: span.start] + text[span.start + 1 :]
    return texts


def reason_against(source, target, language):
    """Why a pair is not kept, or "" if it is."""
    if not source or not target:
        return "untranslated"
    if not LETTER.search(source) or not LETTER.search(target):
        return "no letters"
    words = plain(source)
    if source == target or len(words) > 15 and _letters(words) == _letters(plain(target)):
        return "copy"
    if CREDITS.fullmatch(source):
        return "names of translators"
    if not re.search(r"[^\W\d_]{2}", words) or NOT_LANGUAGE.fullmatch(source):
        return "not language"
    if max(len(source), len(target)) > LONGEST:
        return "too long"
    if differ(source, target):
        return "placeholders differ"
    if any(map(ACCELERATOR.search, (words, plain(target)))) or len(LETTER_KEY.findall(target)) > source.count("("):
        return "accelerators left"
    return _reason_of_language(words, plain(target), language)


def _letters(text):
    return re.sub(r"[\W\d_]", "", text).lower()


def _reason_of_language(source, target, language):
    script, foreign = SCRIPTS.get(language), len(FOREIGN.findall(target))
    if FOREIGN.search(source) or (not script.search(target) if script else foreign > 0.2 * len(target)):
        return "other script"
    low, high = RATIOS.get(language, (0.4, 3))
    if len(source) > 20 and not low <= len(target) / len(source) <= high:
        return "length ratio"
    if len(target) > IDENTIFIED.get(language, 25) and not may_be(target, language):
        return "other language"
    if len(source) > 25 and not may_be_english(source):
        return "source not English"
    return ""


def plain(text):
    """A text without what is protected in it."""
    for span in reversed(find_protected(text) if SPECIAL.search(text) else []):
        text = f"{text[: span.start]} {text[span.end :]}"
    return " ".join(text.split())


def may_be(text, language):
    """Whether a text may be in a language: identification is unsure about short ones."""
    found, probability = identifier().classify(text)
    return found == language or probability < 0.9


@functools.lru_cache(maxsize=300_000)
def may_be_english(text):
    return may_be(text, "en")


@functools.cache
def identifier():
    """Identifies one of the languages of the corpus."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("py3langid is required for the language of texts: pip install py3langid") from error
    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    found.set_languages(LANGUAGES)
    return found


@functools.lru_cache(maxsize=300_000)
def english_sentences(text):
    return split_sentences(text, "en")[0] if len(text) > 40 else [text]


def sentences_of(source, target, language):
    """The sentences of a pair, if there are several and as many on both sides; none that has half of a pair of tags."""
    sources = english_sentences(source)
    targets = split_sentences(target, language)[0] if len(sources) > 1 else []
    pairs = zip(sources, targets, strict=True) if len(sources) == len(targets) else ()
    return [pair for pair in pairs if len(OPENED.findall(pair[0])) == pair[0].count("</")]


@functools.lru_cache(maxsize=1_000_000)
def key_of(text):
    """What near-copies of a text have in common: its letters, without placeholders, digits, punctuation and case.

    >>> key_of("Delete %1 files?") == key_of("Delete 3 Files.")
    True
    """
    return " ".join(re.findall(r"[^\W\d_]+", plain(text).lower()))


def keys_of(text):
    """Keys of a text and of its sentences."""
    return {key_of(part) for part in [text, *english_sentences(text)]}
