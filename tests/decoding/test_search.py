import functools
import itertools

import keras
import numpy as np
import pytest
from conftest import (
    BACKEND,
    SLOW_ON_TENSORFLOW,
    array,
    assert_close,
    compiled,
    normal,
    parametrize_all,
    refused,
    run,
    spread,
)

from keras_tfm import ops
from keras_tfm.decoding import NEVER, PENALTIES, Constraints, Ensemble, beam_search, greedy, sample
from keras_tfm.decoding.search import MIN_SIZE_TO_COMPACT
from keras_tfm.models import transformer
from keras_tfm.runtimes import programs
from keras_tfm.text import END, START

VOCABULARY, STATES = 7, 11
TABLE = 2 * normal(STATES, VOCABULARY)
SOURCES = np.array([[3, 1, 5], [0, 2, 0], [8, 5, 4], [4, 4, 0]], "int32")
to_the_end = functools.partial(beam_search, early_stopping=False)


class Language:
    """Its next token depends on all tokens before it and on the source, by a state cached for each hypothesis."""

    def __init__(self, table=TABLE):
        self.table = np.asarray(table, "float32")

    def prefill(self, sources, max_length):
        sources = ops.convert_to_tensor(sources)
        return {"state": sources[:, :1] % STATES, "memory": {"shift": sources[:, 1:2], "source": sources}}

    def step(self, tokens, position, cache):
        count = ops.shape(tokens)[0] // ops.shape(cache["memory"]["shift"])[0]
        shift = ops.repeat(cache["memory"]["shift"], count, axis=0)
        state = (3 * cache["state"] + ops.cast(tokens, cache["state"].dtype) + shift) % STATES
        return ops.take(self.table, state, axis=0), {**cache, "state": state}

    def step_and_attention(self, tokens, position, cache):
        logits, cache = self.step(tokens, position, cache)
        count = ops.shape(tokens)[0] // ops.shape(cache["memory"]["source"])[0]
        source = ops.cast(ops.repeat(cache["memory"]["source"], count, axis=0), "float32")
        return logits, cache, ops.softmax(source * ops.sin(1.0 + ops.cast(cache["state"], "float32")))

    def scores(self, source, ids):
        """Logarithm of the probability of each token of a list, and what each attends to; in plain Python."""
        state, token, scores, attention = source[0] % STATES, START, [], []
        for following in ids:
            state = (3 * state + token + source[1]) % STATES
            logits = self.table[state].astype("float64")
            scores.append(logits[following] - np.log(np.exp(logits).sum()))
            weights = np.exp(np.array(source) * np.sin(1.0 + state))
            attention.append(weights / weights.sum())
            token = following
        return scores, attention


def final_score(language, source, ids, penalty="length", length_penalty=0.6, coverage_penalty=0.0):
    scores, attention = language.scores(source, ids)
    covered = np.log(np.minimum(np.sum(attention, axis=0), 1.0)) * (np.array(source) != 0)
    return sum(scores) / PENALTIES[penalty](len(ids), length_penalty) + coverage_penalty * covered.sum()


def everything(max_length, min_length=0):
    """All possible outputs: with the end token last, or of the maximum length."""
    for length in range(max_length + 1):
        for words in itertools.product(range(3, VOCABULARY), repeat=length):
            if length == max_length:
                yield words
            elif length + 1 >= min_length:
                yield (*words, END)


def padded(ids, length):
    return [*ids, *[0] * (length - len(ids))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_penalty": 0.0},
        {"length_penalty": 2.0},
        {"length_penalty": -1.0},
        {"penalty": "gnmt", "length_penalty": 0.6},
        {"min_length": 3},
        {"coverage_penalty": 0.4},
        {"copied_tokens": (4, 5)},
        {"copied_tokens": (4, 5), "min_length": 3},
    ],
)
def test_a_beam_as_wide_as_the_space_equals_brute_force(options):
    language, length, n = Language(), 4, 7
    step = language.step_and_attention if "coverage_penalty" in options else language.step
    ids, scores = map(
        array, run(to_the_end, language.prefill, step, SOURCES, length, num_beams=260, n_best=n, **options)
    )
    words = list(everything(length, options.get("min_length", 0)))
    options = {name: value for name, value in options.items() if name != "min_length"}
    copied = options.pop("copied_tokens", ())
    for row, source in enumerate(SOURCES.tolist()):
        own = [ids for ids in words if all(ids.count(token) == source.count(token) for token in copied)]
        best = sorted(own, key=lambda ids: -final_score(language, source, ids, **options))[:n]
        assert_close(scores[row], np.array([final_score(language, source, ids, **options) for ids in best]), 1e-4)
        assert ids[row].astype(int).tolist() == [padded(ids, length) for ids in best]


