import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from conftest import array, assert_close, gradients, normal, once, refused
from keras import ops

import keras_tfm.models  # noqa: F401, registers them with Keras
from keras_tfm import training

LABELS = np.array([[3, 1, 4, 0], [5, 0, 0, 0]])


def test_schedule_is_that_of_the_paper():
    schedule, dim, warmup = training.InverseSquareRoot((512 * 4000) ** -0.5, 4000), 512, 4000
    for step in (1, 100, 4000, 4001, 100_000):
        expected = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        np.testing.assert_allclose(float(schedule(step - 1)), expected, rtol=1e-5)
    assert type(schedule).from_config(schedule.get_config()).get_config() == schedule.get_config()


@pytest.mark.parametrize("name", training.SCHEDULES)
def test_schedules_rise_and_fall(name):
    schedule = training.SCHEDULES[name](0.1, 50, 500)
    rising, falling = ([float(schedule(step)) for step in steps] for steps in (range(0, 50, 7), range(51, 500, 40)))
    assert abs(max(rising) - 0.1) < 3e-3 and max(rising + falling) < 0.1001
    assert (np.diff(rising) > 0).all() and (np.diff(falling) < 0).all()


def test_loss_without_smoothing_is_the_crossentropy_of_what_is_not_padding():
    logits = normal(2, 4, 7)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = [probabilities[i, j, LABELS[i, j]] for i, j in np.argwhere(LABELS)]
    assert_close(training.SmoothedCrossentropy(0.0)(LABELS, logits), -np.log(chosen).mean())


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothing_equals_crossentropy_with_spread_targets(smoothing):
    logits = normal(2, 4, 7)
    targets = (1 - smoothing) * np.eye(7)[LABELS] + smoothing / 7
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="none")(targets, logits)
    assert_close(training.SmoothedCrossentropy(smoothing)(LABELS, logits), array(expected)[LABELS > 0].mean())


def test_padding_has_no_gradient():
    loss = training.SmoothedCrossentropy(0.1, r_drop=1.0)
    labels = np.concatenate([LABELS, LABELS])
    (gradient,) = gradients(lambda logits: loss(labels, logits), normal(4, 4, 7))
    assert (gradient[labels == 0] == 0).all() and (np.abs(gradient[labels > 0]).max(-1) > 0).all()


def test_the_loss_of_an_empty_batch_is_zero():
    assert float(training.SmoothedCrossentropy()(np.zeros((2, 3), int), normal(2, 3, 7))) == 0


def test_losses_are_float32_under_mixed_precision():
    logits = ops.cast(100 * normal(2, 4, 7), "float16")
    loss = training.SmoothedCrossentropy(0.1, r_drop=1.0)(LABELS, logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32" and np.isfinite(array(loss))


def test_r_drop_is_the_mean_divergence_of_twins_and_leaves_other_rows_alone():
    labels, logits = np.concatenate([LABELS, LABELS]), normal(4, 4, 7)
    plain, dropped = training.SmoothedCrossentropy(0.0), training.SmoothedCrossentropy(0.0, r_drop=2.0)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    both = (p[:2] * np.log(p[:2] / p[2:]) + p[2:] * np.log(p[2:] / p[:2])).sum(-1) / 2
    assert_close(dropped(labels, logits) - plain(labels, logits), both[LABELS > 0].mean(), 1e-4)
    strangers = np.concatenate([LABELS, LABELS[::-1]])
    assert_close(dropped(strangers, logits), plain(strangers, logits))
    twins = np.concatenate([logits[:2], logits[:2]])
    assert_close(dropped(labels, twins), plain(labels, twins))


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_sample_weights_count_rows_and_tokens(r_drop):
    """A row of weight 2 counts like two rows of weight 1, a row of weight 0 like none; the same holds for tokens."""
    loss, labels, logits = (
        training.SmoothedCrossentropy(0.1, r_drop=r_drop),
        np.array([[3, 1, 4, 0], [5, 6, 0, 0]]),
        normal(4, 4, 7),
    )
    twins = lambda x: np.concatenate([x, x])  # noqa: E731
    one, other = (loss(twins(labels[[row]]), logits[[row, 2 + row]]) for row in (0, 1))
    for weights in ([1.0, 0.0], [0.02, 0.0]):
        assert_close(loss(twins(labels), logits, twins(weights)), one)
    assert_close(loss(twins(labels), logits, twins([0.0, 0.0])), 0)
    expected = (2 * 3 * one + 0.5 * 2 * other) / (2 * 3 + 0.5 * 2)  # rows of three and two tokens
    assert_close(loss(twins(labels), logits, twins([2.0, 0.5])), expected)
    assert_close(loss(twins(labels), logits, twins([[2.0] * 4, [0.5] * 4])), expected)
    first = [[1.0, 0.0, 0.0, 5.0], [0.0] * 4]
    assert_close(loss(twins(labels), logits, twins(first)), loss(twins(labels * [[1, 0, 0, 0], [0] * 4]), logits))


def test_fit_and_metrics_use_sample_weights():
    model, inputs, labels = model_and_data()
    weights = np.array([1.0] * 3 + [0.0] * 5)
    metrics = [training.TokenAccuracy(), training.Perplexity()]
    model.compile("sgd", training.SmoothedCrossentropy(), weighted_metrics=metrics)
    expected = model.evaluate(inputs[:3], labels[:3], verbose=0)
    assert model.evaluate(inputs, labels, sample_weight=weights, verbose=0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "sum", "none", None])
