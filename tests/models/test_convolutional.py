import keras
import numpy as np
import pytest
from conftest import array, assert_close, normal, refused, run, spread
from keras import ops

from keras_tfm import models
from keras_tfm.models.byte_net import ByteNetDecoder
from keras_tfm.models.conv_s2s import ConvDecoder, ConvEncoder
from keras_tfm.models.convolutional import Convolution

X = normal(2, 7, 6)


@pytest.mark.parametrize("size, gap", [(3, 1), (2, 3), (1, 1), (4, 2)])
def test_a_convolution_equals_keras_own(size, gap):
    ours, theirs = Convolution(5, size, gap), keras.layers.Conv1D(5, size, dilation_rate=gap, padding="causal")
    ours.build((None, None, 6))
    theirs.build(X.shape)
    theirs.set_weights(ours.get_weights())
    window = np.zeros((2, ours.window_size, 6), "float32")
    actual, after = run(lambda: ours.after(window, X))
    assert_close(actual, theirs(X))
    assert after.shape == window.shape
    first, after = ours.after(window, X[:, :4])
    rest, _ = ours.after(after, X[:, 4:])
    assert_close(ops.concatenate([first, rest], axis=1), actual)
    same = keras.layers.Conv1D(5, size, dilation_rate=gap, padding="same")
    same.build(X.shape)
    same.set_weights(ours.get_weights())
    assert_close(ours.both_sides(X), same(X))


def test_what_is_behind_the_mask_is_not_read():
    encoder = spread(ConvEncoder(units=8, num_layers=2, kernel_size=5))
    encoder.build(X.shape)
    mask, other = np.array([[True] * 7, [True] * 4 + [False] * 3]), X.copy()
    other[1, 4:] = 9.0
    actual, changed, alone = run(lambda: (encoder(X, mask=mask), encoder(other, mask=mask), encoder(X[1:, :4])))
    assert_close(changed, actual)
    assert_close(alone[0], actual[1, :4])
    assert (array(actual)[1, 4:] == 0).all()


def test_attention_takes_part_in_each_layer_of_conv():
    model = spread(models.conv(11, model_dim=8, units=8, num_layers=3), 0.3)
    assert len({layer.path for layer in model.decoder.memory_attentions}) == 3


def test_a_longer_source_does_not_make_the_context_smaller():
    """The mean of m independent vectors has the variance 1/m, which the factor √m makes up for."""
    decoder = ConvDecoder(units=32, num_layers=1, positions=None, dropout=0.0)
    decoder.build((64, 1, 32), (64, 4, 64))
    spreads = []
    for length in (4, 256):
        memory = normal(64, length, 64, seed=length) * 0.1
        x = normal(64, 1, 32)
        cache = decoder.init_cache(64, 1, memory)["memory"]
        spreads.append(array(run(lambda: decoder.memory_attentions[0](x, x * 0.1, cache))).std())  # noqa: B023
    assert 0.8 < spreads[0] / spreads[1] < 1.25


def test_bytenet_reads_the_place_of_a_token_and_the_mean():
    decoder = spread(ByteNetDecoder(units=4, num_layers=1, dilations=2))
    memory, x = normal(2, 3, 6), normal(4, 2, 6)
    decoder.build(x.shape, memory.shape)
    memory = decoder.init_cache(2, 4, memory)["memory"]
    actual, place, mean = (
        array(run(lambda: decoder.memory_features(x, memory, 2))),
        memory["features"],
        memory["summary"],
    )
    for row in range(4):  # two rows for each source
        assert_close(actual[row, 0], place[row // 2, 2] + mean[row // 2, 0])
        assert_close(actual[row, 1], mean[row // 2, 0])  # beyond the source


def test_bytenet_reads_the_place_among_tokens():
    decoder = spread(ByteNetDecoder(units=4, num_layers=1, dilations=2))
    memory, x = normal(2, 5, 6), normal(2, 3, 6)
    decoder.build(x.shape, memory.shape)
    mask = np.array([[False, True, False, True, True]])  # one for both rows
    holes, alone = run(lambda: (decoder(x, memory, memory_mask=mask), decoder(x, memory[:, mask[0]])))
    assert_close(holes, alone)


def test_bytenet_reads_the_whole_source_through_its_dilations():
    model = spread(models.bytenet(11, model_dim=8, units=8, num_layers=2, dilations=4), 0.3)
    source, changed = np.full((1, 20), 5), np.full((1, 20), 5)
    changed[0, -1] = 6
    target = np.array([[1]])
    before, after = run(
        lambda: (model({"source": source, "target": target}), model({"source": changed, "target": target}))
    )
    assert np.abs(array(before) - array(after)).max() > 1e-6


@pytest.mark.parametrize(
    "build, options, message",
    [
        (models.conv, {"positions": "rotary"}, "`positions` must be one of .* Received: positions='rotary'"),
        (models.conv, {"kernel_size": 0}, "`kernel_size` must be a positive integer"),
        (models.bytenet, {"dilations": 0}, "`dilations` must be a positive integer"),
        (models.bytenet, {"dilations": 10**9}, "`dilations` must be so few that .* spans 131,072 tokens at most"),
        (models.bytenet, {"dilations": 9, "kernel_size": 999}, "`dilations` must be so few that"),
        (models.bytenet, {"size": "deep"}, r"`size` must be one of \[None, 'tiny', 'small', 'base'\]"),
        (models.conv, {"max_length": 3}, None),
    ],
)
def test_wrong_options_are_refused(build, options, message):
    if message is None:  # a source that is longer than the learned positions
        model = build(11, model_dim=8, num_layers=1, **options)
        with refused("max_length"):
            model.encode(np.full((1, 4), 5))
        return
    with pytest.raises(ValueError, match=message):
        build(11, **{"model_dim": 8, **options})