def reference(language, source, max_length, num_beams, length_penalty):
    """The same beam search in plain Python, to the very end."""
    alive, ended = [((), 0.0)], []
    for position in range(max_length):
        following = [
            ((*ids, token), sum(language.scores(source, (*ids, token))[0]))
            for ids, _ in alive
            for token in (END, *range(3, VOCABULARY))
        ]
        best = sorted(following, key=lambda pair: -pair[1])[:num_beams]
        last = position == max_length - 1
        ended += [(ids, score / len(ids) ** length_penalty) for ids, score in best if last or ids[-1] == END]
        alive = [(ids, score) for ids, score in best if ids[-1] != END]
    return sorted(ended, key=lambda pair: -pair[1])[:num_beams]


@parametrize_all("num_beams, length_penalty", [1, 2, 3, 5], [0.0, 1.0])
def test_ending_early_misses_nothing(num_beams, length_penalty):
    language = Language(2 * normal(STATES, VOCABULARY, seed=num_beams))
    references = [reference(language, source, 7, num_beams, length_penalty) for source in SOURCES.tolist()]
    for n in {1, num_beams}:
        options = {"num_beams": num_beams, "n_best": n, "length_penalty": length_penalty}
        ids, scores = map(array, run(to_the_end, language.prefill, language.step, SOURCES, 7, **options))
        for row, source in enumerate(SOURCES.tolist()):
            expected = references[row][:n]
            assert_close(scores[row], np.array([score for _, score in expected]), 1e-4)
            said = [tuple(int(token) for token in hypothesis if token) for hypothesis in ids[row]]
            own = [final_score(language, source, ids, length_penalty=length_penalty) for ids in said]
            assert_close(scores[row], np.array(own), 1e-4)  # of two that are equally good, either may be found
            assert len(set(said)) == n


@parametrize_all("num_beams, length_penalty", [1, 3], [0.0, 1.0])
def test_early_stopping_finds_real_hypotheses_and_none_better(num_beams, length_penalty):
    language = Language(2 * normal(STATES, VOCABULARY, seed=num_beams))
    options = {"num_beams": num_beams, "length_penalty": length_penalty}
    outcome = run(beam_search, language.prefill, language.step, SOURCES, 7, **options)
    (ids, scores), best = (
        map(array, outcome),
        run(to_the_end, language.prefill, language.step, SOURCES, 7, **options)[1],
    )
    assert (scores <= array(best) + 1e-5).all()
    if not length_penalty:  # a hypothesis that goes on only loses
        assert_close(scores, best)
    for row, source in enumerate(SOURCES.tolist()):
        said = tuple(int(token) for token in ids[row, 0] if token)
        own = final_score(language, source, said, length_penalty=length_penalty)
        assert_close(scores[row], np.array([own]), 1e-4)


MODEL = {"num_layers": 1, "num_decoder_layers": 2, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "dropout": 0.0}
TEXTS = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0], [4, 2, 0, 0, 0, 0]])


@pytest.fixture(scope="module")
def model():
    """Random, but confident enough to end now and then."""
    keras.utils.set_random_seed(3)
    return spread(transformer(10, **MODEL), 0.3)


def language_or(model, name):
    return (Language(), SOURCES) if name == "language" else (model, TEXTS)


EVERY_MODEL = pytest.mark.parametrize("name", ["language", "transformer"])


