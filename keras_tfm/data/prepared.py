"""Training pairs as a model reads them: with language tags, and slots in place of placeholders."""

import collections
import itertools
from collections.abc import Iterable, Iterator

from keras_tfm.common.arguments import UserError
from keras_tfm.data import corpus
from keras_tfm.text import find_protected, masking

SAMPLE = 10_000  # number of pairs that decide whether texts have placeholders
MIN_SHARE = 0.01  # minimum fraction of them with placeholders


class PreparedPairs:
    """Pairs with a language tag before each source, and slots in place of what a translation must keep.

    Args:
        pairs: (source, target), or (source, target, language); can be iterated over repeatedly.
        placeholders: number of slots; 0 leaves placeholders as they are. Pairs whose sides do not have the same
            placeholders, or more than there are slots, are left out.
        temperature: languages are sampled in proportion to their number of pairs to the power of 1 / temperature, so
            pairs of smaller languages are repeated. 1 takes all pairs as they are.

    >>> pairs = [("Open %s", "%s öffnen", "de"), ("Open", "Ouvrir", "fr"), ("Close", "Schließen", "de")]
    >>> for pair in PreparedPairs(pairs, placeholders=16):
    ...     print(pair)
    ('>>de<<Open ⟦1⟧', '⟦1⟧ öffnen')
    ('>>fr<<Open', 'Ouvrir')
    ('>>de<<Close', 'Schließen')
    >>> sum(source.startswith(">>fr<<") for source, _ in PreparedPairs(pairs, temperature=1e9))
    2
    """

    def __init__(self, pairs: Iterable[tuple[str, ...]], placeholders: int = 0, temperature: float = 1.0):
        self.pairs, self.placeholders = pairs, placeholders
        counts = collections.Counter(language for _, _, language in map(_with_language, pairs))
        if "" in counts and len(counts) > 1:
            raise UserError("`pairs` must all have a language, or none of them. Received: both kinds")
        self.languages = sorted({*counts} - {""})
        largest = max(counts.values(), default=0)
        self._repeats = {name: (largest / count) ** (1 - 1 / temperature) for name, count in counts.items()}
        given = corpus.fingerprint(pairs)
        plain = not self.languages and not placeholders
        self.fingerprint = given if plain else repr([given, placeholders, temperature])
        self._num_pairs = sum(int(count * self._repeats[name]) for name, count in counts.items())
        self.left_out = 0  # in the last pass over the pairs

    def __len__(self) -> int:
        return self._num_pairs - self.left_out

    def __iter__(self) -> Iterator[tuple[str, str]]:
        due = dict.fromkeys(self._repeats, 0.0)  # how often the next pair of a language is due
        left_out = 0
        for source, target, language in map(_with_language, self.pairs):
            pair = masking.mask_pair(source, target, self.placeholders) if self.placeholders else (source, target)
            if pair is None:
                left_out += 1
                continue
            due[language] += self._repeats[language]
            times = int(due[language] + 1e-6)
            due[language] -= times
            tag = f">>{language}<<" if language else ""
            yield from itertools.repeat((tag + pair[0], pair[1]), times)
        self.left_out = left_out


def has_placeholders(pairs: Iterable[tuple[str, ...]]) -> bool:
    """Whether enough of the first sources have something that a translation must keep.

    Entities do not count: tokenizers such as that of Moses write an apostrophe as one, which a translation may lack.

    >>> has_placeholders([("Delete %s?", "%s löschen?")]), has_placeholders([("the dog &apos;s ball", "der Ball")])
    (True, False)
    """
    sample = list(itertools.islice(pairs, SAMPLE))
    having = (any(span.kind != "entity" for span in find_protected(pair[0])) for pair in sample)
    return sum(having) >= max(MIN_SHARE * len(sample), 1)


def _with_language(pair):
    """(source, target, language), which is "" if there is none."""
    return (*pair, "")[:3]
