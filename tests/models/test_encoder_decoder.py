"""Laws that hold for every model with an encoder and a decoder."""

import ast
import functools
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import (
    BACKEND,
    BYTES,
    IN_TENSORFLOW,
    PRECISIONS,
    TEXTS,
    TOLERANCE,
    array,
    assert_close,
    gradients,
    normal,
    parametrize_all,
    refused,
    run,
    spread,
)

from keras_tfm import models, ops, record_attention
from keras_tfm.decoding import Ensemble, beam_search, greedy, sample
from keras_tfm.runtimes import programs
from keras_tfm.translator import Translator

RECURRENT = {"model_dim": 16, "units": 12, "num_layers": 2}
CONVOLUTIONAL = {"model_dim": 16, "units": 8, "num_layers": 2}
# Name → a small model of a vocabulary size; each way to decode and each kind of cell, score and position occurs.
KINDS = {
    "transformer": lambda size, **options: models.transformer(
        size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32, **options
    ),
    "rnn": lambda size, **options: models.rnn(size, **RECURRENT, **options),
    "rnn_both_ways": lambda size, **options: models.rnn(
        size, cell="gru", bidirectional_layers=2, **RECURRENT, **options
    ),
    "bahdanau": lambda size, **options: models.rnn_attention(size, cell="rnn", **RECURRENT, **options),
    "luong": lambda size, **options: models.rnn_attention(
        size, attention="luong", score="bilinear", num_heads=2, residual=True, **RECURRENT, **options
    ),
    "gnmt": lambda size, **options: models.gnmt(size, **RECURRENT | {"num_layers": 3}, **options),
    "conv": lambda size, **options: models.conv(size, **CONVOLUTIONAL, max_length=64, **options),
    "conv_sinusoidal": lambda size, **options: models.conv(
        size, kernel_size=4, positions="sinusoidal", **CONVOLUTIONAL, **options
    ),
    "bytenet": lambda size, **options: models.bytenet(
        size, dilations=3, **CONVOLUTIONAL | {"num_layers": 1}, **options
    ),
}
OLDER = [kind for kind in KINDS if kind != "transformer"]
SYSTEMS = ("transformer", "rnn", "bahdanau", "gnmt", "conv", "bytenet")  # the others are variants of these
QUICK = ("bahdanau",)
ATTENTIVE = ("transformer", "bahdanau", "luong", "gnmt", "conv", "conv_sinusoidal")
SIZE = 11
SOURCE = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6, 7], [1, 9, 4, 0, 0]])
LABELS = np.array([[4, 5, 6, 7, 2], [9, 4, 2, 0, 0]])
IDS = {"source": SOURCE, "target": TARGET}
LONGER = {"source": np.pad(SOURCE, [(0, 0), (0, 4)]), "target": np.pad(TARGET, [(0, 0), (0, 2)])}
# The same tokens, with padding on the left, between them and on the right.
SCATTERED = {
    "source": np.array([[0, 5, 0, 6, 7, 8, 2, 0], [9, 0, 0, 8, 0, 2, 0, 0]]),
    "target": np.array([[0, 0, 1, 4, 5, 6, 7], [1, 0, 9, 0, 0, 0, 4]]),
}


def make(kind, **options):
    return spread(KINDS[kind](SIZE, **options))


def each(kinds, quick=QUICK):
    """Parametrizes with kinds, one worker for each; `make test` runs the quick ones, `make test-slow` the others."""

    def marks(kind):
        yield pytest.mark.xdist_group(kind)
        if kind not in quick:
            yield pytest.mark.slow

    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=[*marks(kind)]) for kind in kinds])


def cached(model, widths, prompt=0):
    """Logits of the target, decoded in steps of several tokens each, after a prompt of so many tokens."""
    cache, position, actual = model.prefill(SOURCE, TARGET.shape[1], TARGET[:, :prompt] if prompt else None), prompt, []
    for width in widths:
        logits, cache = model.step(TARGET[:, position : position + width], position, cache)
        actual.append(logits)
        position += width
    return ops.concatenate(actual, axis=1)