CONSTRAINED = {"min_length": 4, "suppress_tokens": (5,), "no_repeat_ngram_size": 2}


@EVERY_MODEL
@pytest.mark.parametrize("constraints", [{}, pytest.param(CONSTRAINED, marks=SLOW_ON_TENSORFLOW)])
def test_greedy_equals_a_beam_of_one(name, constraints, model):
    spoken, sources = language_or(model, name)

    def search():
        ids, _ = beam_search(spoken.prefill, spoken.step, sources, 8, num_beams=1, **constraints)
        return ids, greedy(spoken.prefill, spoken.step, sources, 8, **constraints)

    ids, expected = run(search)
    assert array(ids)[:, 0].tolist() == array(expected).tolist()


@EVERY_MODEL
def test_a_row_depends_neither_on_its_batch_nor_on_its_place(name, model):
    spoken, sources = language_or(model, name)
    search = compiled(lambda sources: beam_search(spoken.prefill, spoken.step, sources, 8, num_beams=3, n_best=3))
    ids, scores = map(array, search(ops.convert_to_tensor(sources)))
    order = np.random.default_rng(0).permutation(len(sources))
    shuffled, _ = map(array, search(ops.convert_to_tensor(sources[order])))
    assert shuffled.tolist() == ids[order].tolist()
    for row in range(len(sources)):
        alone, score = map(array, search(ops.convert_to_tensor(sources[row : row + 1])))
        assert alone[0].tolist() == ids[row].tolist()
        assert_close(score[0], scores[row], 1e-4)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's loops may change the shapes of tensors")
@pytest.mark.parametrize(
    "decode",
    [
        pytest.param(greedy, id="greedy", marks=SLOW_ON_TENSORFLOW),
        pytest.param(functools.partial(beam_search, num_beams=3, n_best=3), id="beam"),
    ],
)
def test_a_cache_that_doubles_changes_nothing(decode, model):
    search = functools.partial(decode, model.prefill, model.step, TEXTS, max_length=9, min_length=5)
    expected = keras.tree.flatten(search())
    for capacity in (1, 3):
        for outcome, wanted in zip(keras.tree.flatten(search(capacity=capacity)), expected, strict=True):
            assert_close(outcome, wanted)


@pytest.mark.parametrize("n", [1, 4])
def test_scores_are_those_of_the_full_pass(n, model):
    ids, scores = map(array, run(beam_search, model.prefill, model.step, TEXTS, 8, num_beams=4, n_best=n))
    assert (np.diff(scores) <= 0).all()
    labels = ids.reshape(-1, 8).astype(int)  # those of a source one after the other
    targets = np.where(labels > 0, np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START), 0)
    inputs = {"source": np.repeat(TEXTS, n, axis=0), "target": targets}
    shares = array(run(lambda: ops.log_softmax(model(inputs))))
    of_labels = np.take_along_axis(shares, labels[..., None], axis=-1)[..., 0] * (labels > 0)
    assert_close(of_labels.sum(1) / (labels > 0).sum(1) ** 0.6, scores.reshape(-1), 1e-4)


class Counted(Language):
    """Says as many words as the first id of the source, and counts its steps."""

    steps = 0

    def step(self, tokens, position, cache):
        count = ops.shape(tokens)[0] // ops.shape(cache["memory"]["source"])[0]
        wanted = ops.repeat(cache["memory"]["source"][:, :1], count, axis=0)
        if BACKEND == "jax":  # which runs this function once, to compile it
            import jax

            jax.debug.callback(lambda: setattr(self, "steps", self.steps + 1))
        else:
            self.steps += 1
        return 20 * ops.one_hot(ops.where(position < wanted, 4, END), VOCABULARY), cache


@pytest.mark.parametrize("decode", [greedy, beam_search])
def test_decoding_ends_when_all_rows_have_ended(decode):
    language = Counted()
    outcome = decode(language.prefill, language.step, SOURCES, 1000)
    ids = array(outcome) if decode is greedy else array(outcome[0])[:, 0]
    assert (ids > 0).sum(1).tolist() == (SOURCES[:, 0] + 1).tolist() and (ids == END).sum(1).tolist() == [1] * 4
    assert language.steps == SOURCES[:, 0].max() + 1


