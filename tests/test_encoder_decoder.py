"""Laws that hold for every model with an encoder and a decoder."""

import keras
import numpy as np
import pytest
from conftest import (
    BYTES,
    IN_TENSORFLOW,
    PRECISIONS,
    TEXTS,
    TOLERANCE,
    array,
    assert_close,
    parametrize_all,
    run,
    spread,
)

from keras_tfm import exported, models, record_attention
from keras_tfm.decoding import Ensemble, beam_search, greedy, sample
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
    "bytenet": lambda size, **options: models.bytenet(size, dilations=3, **CONVOLUTIONAL, **options),
}
OLDER = [kind for kind in KINDS if kind != "transformer"]
ATTENTIVE = ("transformer", "bahdanau", "luong", "gnmt", "conv", "conv_sinusoidal")
SIZE = 11
SOURCE = np.array([[5, 6, 7, 8, 2, 0], [9, 8, 2, 0, 0, 0]])
TARGET = np.array([[1, 4, 5, 6, 7], [1, 9, 4, 0, 0]])
IDS = {"source": SOURCE, "target": TARGET}


def make(kind, **options):
    return spread(KINDS[kind](SIZE, **options))


def cached(model, widths, padded=True):
    """Logits of the target, decoded in steps of several tokens each."""
    cache, position, found = model.start(SOURCE, TARGET.shape[1], padded=padded), 0, []
    for width in widths:
        logits, cache = model.step(TARGET[:, position : position + width], position, cache)
        found.append(logits)
        position += width
    return keras.ops.concatenate(found, axis=1)


@parametrize_all("kind, precision", OLDER, PRECISIONS)
def test_cached_equals_full(kind, precision):
    model = make(kind, dtype=precision)
    full, one_by_one, in_pieces = run(lambda: (model(IDS), cached(model, [1] * 5), cached(model, [2, 3])))
    tolerance = 4 * TOLERANCE[precision]
    for found in (one_by_one, in_pieces):
        assert_close(found[0], full[0], tolerance)
        assert_close(found[1, :3], full[1, :3], tolerance)  # after the end of a row, the model reads padding


@pytest.mark.parametrize("kind", OLDER)
def test_padding_changes_nothing_and_each_row_is_on_its_own(kind):
    model = make(kind)
    longer = {"source": np.pad(SOURCE, [(0, 0), (0, 4)]), "target": np.pad(TARGET, [(0, 0), (0, 2)])}
    alone = {"source": SOURCE[1:, :3], "target": TARGET[1:, :3]}
    full, padded, single = run(lambda: (model(IDS), model(longer), model(alone)))
    assert_close(padded[0, :5], full[0])
    assert_close(padded[1, :3], full[1, :3])
    assert_close(single[0], full[1, :3])
    without_mask = run(lambda: model.step(TARGET[:1, :1], 0, model.start(SOURCE[:1, :5], 5, padded=False))[0])
    assert_close(without_mask[0], full[0, :1])


@pytest.mark.parametrize("kind", OLDER)
def test_a_row_of_padding_disturbs_no_other(kind):
    model = make(kind)
    source = np.array([[5, 6, 2], [0, 0, 0]])
    found = run(lambda: greedy(model.start, model.step, source, 4))
    assert np.isfinite(array(run(lambda: model({"source": source, "target": TARGET[:, :3]})))).all()
    assert array(found[0]).tolist() == array(run(lambda: greedy(model.start, model.step, source[:1], 4))[0]).tolist()


@pytest.mark.parametrize("kind", OLDER)
def test_a_later_token_changes_nothing_before_it(kind):
    model, other = make(kind), TARGET.copy()
    other[:, 3:] = 8
    before, after = run(lambda: (model(IDS), model({"source": SOURCE, "target": other})))
    assert_close(after[:, :3], before[:, :3], 1e-6)
    assert np.abs(array(after[:, 3:]) - array(before[:, 3:])).max() > 1e-4
    late = SOURCE.copy()
    late[0, 0] = 9  # but the whole source is read from the first token on
    assert (
        np.abs(array(run(lambda: model({"source": late, "target": TARGET}))[0, 0]) - array(before[0, 0])).max() > 1e-6
    )


