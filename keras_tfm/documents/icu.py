"""ICU messages with cases, such as "{n, plural, one {# file} other {# files}} found".

They are read here: pyicumessageformat gives no places, which are needed to keep placeholders exactly.
"""

import re
from typing import NamedTuple

from keras_tfm.common import extras
from keras_tfm.text.protected import brace_partners

ARGUMENT = re.compile(
    r"\{\s*(?P<name>\w+)\s*,\s*(?P<kind>plural|selectordinal|select|choice)\s*,\s*(?P<offset>offset:\d+\s*)?"
)
TAG = re.compile("<[A-Za-z][^<>]*>")  # whose attributes may quote a message
SELECTOR = re.compile(r"\s*(=\d+|[\w-]+)\s*(?=\{)")
NUMBER = "#"  # stands for the number in the cases of a plural
QUOTED = re.compile(r"'[{}#|]")  # a brace or sign that is text
TAGS = ["zero", "one", "two", "few", "many"]


class Cases(NamedTuple):
    """A message as complete texts, one for each case.

    Attributes:
        head: what the message begins with, such as "{n, plural,".
        kind: plural, selectordinal or select.
        texts: {selector: text}, with what surrounds the cases in each text.
    """

    head: str
    kind: str
    texts: dict[str, str]

    def joined(self, texts: dict[str, str]) -> str:
        """The message with these texts.

        >>> cases = read_cases("{n, plural, one {# file} other {# files}} found")
        >>> cases.texts
        {'one': '# file found', 'other': '# files found'}
        >>> cases.joined({"one": "# Datei gefunden", "other": "# Dateien gefunden"})
        '{n, plural, one {# Datei gefunden} other {# Dateien gefunden}}'
        """
        return f"{self.head} {' '.join(f'{selector} {{{text}}}' for selector, text in texts.items())}}}"

    def for_language(self, language: str) -> "Cases":
        """With all cases of a language: those that the source lacks have the text of "other".

        >>> read_cases("{n, plural, one {one file} other {# files}}").for_language("ru").texts
        {'=1': 'one file', 'one': '# files', 'few': '# files', 'many': '# files', 'other': '# files'}
        """
        rule = _plural_rule(language, self.kind)
        if rule is None or "other" not in self.texts:
            return self
        texts, other = dict(self.texts), self.texts["other"]
        if NUMBER in other and NUMBER not in texts.get("one", NUMBER) and rule(21) == "one":  # not for 1 alone
            texts = {"=1": texts.pop("one")} | texts
        elif "=1" in texts and rule(21) != "one":
            texts = {"one": texts["=1"]} | texts
        given = {selector: text for selector, text in texts.items() if selector not in (*TAGS, "other")}
        needed = [tag for tag in TAGS if tag in texts or tag in rule.tags]
        return self._replace(texts=given | {tag: texts.get(tag, other) for tag in needed} | {"other": other})


def has_cases(text: str) -> bool:
    return _first_argument(text) is not None


def _first_argument(text):
    return ARGUMENT.search(TAG.sub(lambda tag: " " * len(tag[0]), text))


def read_cases(text: str) -> Cases | None:
    """The cases of the first argument that has cases; None for a `choice`, a malformed message or quoted braces."""
    argument, partners = _first_argument(text), brace_partners(text)
    if argument is None or argument["kind"] == "choice" or QUOTED.search(text) or argument.start() not in partners:
        return None
    name, kind, end = argument["name"], argument["kind"], partners[argument.start()]
    before, after, branches, position = text[: argument.start()], text[end:], {}, argument.end()
    while selector := SELECTOR.match(text, position):
        position = partners.get(selector.end(), 0)
        branches[selector[1]] = text[selector.end() + 1 : position - 1]
        if not position:
            return None
    number = kind != "select" and any(NUMBER in branch for branch in branches.values())
    if text[position:end].strip() != "}" or not branches or number and NUMBER in _outside_braces(before + after):
        return None
    if number and any(map(has_cases, (*branches.values(), after))):  # whose cases may have numbers of their own
        if argument["offset"]:
            return None
        branches = {key: branch.replace(NUMBER, f"{{{name}, number}}") for key, branch in branches.items()}
    head = text[argument.start() : argument.end()].rstrip()
    return Cases(head, kind, {key: before + branch + after for key, branch in branches.items()})


def _outside_braces(text):
    """A text with spaces in place of what is in braces.

    >>> _outside_braces("a {b {c}} e")
    'a         e'
    """
    for start, end in sorted(brace_partners(text).items(), reverse=True):  # inner ones first
        text = text[:start] + " " * (end - start) + text[end:]
    return text


def _plural_rule(language, kind):
    """Babel's rule of a language for numbers, or None."""
    babel = extras.load("babel.core")
    try:
        locale = babel.Locale.parse(language.partition("@")[0].replace("-", "_"))
    except (ValueError, babel.UnknownLocaleError):
        return None
    return {"plural": locale.plural_form, "selectordinal": locale.ordinal_form}.get(kind)