def drawn(seed=0, rows=4000, **options):
    language = Language()
    sources = np.repeat(SOURCES[:1], rows, axis=0)
    return array(run(sample, language.prefill, language.step, sources, 3, seed, **options))


def shares_of(ids):
    return np.bincount(ids[:, 0].astype(int), minlength=VOCABULARY) / len(ids)


def first_shares(temperature=1.0):
    state = (3 * (SOURCES[0, 0] % STATES) + START + SOURCES[0, 1]) % STATES
    logits = np.where(np.isin(np.arange(VOCABULARY), [0, START]), -np.inf, TABLE[state]) / temperature
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_follow_their_probabilities(temperature):
    expected, actual = first_shares(temperature), shares_of(drawn(temperature=temperature))
    assert (np.abs(actual - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-9).all()


def test_samples_are_a_function_of_the_seed():
    first = drawn(1)
    assert (first == drawn(1)).all() and (first != drawn(2)).any()


@pytest.mark.parametrize(
    "options, kept",
    [
        ({"top_k": 2}, lambda p: p >= np.sort(p)[-2]),
        ({"min_p": 0.2}, lambda p: p >= 0.2 * p.max()),
        ({"top_p": 0.6}, lambda p: np.cumsum(np.sort(p)[::-1])[np.argsort(np.argsort(-p))] - p < 0.6),
    ],
)
def test_samples_come_only_from_the_most_probable_tokens(options, kept):
    expected = np.where(kept(first_shares()), first_shares(), 0)
    expected = expected / expected.sum()
    assert 0 < (expected > 0).sum() < VOCABULARY - 2
    actual = shares_of(drawn(**options))
    assert (np.abs(actual - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 4000) + 1e-9).all()


@pytest.mark.slow
@EVERY_MODEL
def test_sampling_only_the_best_token_equals_greedy(name, model):
    spoken, sources = language_or(model, name)
    options = {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}
    expected = array(run(greedy, spoken.prefill, spoken.step, sources, 6)).tolist()
    samples = run(lambda: [sample(spoken.prefill, spoken.step, sources, 6, **option) for option in options])
    for option, ids in zip(options, samples, strict=True):
        assert array(ids).tolist() == expected, option


def decoded(constraints, max_length=10, table=TABLE):
    """What each way of decoding writes, [ids]."""
    language = Language(table)

    def search():
        arguments = language.prefill, language.step, SOURCES, max_length
        outcome, _ = beam_search(*arguments, n_best=3, **constraints)
        return greedy(*arguments, **constraints), sample(*arguments, **constraints), *(outcome[:, n] for n in range(3))

    return [array(ids).astype(int) for ids in run(search)]


@functools.cache
def decoded_freely(max_length=10):
    return decoded({}, max_length)


@parametrize_all(
    "k, options, size",
    [1, 4],
    {
        str(options): options
        for options in ({}, {"suppress_tokens": (3, 5)}, {"min_length": 3}, {"suppress_tokens": range(3, 40)})
    },
    [9, 64, 997],  # few, in chunks, and some that chunks do not divide
)
def test_dropping_banned_tokens_equals_masking_them(k, options, size):
    logits, constraints = 3 * normal(6, size), Constraints(8, **options)
    logits[1:, [0, 1, 2, 3, 5]] += 3 * np.arange(5)[:, None]  # the highest are banned
    tensor = ops.convert_to_tensor(logits)
    for position in (1, 2):
        masked = array(run(constraints.masked, tensor, position, None))
        expected = np.sort(masked)[:, ::-1][:, :k] - np.log(np.exp(logits).sum(1, keepdims=True))
        values, ids = map(array, run(constraints.most_probable, tensor, k, position, None))
        some = expected > NEVER / 2
        assert_close(values[some], expected[some], 1e-4)
        assert (values[~some] == NEVER).all() and (
            np.take_along_axis(masked, ids.astype(int), 1) == np.sort(masked)[:, ::-1][:, :k]
        )[some].all()


def test_suppressed_tokens_and_short_outputs_are_never_written():
    for ids in decoded({"min_length": 5, "suppress_tokens": (3, 5)}):
        assert not np.isin(ids, [START, 3, 5]).any() and ((ids > 0).sum(1) >= 5).all()


@pytest.mark.parametrize(
    "options", [{"suppress_tokens": range(3, VOCABULARY)}, {"suppress_tokens": (3, 4), "no_repeat_ngram_size": 1}]
)
def test_where_no_token_may_follow_there_is_no_hypothesis(options):
    for ids in decoded({"min_length": 5, **options}, table=100 * TABLE):
        assert not ids.any()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_is_repeated(n):
    repeated = False
    for free, ids in zip(decoded_freely(5), decoded({"no_repeat_ngram_size": n}, 5), strict=True):
        for unconstrained, row in zip(free.tolist(), ids.tolist(), strict=True):
            grams = [gram for gram in zip(*(row[first:] for first in range(n)), strict=False) if 0 not in gram]
            assert len(grams) == len(set(grams)), row
            repeated |= unconstrained != row
    assert repeated or n == 3  # or nothing was tested


def test_a_prefix_is_kept_and_followed_by_what_fits():
    prefix = np.array([[5, 3], [6, 0], [0, 4], [0, 0]])
    for without, ids in zip(decoded_freely(), decoded({"prefix": prefix, "min_length": 3}), strict=True):
        assert ((ids[:, :2] == prefix) | (prefix == 0)).all() and (ids > 0).sum(1).min() >= 3
        assert without.shape == ids.shape
    language, best = Language(), decoded_freely()[0]
    kept = run(greedy, language.prefill, language.step, SOURCES, 10, prefix=best[:, :4])
    assert array(kept).tolist() == best.tolist()


@pytest.mark.parametrize("options", [{}, {"min_length": 3, "no_repeat_ngram_size": 1, "suppress_tokens": (4,)}])
def test_start_end_and_padding_are_ids_of_choice(options):
    """A language with other ids for them says the same with these, also if its padding is its end token."""
    order = np.array([6, 5, 2, 3, 4, 1, 0])  # 0, 1 and 2, and with them 5 and 6, change places
    language = Language()

    def search(start, step, **ids):
        ids |= options | {"suppress_tokens": (*options.get("suppress_tokens", ()), *([6] if ids else []))}
        arguments = start, step, SOURCES, 6
        outcome, _ = beam_search(*arguments, n_best=2, **ids)
        return greedy(*arguments, **ids), sample(*arguments, top_k=1, **ids), outcome[:, 0]

    def step(tokens, position, cache):
        logits, cache = language.step(ops.take(order, tokens, axis=0), position, cache)
        return ops.take(logits, order, axis=-1), cache

    expected = [array(ids).astype(int) for ids in run(search, language.prefill, language.step)]
    for pad_id in (6, 2):
        renamed = run(functools.partial(search, start_id=5, end_id=2, pad_id=pad_id), language.prefill, step)
        for ids, wanted in zip(renamed, expected, strict=True):
            ids = array(ids).astype(int)
            ended = np.cumsum(wanted == END, axis=1) - (wanted == END) > 0
            assert order[ids][~ended].tolist() == wanted[~ended].tolist() and (ids[ended] == pad_id).all()


def token_by_token(model):
    """The functions of a model with a state in its cache, for which nothing is read at once."""

    def prefill(sources, max_length):
        return {"state": ops.zeros((ops.shape(sources)[0], 1)), "own": model.prefill(sources, max_length)}

    def step(tokens, position, cache):
        logits, own = model.step(tokens, position, cache["own"])
        return logits, {**cache, "own": own}

    return prefill, step


# Of different lengths, one with a free position in it, one that ends, one for which there is no room.
PREFIXES = np.array([[5, 4, 6, 3], [7, 3, 8, 0], [6, 9, 0, 5], [8, 8, 2, 0], [4, 5, 6, 7]])


@pytest.mark.parametrize("rows", [len(PREFIXES), pytest.param(MIN_SIZE_TO_COMPACT + 4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.slow) for way in ("sample", "greedy")), "beam"])
def test_a_prefix_is_read_at_once_as_if_token_by_token(way, rows, model):
    sources, prefix = (np.resize(x, (rows, x.shape[1])) for x in (TEXTS, PREFIXES))
    limits, widths = np.resize([9, 20, 9, 20, 3], rows).astype("int32"), []
    options = {"prefix": prefix, "limits": limits, "min_length": 3}

    def search(sources, length, prefill, step):
        arguments = prefill, step, sources, length
        if way == "beam":
            return beam_search(*arguments, num_beams=3, n_best=2, **options)
        return (greedy(*arguments, **options) if way == "greedy" else sample(*arguments, uniforms, top_k=3, **options),)

    def counted(tokens, position, cache):
        widths.append(tokens.shape[1])
        return model.step(tokens, position, cache)

    length = MIN_SIZE_TO_COMPACT + 4
    uniforms = np.random.default_rng(0).uniform(size=(rows, length)).astype("float32")
    program = programs.compiled(
        lambda sources, length: search(sources, length, model.prefill, counted), model.variables
    )
    outcome, expected = program(sources, length), run(search, sources, length, *token_by_token(model))
    assert {*widths[1:]} == {1} and widths[0] == PREFIXES.shape[1]
    assert array(outcome[0]).tolist() == array(expected[0]).tolist()
    if way == "beam":
        assert_close(outcome[1], expected[1], 1e-4)
    kept = array(outcome[0]).reshape(rows, -1, length)[:, 0].astype(int)
    assert (np.count_nonzero(kept, axis=1) <= limits).all()
    for row in kept[0], kept[1]:
        assert row[:3].tolist() in PREFIXES[:, :3].tolist()


