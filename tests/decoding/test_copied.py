import functools

import keras
import numpy as np
import pytest
from conftest import (
    BACKEND,
    SLOW_ON_TENSORFLOW,
    array,
    assert_close,
    normal,
    parametrize_all,
    refused,
    run,
    spread,
)
from test_search import MODEL, STATES, VOCABULARY, Language

from keras_tfm import ops
from keras_tfm.decoding import NEVER, Beam, Constraints, Greedy, Sample, beam_search, greedy, sample
from keras_tfm.decoding.search import MIN_SIZE_TO_COMPACT
from keras_tfm.models import transformer
from keras_tfm.runtimes import programs
from keras_tfm.text import END


def counts(ids):
    """How often each copied token occurs, (…, l) → (…, copied tokens)."""
    return np.stack([(ids == token).sum(-1) for token in COPIED], axis=-1)


COPIED = (3, 5)
LONGEST = 14
RNG = np.random.default_rng(5)
SOURCES = RNG.choice([0, 3, 4, 5, 5, 6], (12, 5))
REQUIRED = counts(SOURCES)
PREFIX = np.array([[4, 0], [3, 0], [0, 0], [5, 6]])[np.arange(len(SOURCES)) % 4]
PREFIX[(PREFIX == 3).any(1) & (REQUIRED[:, 0] == 0)] = 0
PREFIX[(PREFIX == 5).any(1) & (REQUIRED[:, 1] == 0)] = 0


def searched(way, language, sources, max_length=LONGEST, **constraints):
    """Ids (rows, n, l) of what a search finds, all zero where it finds nothing."""
    arguments = language.prefill, language.step, sources, max_length
    if way == "greedy":
        return greedy(*arguments, **constraints)[:, None]
    if way == "sample":
        uniforms = np.random.default_rng(3).uniform(size=(sources.shape[0], max_length)).astype("float32")
        return sample(*arguments, uniforms, temperature=2.0, **constraints)[:, None]
    return beam_search(*arguments, num_beams=way, n_best=way, **constraints)[0]


@functools.cache
def spoken(name):
    """A language that ends late, one that ends at once, or an untrained model."""
    if name == "model":
        keras.utils.set_random_seed(3)
        return spread(transformer(VOCABULARY, **MODEL), 0.3)
    return Language(
        2 * normal(STATES, VOCABULARY, seed=1) + {"late": -6, "early": 9}[name] * np.eye(1, VOCABULARY, END)
    )


@parametrize_all(
    "way, name, constraints",
    ["greedy", "sample", 1, 2, 5, 40],  # the numbers of beams
    ["late", "early", "model"],
    {
        "free": {},
        "limits": {"limits": REQUIRED.sum(1) + np.arange(len(SOURCES)) % 3 + (REQUIRED.sum(1) == 0)},
        "prefix": {"prefix": PREFIX, "limits": REQUIRED.sum(1) + 3},
        "short": {"min_length": 9},
        "ngrams": {"no_repeat_ngram_size": 1, "suppress_tokens": (6,)},
    },
)
def test_a_translation_has_each_copied_token_as_often_as_its_source(way, name, constraints):
    ids = array(run(searched, way, spoken(name), SOURCES, copied_tokens=COPIED, **constraints)).astype(int)
    lengths = (ids > 0).sum(-1)
    actual = lengths > 0
    assert actual[:, 0].all() and (counts(ids) == REQUIRED[:, None])[actual].all()
    assert (lengths >= constraints.get("min_length", 0))[actual].all()
    assert (lengths <= np.reshape(constraints.get("limits", LONGEST), (-1, 1))).all()
    prefix = constraints.get("prefix", np.zeros((len(SOURCES), 1)))[:, None]
    kept = (ids[..., : prefix.shape[-1]] == prefix) | (prefix == 0)
    assert kept.all(-1)[actual].all()


@pytest.mark.parametrize("name", ["late", "model"])
def test_nothing_changes_where_the_constraint_holds_anyway(name):
    rng = np.random.default_rng(0)
    sources = rng.integers(3, VOCABULARY, (300, 3))
    free, copied = (
        array(run(searched, "greedy", spoken(name), sources, 6, copied_tokens=tokens))[:, 0] for tokens in ((), COPIED)
    )
    holds = (counts(free) == counts(sources)).all(1)
    assert holds.any() and (free[holds] == copied[holds]).all() and (free[~holds] != copied[~holds]).any(1).all()


def test_a_beam_that_finds_nothing_else_writes_them_in_the_most_probable_order():
    language, source = spoken("late"), np.array([[7, 3, 5]])
    options = {"copied_tokens": COPIED, "length_penalty": 0.0, "early_stopping": False}
    ids, scores = run(beam_search, language.prefill, language.step, source, 2, num_beams=4, n_best=2, **options)
    orders = [(3, 5), (5, 3)]
    values = {order: sum(language.scores(source[0].tolist(), order)[0]) for order in orders}
    best = sorted(orders, key=lambda order: -values[order])
    assert array(ids).astype(int).tolist() == [[list(order) for order in best]]
    assert_close(scores, np.array([[values[order] for order in best]]), 1e-4)


