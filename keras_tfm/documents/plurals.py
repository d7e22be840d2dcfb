"""Plural forms of gettext: how many a language has, and which numbers each is for."""

import gettext
import re

from keras_tfm.common import extras
from keras_tfm.text.protected import find_protected

RULE = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+)")
GERMANIC = "nplurals=2; plural=(n != 1);"  # gettext's rule where a file has none


class Plurals:
    """The plural rule of a language, as in the header Plural-Forms.

    >>> polish = Plurals(plural_header("pl"))
    >>> polish.count, [polish.form(number) for number in (1, 2, 5, 22)]
    (3, [0, 1, 2, 1])
    >>> polish.sources("one file", "%d files")
    ('one file', '%d files', '%d files')
    """

    def __init__(self, header):
        match = RULE.search(header)
        if not match or not 0 < int(match[1]) < 10 or len(match[2]) > 1000:
            raise ValueError(header[:80])
        self.header, self.count = header, int(match[1])
        self.form = gettext.c2py(match[2])
        self.numbers = [{number for number in range(200) if self.form(number) == form} for form in range(self.count)]
        if sum(map(len, self.numbers)) != 200:  # some number has a form that does not exist
            raise ValueError(header[:80])

    def sources(self, singular, plural):
        """The text to translate for each form: the singular for forms of 1 alone, or where it has the number."""
        same = _placeholders(singular) == _placeholders(plural)
        use = [numbers == {1} or 1 in numbers and same and self.count > 1 for numbers in self.numbers]
        return tuple(singular if is_singular else plural for is_singular in use)


def plural_header(language):
    """Value of Plural-Forms for a language, by Babel; the Germanic rule if it is unknown.

    >>> plural_header("ja")
    'nplurals=1; plural=0;'
    """
    babel = extras.load("babel.messages.plurals")
    try:
        return babel.get_plural(language.partition("@")[0].replace("-", "_")).plural_forms
    except (ValueError, extras.load("babel.core").UnknownLocaleError):
        return GERMANIC


def _placeholders(text):
    return sorted(span.text for span in find_protected(text) if span.kind == "placeholder")