def test_each_row_may_have_a_limit_of_its_own():
    limits = np.array([2, 4, 10, 1], "int32")
    for free, ids in zip(decoded({"min_length": 10}), decoded({"min_length": 10, "limits": limits}), strict=True):
        assert (ids > 0).sum(1).tolist() == limits.tolist()
        assert (free > 0).all()
    language = Language()
    search = functools.partial(beam_search, language.prefill, language.step)
    together, *alone = run(
        lambda: [
            search(SOURCES, 10, limits=limits)[0],
            *(search(SOURCES[row : row + 1], int(limit))[0] for row, limit in enumerate(limits)),
        ]
    )
    for row, limit in enumerate(limits):
        assert array(together)[row, 0, :limit].tolist() == array(alone[row])[0, 0].tolist()


@pytest.mark.parametrize("way", ["sample", pytest.param("greedy", marks=SLOW_ON_TENSORFLOW), "beam"])
def test_a_search_in_groups_equals_one_of_all_rows(way):
    rows, length, language, rng = MIN_SIZE_TO_COMPACT + 2, MIN_SIZE_TO_COMPACT + 1, Language(), np.random.default_rng(0)
    sources, options = rng.integers(0, STATES, (rows, 3)), {"min_length": 3}
    options["prefix"] = rng.integers(0, 2, (rows, 3)) * 5
    options["limits"] = rng.integers(5, length, rows).astype("int32")

    def search(sources, length):
        arguments = language.prefill, language.step, sources, length
        if way == "sample":
            return sample(*arguments, uniforms, temperature=0.7, **options)
        return greedy(*arguments, **options) if way == "greedy" else beam_search(*arguments, num_beams=2, **options)[0]

    uniforms = rng.uniform(size=(rows, length)).astype("float32")
    expected = array(run(search, sources, length))
    assert array(programs.compiled(search, [])(sources, length)).tolist() == expected.tolist()
    assert len({*np.count_nonzero(expected, axis=-1).flat}) > 3  # rows leave the search one after the other


