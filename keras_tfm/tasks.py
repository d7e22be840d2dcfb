"""Built-in tasks that need no download: lists of (source, target) pairs of text.

A text belongs to one split, whatever the seed: no model is tested on what it was taught.
"""

import datetime
import functools
import re
import string
import zlib
from operator import attrgetter, methodcaller
from typing import NamedTuple

import numpy as np

from keras_tfm.arguments import one_of, positive

SPLITS = ("train", "valid", "test")
LOCALES = ("en_US", "en_GB", "de", "fr", "es", "it", "pt", "nl", "pl", "zh", "ja")
YEARS = range(1900, 2100)


def reverse(num_examples, split="train", seed=0, min_length=1, max_length=12, symbols=string.ascii_lowercase):
    """A toy task: turn a sequence round. Whoever solves it must look at the right place.

    Args:
        num_examples: number of pairs; fewer are the first of more.
        split: "train", "valid" or "test"; they share no source.
        seed: other seeds give other pairs.
        min_length, max_length: symbols in a source; all lengths are drawn equally often.
        symbols: words without spaces, or a string of one-letter words.

    >>> reverse(2, min_length=3, max_length=5)
    [('a e v', 'v e a'), ('p z s q', 'q s z p')]
    """
    sources = _sequences(num_examples, split, seed, min_length, max_length, symbols)
    return [(source, " ".join(reversed(source.split()))) for source in sources]


def copy(num_examples, split="train", seed=0, min_length=1, max_length=12, symbols=string.ascii_lowercase):
    """The easiest toy task: say what was said. Takes what `reverse` takes.

    >>> copy(2, min_length=3, max_length=5)
    [('a e v', 'a e v'), ('p z s q', 'p z s q')]
    """
    return [(source, source) for source in _sequences(num_examples, split, seed, min_length, max_length, symbols)]


def dates(num_examples, split="train", seed=0, locales=LOCALES):
    """Dates as people write them → ISO 8601; needs the extra `train`.

    Every day of `YEARS` is equally likely, and so is every locale, then each of its `date_formats` and each of `CASES`.
    In the default locales no two days are ever written alike, so that a model can get everything right.

    Args:
        num_examples: number of pairs; fewer are the first of more.
        split: "train", "valid" or "test"; they share no day.
        seed: other seeds give other pairs.
        locales: names that Babel knows; the texts are those of its release of CLDR (https://cldr.unicode.org).

    >>> dates(2)
    [('So., 4. Juli 2027', '2027-07-04'), ('2062/09/16', '2062-09-16')]
    """
    positive("num_examples", num_examples)
    if isinstance(locales, str) or not locales:
        raise ValueError(f"`locales` must be a sequence of names, at least one. Received: {locales=}")
    generator, cases = _generator(seed, split), list(CASES)
    days, formats = _days(split), [date_formats(locale) for locale in locales]
    pairs = []
    for day, locale, form, case in generator.random((num_examples, 4)).tolist():
        day, form = _pick(days, day), _pick(_pick(formats, locale), form)
        pairs.append((form.write(day, _pick(cases, case)), day.isoformat()))
    return pairs


TASKS = {"dates": dates, "reverse": reverse, "copy": copy}


def split_of(text):
    """The split of a text, on every machine: of ten texts about eight are for training, one for each of the others.

    >>> split_of("2023-05-03")
    'train'
    """
    return (SPLITS + ("train",) * 7)[zlib.crc32(text.encode()) % 10]


def _generator(seed, split):
    one_of("split", split, SPLITS)
    if type(seed) is not int or seed < 0:
        raise ValueError(f"`seed` must be an integer of at least 0. Received: {seed=}")
    return np.random.default_rng([seed, SPLITS.index(split)])


def _pick(items, fraction):
    """One of the items, by a number from 0 to 1."""
    return items[int(fraction * len(items))]


def _sequences(num_examples, split, seed, min_length, max_length, symbols):
    """Texts of random symbols."""
    positive("num_examples", num_examples)
    positive("min_length", min_length)
    if positive("max_length", max_length) < min_length:
        raise ValueError(f"`max_length` must be at least {min_length=}. Received: {max_length=}")
    if not symbols or [*symbols] != " ".join(symbols).split():
        raise ValueError(f"`symbols` must be words without spaces, at least one. Received: {symbols=}")
    generator, texts = _generator(seed, split), []
    sizes = [max_length - min_length + 1] + [len(symbols)] * max_length
    while len(texts) < num_examples:
        before = len(texts)
        for extra, *row in generator.integers(sizes, size=(1000, len(sizes))).tolist():
            text = " ".join([symbols[index] for index in row[: min_length + extra]])
            if split_of(text) == split:
                texts.append(text)
        if len(texts) == before:  # so few texts exist that none is of this split
            raise ValueError(f"`symbols` must make texts for {split=}. Received: {symbols=}, {max_length=}")
    return texts[:num_examples]


