"""Training that can stop at any time and resume, in the folder of a run."""

import concurrent.futures
import contextlib
import csv
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm import artifacts, ops
from keras_tfm.common import files
from keras_tfm.common.arguments import NotFinite, check, positive
from keras_tfm.data.batches import BucketedBatches, PackedBatches
from keras_tfm.models.loading import START_OVER, by_path, check_same, checkpoints, read_state, weights_only
from keras_tfm.runtimes import devices, machine


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by a signal, after its state was saved."""

    def __init__(self, number: int, step: int):
        super().__init__(f"{signal.Signals(number).name} after step {step:,}")
        self.signal = number


class _Hooks(keras.callbacks.Callback):
    """Forwards `on_…` to `run._on_…`."""

    async_safe = True  # see `TrainingRun._on_train_batch_end`

    def __init__(self, run):
        super().__init__()
        for name in ("train_begin", "epoch_begin", "train_batch_begin", "train_batch_end", "epoch_end"):
            setattr(self, f"on_{name}", getattr(run, f"_on_{name}"))


class TrainingRun:
    """A folder in which training resumes after an interruption as if nothing had happened.

    Args:
        folder: where state, checkpoints and metrics are written. Each file is written completely or not at all.
        keep: number of checkpoints to keep, for `average_checkpoints`.
        stopping: None, or Keras' `EarlyStopping`, whose patience survives an interruption.
        minutes: how often to save the state within an epoch.

    Use `TrainingRun(folder).fit(model, batches, epochs=10)` instead of `model.fit`. Ctrl-C or SIGTERM then ends
    training after the current step, with the state saved. A second one ends it at once.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 10,
        stopping: keras.callbacks.EarlyStopping | None = None,
        minutes: float = 3.0,
    ):
        self.files, self._hooks = artifacts.Run(folder), _Hooks(self)
        self.folder, self.keep, self.stopping = self.files.folder, positive("keep", keep), stopping
        check("minutes", minutes, minutes > 0, "positive")
        restores = getattr(stopping, "restore_best_weights", False)
        check("stopping", stopping, not restores, "without restore_best_weights: the best weights are not saved")
        self.seconds, self.step, self.saved_step, self.steps_per_epoch = 60 * minutes, 0, 0, None
        self.history, self.metrics, self.patience, self.waited, self.signal = [], {}, None, None, None
        self.random_state, self.diverged, self.written = None, [], None

    def fit(
        self,
        model: keras.Model,
        batches: BucketedBatches | PackedBatches,
        epochs: int,
        steps_per_epoch: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **options: Any,
    ) -> None:
        """Trains like `model.fit`, starting where the last run in this folder stopped.

        Args:
            model: a compiled model.
            batches: `BucketedBatches` or `PackedBatches`.
            epochs, steps_per_epoch: number of epochs and of steps in each; one pass over `batches` by default.
            callbacks, **options: as for `model.fit`. Metrics that callbacks add to the logs are saved too.
        """
        self.steps_per_epoch = positive("steps_per_epoch", steps_per_epoch or len(batches))
        callbacks = [*callbacks, *([self.stopping] if self.stopping else []), self._hooks]
        with self._catching_signals(), concurrent.futures.ThreadPoolExecutor(1) as self.background:
            self.restore(model)
            while self.step < epochs * self.steps_per_epoch:
                if self.stopping and self.patience is not None and self.stopping.patience <= self.patience:
                    break  # an earlier `fit` stopped early, and the patience has not been raised since
                epoch, step = divmod(self.step, self.steps_per_epoch)
                # partial: this `fit` only completes an interrupted epoch; the loop then trains the others
                self.partial, self.stopped, self.patience = step > 0, False, None
                options |= {"initial_epoch": epoch, "epochs": epochs, "steps_per_epoch": self.steps_per_epoch - step}
                model.fit(batches.repeat(self.step), callbacks=callbacks, shuffle=False, **options)
                if self.stopped or not self.partial:
                    break
                self._wait()
                self.restore(model)  # `fit` has finalized the optimizer as at the end of training
            self._wait()
            if devices.is_main_process() and self.step and not self.files.state.exists():  # someone deleted it
                self._save(self._arrays(), with_checkpoint=not self.step % self.steps_per_epoch)
                self._wait()
            model.optimizer.finalize_variable_values(model.trainable_variables)  # the moving average, if any
            if devices.is_main_process():
                self._write_metrics()

    @property
    def model(self) -> keras.Model:
        """The model that is trained; on JAX, Keras brings its variables up to date."""
        return self._hooks.model

    def restore(self, model: keras.Model) -> int:
        """Loads the saved state into the model and its optimizer. Returns the step at which training resumes."""
        path = self.files.state
        model.optimizer.build(model.trainable_variables)  # if `fit` did it, TensorFlow would trace the step twice
        if not path.exists():
            return self.step
        state, variables = read_state(self.files.folder), _variables(model)
        arrays = files.read_arrays(path, START_OVER)
        before, now = state["steps_per_epoch"], self.steps_per_epoch
        check("steps_per_epoch", now, now in (None, before), f"{before}, as in {path}")
        self.metrics = {key: arrays.pop(key) for key in [*arrays] if key.startswith("metrics/")}
        self.random_state = arrays.pop("random_state", None)
        del arrays["state"]
        check_same(path, variables, arrays)
        for key, variable in variables.items():
            variable.assign(arrays[key])
        self.history, self.patience, self.waited = state["history"], state["patience"], state["stopping"]
        self.step = self.saved_step = state["step"]
        return self.step

    def _on_train_begin(self, logs=None):
        self.saved_at, stop = time.monotonic(), self.stopping
        if stop and self.waited:  # Keras has just reset them
            stop.best, stop.best_epoch, stop.wait, stop.stopped_epoch = self.waited

    def _on_epoch_begin(self, epoch, logs=None):
        self.first_step = self.step
        if self.metrics.keys() == by_path("metrics", self.model.metrics_variables).keys():
            self._restore_metrics()

    def _on_train_batch_begin(self, batch, logs=None):
        if self.random_state is not None:  # now, since PyTorch's data loader has just used the generator
            machine.random_state(self.random_state)
            self.random_state = None
        self.step = self.first_step + batch
        self._raise_diverged()
        if batch and (self.signal is not None or time.monotonic() - self.saved_at > self.seconds):
            self._save(self._arrays())
            self._raise_interrupted()

    def _on_train_batch_end(self, batch, logs=None):
        """On JAX, Keras calls this in another thread, so that the next steps need not wait for the loss of this one."""
        if self.metrics:  # TensorFlow has made them in this step
            self._restore_metrics()
        if not math.isfinite(loss := (logs or {}).get("loss", 0.0)):
            self.diverged.append((self.first_step + batch + 1, f"the loss became {loss}"))

    def _on_epoch_end(self, epoch, logs=None):
        self.step = min(self.step + self.model.steps_per_execution, self.first_step + self._hooks.params["steps"])
        self._raise_diverged()
        self.stopped, arrays = self.model.stop_training, self._arrays()
        if self.step % self.steps_per_epoch:  # some callback has stopped training within the epoch
            return self._save(arrays)
        self._wait()
        self.history.append({"epoch": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}})
        if self.stopped and self.stopping:
            self.patience = self.stopping.patience
        self._save(arrays, with_checkpoint=True)
        if self.partial:
            self.model.stop_training = True  # the other epochs have more steps: `TrainingRun.fit` trains them next
        self._raise_interrupted()

    def _restore_metrics(self):
        """Adds what the metrics had summed up before this epoch was interrupted."""
        variables = by_path("metrics", self.model.metrics_variables)
        check_same(self.files.state, variables, self.metrics)
        for key, variable in variables.items():
            variable.assign(variable + self.metrics[key])
        self.metrics = {}

    def _arrays(self):
        """The arrays of all variables to save, after a check that the weights are finite."""
        arrays = _arrays(_variables(self.model))
        if not all(np.isfinite(value).all() for key, value in arrays.items() if key.startswith("weights/")):
            self.diverged.append((self.step, "weights became infinite or NaN"))
            self._raise_diverged()
        return arrays

    def _save(self, arrays, with_checkpoint=False):
        """Writes the state, and a checkpoint at the end of an epoch, in the background, while training continues.

        Of several processes only the first writes.
        """
        self._wait()
        if not devices.is_main_process():
            self.saved_at, self.saved_step = time.monotonic(), self.step
            return
        stop = self.stopping
        waited = stop and [stop.best, stop.best_epoch, stop.wait, stop.stopped_epoch]
        state = {"step": self.step, "steps_per_epoch": self.steps_per_epoch, "history": self.history}
        state |= {"patience": self.patience, "stopping": waited}
        if self.step % self.steps_per_epoch:
            arrays |= _arrays(by_path("metrics", self.model.metrics_variables))
        if (random_state := machine.random_state()) is not None:
            arrays |= {"random_state": random_state}
        arrays |= {"state": np.array(json.dumps(state, default=float))}
        self.saved_at = time.monotonic()
        self.written = self.background.submit(self._write, self.step, arrays, with_checkpoint)

    def _write(self, step, arrays, with_checkpoint):
        """Writes files of a step; state.npz last, since checkpoints that are newer than the state do not count."""
        if with_checkpoint:
            files.write_arrays(self.files.checkpoint(step), weights_only(arrays))
            self._write_metrics()
        files.write_arrays(self.files.state, arrays)
        self.saved_step = step
        kept = checkpoints(self.files.folder)[-self.keep :]
        for _, path in self.files.all_checkpoints():
            if path not in kept:
                path.unlink(missing_ok=True)

    def _wait(self):
        """Waits until everything is written; raises the error if that failed."""
        written, self.written = self.written, None
        if written is not None:
            written.result()

    def _write_metrics(self):
        names = list(dict.fromkeys(name for row in self.history for name in row))
        with files.atomic_write(self.files.metrics) as new, open(new, "w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(self.history)

    def _raise_diverged(self):
        if not self.diverged:
            return
        self._wait()
        step, what = min(self.diverged)
        rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        saved = f"{self.files.state} still holds step {self.saved_step:,}"
        raise NotFinite(
            f"{what} in step {step:,}, at a learning rate of {rate:.2g}; "
            f"{saved if self.saved_step else 'nothing was saved before'}. "
            "Try a lower learning rate, more warm-up steps, `clipnorm=1`, or float32"
        )

    def _raise_interrupted(self):
        if self.signal is not None:
            self._wait()
            raise Interrupted(self.signal, self.step)

    @contextlib.contextmanager
    def _catching_signals(self):
        """The first Ctrl-C or SIGTERM waits for the end of the step. Only the main thread can catch signals."""
        self.signal, caught = None, (signal.SIGINT, signal.SIGTERM)
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._catch) for number in caught if in_main_thread}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self._raise_interrupted()  # for a signal after the last step

    def _catch(self, number, frame):
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        print("\nstopping after this step; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)


def _variables(model):
    """All variables that training changes, by kind and path, except metrics."""
    weights = by_path("weights", model.weights)
    averages = {f"{weight.path.replace('/', '_')}_average": key for key, weight in weights.items()}  # Keras' names
    known = {id(variable) for variable in (*model.weights, *model.metrics_variables)}
    variables = weights | by_path("seeds", [v for v in model.variables if id(v) not in known])
    for key, variable in by_path("optimizer", model.optimizer.variables).items():
        if variable.name in averages:
            key = averages[variable.name].replace("weights/", "averages/", 1)
        variables[key] = variable
    return variables


def _arrays(variables):
    """The values of variables, by key."""
    arrays = dict(zip(variables, ops.to_numpy(variables.values()), strict=True))
    # NumPy cannot save bfloat16
    return {key: array.astype("float32") if array.dtype.kind == "V" else array for key, array in arrays.items()}
