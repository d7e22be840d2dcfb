import keras
import numpy as np
import pytest
from conftest import BACKEND, array, assert_close, built, normal, once, parametrize_all, refused, run, spread
from keras import ops

from keras_tfm.layers import PositionalEncoding, TransformerDecoder, TransformerEncoder, masks
from keras_tfm.layers.positions import SCHEMES

X, MEMORY = normal(2, 5, 8), normal(2, 3, 6, seed=1)
SIZES = {"num_layers": 1, "num_heads": 2, "ff_dim": 16}
TWO = SIZES | {"num_layers": 2}
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


@parametrize_all("kind, whole", {"encoder": TransformerEncoder, "decoder": TransformerDecoder}, [True, False])
def test_training_reaches_every_dropout(kind, whole):
    inputs = [ops.convert_to_tensor(x) for x in ((X,) if kind is TransformerEncoder else (X, MEMORY))]
    stack = built(kind(**TWO, dropout=0.5, attention_dropout=0.5), *inputs)
    layer = stack if whole else stack.blocks[0]
    states = layer.trainable_variables, [array(state) for state in layer.non_trainable_variables]
    (plain, _), (dropped, seeds) = (layer.stateless_call(*states, *inputs, training=flag) for flag in (False, True))
    assert_close(plain, layer(*inputs, training=False))
    assert (array(plain) != array(dropped)).any() and (array(plain) != array(layer(*inputs, training=True))).any()
    if BACKEND != "torch":  # where Keras' dropout draws from PyTorch's own generator
        assert all((array(new) != old).any() for new, old in zip(seeds, states[1], strict=True))


def test_a_stack_applies_its_parts_in_order():
    encoder = spread(built(TransformerEncoder(**TWO, norm_first=True, name="encoder"), X))

    def by_parts():
        x = PositionalEncoding()(X)
        for block in encoder.blocks:
            x = block(x, mask=MASK)
        return encoder.output_norm(x)

    y, expected = run(lambda: (encoder(X, mask=MASK), by_parts()))
    assert_close(y, expected)
    assert y.shape == X.shape
    names = [layer.name for layer in encoder._flatten_layers(include_self=False, recursive=False)]
    assert set(names) == {"encoder_0", "encoder_1", "encoder_dropout", "encoder_positions_0", "encoder_norm"}


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_hidden_states_are_those_between_the_blocks(kind):
    inputs = [X] if kind is TransformerEncoder else [X, MEMORY]
    stack = spread(built(kind(**TWO, norm_first=True), *map(ops.convert_to_tensor, inputs)))
    y, states, expected = run(
        lambda: (*stack(*inputs, mask=MASK, return_hidden_states=True), stack(*inputs, mask=MASK))
    )
    assert_close(y, expected)
    assert_close(states[-1], y)
    given = {"mask": MASK} | ({"memory": MEMORY} if kind is TransformerDecoder else {})
    outputs = run(lambda: [block(state, **given) for block, state in zip(stack.blocks, states, strict=False)])
    assert_close(states[0], run(PositionalEncoding(), X))
    assert_close(outputs[0], states[1])
    assert_close(run(stack.output_norm, outputs[1]), y)
    symbolic = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbolic, stack(*symbolic, return_hidden_states=True)[1])
    assert [x.shape for x in model.predict(inputs, verbose=0)] == [X.shape] * 3
    if kind is TransformerDecoder:
        with refused("return_hidden_states"):
            stack(X, cache=stack.init_cache(2, 5, MEMORY), return_hidden_states=True)


@parametrize_all("positions, with_memory", ["sinusoidal", "learned", "rotary", None], [False, True])
def test_cached_equals_full(positions, with_memory):
    decoder = TransformerDecoder(**TWO, positions=positions, positions_in="every_layer", max_length=5)
    memory, memory_mask = (MEMORY, np.array([[1, 1, 0], [1, 0, 0]], bool)) if with_memory else (None, None)
    decoder.build(X.shape, MEMORY.shape if with_memory else None)
    spread(decoder)

    def by_steps():
        cache = decoder.init_cache(2, 5, memory, memory_mask)
        first, cache = decoder(X[:, :3], mask=MASK[:, :3], cache=cache)
        second, cache = decoder(X[:, 3:], mask=MASK[:, 3:], cache=cache, cache_position=3)
        return ops.concatenate([first, second], axis=1)

    full = run(decoder, X, memory, mask=MASK, memory_mask=memory_mask)
    assert_close(array(run(by_steps))[MASK], array(full)[MASK])


def test_packed_positions_start_again_in_each_segment():
    encoder = built(TransformerEncoder(**SIZES, positions="learned", max_length=3), X[:1, :3])
    segments, positions = np.array([[1, 1, 1, 2, 2]]), np.array([[0, 1, 2, 0, 1]])
    packed = run(lambda: encoder(X[:1], attention_mask=masks.segments(segments), position_ids=positions))
    assert_close(packed, run(lambda: ops.concatenate([encoder(X[:1, :3]), encoder(X[:1, 3:])], axis=1)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_positions_of_tokens_are_refused_where_they_would_change_nothing(scheme):
    places = np.array([[0, 1, 2, 0, 1]])
    encoder, decoder = (stack(**SIZES, positions=scheme) for stack in (TransformerEncoder, TransformerDecoder))
    message = f"`position_ids` must be None for .*positions={scheme!r}.* Received: position_ids of shape \\(1, 5\\)"
    for call in (lambda: encoder(X, position_ids=places), lambda: decoder(X, MEMORY, position_ids=places)):
        with pytest.raises(ValueError, match=message):
            call()


def test_masks_reach_every_block():
    ids = np.array([[3, 4, 5, 0, 0]])
    embedding = built(keras.layers.Embedding(9, 8, mask_zero=True), ids)
    x = array(embedding.embeddings)[ids]
    encoder = spread(built(TransformerEncoder(**TWO), x))
    attached, given, expected = run(lambda: (encoder(embedding(ids)), encoder(x, mask=ids != 0), encoder(x[:, :3])))
    assert_close(array(attached)[:, :3], expected)
    assert_close(array(given)[:, :3], expected)


@once  # JAX quantizes a whole model in test_sequence.py
@pytest.mark.usefixtures("little_garbage")
def test_a_stack_is_quantized_like_any_layer():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, TransformerEncoder(**SIZES)(inputs))
    before = array(run(spread(model), X))
    model.quantize("int8", filters=lambda layer: isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)))
    assert 0 < np.abs(array(run(model, X)) - before).max() < 0.2


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: TransformerEncoder(num_layers=0), ["num_layers", "positive", "0"]),
        (lambda: TransformerEncoder(num_layers=1, positions="gps"), ["positions", "rotary", "sinusoidal", "'gps'"]),
        (
            lambda: TransformerEncoder(num_layers=1, positions="learned", max_length=None),
            ["max_length", "positive", "None"],
        ),
        (lambda: TransformerEncoder(num_layers=1, widnow=3), ["widnow"]),
        (lambda: TransformerDecoder(num_layers=1, causal=True), ["causal"]),
        (lambda: TransformerDecoder(**SIZES).init_cache(2, 4), ["init_cache", "build"]),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