@functools.cache
def _days(split):
    """All days of a split."""
    first, end = (datetime.date(year, 1, 1).toordinal() for year in (YEARS.start, YEARS.stop))
    days = map(datetime.date.fromordinal, range(first, end))
    return [day for day in days if split_of(day.isoformat()) == split]


def _capital(word):
    return word[:1].title() + word[1:]


CASES = {  # what is done to each name or number, and then to the text
    "written": (str, str),
    "capital": (_capital, str),  # 3 de Mayo de 2023
    "lower": (str, str.lower),
    "upper": (str, str.upper),
}
_NEW_YEARS = [datetime.date(year, 1, 1) for year in YEARS]
_FIRSTS = [datetime.date(2000, month, 1) for month in range(1, 13)]
_JANUARY = [datetime.date(2000, 1, day) for day in range(1, 32)]
PARTS = {  # letter in CLDR's patterns: what it shows of a day, and days that show all it can
    "y": (attrgetter("year"), _NEW_YEARS),
    "M": (attrgetter("month"), _FIRSTS),
    "L": (attrgetter("month"), _FIRSTS),
    "d": (attrgetter("day"), _JANUARY),
    "E": (methodcaller("weekday"), _JANUARY),
    "c": (methodcaller("weekday"), _JANUARY),
}


class DateFormat(NamedTuple):
    """A way to write dates."""

    pattern: str  # CLDR's: "EEEE, d. MMMM y"
    template: str  # the same for Python: "%(EEEE)s, %(d)s. %(MMMM)s %(y)s"
    tables: dict  # field: its texts, such as "MMMM": {1: "Januar", …}

    def write(self, day, case="written"):
        """The text of a `datetime.date`.

        >>> date_formats("fr")[0].write(datetime.date(2023, 5, 3), "capital")
        'Mer. 3 Mai 2023'
        """
        values = {field: table[PARTS[field[0]][0](day)] for field, table in self.tables.items()}
        each, whole = CASES[case]
        written = self.template % values
        text = whole(self.template % {field: each(value) for field, value in values.items()})
        return text if text.casefold() == written.casefold() else written  # "KASIM" is not the Turkish "Kasım"

    def is_readable(self):
        """Whether the text means one day, and the same to everyone: neither 5/3/2023 nor May 3, 23."""
        parts = {field[0].replace("L", "M"): table for field, table in self.tables.items()}
        order = "".join(part for part in parts if part in "yMd")
        if sorted(order) != ["M", "d", "y"]:
            return False
        distinct = all(len({*map(str.casefold, parts[part].values())}) == len(parts[part]) for part in order)
        named = all(any(map(str.isalpha, name)) for name in parts["M"].values())
        return distinct and (named or order == "yMd")


@functools.cache
def date_formats(locale):
    """Every format of CLDR's for full dates in a locale that can be read in one way only.

    The year has four digits; the month has a name, or else the order is year, month, day. A weekday may join them, but
    no era, quarter, week or time. ISO 8601 is written everywhere, so that every locale gets it, if not from CLDR.

    >>> [form.pattern for form in date_formats("de")]
    ['E, d. MMM y', 'EEEE, d. MMMM y', 'd. MMM y', 'd. MMMM y', 'y-MM-dd']
    """
    try:
        import babel
        from babel.dates import format_date, parse_pattern
    except ImportError as error:
        raise ImportError("Dates need Babel: pip install 'keras_tfm[train]'") from error
    try:
        data = babel.Locale.parse(locale)
    except (babel.UnknownLocaleError, TypeError, ValueError) as error:
        raise ValueError(f"`locale` must be a name that Babel knows, like 'en_US'. Received: {locale=}") from error
    formats = []
    patterns = [*data.date_formats.values(), *data.datetime_skeletons.values(), parse_pattern("y-MM-dd")]
    for pattern, template in sorted({(pattern.pattern, pattern.format) for pattern in patterns}):
        fields = re.findall(r"%\((\w+)\)s", template)
        if {field[0] for field in fields} <= {*PARTS}:
            tables = {}
            for field in fields:
                value, days = PARTS[field[0]]
                tables[field] = {value(day): format_date(day, field, data) for day in days}
            formats.append(DateFormat(pattern, template, tables))
    return tuple(form for form in formats if form.is_readable())
