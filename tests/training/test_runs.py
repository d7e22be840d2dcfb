import csv
import itertools
import json
import os
import shutil
import signal
import threading

import keras
import numpy as np
import pytest
from conftest import BACKEND, BYTES, SIZES, array, assert_close, encode, once, random_texts, refused

from keras_tfm import training
from keras_tfm.common import files
from keras_tfm.data import BucketedBatches
from keras_tfm.models import loading, transformer
from keras_tfm.training import runs
from keras_tfm.training.callbacks import TimeEstimate


class Copy(keras.Model):
    """The smallest model with dropout that `BucketedBatches` can train."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = keras.layers.Embedding(260, 8), keras.layers.Dropout(0.3)
        self.dense = keras.layers.Dense(260)

    def call(self, inputs):
        return self.dense(self.dropout(self.embedding(inputs["target"])))


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    pairs = encode(random_texts(60), tmp_path_factory.mktemp("tokens"))
    return BucketedBatches(pairs, batch_tokens=128, num_shapes=1, seed=3)


def compiled_model(model=None, optimizer=keras.optimizers.Adam, traced=False, **options):
    """A model with the weights of a fixed seed. TensorFlow runs few steps sooner eagerly than `traced`."""
    keras.utils.set_random_seed(5)
    model = model or Copy()
    ids = np.ones((2, 3), "int32")
    model({"source": ids, "target": ids})
    model.compile(
        optimizer(**{"learning_rate": 0.01, **options}),
        training.SmoothedCrossentropy(),
        metrics=[training.TokenAccuracy()],
        run_eagerly=BACKEND == "tensorflow" and not traced,
        jit_compile=False,
    )
    return model


class SignalAfter(keras.callbacks.Callback):
    """Sends a signal to this process after some steps."""

    def __init__(self, steps, number=signal.SIGINT):
        super().__init__()
        self.left, self.number = steps, number

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def fitted(folder, batches, callbacks=(), epochs=3, steps=5, keep=10, stopping=None, minutes=3.0, **options):
    model = compiled_model(**options)
    run = runs.TrainingRun(folder, keep, stopping, minutes)
    run.fit(model, batches, epochs, steps, callbacks, verbose=0)
    return model, run


def assert_same(model, other):
    for weight, expected in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(expected))


# ── what is written ──


@pytest.mark.slow
def test_average_of_one_checkpoint_is_itself_and_of_two_their_mean(batches, tmp_path):
    model, _ = fitted(tmp_path, batches, epochs=3, keep=2)
    paths = loading.checkpoints(tmp_path)
    assert [path.name for path in paths] == ["00000010.npz", "00000015.npz"]
    last = [array(weight) for weight in model.weights]
    loading.average_checkpoints(model, paths[-1:])
    for weight, expected in zip(model.weights, last, strict=True):
        assert_close(weight, expected, 0)
    first = files.read_arrays(paths[0]).values()
    loading.average_checkpoints(model, paths)
    for weight, *both in zip(model.weights, first, last, strict=True):
        assert_close(weight, sum(both) / 2, 1e-6)
    with refused("paths"):
        loading.average_checkpoints(model, [])


def test_metrics_are_a_table_with_a_row_for_each_epoch(batches, tmp_path):
    fitted(tmp_path, batches, [training.TokensPerSecond(32)], epochs=2)
    with open(tmp_path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {"loss", "accuracy", "tokens/s"} <= set(rows[0]) and float(rows[1]["tokens/s"]) > 0


class Deletes(keras.callbacks.Callback):
    """Deletes the folder of a run after each epoch, and in the end."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_epoch_end(self, epoch=None, logs=None):
        self.run._wait()
        shutil.rmtree(self.run.folder)

    on_train_end = on_epoch_end


def test_files_that_are_deleted_while_training_runs_are_written_again(batches, tmp_path):
    model, folder = compiled_model(), tmp_path / "run"
    run = runs.TrainingRun(folder)
    scalars = training.TensorBoardScalars(folder / "tensorboard")
    run.fit(model, batches, 2, 5, [Deletes(run), scalars], verbose=0)
    assert loading.saved_step(folder) == 10 and [path.name for path in loading.checkpoints(folder)] == ["00000010.npz"]
    other, _ = fitted(folder, batches, epochs=2)  # has nothing left to do
    assert_same(model, other)


