import collections

import pytest
from conftest import once, refused

from keras_tfm.data import PreparedPairs

pytestmark = once
PAIRS = [(f"word {n}", f"Wort {n}", "de") for n in range(1000)] + [(f"{n}", f"mot {n}", "fr") for n in range(10)]


@pytest.mark.parametrize(("temperature", "expected"), [(1, 10), (2, 100), (5, 398), (1e9, 1000)])
def test_languages_are_sampled_by_temperature(temperature, expected):
    prepared = PreparedPairs(PAIRS, temperature=temperature)
    counts = collections.Counter(source.partition("<<")[0] for source, _ in prepared)
    assert counts[">>de"] == 1000 and abs(counts[">>fr"] - expected) <= 1
    assert len(prepared) == sum(counts.values()) and prepared.languages == ["de", "fr"]


def test_every_pair_of_a_rare_language_is_repeated_about_as_often():
    counts = collections.Counter(pair for pair in PreparedPairs(PAIRS, temperature=5) if pair[0].startswith(">>fr"))
    assert len(counts) == 10 and max(counts.values()) - min(counts.values()) <= 1


def test_pairs_without_languages_and_placeholders_are_as_they_were():
    pairs = [("a %s", "b"), ("c", "d")]
    assert list(PreparedPairs(pairs)) == pairs and PreparedPairs(pairs).languages == []


def test_pairs_with_different_placeholders_are_left_out_and_counted():
    prepared = PreparedPairs([("a %s", "b"), ("c {x}", "{x} d")], placeholders=16)
    assert list(prepared) == [("c ⟦1⟧", "⟦1⟧ d")] and prepared.left_out == 1 == len(prepared)


def test_options_are_part_of_the_fingerprint():
    prints = [PreparedPairs(PAIRS, *options).fingerprint for options in ((), (16,), (16, 2.0), (0, 2.0))]
    assert len({*prints}) == 4 and prints[0] == PreparedPairs(tuple(PAIRS)).fingerprint


def test_either_all_pairs_have_a_language_or_none():
    with refused("pairs"):
        PreparedPairs([("a", "b"), ("a", "b", "de")])
