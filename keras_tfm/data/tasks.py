"""Built-in tasks that need no download: lists of (source, target) pairs of strings.

Whatever the seed, a text belongs to one split only, so no model is tested on what it was trained on.
"""

import datetime
import functools
import re
import string
import zlib
from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, check, one_of, positive

__all__ = ["TASKS", "copy", "date_formats", "dates", "reverse"]
SPLITS = ("train", "valid", "test")
LOCALES = ("en_US", "en_GB", "de", "fr", "es", "it", "pt", "nl", "pl", "zh", "ja")
YEARS = range(1900, 2100)


def __dir__():
    return __all__


def reverse(
    num_examples: int,
    split: str = "train",
    seed: int = 0,
    min_length: int = 1,
    max_length: int = 12,
    symbols: Sequence[str] = string.ascii_lowercase,
) -> list[tuple[str, str]]:
    """A toy task: reverse a sequence of symbols. Solving it takes attention to the right position.

    Args:
        num_examples: number of pairs. A smaller number gives the first of the same pairs.
        split: "train", "valid" or "test", which share no source.
        seed: seed of the random pairs.
        min_length, max_length: range of the number of symbols; all lengths are equally likely.
        symbols: words without spaces, or a string of one-letter words.

    >>> [(source, target)] = reverse(1, min_length=3)
    >>> target.split() == source.split()[::-1]
    True
    """
    positive("num_examples", num_examples)
    positive("min_length", min_length)
    check("max_length", max_length, positive("max_length", max_length) >= min_length, f"at least {min_length=}")
    words = symbols and [*symbols] == " ".join(symbols).split()
    check("symbols", symbols, words, "at least one word, none with spaces")
    generator = _generator(seed, split)
    pairs: list[tuple[str, str]] = []
    sizes = [max_length - min_length + 1] + [len(symbols)] * max_length
    while len(pairs) < num_examples:
        before = len(pairs)
        for extra, *row in generator.integers(sizes, size=(1000, len(sizes))).tolist():
            sequence = [symbols[index] for index in row[: min_length + extra]]
            if split_of(" ".join(sequence)) == split:
                pairs.append((" ".join(sequence), " ".join(reversed(sequence))))
        if len(pairs) == before:  # there are so few texts that none belongs to this split
            received = f"{symbols=}, {max_length=}, which give none for {split=}"
            raise UserError(f"`symbols` and `max_length` must allow for more texts. Received: {received}")
    return pairs[:num_examples]


def copy(num_examples: int, split: str = "train", seed: int = 0, **options: Any) -> list[tuple[str, str]]:
    """The easiest toy task: repeat the source. Takes the arguments of `reverse`.

    >>> all(source == target for source, target in copy(5))
    True
    """
    return [(source, source) for source, _ in reverse(num_examples, split, seed, **options)]


def dates(
    num_examples: int, split: str = "train", seed: int = 0, locales: Sequence[str] = LOCALES
) -> list[tuple[str, str]]:
    """Written dates → ISO 8601, such as "Mittwoch, 3. Mai 2023" → "2023-05-03".

    The day, the locale, one of its `date_formats` and one of `CASES` are drawn uniformly. With the default locales no
    text can mean two days, so a model can get everything right.

    Args:
        num_examples, split, seed: as for `reverse`; the splits share no day.
        locales: names that Babel knows. Texts follow the CLDR (https://cldr.unicode.org) of the installed Babel.

    >>> all(datetime.date.fromisoformat(target).year in YEARS for source, target in dates(5))
    True
    """
    positive("num_examples", num_examples)
    check("locales", locales, locales and not isinstance(locales, str), "a list of at least one name")
    generator, cases = _generator(seed, split), list(CASES)
    days, formats = _days(split), [date_formats(locale) for locale in locales]
    pairs = []
    for day, locale, date_format, case in generator.random((num_examples, 4)).tolist():
        day, date_format = _pick(days, day), _pick(_pick(formats, locale), date_format)
        pairs.append((date_format.write(day, _pick(cases, case)), day.isoformat()))
    return pairs


TASKS = {"dates": dates, "reverse": reverse, "copy": copy}


def split_of(text):
    """Returns the split of a text, the same on every machine: about 80 % are for training, 10 % for each of the others.

    >>> split_of("2023-05-03")
    'train'
    """
    return (SPLITS + ("train",) * 7)[zlib.crc32(text.encode()) % 10]