@functools.cache
def computed(kind):
    """A model of a kind, and everything that the laws compare, computed by one program."""
    model = make(kind)
    later, other, empty = TARGET.copy(), SOURCE.copy(), np.array([[5, 6, 2], [0, 0, 0]])
    later[:, 3:], other[0, 0] = 8, 9
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    decode = functools.partial(greedy, model.prefill, model.step)
    beams = functools.partial(beam_search, model.prefill, model.step, max_length=5)

    def actual():
        full, longer = model(IDS), model(LONGER)
        return {
            "full": full,
            "one by one": cached(model, [1] * 5),
            "in pieces": cached(model, [2, 3]),
            "after a prompt": cached(model, [1, 1], prompt=3),
            "longer": longer,
            "loss": loss(LABELS, full),
            "loss of longer": loss(np.pad(LABELS, [(0, 0), (0, 2)]), longer),
            "scattered": model(SCATTERED),
            "alone": model({"source": SOURCE[1:, :3], "target": TARGET[1:, :3]}),
            "without mask": model.step(TARGET[:1, :1], 0, model.prefill(SOURCE[:1, :5], 5, padded=False))[0],
            "later": model({"source": SOURCE, "target": later}),
            "other source": model({"source": other, "target": TARGET}),
            "beside nothing": model({"source": empty, "target": TARGET[:, :3]}),
            "not beside nothing": model({"source": empty[:1], "target": TARGET[:1, :3]}),
            "greedy": decode(SOURCE, 5),
            "a beam of one": beams(SOURCE, num_beams=1)[0][:, 0],
            "beam": beams(SOURCE, num_beams=3, n_best=3),
            "beam alone": beams(SOURCE[1:, :3], num_beams=3, n_best=3),
        }

    return model, run(actual)


@each(OLDER)
def test_cached_equals_full(kind):
    actual = computed(kind)[1]
    for way in ("one by one", "in pieces"):
        assert_close(actual[way][0], actual["full"][0], 4e-5)
        assert_close(actual[way][1, :3], actual["full"][1, :3], 4e-5)  # after its end, a row reads padding
    assert_close(actual["after a prompt"][0], actual["full"][0, 3:], 4e-5)


MIXED = [precision for precision in PRECISIONS if precision != "float32"]


@pytest.mark.slow
@parametrize_all("kind, precision", OLDER, MIXED)
def test_cached_equals_full_in_any_precision(kind, precision):
    model = make(kind, dtype=precision)
    memory = normal(*model.encoder.compute_output_shape((2, 6, 16)))  # of a caller who does not know the precision
    full, one_by_one, cache = run(
        lambda: (model(IDS), cached(model, [1] * 5), model.decoder.init_cache(2, 5, memory, masked=False))
    )
    types = {keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten([full, one_by_one, cache])}
    assert types - {"int32"} == {model.compute_dtype}
    assert_close(one_by_one[0], full[0], 4 * TOLERANCE[precision])


@pytest.mark.slow
@parametrize_all("kind, precision", list(KINDS), MIXED, strength=1)
def test_searches_in_mixed_precision_score_as_the_full_pass_does(kind, precision):
    model = make(kind, dtype=precision)

    def search(sources, length):  # in a program, whose loops refuse a cache that changes its type
        best = greedy(model.prefill, model.step, sources, length)
        ids, scores = beam_search(model.prefill, model.step, sources, length, num_beams=2)
        return best, ids[:, 0], scores[:, 0]

    best, ids, scores = map(array, programs.compiled(search, model.variables, jit_compile=False)(SOURCE, 5))
    labels = np.concatenate([best, ids]).astype(int)
    targets = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    inputs = {"source": np.concatenate([SOURCE, SOURCE]), "target": targets}
    shares = array(run(lambda: keras.ops.log_softmax(keras.ops.cast(model(inputs), "float32"))))
    of_labels = np.take_along_axis(shares, labels[..., None], axis=-1)[..., 0] * (labels > 0)
    highest = shares[:2, :, 2:].max(-1) * (labels[:2] > 0)
    assert (of_labels[:2] >= highest - 8 * TOLERANCE[precision]).all()
    expected = of_labels[2:].sum(1) / (labels[2:] > 0).sum(1) ** 0.6
    assert_close(scores, expected, 8 * TOLERANCE[precision])


@each(OLDER)
def test_padding_changes_nothing_and_each_row_is_on_its_own(kind):
    actual = computed(kind)[1]
    assert_close(actual["longer"][0, :5], actual["full"][0])
    assert_close(actual["longer"][1, :3], actual["full"][1, :3])
    assert_close(actual["alone"][0], actual["full"][1, :3])
    assert_close(actual["without mask"][0], actual["full"][0, :1])
    assert np.isfinite(array(actual["beside nothing"])).all()
    assert_close(actual["beside nothing"][0], actual["not beside nothing"][0])