def test_more_than_fit_are_written_as_far_as_they_fit():
    for way in ("greedy", "sample", 3):
        ids = array(run(searched, way, spoken("early"), np.array([[3, 5, 5, 3]]), 3, copied_tokens=COPIED))
        assert np.isin(ids[:, 0], COPIED).all() and (counts(ids)[:, 0] <= 2).all()


def test_tokens_of_a_prefix_count_also_behind_a_free_position():
    """And those that the prefix has more often than the source stay."""
    sources, prefix = np.array([[4, 3, 5], [4, 3, 5], [4, 4, 4]]), np.array([[0, 0, 3], [5, 3, 0], [5, 0, 0]])
    expected = [[1, 1], [1, 1], [0, 1]]
    for way in ("greedy", "sample", 3):
        options = {"copied_tokens": COPIED, "prefix": prefix, "min_length": 4}
        ids = array(run(searched, way, spoken("late"), sources, 6, **options)).astype(int)[:, 0]
        assert counts(ids).tolist() == expected and ((ids[:, :3] == prefix) | (prefix == 0)).all()


@pytest.mark.parametrize("way", ["sample", pytest.param("greedy", marks=SLOW_ON_TENSORFLOW), 2])
@pytest.mark.parametrize("constraints", [{}, {"prefix": 5 * RNG.integers(0, 2, (MIN_SIZE_TO_COMPACT + 2, 3))}])
def test_a_search_in_groups_equals_one_of_all_rows(way, constraints):
    rows, length, language = MIN_SIZE_TO_COMPACT + 2, MIN_SIZE_TO_COMPACT + 1, Language()
    sources = np.random.default_rng(1).integers(0, STATES, (rows, 4))
    limits = np.random.default_rng(2).integers(9, length, rows).astype("int32")
    search = functools.partial(searched, way, language, copied_tokens=COPIED, limits=limits, **constraints)
    expected = array(run(search, sources, length))
    actual = programs.compiled(lambda sources, length: search(sources, length), [])(sources, length)
    assert array(actual).tolist() == expected.tolist()
    assert len({*np.count_nonzero(expected, axis=-1).flat}) > 3  # rows leave the search one after the other


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's loops may change the shapes of tensors")
@pytest.mark.parametrize("way", ["greedy", 3])
def test_a_cache_that_doubles_changes_nothing(way):
    search = functools.partial(searched, way, spoken("model"), SOURCES, copied_tokens=COPIED)
    assert array(search(capacity=2)).tolist() == array(search()).tolist()


@parametrize_all("k, size, tokens", [1, 4], [9, 64, 997], [(3, 5), (7, 4, 8), range(3, 9)])
def test_the_best_within_a_budget_are_those_of_the_masked_logits(k, size, tokens):
    rows = 40
    logits, rules = 3 * normal(rows, size), Constraints(8, copied_tokens=tokens)
    logits[:, :9] += np.arange(rows)[:, None] % 5  # copied tokens are among the highest
    missing = np.random.default_rng(0).integers(0, 2, (rows, len(tokens))).astype("float32")
    tensor, positions = (
        ops.convert_to_tensor(logits),
        missing.sum(1, keepdims=True) + np.float32(np.arange(rows)[:, None] % 3),
    )

    def search():
        arguments = 1, None, rules.copied.budget(*map(ops.convert_to_tensor, (missing, positions)))
        return rules.masked(tensor, *arguments), *rules.most_probable(tensor, k, *arguments)

    masked, values, ids = map(array, run(search))
    permitted = masked > NEVER / 2
    assert (permitted[:, sorted(tokens)] == (missing > 0)).all() and (permitted[:, END] == ~missing.any(1)).all()
    expected = np.sort(masked)[:, ::-1][:, :k]
    some = expected > NEVER / 2
    expected = expected - np.log(np.exp(logits).sum(1, keepdims=True))
    assert_close(values[some], expected[some], 1e-4)
    assert (values[~some] == NEVER).all() and some.all() == (k == 1)
    assert (np.take_along_axis(masked, ids.astype(int), 1) == np.sort(masked)[:, ::-1][:, :k])[some].all()


def test_samplers_hold_them_in_their_settings():
    for sampler in (Greedy(copied_tokens=range(5, 3, -1)), Sample(copied_tokens=[4, 5, 5]), Beam(copied_tokens=(5, 4))):
        assert sampler.settings["copied_tokens"] == [4, 5] and sampler.copied_tokens == (4, 5)
    assert Beam().settings["copied_tokens"] == []


@pytest.mark.parametrize("tokens", [(END, 4), (0,), (1,), (3, 6), (3, VOCABULARY), (-1, 3)])
def test_what_cannot_be_copied_is_refused(tokens):
    language = Language()
    for decode in (greedy, sample, beam_search):
        with refused("copied_tokens"):
            decode(language.prefill, language.step, SOURCES, 8, copied_tokens=tokens, suppress_tokens=(6,))
