import keras
import numpy as np
import pytest
from conftest import array, assert_close, normal, once, run, spread
from keras import ops

from keras_tfm import models
from keras_tfm.models.recurrent_layers import CELLS, DECODERS, BottleneckDecoder, LuongDecoder, RecurrentEncoder, read

X = normal(2, 5, 6)
HOLES = np.array([[True, False, True, True, False], [False, True, True, False, False]])


@pytest.mark.parametrize("cell", CELLS)
def test_an_encoder_equals_keras_own_bidirectional_layer(cell):
    encoder = RecurrentEncoder(units=8, cell=cell, bidirectional_layers=1, dropout=0.0)
    theirs = keras.layers.Bidirectional(CELLS[cell](4, return_sequences=True))
    mask = np.array([[True] * 5, [True] * 3 + [False] * 2])
    encoder.build(X.shape)
    theirs.build(X.shape)
    theirs.set_weights([array(weight) for weight in encoder.trainable_variables])
    actual, expected = run(lambda: (encoder(X, mask=mask), theirs(X, mask=ops.convert_to_tensor(mask))))
    assert_close(actual[0], expected[0])
    assert_close(actual[1, :3], expected[1, :3])
    assert (array(actual[1, 3:]) == 0).all()


@pytest.mark.parametrize("summary", [False, True])
def test_only_tokens_are_read_wherever_they_are(summary):
    options = {"units": 8, "num_layers": 2, "bidirectional_layers": 1, "residual": True, "dropout": 0.0}
    encoder = RecurrentEncoder(summary=summary, **options)
    encoder.build(X.shape)
    actual, *alone = run(lambda: [encoder(X, mask=HOLES), *(encoder(X[n : n + 1, HOLES[n]]) for n in range(2))])
    for row, tokens in enumerate(HOLES):
        assert_close(array(actual)[row] if summary else array(actual)[row, tokens], alone[row][0])
        assert summary or (array(actual)[row, ~tokens] == 0).all()


@pytest.mark.parametrize("backwards", [False, True])
def test_the_last_output_is_that_of_the_token_that_was_read_last(backwards):
    layer = keras.layers.LSTM(4, return_sequences=True, return_state=True)
    actual, last = read(layer, X, ops.convert_to_tensor([[2], [5]]), backwards)
    for row, count in enumerate((2, 5)):
        alone, alone_last = read(layer, X[row : row + 1, :count], None, backwards)
        assert_close(array(actual)[row, :count], alone[0])
        assert_close(last[row], alone_last[0])
        assert_close(alone_last[0], alone[0, 0 if backwards else -1])


def test_a_summary_is_what_was_read_last():
    encoder = RecurrentEncoder(units=8, num_layers=2, bidirectional_layers=2, summary=True, dropout=0.0)
    full = RecurrentEncoder(units=8, num_layers=2, bidirectional_layers=2, dropout=0.0)
    for layer in (encoder, full):
        layer.build(X.shape)
    full.set_weights(encoder.get_weights())
    summary, features = run(lambda: (encoder(X), full(X)))
    assert summary.shape == (2, 1, 8) and encoder.compute_mask(X, HOLES) is None
    assert_close(summary[:, 0, :4], features[:, -1, :4])  # forwards
    assert_close(summary[:, 0, 4:], features[:, 0, 4:])  # backwards


def test_residual_layers_add_their_input():
    plain, residual = (RecurrentEncoder(units=6, num_layers=2, residual=r, dropout=0.0) for r in (False, True))
    first = RecurrentEncoder(units=6, dropout=0.0)
    for encoder in (plain, residual, first):
        encoder.build(X.shape)
    residual.set_weights(plain.get_weights())
    first.set_weights(plain.get_weights()[:3])
    assert_close(run(lambda: residual(X)), run(lambda: plain(X) + first(X)))


def test_a_bottleneck_has_one_size_for_any_source():
    model = spread(models.rnn(11, model_dim=8, units=6))
    for length in (1, 4, 9):
        assert run(lambda: model.encode(np.full((2, length), 5))).shape == (2, 1, 6)  # noqa: B023
        assert "memory" not in model.prefill(np.full((2, length), 5), 3)


def test_scores_and_heads_of_attention():
    from keras_tfm.layers import SCORES

    ids = {"source": np.array([[5, 6, 2]]), "target": np.array([[1, 4]])}
    outputs = []
    for score in SCORES:
        keras.utils.set_random_seed(1)
        model = spread(models.rnn_attention(11, model_dim=8, units=8, num_heads=2, score=score), 0.5)
        outputs.append(array(run(lambda: model(ids))))  # noqa: B023
        assert model.decoder.memory_attentions[0].score == score
    assert all(np.abs(a - b).max() > 1e-4 for n, a in enumerate(outputs) for b in outputs[:n])


def test_luong_feeds_its_output_back_as_part_of_the_next_input():
    decoder, x, memory = LuongDecoder(units=6), normal(2, 2, 8), normal(2, 3, 4, seed=1)
    decoder.build(x.shape, memory.shape)
    spread(decoder, 0.5)

    def steps():
        first, cache = decoder(x[:, :1], cache=decoder.init_cache(2, 2, memory))
        fed = cache["state"]["fed"]
        forgotten = {**cache, "state": {**cache["state"], "fed": ops.zeros_like(fed)}}
        return first, fed, *(decoder(x[:, 1:], cache=before)[0] for before in (cache, forgotten))

    first, fed, second, without = map(array, run(steps))
    assert_close(fed, first[:, 0])
    assert np.abs(second - without).max() > 1e-2


@once
def test_the_sizes_of_older_models_are_as_large_as_the_transformers():
    size = models.transformer(12_000, size="tiny").count_params()
    for name, build in models.BUILDERS.items():
        assert abs(build(12_000, size="tiny").count_params() / size - 1) < 0.12, name


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cell": "lstms"}, r"`cell` must be one of \['lstm', 'gru', 'rnn'\]. Received: cell='lstms'"),
        ({"units": 7, "bidirectional_layers": 1}, "`units` must be even. Received: units=7"),
        ({"bidirectional_layers": 2}, "`bidirectional_layers` must be an integer from 0 to num_layers=1"),
        ({"attention": "self"}, f"`attention` must be one of .*{[*DECODERS][-1]}"),
        ({"num_layers": 0}, "`num_layers` must be a positive integer"),
        ({"dropout": 1.0}, "`dropout` must be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.Recurrent(11, model_dim=8, **options)


def test_a_decoder_must_be_built_before_it_has_a_cache():
    with pytest.raises(ValueError, match="must be built before `init_cache`"):
        BottleneckDecoder(units=4).init_cache(1, 3, X)