@each(OLDER)
def test_padding_is_no_part_of_the_losses_of_keras(kind):
    actual = computed(kind)[1]
    shares = array(keras.ops.log_softmax(actual["full"]))[LABELS > 0]
    expected = -shares[np.arange(len(shares)), LABELS[LABELS > 0]].mean()
    assert_close(actual["loss"], expected)
    assert_close(actual["loss of longer"], expected)


@each(OLDER)
def test_tokens_count_wherever_the_padding_is(kind):
    actual = computed(kind)[1]
    for row, ids in enumerate(SCATTERED["target"]):
        assert_close(array(actual["scattered"])[row, ids != 0], array(actual["full"])[row, TARGET[row] != 0])


@each(OLDER, quick=("bahdanau", "conv", "bytenet"))
def test_padding_anywhere_has_no_gradient(kind):
    model, kept = make(kind, dropout=0.0), [ids != 0 for ids in (SOURCE, TARGET, *SCATTERED.values())]
    x = [normal(*mask.shape, 16, seed=seed) for seed, mask in enumerate(kept)]
    for compact, scattered in ((0, 2), (1, 3)):
        x[scattered][kept[scattered]] = x[compact][kept[compact]]  # the same tokens, and other padding

    def outputs(source, target, source_mask, target_mask):
        memory_mask = model.encoder.compute_mask(source, source_mask)
        memory = model.encoder(source, mask=source_mask)
        return model.decoder(target, memory, mask=target_mask, memory_mask=memory_mask)

    def total(*x):
        return sum(ops.sum(outputs(*x[first : first + 2], *kept[first : first + 2])) for first in (0, 2))

    actual = gradients(total, *x)
    for compact, scattered in ((0, 2), (1, 3)):
        assert np.abs(actual[compact][kept[compact]]).max() > 1e-4
        assert_close(actual[scattered][kept[scattered]], actual[compact][kept[compact]])
        assert not any(actual[side][~kept[side]].any() for side in (compact, scattered))


@pytest.mark.parametrize("kind", OLDER)
def test_a_cached_call_takes_no_mask(kind):
    model = make(kind)
    cache, x = model.prefill(SOURCE, 5), normal(2, 1, 16)
    memory = model.encode(SOURCE)
    for name, value in (("mask", np.array([[True], [False]])), ("memory", memory)):
        with pytest.raises(ValueError, match=f"`{name}` must be None in a call with a `cache`.* Received: a {name}"):
            model.decoder(x, **{name: value}, cache=cache)