def test_an_ensemble_averages_probabilities():
    one, two = Language(), Language(2 * normal(STATES, VOCABULARY, seed=5))
    both = Ensemble([one, one])
    alone, together = run(lambda: [beam_search(m.prefill, m.step, SOURCES, 6, n_best=2) for m in (one, both)])
    # sorted, since hypotheses with the same transitions in another order are equally good
    assert np.sort(array(together[0]), axis=1).tolist() == np.sort(array(alone[0]), axis=1).tolist()
    assert_close(together[1], alone[1])
    tokens, models = np.full((len(SOURCES), 1), START), (Ensemble([one, two]), one, two)
    shares = run(lambda: [ops.softmax(m.step(tokens, 0, m.prefill(SOURCES, 6))[0]) for m in models])
    mixed, *expected = map(array, shares)
    assert_close(mixed, (expected[0] + expected[1]) / 2)


def test_attention_of_a_step_is_that_of_the_last_block(model):
    from keras_tfm.layers import record_attention

    targets = np.array([[START, 4, 5], [START, 6, 3], [START, 7, 7]])
    with record_attention() as maps:
        model({"source": TEXTS, "target": targets})
    (expected,) = maps[model.decoder.blocks[1].memory_attention.path]

    def by_steps():
        cache = model.prefill(TEXTS, 3)
        for position in range(3):
            tokens = targets[:, position : position + 1]
            _, cache, attention = model.step_and_attention(tokens, position, cache)
            yield attention

    for position, attention in enumerate(run(lambda: [*by_steps()])):
        assert_close(attention, expected.mean(1)[:, position])


