import keras
import numpy as np
import pytest
from conftest import array, assert_close, normal, quick, spread
from keras import ops

from keras_tfm.layers import PositionalEncoding, TransformerDecoder, TransformerEncoder, masks

X, MEMORY = normal(2, 5, 8), normal(2, 3, 6, seed=1)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def test_a_stack_is_its_parts_one_after_the_other():
    encoder = TransformerEncoder(2, 2, 16, norm_first=True, name="encoder")
    y = encoder(X, mask=MASK)
    spread(encoder)
    x = PositionalEncoding()(X)
    for block in encoder.blocks:
        x = block(x, mask=MASK)
    assert_close(encoder(X, mask=MASK), encoder.norm(x))
    assert y.shape == X.shape
    names = [layer.name for layer in encoder._flatten_layers(include_self=False, recursive=False)]
    assert set(names) == {"encoder_0", "encoder_1", "encoder_dropout", "encoder_positions_0", "encoder_norm"}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", None])
@pytest.mark.parametrize("with_memory", [False, True])
def test_cached_equals_full(positions, with_memory):
    decoder = TransformerDecoder(2, 2, 16, positions=positions, positions_in="every_layer", max_length=5)
    memory, memory_mask = (MEMORY, np.array([[1, 1, 0], [1, 0, 0]], bool)) if with_memory else (None, None)
    decoder.build(X.shape, MEMORY.shape if with_memory else None)
    spread(decoder)

    def by_steps():
        cache = decoder.make_cache(2, 5, memory, memory_mask)
        first, cache = decoder(X[:, :3], mask=MASK[:, :3], cache=cache)
        second, cache = decoder(X[:, 3:], mask=MASK[:, 3:], cache=cache, start=3)
        return ops.concatenate([first, second], axis=1)

    full = quick(lambda: decoder(X, memory, mask=MASK, memory_mask=memory_mask))
    assert_close(array(quick(by_steps)())[MASK], array(full())[MASK])


def test_packed_positions_begin_again():
    encoder = TransformerEncoder(1, 2, 16, positions="learned", max_length=3)
    segments, positions = np.array([[1, 1, 1, 2, 2]]), np.array([[0, 1, 2, 0, 1]])
    packed = array(encoder(X[:1], attention_mask=masks.segments(segments), positions=positions))
    assert_close(packed[:, :3], encoder(X[:1, :3]))
    assert_close(packed[:, 3:], encoder(X[:1, 3:]))


@pytest.mark.parametrize("attached", [False, True])
def test_masks_reach_every_block(attached):
    encoder = spread(TransformerEncoder(2, 2, 16))
    embedding = keras.layers.Embedding(9, 8, mask_zero=True)
    ids = np.array([[3, 4, 5, 0, 0]])
    y = encoder(embedding(ids)) if attached else encoder(array(embedding(ids)), mask=ids != 0)
    assert_close(array(y)[:, :3], encoder(array(embedding(ids[:, :3]))))


def test_a_stack_is_quantized_like_any_layer():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, TransformerEncoder(1, 2, 16)(inputs))
    before = array(spread(model)(X))
    model.quantize("int8", filters=lambda layer: isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)))
    assert 0 < np.abs(array(model(X)) - before).max() < 0.2


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: TransformerEncoder(0), ["num_layers", "positive", "0"]),
        (lambda: TransformerEncoder(1, positions="gps"), ["positions", "rotary", "sinusoidal", "'gps'"]),
        (lambda: TransformerEncoder(1, positions="learned", max_length=None), ["max_length", "positive", "None"]),
        (lambda: TransformerEncoder(1, widnow=3), ["widnow"]),
        (lambda: TransformerDecoder(1, causal=True), ["causal"]),
        (lambda: TransformerDecoder(1, 2, 16).make_cache(2, 4), ["make_cache", "build"]),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
