import ast
import collections
import datetime
import os
import random
import subprocess
import sys
from operator import attrgetter, methodcaller

import pytest
from babel.dates import format_date
from conftest import once, refused

from keras_tfm.data import tasks
from keras_tfm.data.tasks import CASES, LOCALES, PARTS, SPLITS, TASKS, YEARS, copy, date_formats, dates, reverse

pytestmark = once
DAY = datetime.date(2023, 5, 3)


def days_of(*years):
    return [
        datetime.date(year, 1, 1) + datetime.timedelta(days)
        for year in years
        for days in range((datetime.date(year + 1, 1, 1) - datetime.date(year, 1, 1)).days)
    ]


def meanings(locales, days):
    """Casefolded text → the days it stands for, over all formats and cases."""
    actual = collections.defaultdict(set)
    for date_format in (date_format for locale in locales for date_format in date_formats(locale)):
        for day in days:
            for case in CASES:
                actual[date_format.write(day, case).casefold()].add(day)
    return actual


@pytest.mark.parametrize("task", TASKS)
def test_same_arguments_give_the_same_pairs(task):
    make = TASKS[task]
    assert make(300) == make(300, split="train", seed=0) == make(700)[:300]
    assert make(300) != make(300, seed=1) != make(300, seed=1, split="test")
    assert len(make(1)) == 1 and len(make(1500, "valid")) == 1500


def test_pairs_are_the_same_in_every_process():
    program = "from keras_tfm.data.tasks import dates, reverse; print([reverse(3, 'test', 5), dates(3, 'valid', 3)])"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ast.literal_eval(run.stdout) == [reverse(3, "test", 5), dates(3, "valid", 3)]


def test_every_text_means_its_day():
    for source, target in dates(200):
        assert source.casefold() in meanings(LOCALES, [datetime.date.fromisoformat(target)])


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_nothing(task):
    column = 1 if task == "dates" else 0
    seen = [{pair[column] for seed in (0, 1) for pair in TASKS[task](3000, split, seed)} for split in SPLITS]
    assert sum(map(len, seen)) == len(set.union(*seen))


@pytest.mark.parametrize("function", [reverse, copy])
def test_sequences(function):
    pairs = function(3000, min_length=2, max_length=5, symbols=["ab", "c", "d"])
    for source, target in pairs:
        assert target.split() == (source.split()[::-1] if function is reverse else source.split())
    lengths = collections.Counter(len(source.split()) for source, _ in pairs)
    assert sorted(lengths) == [2, 3, 4, 5] and min(lengths.values()) > 500
    assert {symbol for source, _ in pairs for symbol in source.split()} == {"ab", "c", "d"}


@pytest.mark.parametrize("locale", LOCALES)
def test_a_case_changes_letters_only(locale):
    for date_format in date_formats(locale):
        written = date_format.write(DAY)
        assert date_format.write(DAY, "lower") == written.lower() and date_format.write(DAY, "upper") == written.upper()
        capital = date_format.write(DAY, "capital")
        assert capital.casefold() == written.casefold()
        names = [table[PARTS[field[0]][0](DAY)] for field, table in date_format.tables.items()]
        assert all(name[:1].title() + name[1:] in capital for name in names)


@pytest.mark.parametrize("locale", LOCALES)
def test_every_locale_names_months_and_writes_iso_8601(locale):
    assert DAY.isoformat() in [date_format.write(DAY) for date_format in date_formats(locale)]
    names = {
        date_format.write(DAY.replace(month=month)) for date_format in date_formats(locale) for month in range(1, 13)
    }
    assert len(names) >= 24  # at least one format besides


@pytest.mark.parametrize("text", ["5/3/2023", "03/05/2023", "3.5.2023", "03-05-2023", "3.05.2023", "5/3/23"])
def test_what_can_be_read_in_two_ways_is_never_written(text):
    assert not any(text in date_format.write(DAY) for locale in LOCALES for date_format in date_formats(locale))


@pytest.mark.parametrize("locale", LOCALES)
def test_formats_equal_babel(locale):
    sample = random.Random(locale).sample(days_of(*YEARS), 100)
    for date_format in date_formats(locale):
        assert [date_format.write(day) for day in sample] == [
            format_date(day, date_format.pattern, locale) for day in sample
        ]


