"""A beam that leaves keys and values where they were written finds the same as one that reorders them."""

import keras
import numpy as np
import pytest
from conftest import BACKEND, array, assert_close, normal, parametrize_all, run, slow_on_tensorflow, spread

from keras_tfm import ops
from keras_tfm.decoding import Ensemble, beam_search
from keras_tfm.decoding.search import MIN_SIZE_TO_COMPACT
from keras_tfm.layers import TransformerDecoder
from keras_tfm.layers.scores import MIXINGS, PRODUCTS
from keras_tfm.models import conv, decoder_lm, rnn, transformer
from keras_tfm.runtimes import programs
from keras_tfm.text import START

SIZES = {"num_layers": 2, "model_dim": 16, "num_heads": 4, "ff_dim": 32, "dropout": 0.0}
TEXTS = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0], [4, 2, 0, 0, 0, 0]])
WAYS = pytest.mark.parametrize("keeps", [False, True], ids=["reordered", "kept"])


def small(make=transformer, vocab_size=10, seed=3, **options):
    """Random, but confident enough to end now and then."""
    keras.utils.set_random_seed(seed)
    return spread(make(vocab_size, **SIZES | options), 0.3)


@pytest.fixture(scope="module")
def model():
    return small()


def keeping(function, keeps):
    """`function` for a runtime whose beams keep their caches in place, or reorder them."""

    def traced(*arguments, **options):
        with ops.using(ops.current()._replace(keeps_caches=keeps)):
            return function(*arguments, **options)

    return traced


def assert_same_hypotheses(search):
    """Both ways find the same; returns what they find."""
    (ids, scores), expected = run(lambda: [keeping(search, keeps)() for keeps in (True, False)])
    assert array(ids).tolist() == array(expected[0]).tolist()
    assert_close(scores, expected[1], 1e-4)
    return array(ids), array(scores)


def search_of(model, sources=TEXTS, max_length=9, **options):
    step = model.step_and_attention if options.get("coverage_penalty") else model.step
    return lambda: beam_search(
        model.prefill, step, sources, max_length, **{"num_beams": 4, "n_best": 3, "min_length": 4} | options
    )


@slow_on_tensorflow
@parametrize_all(
    "score, mixing, positions, window, num_kv_heads, heads",
    sorted(PRODUCTS),
    [*MIXINGS],
    ["sinusoidal", "learned", "index", "rotary", "relative", "alibi", None],
    [None, 3],
    [None, 1, 2],
    ["standard", "narrow", "wide"],
)
def test_both_ways_agree_for_every_attention(score, mixing, positions, window, num_kv_heads, heads):
    options = {"score": score, "mixing": mixing, "window": window, "num_kv_heads": num_kv_heads, "heads": heads}
    ids, _ = assert_same_hypotheses(search_of(small(positions=positions, **options)))
    assert len({*map(tuple, ids[0].tolist())}) == 3  # or there was nothing to reorder


@slow_on_tensorflow
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1, "n_best": 1},
        {"num_beams": 8, "n_best": 8},
        {"early_stopping": False, "penalty": "gnmt"},
        {"coverage_penalty": 0.4},
        {"no_repeat_ngram_size": 2, "suppress_tokens": (5,)},
        {"copied_tokens": (7, 8)},
        {"limits": np.array([3, 9, 5], "int32"), "min_length": 3},
        {"prefix": np.array([[5, 4, 6, 3], [7, 3, 8, 0], [6, 9, 0, 5]])},
        {"prefix": np.array([[5, 4], [7, 3], [6, 9]]), "coverage_penalty": 0.4},
    ],
    ids=lambda options: "-".join(options),
)
def test_both_ways_agree_for_every_search(options, model):
    assert_same_hypotheses(search_of(model, **options))


@slow_on_tensorflow
def test_both_ways_agree_for_an_ensemble_with_other_caches():
    """Keys and values stay in place, and states are reordered beside them."""
    others = [make(10, size="tiny", num_layers=1, model_dim=16, dropout=0.0) for make in (rnn, conv)]
    models = [small(), *(spread(other, 0.3) for other in others), small(seed=5, positions="relative")]
    assert_same_hypotheses(search_of(Ensemble(models)))


@slow_on_tensorflow
def test_both_ways_agree_for_prompts():
    model = small(decoder_lm)
    prompts = np.array([[5, 6, 7, 8], [9, 8, 0, 0], [4, 0, 0, 0]])
    ids, _ = assert_same_hypotheses(search_of(model, prompts))
    assert (ids[:, 0, :4] == prompts)[prompts > 0].all()


@slow_on_tensorflow
def test_both_ways_agree_after_a_prompt_that_prefill_reads(model):
    """The positions of the steps then differ from those of the search."""
    prompt = np.array([[START, 7], [START, 5], [START, 9]])

    def prefill(sources, max_length):
        return model.prefill(sources, max_length + 2, prompt=prompt)

    def step(tokens, position, cache):
        return model.step(tokens, position + 2, cache)

    ids, _ = assert_same_hypotheses(lambda: beam_search(prefill, step, TEXTS, 9, num_beams=4, n_best=3, min_length=4))
    free = array(run(keeping(search_of(model), True))[0])
    assert len({*map(tuple, ids[0].tolist())}) == 3 and ids.tolist() != free.tolist()