@pytest.mark.parametrize("kind", OLDER)
def test_hypotheses_share_the_memory_of_their_source(kind):
    model = make(kind)

    def both():
        several = beam_search(model.start, model.step, SOURCE, 5, beams=3, n_best=3)
        alone = beam_search(model.start, model.step, SOURCE[1:, :3], 5, beams=3, n_best=3)
        one = (
            beam_search(model.start, model.step, SOURCE, 5, beams=1)[0][:, 0],
            greedy(model.start, model.step, SOURCE, 5),
        )
        return several, alone, one

    (ids, scores), (single, single_scores), (beam_of_one, best) = run(both)
    assert array(ids[1:]).tolist() == array(single).tolist()
    assert_close(scores[1:], single_scores, 1e-4)
    assert array(beam_of_one).tolist() == array(best).tolist()
    # the score of a hypothesis is that of a full pass over it
    hypothesis = array(ids[0, 0]).astype(int)
    length = int((hypothesis > 0).sum())
    shifted = np.concatenate([[1], hypothesis[: length - 1]])[None]
    log_shares = array(keras.ops.log_softmax(run(lambda: model({"source": SOURCE[:1], "target": shifted}))))[0]
    assert_close(log_shares[np.arange(length), hypothesis[:length]].sum() / length**0.6, scores[0, 0], 1e-4)


def test_all_kinds_decide_together_and_draw():
    together = Ensemble([make(kind) for kind in KINDS])
    alone = Ensemble([make("gnmt")] * 2)
    drawn, found = run(
        lambda: (
            sample(together.start, together.step, SOURCE, 4, top_k=1),
            greedy(together.start, together.step, SOURCE, 4),
        )
    )
    assert array(drawn).tolist() == array(found).tolist()
    expected = run(lambda: greedy(alone.models[0].start, alone.models[0].step, SOURCE, 4))
    assert array(run(lambda: greedy(alone.start, alone.step, SOURCE, 4))).tolist() == array(expected).tolist()


@pytest.mark.parametrize("kind", OLDER)
def test_saved_and_loaded(kind, tmp_path):
    model = make(kind, target_vocab_size=9, tied_output=False, name="mine")
    model.metadata = {"step": 3}
    model.save(tmp_path / "model.keras")
    twin = keras.models.load_model(tmp_path / "model.keras")
    assert (twin.name, twin.metadata, twin.arguments) == ("mine", {"step": 3}, model.arguments)
    ids = {"source": SOURCE, "target": np.minimum(TARGET, 8)}
    assert_close(run(lambda: twin(ids)), run(lambda: model(ids)), 1e-6)


@pytest.mark.parametrize("kind", ATTENTIVE)
def test_attention_to_the_source_is_recorded(kind):
    model = make(kind)
    with record_attention() as maps:
        model(IDS)
    _, _, last = model.step_and_attention(TARGET[:, :1], 0, model.start(SOURCE, 5))
    for layer in model.decoder.memory_attentions:
        (weights,) = maps[layer.path]
        assert weights.shape[0] == 2 and weights.shape[2:] == (5, 6)
        assert_close(weights[:, :, :3].sum(-1), np.ones_like(weights[:, :, :3, 0]))
        assert (weights[0, ..., 5:] == 0).all() and (weights[1, ..., 3:] == 0).all()
    assert_close(last, weights.mean(1)[:, 0])


@pytest.mark.parametrize("kind", sorted({*KINDS}.difference(ATTENTIVE)))
def test_without_attention_there_is_no_coverage(kind):
    model = make(kind)
    with pytest.raises(ValueError, match="`model` must be a model with attention to the source"):
        model.step_and_attention(TARGET[:, :1], 0, model.start(SOURCE, 5))


@pytest.mark.parametrize("kind", OLDER)
def test_a_model_learns_from_its_source(kind):
    rng = np.random.default_rng(0)
    source = np.concatenate([rng.integers(3, SIZE, (64, 3)), np.full((64, 1), 2)], axis=1)
    inputs = {"source": source, "target": np.concatenate([np.ones((64, 1), int), source[:, :2]], axis=1)}
    model = KINDS[kind](SIZE, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
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


@pytest.mark.parametrize("kind", OLDER)
@IN_TENSORFLOW
def test_exports_say_what_the_model_says(kind, tmp_path, one_width):
    translator = Translator(spread(KINDS[kind](BYTES.vocab_size), 0.3), BYTES, beams=2, max_length=24)
    texts = [text for text in TEXTS if len(text.encode()) < 24]
    expected = translator(texts)
    assert len({*expected}) > 3
    for form in ("saved_model", "litert"):
        translator.export(tmp_path / form, form)
        assert exported.load(tmp_path / form)(texts) == expected


@pytest.mark.parametrize("kind", ["rnn", "conv"])
@IN_TENSORFLOW
def test_ctranslate2_holds_only_transformers(kind, tmp_path):
    pytest.importorskip("ctranslate2")
    translator = Translator(KINDS[kind](BYTES.vocab_size), BYTES)
    with pytest.raises(ValueError, match="must have a model that CTranslate2 can hold, which knows no units"):
        translator.export(tmp_path / "ct2", "ctranslate2")
    assert not (tmp_path / "ct2").exists()