@pytest.mark.parametrize(
    "decode, options, words",
    [
        (greedy, {"max_length": 0}, "`max_length` must be a positive"),
        (greedy, {"min_length": 9}, "`min_length` must be from 0 to max_length=6"),
        (greedy, {"suppress_tokens": (END,)}, "`suppress_tokens` must not contain the end token"),
        (greedy, {"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` must be an integer of at least 0"),
        (greedy, {"prefix": np.ones((4, 9), int)}, "`prefix` must be"),
        (greedy, {"end_id": -1}, "`end_id` must be an integer of at least 0"),
        (beam_search, {"end_id": 3, "suppress_tokens": (3,)}, "`suppress_tokens` must not contain the end token, 3"),
        (sample, {"temperature": 0}, "`temperature` must be a positive number"),
        (sample, {"top_k": 0}, "`top_k` must be a positive"),
        (sample, {"top_p": 1.5}, "`top_p` must be above 0 and at most 1"),
        (beam_search, {"num_beams": 0}, "`num_beams` must be a positive"),
        (beam_search, {"num_beams": 2, "n_best": 3}, "`n_best` must be at most num_beams=2"),
        (beam_search, {"penalty": "none"}, "`penalty` must be one of"),
        (beam_search, {"coverage_penalty": -1.0}, "`coverage_penalty` must be a number of at least 0"),
        (
            beam_search,
            {"coverage_penalty": 0.5},
            "`step` must return attention if, and only if, `coverage_penalty` is not 0",
        ),
    ],
)
def test_bad_arguments(decode, options, words):
    language = Language()
    with pytest.raises(ValueError, match=words):
        decode(language.prefill, language.step, SOURCES, **{"max_length": 6, **options})


@pytest.mark.parametrize("decode", [greedy, beam_search])
@pytest.mark.parametrize(
    "outputs, received",
    [
        (lambda logits, cache: (logits[:, 0], cache), r"shape \(\d+, 7\)"),
        (lambda logits, cache: (logits[:1], cache), r"shape \(1, 1, 7\)"),
        (lambda logits, cache: (logits,), "1 values"),
        (lambda logits, cache: logits, "Tensor|Array|Tracer"),
    ],
)
def test_what_step_returns_is_checked(decode, outputs, received):
    language = Language()
    with refused("step"):
        decode(language.prefill, lambda *arguments: outputs(*language.step(*arguments)), SOURCES, 6)


def test_slots_without_a_hypothesis_have_the_lowest_score():
    language = Language()
    scores = array(run(beam_search, language.prefill, language.step, SOURCES, 1, num_beams=9, n_best=9)[1])
    assert (scores[:, VOCABULARY - 2 :] == NEVER).all() and (scores[:, : VOCABULARY - 2] > -99).all()