@slow_on_tensorflow
@pytest.mark.parametrize("merges", [False, True])
def test_a_step_of_ones_own_may_merge_caches_or_have_other_ones(merges, model):
    """What is called "self" and has keys and values, but no "slots", is reordered as anything else."""

    def prefill(sources, max_length):
        rows = ops.shape(sources)[0]
        past = {"k": ops.zeros((rows, max_length, 1)), "v": ops.zeros((rows, max_length, 1))}
        return [model.prefill(sources, max_length), {"self": past}]

    def step(tokens, position, cache):
        logits, new = model.step(tokens, position, cache[0])
        if merges:
            new = [
                {**old, **own, "self": {**old["self"], **own["self"]}} for old, own in zip(cache[0], new, strict=True)
            ]
        past = cache[1]["self"]
        past = {
            name: ops.slice_update(x, (0, position, 0), ops.cast(tokens[:, None], x.dtype)) for name, x in past.items()
        }
        seen = ops.sum(
            past["k"] * ops.arange(past["k"].shape[1], dtype="float32")[:, None] + past["v"], axis=1, keepdims=True
        )
        return logits + 0.1 * ops.cos(seen + ops.arange(logits.shape[-1], dtype="float32")), [new, {"self": past}]

    ids, _ = assert_same_hypotheses(lambda: beam_search(prefill, step, TEXTS, 9, num_beams=4, n_best=3, min_length=4))
    assert len({*map(tuple, ids[0].tolist())}) == 3


@slow_on_tensorflow
@pytest.mark.parametrize("prefix", [None, np.array([[5, 4], [7, 3], [6, 9]])], ids=["free", "prefix"])
def test_both_ways_agree_when_rows_leave_the_search(prefix, model):
    """Unfinished rows are gathered into groups, whose caches then have twice as many positions."""
    rows, length = MIN_SIZE_TO_COMPACT + 5, MIN_SIZE_TO_COMPACT + 3
    sources = np.resize(TEXTS, (rows, TEXTS.shape[1]))
    limits = np.random.default_rng(0).integers(4, length + 1, rows).astype("int32")
    options = {"limits": limits, "min_length": 4}
    options |= {} if prefix is None else {"prefix": np.resize(prefix, (rows, 2))}

    def search(keeps):
        decode = lambda sources, length: search_of(model, sources, length, **options)()  # noqa: E731
        return programs.compiled(keeping(decode, keeps), model.variables)(sources, length)

    (ids, scores), (expected_ids, expected_scores) = (map(array, search(keeps)) for keeps in (True, False))
    assert ids.tolist() == expected_ids.tolist() and len({*np.count_nonzero(ids, axis=-1).flat}) > 3
    assert_close(scores, expected_scores, 1e-4)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's loops may change the shapes of tensors")
@pytest.mark.parametrize("capacity", [1, 3])
def test_kept_caches_can_grow(capacity, model):
    expected = keeping(search_of(model), False)()
    for found, wanted in zip(keeping(search_of(model, capacity=capacity), True)(), expected, strict=True):
        assert_close(found, wanted, 1e-4)


@slow_on_tensorflow
@WAYS
def test_padding_of_sources_changes_nothing(keeps, model):
    search = keeping(lambda sources: search_of(model, sources)(), keeps)
    (ids, scores), (padded, others) = (map(array, run(search, np.pad(TEXTS, ((0, 0), (0, n))))) for n in (0, 3))
    assert ids.tolist() == padded.tolist()
    assert_close(scores, others, 1e-4)


@slow_on_tensorflow
@WAYS
def test_scores_are_those_of_the_full_pass(keeps):
    model = small(positions="relative", window=3)
    ids, scores = map(array, run(keeping(search_of(model, max_length=8), keeps)))
    labels = ids.reshape(-1, 8).astype(int)
    targets = np.where(labels > 0, np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START), 0)
    shares = array(run(lambda: ops.log_softmax(model({"source": np.repeat(TEXTS, 3, axis=0), "target": targets}))))
    of_labels = np.take_along_axis(shares, labels[..., None], axis=-1)[..., 0] * (labels > 0)
    assert_close(of_labels.sum(1) / (labels > 0).sum(1) ** 0.6, scores.reshape(-1), 1e-4)


@slow_on_tensorflow
@WAYS
def test_a_step_of_ones_own_may_mask_keys(keeps):
    """Of a decoder with a step of its own, and a mask for each hypothesis or for all."""
    rows, beams, length = 2, 3, 5
    decoder, memory = TransformerDecoder(num_layers=1, num_heads=2, ff_dim=8, dropout=0.0), normal(rows, 4, 8)
    decoder(normal(rows, 2, 8), memory)
    table = normal(7, 8, seed=1)

    def found(masked, attention_mask):
        def prefill(sources, max_length):
            return decoder.init_cache(rows, max_length, ops.convert_to_tensor(memory), masked=masked)

        def step(tokens, position, cache):
            x = ops.take(ops.convert_to_tensor(table), tokens, axis=0)
            x, cache = decoder(x, cache=cache, cache_position=position, attention_mask=attention_mask)
            return ops.matmul(x, table.T), cache

        search = lambda: beam_search(prefill, step, np.ones((rows, 1), "int32"), length, beams, 2, min_length=5)  # noqa: E731
        return [*map(array, run(keeping(search, keeps)))]

    seen = (np.arange(length) != 1)[None, None]
    expected, everything = found(True, seen), found(True, None)
    assert abs(expected[1] - everything[1]).max() > 1e-3
    masks = [seen, np.repeat(seen, rows * beams, axis=0), np.tile(seen[:, None], (rows * beams, 2, 1, 1))]
    for mask in masks:
        ids, scores = found(False, mask)
        assert ids.tolist() == expected[0].tolist()
        assert_close(scores, expected[1], 1e-4)
