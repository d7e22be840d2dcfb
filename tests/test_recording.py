from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from conftest import BYTES, SIZES, array, assert_close, compiled, normal, spread
from keras import ops

from keras_tfm.layers import MultiHeadSelfAttention, TransformerDecoderBlock, TransformerEncoderBlock
from keras_tfm.models import transformer
from keras_tfm.recording import record_attention
from keras_tfm.translator import Translator

X = normal(2, 6, 16)


def test_recording_nothing_is_said():
    with pytest.warns(UserWarning, match="No attention layer ran eagerly"), record_attention():
        pass


def translator():
    """An encoder-decoder with different lengths on both sides and one local layer."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = keras.layers.Embedding(9, 8, mask_zero=True)(source)
    memory = TransformerEncoderBlock(2, 16, window=2, name="encoder")(memory)
    x = keras.layers.Embedding(9, 8, mask_zero=True)(target)
    return keras.Model([source, target], TransformerDecoderBlock(2, 16, name="decoder")(x, memory))


@pytest.mark.parametrize("by_predict", [False, True])
def test_maps_of_every_layer_of_a_model(by_predict):
    model = translator()
    model.compile(jit_compile=True)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 9, (3, 7)), rng.integers(1, 9, (3, 4))]
    inputs[0][:, 5:] = 0
    before = model.predict(inputs, verbose=0)
    compiled_function = model.predict_function
    with record_attention(model) as maps:
        recorded = model.predict(inputs, batch_size=2, verbose=0) if by_predict else array(model(inputs))
    assert_close(recorded, before)
    assert set(maps) == {"encoder/attention", "decoder/attention", "decoder/memory_attention"}
    rows = [2, 1] if by_predict else [3]
    shapes = {"encoder/attention": (7, 7), "decoder/attention": (4, 4), "decoder/memory_attention": (4, 7)}
    for path, shape in shapes.items():
        assert [x.shape for x in maps[path]] == [(batch, 2, *shape) for batch in rows]
        assert_close(maps[path][0].sum(-1)[:, :, :4], np.ones((rows[0], 2, 4)))
    assert (maps["decoder/memory_attention"][0][..., 5:] == 0).all()
    assert model.predict_function is compiled_function and not model.run_eagerly
    assert_close(model.predict(inputs, verbose=0), before)


def test_recording_sees_evaluate_and_reaches_every_context():
    model = translator()
    model.compile(loss="mse")
    inputs, targets = [np.ones((3, 7), "int32"), np.ones((3, 4), "int32")], np.zeros((3, 4, 8))
    before = model.evaluate(inputs, targets, verbose=0)
    with record_attention() as outer, record_attention(model) as inner:
        assert_close(model.evaluate(inputs, targets, verbose=0), before)
    assert set(inner) == {"encoder/attention", "decoder/attention", "decoder/memory_attention"}
    assert outer.keys() == inner.keys()


def test_recording_sees_the_first_evaluate_and_leaves_no_trace():
    model = translator()
    model.compile("sgd", "mse")
    inputs, targets = [np.ones((3, 7), "int32"), np.ones((3, 4), "int32")], np.zeros((3, 4, 8))
    with record_attention(model) as maps:
        model.evaluate(inputs, targets, verbose=0)
        model.fit(inputs, targets, verbose=0)
    assert maps["encoder/attention"] and model.train_function is None and not model.run_eagerly


def test_recording_says_so_when_it_cannot_see():
    layer = MultiHeadSelfAttention(2)
    layer.build(X.shape)
    with pytest.raises(Exception, match="`record_attention` needs layers that run eagerly"), record_attention():
        compiled(layer)(ops.convert_to_tensor(X))


def test_who_asks_a_layer_for_scores_is_told_of_recording():
    layer = MultiHeadSelfAttention(2, name="attention")
    with pytest.raises(ValueError, match="`return_attention_scores`") as error:
        layer(X, return_attention_scores=True)
    example = [line for line in str(error.value).splitlines() if line.startswith("    ")]
    names = {"record_attention": record_attention, "layer": layer, "x": X}
    exec("\n".join(line.removeprefix("    ") for line in example[:-1]), names)
    assert eval(example[-1].strip(), names)[0].shape == (2, 2, 6, 6)


def in_threads(*functions):
    """What functions return that run at the same time, each in a thread of its own."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result() for future in [pool.submit(function) for function in functions]]


def test_threads_record_and_translate_with_one_model():
    translator = Translator(spread(transformer(BYTES.vocab_size, **SIZES), 0.2), BYTES, beams=1, max_length=16)
    (model,) = translator.models
    ids = {name: np.random.default_rng(0).integers(3, 50, (4, 6)) for name in ("source", "target")}
    texts = ["a dog", "cats"]
    expected = model.predict(ids, verbose=0), translator(texts)
    program = model.predict_function

    def record():
        with record_attention(model) as maps:
            found = [model.predict(ids, batch_size=2, verbose=0) for _ in range(3)]
        return found, maps

    def translate():
        return [translator(texts) for _ in range(10)]

    def predict():
        return [model.predict(ids, verbose=0) for _ in range(5)]

    first, second, translations, predictions = in_threads(record, record, translate, predict)
    for found, maps in (first, second):
        for logits in found:
            assert_close(logits, expected[0])
        assert {len(calls) for calls in maps.values()} == {6}
    assert translations == [expected[1]] * 10
    for logits in predictions:
        assert_close(logits, expected[0])
    assert not model.run_eagerly and model.predict_function is program
    assert translator(texts) == expected[1]