def test_reductions_are_those_of_keras(reduction):
    logits, weights = normal(2, 4, 7), np.array([[2.0, 1.0, 0.0, 1.0], [0.5] * 4])
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(LABELS, logits)
    expected = array(theirs) * (LABELS > 0) * weights
    if reduction in ("sum_over_batch_size", "mean"):
        expected = expected.sum() / (LABELS > 0).sum()
    elif reduction == "sum":
        expected = expected.sum()
    assert_close(training.SmoothedCrossentropy(0.0, reduction=reduction)(LABELS, logits, weights), expected)


def test_arguments_are_those_of_a_loss_of_keras():
    logits, loss = normal(2, 4, 7), training.SmoothedCrossentropy(0.0, ignore_class=3, dtype="float16", name="x")
    losses = array(keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True))
    assert_close(ops.cast(loss(LABELS, logits), "float32"), losses[LABELS != 3].mean(), 1e-3)
    assert loss.name == "x" and keras.backend.standardize_dtype(loss(LABELS, logits).dtype) == "float16"
    for made in (loss, training.TokenAccuracy(ignore_class=None), training.Perplexity(ignore_class=3)):
        assert type(made).from_config(made.get_config()).get_config() == made.get_config()
    for strict in (training.SmoothedCrossentropy(), training.TokenAccuracy(), training.Perplexity()):
        with refused("y_true"):
            strict(np.array([0, 1]), normal(2, 3))


def test_other_reductions_and_shapes_of_weights_are_refused():
    with refused("reduction"):
        training.SmoothedCrossentropy(reduction="max")
    with refused("r_drop"):
        training.SmoothedCrossentropy(reduction="sum", r_drop=1.0)
    with pytest.raises(
        ValueError, match=r"`sample_weight` must be \(batch,\) or \(batch, length\). Received: .*\(2, 4, 7\)"
    ):
        training.SmoothedCrossentropy()(LABELS, normal(2, 4, 7), normal(2, 4, 7))
    loss = training.SmoothedCrossentropy(0.2, r_drop=3.0)
    assert training.SmoothedCrossentropy.from_config(loss.get_config()).get_config() == loss.get_config()