def _generator(seed, split):
    one_of("split", split, SPLITS)
    check("seed", seed, type(seed) is int and seed >= 0, "an integer of at least 0")
    return np.random.default_rng([seed, SPLITS.index(split)])


def _pick(items, fraction):
    """Returns one of the items; `fraction` is in [0, 1)."""
    return items[int(fraction * len(items))]


@functools.cache
def _days(split):
    first, end = (datetime.date(year, 1, 1).toordinal() for year in (YEARS.start, YEARS.stop))
    days = map(datetime.date.fromordinal, range(first, end))
    return [day for day in days if split_of(day.isoformat()) == split]


# Case → a function for each name in the text ("3 de Mayo de 2023" for "capital"), and one for the whole text.
CASES: dict[str, tuple[Callable, Callable]] = {
    "written": (str, str),
    "capital": (lambda word: word[:1].title() + word[1:], str),
    "lower": (str, str.lower),
    "upper": (str, str.upper),
}
_NEW_YEARS = [datetime.date(year, 1, 1) for year in YEARS]
_FIRSTS = [datetime.date(2000, month, 1) for month in range(1, 13)]
_JANUARY = [datetime.date(2000, 1, day) for day in range(1, 32)]
_MONTH, _WEEKDAY = (attrgetter("month"), _FIRSTS), (methodcaller("weekday"), _JANUARY)
# Letter in CLDR's patterns → the property of a day that it shows, and days that have all of its values.
PARTS: dict[str, tuple[Callable, list[datetime.date]]] = {
    "y": (attrgetter("year"), _NEW_YEARS),
    "M": _MONTH,
    "L": _MONTH,
    "d": (attrgetter("day"), _JANUARY),
    "E": _WEEKDAY,
    "c": _WEEKDAY,
}


class DateFormat(NamedTuple):
    """A way to write dates."""

    pattern: str  # CLDR's: "EEEE, d. MMMM y"
    template: str  # the same for Python: "%(EEEE)s, %(d)s. %(MMMM)s %(y)s"
    tables: dict  # the texts of each field, such as {"MMMM": {1: "Januar", …}, …}

    def write(self, day: datetime.date, case: str = "written") -> str:
        """Returns a `datetime.date` as text; `case` is one of `CASES`."""
        values = {field: table[PARTS[field[0]][0](day)] for field, table in self.tables.items()}
        each, all_of_it = CASES[case]
        written = self.template % values
        text = all_of_it(self.template % {field: each(value) for field, value in values.items()})
        return text if text.casefold() == written.casefold() else written  # Turkish "Kasım" is not "KASIM"

    def is_readable(self) -> bool:
        """Whether the text means one day only, and the same one to everybody: neither 5/3/2023 nor May 3, 23."""
        parts = {field[0].replace("L", "M"): table for field, table in self.tables.items()}
        order = "".join(part for part in parts if part in "yMd")
        if sorted(order) != ["M", "d", "y"]:
            return False
        distinct = all(len({*map(str.casefold, parts[part].values())}) == len(parts[part]) for part in order)
        named = all(any(map(str.isalpha, name)) for name in parts["M"].values())
        return distinct and (named or order == "yMd")


@functools.cache
def date_formats(locale: str) -> tuple[DateFormat, ...]:
    """Returns the formats for full dates of a locale in CLDR that can be read in one way only, and ISO 8601.

    The year has four digits. The month is a name, unless the order is year, month, day. There may be a weekday, but no
    era, quarter, week or time.

    >>> "y-MM-dd" in [each.pattern for each in date_formats("de")]
    True
    """
    babel, babel_dates = extras.load("babel"), extras.load("babel.dates")
    try:
        data = babel.Locale.parse(locale)
    except (babel.UnknownLocaleError, TypeError, ValueError) as error:
        raise UserError(f"`locale` must be a name that Babel knows, like 'en_US'. Received: {locale=}") from error
    formats = []
    patterns = [*data.date_formats.values(), *data.datetime_skeletons.values(), babel_dates.parse_pattern("y-MM-dd")]
    for pattern, template in sorted({(pattern.pattern, pattern.format) for pattern in patterns}):
        fields = re.findall(r"%\((\w+)\)s", template)
        if {field[0] for field in fields} <= {*PARTS}:
            tables = {}
            for field in fields:
                value, days = PARTS[field[0]]
                tables[field] = {value(day): babel_dates.format_date(day, field, data) for day in days}
            formats.append(DateFormat(pattern, template, tables))
    return tuple(each for each in formats if each.is_readable())