class Deep(Copy):
    """A model with nested layers of the same kind, whose names Keras numbers by counting layers in the process."""

    def __init__(self):
        super().__init__()
        inner = [keras.layers.Dense(8), keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.1)])]
        self.inner = keras.Sequential([*inner, keras.layers.Dense(8)])

    def call(self, inputs):
        return self.dense(self.inner(self.dropout(self.embedding(inputs["target"]))))


def test_arrays_have_the_same_names_however_many_models_came_before(batches, tmp_path):
    options = {"optimizer": keras.optimizers.AdamW, "use_ema": True, "gradient_accumulation_steps": 2}
    names = []
    for number in range(2):
        with pytest.raises(runs.Interrupted):
            fitted(tmp_path / str(number), batches, [SignalAfter(3)], model=Deep(), **options)
        names.append([*files.read_arrays(tmp_path / str(number) / "state.npz")])
        keras.layers.Dense(3), keras.layers.Dense(3)  # these advance Keras' counter
    assert names[0] == names[1]
    kinds = [name.split("/")[0] for name in names[0]]
    assert kinds.count("weights") == 9 and kinds.count("seeds") == 2 and "metrics" in kinds
    weights, averages = ({name for name in names[0] if name.startswith(kind)} for kind in ("weights/", "averages/"))
    assert {name.replace("averages", "weights", 1) for name in averages} == weights


def test_the_state_of_another_model_or_optimizer_is_refused_by_name(batches, tmp_path):
    fitted(tmp_path, batches, epochs=1)
    for other, words in (
        (compiled_model(Deep()), r"no weights/deep/embedding/embeddings \(deep.*; and \d+ more"),
        (compiled_model(optimizer=keras.optimizers.SGD), "optimizer/adam/.*, which the model does not have"),
        (compiled_model(use_ema=True), "no averages/copy/"),
    ):
        with pytest.raises(ValueError, match=f"state.npz: must come from the same model.*Received: .*{words}"):
            runs.TrainingRun(tmp_path).restore(other)
    arrays = files.read_arrays(tmp_path / "state.npz")
    name = next(iter(arrays.keys() - {"state"}))
    arrays[name] = np.zeros((2, 3, 4))
    files.write_arrays(tmp_path / "state.npz", arrays)
    with pytest.raises(ValueError, match=rf"Received: {name} of shape \(2, 3, 4\) instead of \("):
        runs.TrainingRun(tmp_path).restore(compiled_model())


# ── interruptions ──


@pytest.fixture(scope="module")
def whole(batches, tmp_path_factory):
    """Model and run of three epochs without interruption."""
    return fitted(tmp_path_factory.mktemp("whole"), batches)


EMA = {"use_ema": True, "ema_momentum": 0.5}


@pytest.mark.parametrize(
    "number, options", [(signal.SIGINT, {}), (signal.SIGTERM, {"traced": True, **EMA})], ids=["plain", "ema"]
)
def test_interrupted_and_resumed_equals_uninterrupted(number, options, batches, whole, tmp_path, capsys):
    whole, whole_run = fitted(tmp_path / "whole", batches, **options) if options else whole
    before = signal.getsignal(number)
    for stop in (3, 4):  # in the first epoch, and in the second
        with pytest.raises(runs.Interrupted) as error:
            fitted(tmp_path / "parts", batches, [SignalAfter(stop, number)], **options)
        assert error.value.signal == number and "again to stop at once" in capsys.readouterr().err
    assert loading.saved_step(tmp_path / "parts") == 7 and signal.getsignal(number) is before
    model, run = fitted(tmp_path / "parts", batches, **options)
    assert_same(model, whole)
    for row, expected in zip(run.history, whole_run.history, strict=True):  # also the metrics of interrupted epochs
        assert row.keys() == expected.keys() and row["epoch"] == expected["epoch"]
        np.testing.assert_allclose(list(row.values()), list(expected.values()), rtol=1e-5)
    again, run = fitted(tmp_path / "parts", batches, **options)  # with nothing left to do
    assert_same(again, whole)
    assert len(run.history) == 3