REPLICAS = """
import tempfile
import numpy as np, tensorflow as tf
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
import keras
from keras_tfm import training
from keras_tfm.data import BucketedBatches, encode_pairs
from keras_tfm.text import ByteTokenizer

texts = [("a" * (1 + n % 3), "b" * (1 + 5 * n % 7)) for n in range(21)]  # different numbers of tokens per replica
pairs = encode_pairs(texts, tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
batches, valid = (BucketedBatches(pairs, 64, num_shapes=1, shuffle=shuffle) for shuffle in (True, False))
names = ["loss", "accuracy", "perplexity", "val_loss", "val_accuracy", "val_perplexity"]

def train(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = {name: keras.Input((None,), name=name, dtype="int32") for name in ("source", "target")}
        embedded = keras.layers.Embedding(260, 8)(inputs["target"])
        model = keras.Model(inputs, keras.layers.Dense(260)(embedded))
        metrics = [training.TokenAccuracy(), training.Perplexity()]
        loss = training.SmoothedCrossentropy(0.1)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, jit_compile=False)
    history = model.fit(batches.repeat(), steps_per_epoch=4, epochs=2, validation_data=valid, verbose=0).history
    return [history[name] for name in names], model.get_weights()

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert two.num_replicas_in_sync == 2
(expected, weights), (found, replicated) = train(tf.distribute.get_strategy()), train(two)
for ours, theirs in zip(found + replicated, expected + weights):
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5)
try:
    with two.scope():
        training.SmoothedCrossentropy(0.1, r_drop=1.0)(np.ones((2, 3), int), np.ones((2, 3, 7)))
except ValueError as error:
    assert "`r_drop` must be 0 if several replicas train together" in str(error), error
else:
    raise AssertionError("R-Drop was not refused")
"""


@pytest.mark.slow
@once
def test_two_replicas_train_as_one():
    run = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_metrics_leave_padding_out_and_add_up_over_batches():
    accuracy, perplexity, logits = training.TokenAccuracy(), training.Perplexity(), normal(2, 4, 7)
    for row in range(2):
        accuracy.update_state(LABELS[row : row + 1], logits[row : row + 1])
        perplexity.update_state(LABELS[row : row + 1], logits[row : row + 1])
    right = (logits.argmax(-1) == LABELS)[LABELS > 0]
    assert_close(accuracy.result(), right.mean())
    assert_close(perplexity.result(), np.exp(array(training.SmoothedCrossentropy(0.0)(LABELS, logits))), 1e-4)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_labels_of_a_classifier_all_count(shape):
    labels, logits, weights = np.array([0, 2, 1, 0]), normal(4, 3), np.array([2.0, 1.0, 0.0, 0.5])
    assert_close(training.SmoothedCrossentropy(0.0, None)([0], [[-9.0, 9.0, 0.0]]), 18.0, 1e-3)
    losses = array(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
    for sample_weight in (None, weights):
        loss = training.SmoothedCrossentropy(0.0, None, r_drop=1.0)  # whose labels agree with no twin's
        mean = np.average(losses, weights=sample_weight)
        assert_close(loss(labels.reshape(shape), logits, sample_weight), mean)
        accuracy, perplexity = training.TokenAccuracy(ignore_class=None), training.Perplexity(ignore_class=None)
        for metric in (accuracy, perplexity):
            metric.update_state(labels.reshape(shape), logits, sample_weight)
        assert_close(accuracy.result(), np.average(logits.argmax(-1) == labels, weights=sample_weight))
        assert_close(perplexity.result(), np.exp(mean), 1e-4)


def model_and_data(seed=0):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Embedding(9, 8), keras.layers.Dropout(0.2), keras.layers.Dense(9)])
    model.compile(keras.optimizers.Adam(0.01), training.SmoothedCrossentropy())
    rng = np.random.default_rng(seed)
    return model, rng.integers(1, 9, (8, 4)), rng.integers(1, 9, (8, 4))


def test_time_between_epochs_is_not_counted_as_training():
    speed, shown, logs = training.TokensPerSecond(1000), {}, {}
    speed.on_epoch_begin(0)
    for batch in range(3):
        speed.on_train_batch_end(batch, shown)
    time.sleep(0.05)  # as if validating
    speed.on_epoch_end(0, logs)
    assert logs["tokens/s"] == shown["tokens/s"] > 0


def test_tensorboard_reads_the_metrics(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, inputs, labels = model_and_data()
    history = model.fit(inputs, labels, epochs=2, verbose=0, callbacks=[training.TensorBoardScalars(tmp_path)])
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert_close([event.value for event in events.Scalars("loss")], history.history["loss"])
