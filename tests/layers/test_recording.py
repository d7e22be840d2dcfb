from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from conftest import BACKEND, BYTES, SIZES, TRACED, assert_close, compiled, normal, spread
from keras import ops

from keras_tfm.layers import MultiHeadSelfAttention, TransformerDecoderBlock, TransformerEncoderBlock
from keras_tfm.layers.recording import attention_maps, record_attention
from keras_tfm.models import transformer
from keras_tfm.translator import Translator

X = normal(2, 6, 16)


def test_a_warning_when_nothing_was_recorded():
    with pytest.warns(UserWarning, match="No attention was recorded"), record_attention():
        pass


def translator():
    """An encoder-decoder with different lengths on both sides and one local layer."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    memory = keras.layers.Embedding(9, 8, mask_zero=True)(source)
    memory = TransformerEncoderBlock(num_heads=2, ff_dim=16, window=2, name="encoder")(memory)
    x = keras.layers.Embedding(9, 8, mask_zero=True)(target)
    return keras.Model([source, target], TransformerDecoderBlock(num_heads=2, ff_dim=16, name="decoder")(x, memory))


def test_maps_of_every_layer_of_a_model():
    model = translator()
    model.compile(jit_compile=BACKEND != "torch")  # PyTorch takes minutes to compile
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 9, (3, 7)), rng.integers(1, 9, (3, 4))]
    inputs[0][:, 5:] = 0
    before = model.predict(inputs, verbose=0)
    compiled_function = model.predict_function
    with record_attention() as recorded:
        assert_close(model([x[:2] for x in inputs]), before[:2])
    assert {len(calls) for calls in recorded.values()} == {1}
    maps = attention_maps(model, inputs, batch_size=2)  # the last batch has one row
    shapes = {"encoder/attention": (7, 7), "decoder/attention": (4, 4), "decoder/memory_attention": (4, 7)}
    assert {path: weights.shape for path, weights in maps.items()} == {p: (3, 2, *s) for p, s in shapes.items()}
    assert recorded.keys() == maps.keys()
    for path, weights in maps.items():
        assert_close(recorded[path][0], weights[:2])
        assert_close(weights.sum(-1)[:, :, :4], np.ones((3, 2, 4)))
    assert (maps["decoder/memory_attention"][..., 5:] == 0).all()
    assert model.predict_function is compiled_function and not model.run_eagerly
    assert_close(model.predict(inputs, verbose=0), before)


def test_recording_reaches_every_active_context():
    layer = MultiHeadSelfAttention(2, name="attention")
    with record_attention() as outer, record_attention() as inner:
        layer(X)
    assert outer.keys() == inner.keys() == {"attention"}


@TRACED
def test_recording_a_compiled_layer_is_refused():
    layer = MultiHeadSelfAttention(2)
    layer.build(X.shape)
    with pytest.raises(Exception, match="`record_attention` needs layers that run eagerly"), record_attention():
        compiled(layer)(ops.convert_to_tensor(X))


def test_the_error_about_return_attention_scores_shows_how_to_record():
    layer = TransformerEncoderBlock(num_heads=2, ff_dim=16)
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


@pytest.mark.slow
def test_threads_record_and_translate_with_one_model():
    translator = Translator(spread(transformer(BYTES.vocab_size, **SIZES), 0.2), BYTES, num_beams=1, max_length=16)
    (model,) = translator.models
    ids = {name: np.random.default_rng(0).integers(3, 50, (4, 6)) for name in ("source", "target")}
    texts = ["a dog", "cats"]
    expected = model.predict(ids, verbose=0), translator(texts), attention_maps(model, ids, batch_size=2)
    program = model.predict_function

    def record():
        return [attention_maps(model, ids, batch_size=2) for _ in range(3)]

    def translate():
        return [translator(texts) for _ in range(10)]

    def predict():
        return [model.predict(ids, verbose=0) for _ in range(5)]

    first, second, translations, predictions = in_threads(record, record, translate, predict)
    for maps in (*first, *second):
        assert maps.keys() == expected[2].keys()
        for path, weights in maps.items():
            assert_close(weights, expected[2][path])
    assert translations == [expected[1]] * 10
    for logits in predictions:
        assert_close(logits, expected[0])
    assert not model.run_eagerly and model.predict_function is program
    assert translator(texts) == expected[1]