@pytest.mark.parametrize("stop", [5, 15])
def test_interrupted_by_the_last_step_of_an_epoch(stop, batches, whole, tmp_path):
    """That epoch is complete then; no step of it is left to resume with."""
    with pytest.raises(runs.Interrupted):
        fitted(tmp_path / "parts", batches, [SignalAfter(stop)], minutes=1e-9)
    assert loading.saved_step(tmp_path / "parts") == stop
    model, run = fitted(tmp_path / "parts", batches)
    assert_same(model, whole[0])
    assert len(run.history) == 3


def test_interrupted_after_the_last_step(batches, tmp_path):
    class AtTheEnd(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(runs.Interrupted, match="SIGINT after step 10"):
        fitted(tmp_path, batches, [AtTheEnd()], epochs=2)
    assert loading.saved_step(tmp_path) == 10
    assert len(fitted(tmp_path, batches, epochs=2)[1].history) == 2


@pytest.mark.slow
@once
def test_an_interrupted_run_with_a_moving_average_gives_the_average(batches, tmp_path):
    model = compiled_model(transformer(BYTES.vocab_size, **SIZES), **EMA)
    with pytest.raises(runs.Interrupted):
        runs.TrainingRun(tmp_path).fit(model, batches, 2, 5, [SignalAfter(3)], verbose=0)
    arrays = files.read_arrays(tmp_path / "state.npz")
    raw, averages = ([value for name, value in arrays.items() if kind in name] for kind in ("weights/", "averages/"))
    config = dict.fromkeys(("options", "texts", "batch_tokens", "num_shapes", "learning_rate", "warmup_steps"))
    config |= {"model": model.get_config(), "tokenizers": [], "average": 1, "steps": 10, "steps_per_epoch": 5}
    files.write_json(tmp_path / "config.json", config)
    loaded, origin = loading.load_run(tmp_path)
    assert "state.npz, step 3 of 10" in origin
    for weight, average, other in zip(loaded.weights, averages, raw, strict=True):
        np.testing.assert_array_equal(array(weight), average)
        assert (average != other).any()


def test_an_epoch_that_was_begun_keeps_its_length(batches, tmp_path):
    with pytest.raises(runs.Interrupted):
        fitted(tmp_path, batches, [SignalAfter(4)])
    with refused("steps_per_epoch"):
        fitted(tmp_path, batches, steps=3)


def test_the_state_is_saved_by_time(batches, tmp_path, monkeypatch):
    write, seen = runs.TrainingRun._write, []

    def watched(self, step, *arguments):
        write(self, step, *arguments)
        seen.append(loading.saved_step(tmp_path))

    monkeypatch.setattr(runs.TrainingRun, "_write", watched)
    fitted(tmp_path, batches, epochs=2, minutes=1e-9)
    assert seen == list(range(1, 11))


def test_training_ends_if_its_state_cannot_be_written(batches, tmp_path, monkeypatch):
    def full(path, arrays):
        raise OSError("no space left")

    monkeypatch.setattr(files, "write_arrays", full)
    with pytest.raises(OSError, match="no space left"):
        fitted(tmp_path, batches, epochs=1)


def test_the_second_signal_does_not_wait(batches, tmp_path):
    class Twice(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as error:
        fitted(tmp_path, batches, [Twice()])
    assert not isinstance(error.value, runs.Interrupted) and loading.saved_step(tmp_path) == 0


def test_a_loss_of_nan_ends_training_and_keeps_the_last_good_state(batches, whole, tmp_path):
    steps = itertools.count()

    class Poison(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if next(steps) == 7:
                weight = self.model.weights[-1]
                weight.assign(np.full(weight.shape, np.inf))

    run, model = runs.TrainingRun(tmp_path), compiled_model()
    message = r"the loss became (nan|inf) in step 8, at a learning rate of 0.01; .*state.npz still holds step 5\. Try"
    with pytest.raises(FloatingPointError, match=message):
        run.fit(model, batches, 3, 5, [Poison()], verbose=0)
    assert loading.saved_step(tmp_path) == 5
    assert_same(fitted(tmp_path, batches)[0], whole[0])


def test_weights_with_nan_are_never_saved(batches, tmp_path):
    class Poison(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.weights[-1].assign(np.full(260, np.nan))

    with pytest.raises(FloatingPointError, match="weights became infinite or NaN"):
        fitted(tmp_path, batches, [Poison()])
    assert loading.saved_step(tmp_path) == 5 and len(loading.checkpoints(tmp_path)) == 1


def stopping(patience):
    return keras.callbacks.EarlyStopping("loss", patience=patience, min_delta=100)


@pytest.mark.slow
def test_patience_survives_and_a_run_that_was_stopped_stays_so(batches, tmp_path):
    _, run = fitted(tmp_path, batches, epochs=2, stopping=stopping(2))
    assert len(run.history) == 2
    model, run = fitted(tmp_path, batches, epochs=9, stopping=stopping(2))
    assert len(run.history) == 3  # the second epoch without a better loss
    again, run = fitted(tmp_path, batches, epochs=9, stopping=stopping(2))
    assert len(run.history) == 3
    assert_same(model, again)
    _, run = fitted(tmp_path, batches, epochs=9, stopping=stopping(3))
    assert len(run.history) == 4  # with more patience it continues
    _, run = fitted(tmp_path, batches, epochs=6)
    assert len(run.history) == 6


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"no archive at all"], ids=["empty", "cut off", "of another kind"]
)
def test_a_damaged_state_is_named_with_what_to_do(content, batches, tmp_path):
    (tmp_path / "state.npz").write_bytes(content)
    for read in (loading.saved_step, lambda folder: fitted(folder, batches)):
        with pytest.raises(
            files.DamagedFile, match=r"state.npz: damaged.*; delete it; then the same command starts over"
        ):
            read(tmp_path)


def test_a_state_without_its_parts_is_damaged(batches, tmp_path):
    for state in ({}, {"step": "x"}, {"step": 3}, []):
        files.write_arrays(tmp_path / "state.npz", {"state": np.array(json.dumps(state))})
        with pytest.raises(files.DamagedFile):
            loading.saved_step(tmp_path)


class StopAfter(keras.callbacks.Callback):
    """Stops training as callbacks do, after some steps."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


@pytest.mark.slow
def test_any_callback_can_stop_training(batches, whole, tmp_path):
    for steps, total in ((3, 3), (2, 5), (5, 10)):  # within an epoch, at the end of the same epoch, and of the next
        _, run = fitted(tmp_path, batches, [StopAfter(steps)])
        assert run.step == loading.saved_step(tmp_path) == total and len(run.history) == total // 5
    model, run = fitted(tmp_path, batches)
    assert_same(model, whole[0])
    assert [row["epoch"] for row in run.history] == [1, 2, 3]


def test_time_is_estimated_once(batches, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(TimeEstimate, "LONG", 0)
    run = runs.TrainingRun(tmp_path)
    run.fit(compiled_model(), batches, 4, 5, [TimeEstimate(run, 20, "take a walk")], verbose=0)
    said = capsys.readouterr().err
    assert said.count("for 7 steps of") == 1 and said.count("take a walk") == 1


def test_another_thread_may_train(batches, tmp_path):
    thread = threading.Thread(target=fitted, args=(tmp_path, batches), kwargs={"epochs": 1})
    thread.start()
    thread.join()
    assert loading.saved_step(tmp_path) == 5


@pytest.mark.skipif(BACKEND != "jax", reason="Keras calls callbacks in other threads on JAX only")
def test_steps_do_not_wait_for_the_loss_of_earlier_ones(batches, tmp_path):
    class Where(keras.callbacks.Callback):
        async_safe, threads = True, set()

        def on_train_batch_end(self, batch, logs=None):
            self.threads.add(threading.current_thread())

    run = runs.TrainingRun(tmp_path)
    watching = [Where(), training.TokensPerSecond(32), TimeEstimate(run, 5)]
    run.fit(compiled_model(), batches, 1, 5, watching, verbose=0)
    assert Where.threads and threading.main_thread() not in Where.threads