@each(OLDER)
def test_a_later_token_changes_nothing_before_it(kind):
    before, after, other = (array(computed(kind)[1][name]) for name in ("full", "later", "other source"))
    assert_close(after[:, :3], before[:, :3], 1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-4
    assert np.abs(other[0, 0] - before[0, 0]).max() > 1e-6  # but the whole source is read from the first token on


@each(OLDER)
def test_hypotheses_share_the_memory_of_their_source(kind):
    model, actual = computed(kind)
    assert array(actual["a beam of one"]).tolist() == array(actual["greedy"]).tolist()
    (ids, scores), (single, single_scores) = actual["beam"], actual["beam alone"]
    assert array(ids[1:]).tolist() == array(single).tolist()
    assert_close(scores[1:], single_scores, 1e-4)
    # the score of a hypothesis is that of a full pass over it
    hypothesis = array(ids[0, 0]).astype(int)
    length = int((hypothesis > 0).sum())
    target = np.concatenate([[1], hypothesis[: length - 1]])[None]
    log_shares = array(ops.log_softmax(run(lambda: model({"source": SOURCE[:1], "target": target}))))[0]
    assert_close(log_shares[np.arange(length), hypothesis[:length]].sum() / length**0.6, scores[0, 0], 1e-4)


@pytest.mark.slow
def test_different_kinds_decide_together_and_draw():
    together, alone = Ensemble([make(kind) for kind in ("transformer", "bahdanau", "conv")]), make("rnn")
    twins = Ensemble([alone, alone])
    drawn, actual, of_twins, expected = run(
        lambda: (
            sample(together.prefill, together.step, SOURCE, 4, top_k=1),
            greedy(together.prefill, together.step, SOURCE, 4),
            greedy(twins.prefill, twins.step, SOURCE, 4),
            greedy(alone.prefill, alone.step, SOURCE, 4),
        )
    )
    assert array(drawn).tolist() == array(actual).tolist()
    assert array(of_twins).tolist() == array(expected).tolist()


@each(OLDER, quick=("bahdanau", "conv"))
def test_saved_and_loaded(kind, tmp_path):
    model = make(kind, target_vocab_size=9, tied_output=False, name="mine")
    model.metadata = {"step": 3}
    model.save(tmp_path / "model.keras")
    twin = keras.models.load_model(tmp_path / "model.keras")
    assert (twin.name, twin.metadata, twin.arguments) == ("mine", {"step": 3}, model.arguments)
    ids = {"source": SOURCE, "target": np.minimum(TARGET, 8)}
    assert_close(run(lambda: twin(ids)), run(lambda: model(ids)), 1e-6)


@each(ATTENTIVE, quick=("luong", "conv"))
def test_attention_to_the_source_is_recorded(kind):
    model = make(kind)
    with record_attention() as maps:
        model(IDS)
    with record_attention() as of_scattered:
        model({"source": SOURCE, "target": SCATTERED["target"]})
    _, _, last = model.step_and_attention(TARGET[:, :1], 0, model.prefill(SOURCE, 5))
    for layer in model.decoder.memory_attentions:
        (weights,) = maps[layer.path]
        assert weights.shape[0] == 2 and weights.shape[2:] == (5, 6)
        assert_close(weights[:, :, :3].sum(-1), np.ones_like(weights[:, :, :3, 0]))
        assert (weights[0, ..., 5:] == 0).all() and (weights[1, ..., 3:] == 0).all()
        if kind in OLDER:  # each query is recorded where its token is
            queries, actual = (x.transpose(0, 2, 1, 3) for x in (weights, of_scattered[layer.path][0]))
            assert_close(actual[SCATTERED["target"] != 0], queries[TARGET != 0])
    assert_close(last, weights.mean(1)[:, 0])


@pytest.mark.parametrize("kind", sorted({*KINDS}.difference(ATTENTIVE)))
def test_without_attention_there_is_no_coverage(kind):
    model = make(kind)
    with refused("model"):
        model.step_and_attention(TARGET[:, :1], 0, model.prefill(SOURCE, 5))


@each(OLDER if BACKEND == "jax" else ["bahdanau"], quick=("rnn",))
def test_a_model_learns_from_its_source(kind):
    rng = np.random.default_rng(0)
    source = np.concatenate([rng.integers(3, SIZE, (64, 3)), np.full((64, 1), 2)], axis=1)
    inputs = {"source": source, "target": np.concatenate([np.ones((64, 1), int), source[:, :2]], axis=1)}
    model = KINDS[kind](SIZE, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=BACKEND == "jax")
    losses = model.fit(inputs, source[:, :3], batch_size=64, epochs=60, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]  # without the source, the best is log 8 = 2.08 and no less


@pytest.mark.parametrize("kind", ["rnn", "bahdanau", "conv"])
def test_every_weight_takes_part(kind):
    model = KINDS[kind](SIZE, dropout=0.0)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [array(weight) for weight in model.trainable_weights]
    model.train_on_batch(IDS, TARGET)
    same = [w.path for w, old in zip(model.trainable_weights, before, strict=True) if (array(w) == old).all()]
    assert [path for path in same if "key/bias" not in path] == []  # which adds the same to all scores of a query


@each([kind for kind in OLDER if kind in SYSTEMS], quick=())
@IN_TENSORFLOW
def test_exports_equal_the_model(kind, tmp_path, one_width):
    translator = Translator(spread(KINDS[kind](BYTES.vocab_size), 0.3), BYTES, num_beams=2, max_length=24)
    texts = [text for text in TEXTS if len(text.encode()) < 24]
    expected = translator(texts)
    assert len({*expected}) > 3
    for format in ("saved_model", "litert"):
        translator.export(tmp_path / format, format)
    # in a process of its own, which knows nothing of the model; LiteRT several times, in memory that was used before
    forms = "saved_model", *["litert"] * 12
    loads = [f"print(keras_tfm.load({str(tmp_path / format)!r})({texts!r}))" for format in forms]
    program = "\n".join(["import keras_tfm", *loads])
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert [ast.literal_eval(line) for line in output.splitlines()] == [expected] * len(forms)


@pytest.mark.parametrize("kind", ["rnn", "conv"])
@IN_TENSORFLOW
def test_ctranslate2_holds_only_transformers(kind, tmp_path):
    pytest.importorskip("ctranslate2")
    translator = Translator(KINDS[kind](BYTES.vocab_size), BYTES)
    with pytest.raises(ValueError, match="must have a model that CTranslate2 supports, which knows no units"):
        translator.export(tmp_path / "ct2", "ctranslate2")
    assert not (tmp_path / "ct2").exists()