@pytest.mark.parametrize("years", [(2024,), pytest.param((2000, 2023), marks=pytest.mark.slow)])
def test_no_text_stands_for_two_days(years):
    actual = meanings(LOCALES, days_of(*years))
    assert len(actual) > 15_000 * len(years)
    assert {text: days for text, days in actual.items() if len(days) > 1} == {}


@pytest.mark.parametrize("locale", ["cs", "el", "fa", "fi", "hu", "ko", "ky", "lt", "ru", "sv", "th", "tr", "vi"])
def test_other_locales_that_babel_knows(locale):
    assert max(map(len, meanings([locale], days_of(2024)).values())) == 1
    for source, target in dates(20, locales=[locale]):
        assert source.casefold() in meanings([locale], [datetime.date.fromisoformat(target)])


def test_letters_that_change_with_their_case_stay():
    november = datetime.date(2023, 11, 3)
    assert "3 Kasım 2023" in [date_format.write(november, "upper") for date_format in date_formats("tr")]


@pytest.mark.parametrize("locale", LOCALES)
def test_every_format_and_case_occurs(locale):
    pairs = [(text, datetime.date.fromisoformat(target)) for text, target in dates(500, locales=[locale])]
    for date_format in date_formats(locale):
        for case in CASES:
            assert any(date_format.write(day, case) == text for text, day in pairs), (date_format.pattern, case)


def test_locales_are_balanced(monkeypatch):
    class Name(str):
        write = lambda self, day, case: str(self)  # noqa: E731

    monkeypatch.setattr(tasks, "date_formats", lambda locale: [Name(locale)] * (1 + len(locale)))
    count = collections.Counter(source for source, _ in dates(11_000))
    assert set(count) == set(LOCALES) and all(900 < number < 1100 for number in count.values())


@pytest.mark.parametrize("split, share", [("train", 0.8), ("valid", 0.1), ("test", 0.1)])
def test_days_are_spread_evenly(split, share):
    everything = days_of(*YEARS)
    assert sum(tasks.split_of(day.isoformat()) == split for day in everything) == pytest.approx(73_049 * share, 0.02)
    days = [datetime.date.fromisoformat(target) for _, target in dates(20_000, split)]
    assert {day.year for day in days} == set(YEARS)
    for part in (attrgetter("month"), attrgetter("day"), methodcaller("weekday")):
        drawn, there = (collections.Counter(map(part, some)) for some in (days, everything))
        for value, number in there.items():
            assert drawn[value] / 20_000 == pytest.approx(number / 73_049, rel=0.3), value


def test_sources_and_targets_are_plain_text():
    for source, target in dates(5000):
        assert source == source.strip() and source.isprintable() and len(source) < 50
        assert datetime.date.fromisoformat(target).isoformat() == target


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "bad, message",
    [
        ({"num_examples": 0}, "`num_examples` must be a positive integer. Received: num_examples=0"),
        ({"num_examples": -3}, "`num_examples` must be a positive integer. Received: num_examples=-3"),
        ({"split": "dev"}, r"`split` must be one of .*'train'.* Received: split='dev'"),
        ({"seed": -1}, "`seed` must be an integer of at least 0. Received: seed=-1"),
    ],
)
def test_bad_arguments(task, bad, message):
    with pytest.raises(ValueError, match=message):
        TASKS[task](**{"num_examples": 5, **bad})


@pytest.mark.parametrize("locale", ["xx", "en-US", "", None])
def test_unknown_locale(locale):
    with refused("locale"):
        dates(5, locales=["de", locale])


@pytest.mark.parametrize("locales", ["de", ()])
def test_locales_are_a_list_of_names(locales):
    with refused("locales"):
        dates(5, locales=locales)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"min_length": 0}, "`min_length` must be a positive integer"),
        ({"min_length": 4, "max_length": 3}, "`max_length` must be at least min_length=4. Received: max_length=3"),
        ({"symbols": ""}, "`symbols` must be at least one word, none with spaces"),
        ({"symbols": ["a", "b c"]}, "`symbols` must be at least one word, none with spaces"),
        (
            {"symbols": "a", "max_length": 1, "split": "test"},
            "`symbols` and .* must allow.* split='test'",
        ),
    ],
)
def test_bad_sequences(bad, message):
    with pytest.raises(ValueError, match=message):
        reverse(5, **bad)


def test_missing_babel_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)  # as if it were not there
    date_formats.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'keras_tfm\[train\]'"):
        dates(5)
