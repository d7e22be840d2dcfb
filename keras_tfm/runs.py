"""The folder of a training run: training can stop at any time and resume, and a model can be loaded at any time.

config.json       options of the run and configuration of the model
tokenizer/        or source_tokenizer/ and target_tokenizer/
data/             encoded texts
state.npz         everything that training needs to resume; saved every few minutes and at the end of each epoch
checkpoints/      weights at the end of each of the last epochs, named by their step
metrics.csv       one row per epoch
model.keras       the result: the last checkpoint, or the mean of several

Arrays in state.npz and in checkpoints are stored by the path of their variable, such as
`weights/decoder/decoder/feed_forward/inner/kernel`, and `…/kernel_1` for the next variable with the same path.
"""

import collections
import concurrent.futures
import contextlib
import csv
import itertools
import json
import math
import pathlib
import re
import signal
import sys
import threading
import time

import keras
import numpy as np
from keras import ops

from keras_tfm import files, models, text
from keras_tfm.arguments import check, positive
from keras_tfm.backend import devices, machine, tensors
from keras_tfm.models import sequence
from keras_tfm.progress import duration, redraws

START_OVER = "delete it; then the same command starts over, or `keras-tfm finish` uses the last checkpoint"
CHECKPOINTS = "[0-9]*.npz"  # files in checkpoints/, named by step
TOKENIZERS = ["tokenizer"], ["source_tokenizer", "target_tokenizer"]  # one for both sides, or one for each


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by a signal, after its state was saved."""

    def __init__(self, number, step):
        super().__init__(f"{signal.Signals(number).name} after step {step:,}")
        self.signal = number


class TrainingRun(keras.callbacks.Callback):
    """A folder in which training resumes after an interruption as if nothing had happened.

    Args:
        folder: where state, checkpoints and metrics are written. Each file is written completely or not at all.
        keep: number of checkpoints to keep, for `average_checkpoints`.
        stopping: None, or Keras' `EarlyStopping`, whose patience survives an interruption.
        minutes: how often to save the state within an epoch.

    Use `TrainingRun(folder).fit(model, batches, epochs=10)` instead of `model.fit`. Ctrl-C or SIGTERM then ends
    training after the current step, with the state saved. A second one ends it at once.
    """

    async_safe = True  # see `on_train_batch_end`

    def __init__(self, folder, keep=10, stopping=None, minutes=3.0):
        super().__init__()
        self.folder, self.keep, self.stopping = pathlib.Path(folder), positive("keep", keep), stopping
        check("minutes", minutes, minutes > 0, "positive")
        self.seconds, self.step, self.saved_step, self.steps_per_epoch = 60 * minutes, 0, 0, None
        self.history, self.metrics, self.patience, self.waited, self.signal = [], {}, None, None, None
        self.random_state, self.diverged, self.written = None, [], None

    def fit(self, model, batches, epochs, steps_per_epoch=None, callbacks=(), **options):
        """Trains like `model.fit`, starting where the last run in this folder stopped.

        Args:
            model: a compiled model.
            batches: `BucketedBatches` or `PackedBatches`.
            epochs, steps_per_epoch: number of epochs and of steps in each; one pass over `batches` by default.
            callbacks, **options: as for `model.fit`. Metrics that callbacks add to the logs are saved too.
        """
        self.steps_per_epoch = positive("steps_per_epoch", steps_per_epoch or len(batches))
        callbacks = [*callbacks, *([self.stopping] if self.stopping else []), self]
        with self.catching_signals(), concurrent.futures.ThreadPoolExecutor(1) as self.background:
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
                self.wait()
                self.restore(model)  # `fit` has finalized the optimizer as at the end of training
            self.wait()
            if devices.is_first() and self.step and not (self.folder / "state.npz").exists():  # someone deleted it
                self.save(self.arrays(), with_checkpoint=not self.step % self.steps_per_epoch)
                self.wait()
            model.optimizer.finalize_variable_values(model.trainable_variables)  # the moving average, if any
            if devices.is_first():
                self.write_metrics()

    def restore(self, model):
        """Loads the saved state into the model and its optimizer. Returns the step at which training resumes."""
        path = self.folder / "state.npz"
        model.optimizer.build(model.trainable_variables)  # if `fit` did it, TensorFlow would trace the step twice
        if not path.exists():
            return self.step
        state, variables = _read_state(self.folder), _variables(model)
        arrays = files.read_arrays(path, START_OVER)
        before, now = state["steps_per_epoch"], self.steps_per_epoch
        check("steps_per_epoch", now, now in (None, before), f"{before}, as in {path}")
        self.metrics = {key: arrays.pop(key) for key in [*arrays] if key.startswith("metrics/")}
        self.random_state = arrays.pop("random_state", None)
        del arrays["state"]
        _check_same(path, variables, arrays)
        for key, variable in variables.items():
            variable.assign(arrays[key])
        self.history, self.patience, self.waited = state["history"], state["patience"], state["stopping"]
        self.step = self.saved_step = state["step"]
        return self.step

    def on_train_begin(self, logs=None):
        if self.steps_per_epoch is None:
            raise ValueError("Call `TrainingRun.fit`; do not pass a `TrainingRun` to `model.fit` as a callback.")
        self.saved_at, stop = time.monotonic(), self.stopping
        if stop and self.waited:  # Keras has just reset them
            stop.best, stop.best_epoch, stop.wait, stop.stopped_epoch = self.waited

    def on_epoch_begin(self, epoch, logs=None):
        self.first_step = self.step
        if self.metrics.keys() == _by_path("metrics", self.model.metrics_variables).keys():
            self.restore_metrics()

    def on_train_batch_begin(self, batch, logs=None):
        if self.random_state is not None:  # now, since PyTorch's data loader has just used the generator
            machine.random_state(self.random_state)
            self.random_state = None
        self.step = self.first_step + batch
        self.raise_diverged()
        if batch and (self.signal is not None or time.monotonic() - self.saved_at > self.seconds):
            self.save(self.arrays())
            self.raise_interrupted()

    def on_train_batch_end(self, batch, logs=None):
        """On JAX, Keras calls this in another thread, so that the next steps need not wait for the loss of this one."""
        if self.metrics:  # TensorFlow has made them in this step
            self.restore_metrics()
        if not math.isfinite(loss := (logs or {}).get("loss", 0.0)):
            self.diverged.append((self.first_step + batch + 1, f"the loss became {loss}"))

    def on_epoch_end(self, epoch, logs=None):
        self.step = min(self.step + self.model.steps_per_execution, self.first_step + self.params["steps"])
        self.raise_diverged()
        self.stopped, arrays = self.model.stop_training, self.arrays()
        if self.step % self.steps_per_epoch:  # some callback has stopped training within the epoch
            return self.save(arrays)
        self.wait()
        self.history.append({"epoch": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}})
        if self.stopped and self.stopping:
            self.patience = self.stopping.patience
        self.save(arrays, with_checkpoint=True)
        if self.partial:
            self.model.stop_training = True  # the other epochs have more steps: `TrainingRun.fit` goes on with them
        self.raise_interrupted()

    def restore_metrics(self):
        """Adds what the metrics had summed up before this epoch was interrupted."""
        variables = _by_path("metrics", self.model.metrics_variables)
        _check_same(self.folder / "state.npz", variables, self.metrics)
        for key, variable in variables.items():
            variable.assign(variable + self.metrics[key])
        self.metrics = {}

    def arrays(self):
        """The arrays of all variables to save, after a check that the weights are finite."""
        arrays = _arrays(_variables(self.model))  # on JAX, this property of Keras brings the variables up to date
        if not all(np.isfinite(value).all() for key, value in arrays.items() if key.startswith("weights/")):
            self.diverged.append((self.step, "weights became infinite or NaN"))
            self.raise_diverged()
        return arrays

    def save(self, arrays, with_checkpoint=False):
        """Writes the state, and a checkpoint at the end of an epoch, in the background: training goes on.

        Of several processes only the first writes.
        """
        self.wait()
        if not devices.is_first():
            self.saved_at, self.saved_step = time.monotonic(), self.step
            return
        stop = self.stopping
        waited = stop and [stop.best, stop.best_epoch, stop.wait, stop.stopped_epoch]
        state = {"step": self.step, "steps_per_epoch": self.steps_per_epoch, "history": self.history}
        state |= {"patience": self.patience, "stopping": waited}
        if self.step % self.steps_per_epoch:
            arrays |= _arrays(_by_path("metrics", self.model.metrics_variables))
        if (random_state := machine.random_state()) is not None:
            arrays |= {"random_state": random_state}
        arrays |= {"state": np.array(json.dumps(state, default=float))}
        self.saved_at = time.monotonic()
        self.written = self.background.submit(self.write, self.step, arrays, with_checkpoint)

    def write(self, step, arrays, with_checkpoint):
        """Writes files of a step; state.npz last, since checkpoints that are newer than the state do not count."""
        if with_checkpoint:
            files.write_arrays(self.folder / "checkpoints" / f"{step:08d}.npz", _result(arrays))
            self.write_metrics()
        files.write_arrays(self.folder / "state.npz", arrays)
        self.saved_step = step
        kept = checkpoints(self.folder)[-self.keep :]
        for path in {*(self.folder / "checkpoints").glob(CHECKPOINTS)}.difference(kept):
            path.unlink(missing_ok=True)

    def wait(self):
        """Waits until everything is written; raises the error if that failed."""
        written, self.written = self.written, None
        if written is not None:
            written.result()

    def write_metrics(self):
        names = list(dict.fromkeys(name for row in self.history for name in row))
        with files.whole(self.folder / "metrics.csv") as new, open(new, "w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(self.history)

    def raise_diverged(self):
        if not self.diverged:
            return
        self.wait()
        step, what = min(self.diverged)
        rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        saved = f"{self.folder / 'state.npz'} still holds step {self.saved_step:,}"
        raise FloatingPointError(
            f"{what} in step {step:,}, at a learning rate of {rate:.2g}; "
            f"{saved if self.saved_step else 'nothing was saved before'}. "
            "Try a lower learning rate, more warm-up steps, `clipnorm=1`, or float32"
        )

    def raise_interrupted(self):
        if self.signal is not None:
            self.wait()
            raise Interrupted(self.signal, self.step)

    @contextlib.contextmanager
    def catching_signals(self):
        """The first Ctrl-C or SIGTERM waits for the end of the step. Only the main thread can catch signals."""
        self.signal, caught = None, (signal.SIGINT, signal.SIGTERM)
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self.catch) for number in caught if in_main_thread}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self.raise_interrupted()  # for a signal after the last step

    def catch(self, number, frame):
        """The signal handler."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        print("\nstopping after this step; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)


class TimeEstimate(keras.callbacks.Callback):
    """Prints once, after a few steps of a `TrainingRun`, how long training will take; and a hint if that is long."""

    AFTER, LONG = 12, 1800  # steps to measure, since the first ones compile; seconds
    async_safe = True

    def __init__(self, run, steps, hint=""):
        super().__init__()
        self.run, self.steps, self.hint, self.times, self.number = run, steps, hint, [], itertools.count()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.monotonic())
        if next(self.number) == self.AFTER:
            step, left = float(np.median(np.diff(self.times))), self.steps - self.run.first_step - batch - 1
            hint = f"\n{self.hint}" if self.hint and left * step > self.LONG else ""
            newline = "\n" * redraws()  # after Keras' bar
            print(f"{newline}about {duration(left * step)} for {left:,} steps of {step:.2g} s{hint}", file=sys.stderr)


# ── reading a run ──


def is_run(folder):
    """Whether the folder is that of a run; CTranslate2 exports have a `config.json` too."""
    folder = pathlib.Path(folder)
    return (folder / "config.json").exists() and not (folder / "translator.json").exists()


def read_config(folder):
    """The content of a run's `config.json`."""
    required = ("options", "texts", "model", "tokenizers", "average", "steps")
    remedy = "delete it, and run the same `keras-tfm train` command again"
    return files.read_json(pathlib.Path(folder) / "config.json", required, remedy)


def saved_step(folder):
    """The number of steps that a run has saved."""
    return _read_state(folder)["step"]


def checkpoints(folder):
    """Paths of a run's checkpoints, oldest first, without any newer than the saved state."""
    newest = saved_step(folder) or math.inf  # without a state, all of them
    paths = (pathlib.Path(folder) / "checkpoints").glob(CHECKPOINTS)
    return sorted(path for path in paths if int(path.stem) <= newest)


def average_checkpoints(model, paths):
    """Sets the weights of a model to the mean of those in files that a `TrainingRun` wrote.

    If the optimizer keeps moving averages, those in `state.npz` are used.
    """
    paths = list(paths)
    if not paths:
        raise ValueError("`paths` must name at least one checkpoint. Received: none")
    weights = _by_path("weights", model.weights)
    sums = dict.fromkeys(weights, 0.0)
    for path in paths:
        arrays = _result(files.read_arrays(path))
        _check_same(path, weights, arrays)
        sums = {key: total + arrays[key].astype("float64") for key, total in sums.items()}
    for key, weight in weights.items():
        weight.assign((sums[key] / len(paths)).astype("float32"))


def load_tokenizers(folder):
    """A list of the shared tokenizer, or of the source and target tokenizers."""
    names = next((names for names in TOKENIZERS if any((folder / name).exists() for name in names)), TOKENIZERS[0])
    for path in (folder / name / "tokenizer.json" for name in names):
        files.settle(path.parent)
        if not path.exists():
            remedy = "the same `keras-tfm train` command writes it again" if is_run(folder) else files.RESTORE
            raise FileNotFoundError(f"{path}: is missing; {remedy}")
    return [text.load_tokenizer(folder / name) for name in names]


def check_tokenizers(folder, tokenizers):
    """Raises an error unless these are the tokenizers that a run was started with."""
    if [text.fingerprint(tokenizer) for tokenizer in tokenizers] != read_config(folder)["tokenizers"]:
        names = " and ".join(TOKENIZERS[len(tokenizers) - 1])
        raise ValueError(f"{folder}: must have the tokenizers that the run was started with. Received: another {names}")


def write_tokenizers(folder, tokenizers):
    """Writes the tokenizers of a run that its folder does not have already."""
    for name, tokenizer in zip(TOKENIZERS[len(tokenizers) - 1], tokenizers, strict=True):
        try:
            same = text.fingerprint(text.load_tokenizer(folder / name)) == text.fingerprint(tokenizer)
        except ValueError:  # missing or damaged
            same = False
        if not same:
            text.save_tokenizer(tokenizer, folder / name)


PLAIN = ("keras.initializers", "keras.activations", "keras.quantizers", "builtins")  # what options of a model may be


def load_keras(path):
    """The model of a .keras file, with finite weights; nothing in it is executed, no more is built than it holds."""
    files.check_zip(path)
    with files.archive_of(path) as archive:
        config = json.loads(archive.read("config.json"))
        kind = keras.saving.get_registered_object(str(config["registered_name"]))
        if not (isinstance(kind, type) and issubclass(kind, models.SequenceModel)):
            raise ValueError(f"holds a {config['class_name']}, not a model of keras_tfm.models")
        _check_plain(config["config"])
        sequence.check_capacity(config["config"], *files.size_of_arrays(path))
    with files.reading(path):
        model = keras.models.load_model(path, compile=False)  # `safe_mode` is on by default
    model.check_finite(path)
    return model


def _check_plain(value):
    """Raises an error if a configuration holds layers or models, which Keras would build, of any size."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(inner)
    module = value.get("module") if isinstance(value, dict) else None
    if str(module).partition(".")[0] == "keras" and module not in PLAIN:
        raise ValueError(f"an option of the model must not be of {module}")


def load_model(folder):
    """The model of a run at any time: `model.keras` if it is up to date, else the latest state or checkpoint.

    Also returns a sentence that says where it comes from; "" for the result of a finished run.
    """
    folder = pathlib.Path(folder)
    path, newest = folder / "model.keras", saved_step(folder)
    model = load_keras(path) if path.exists() else None
    if model and model.metadata.get("step", newest) >= newest:
        return model, "" if model.metadata.get("finished", True) else f"{path}, of a run that is not finished"
    model, ((step, path),), steps = _average_of_last(folder, 1)
    return model, f"{path}, step {step:,} of {steps:,}; `keras-tfm finish {folder}` writes it as model.keras"


def finish(folder, average=1):
    """Writes `model.keras` of a run at any time: the mean of its last `average` checkpoints, without the optimizer.

    The state counts as a checkpoint if it is newer than the last one. Returns the model, and a sentence that says what
    it was made from.
    """
    folder = pathlib.Path(folder)
    model, found, steps = _average_of_last(folder, average)
    check_tokenizers(folder, load_tokenizers(folder))
    step, path = found[-1]
    with files.whole(folder / "model.keras") as new:
        model.save(new)
    made_from = f"the mean of the last {len(found)} checkpoints" if len(found) > 1 else path.name
    if len(found) < average:
        made_from += f" ({average} were requested)"
    return model, f"{made_from}, after step {step:,} of {steps:,}"


def model_config(model):
    """What `model_of` makes an untrained copy from, as JSON values."""
    return {"class": type(model).__name__, **model.get_config()}


def model_of(config):
    """An untrained model like the one of a `model_config`."""
    arguments = dict(config)
    kind = keras.saving.get_registered_object(f"keras_tfm>{arguments.pop('class', 'Transformer')}")
    return kind.from_config(arguments)


def _average_of_last(folder, count):
    """The model with the mean of a run's last `count` snapshots, these as [(step, path)], and the run's total steps."""
    config, state = read_config(folder), _read_state(folder)
    found = [(int(path.stem), path) for path in checkpoints(folder)]
    if state["step"] > max((step for step, _ in found), default=0):
        found.append((state["step"], folder / "state.npz"))
    if not found:
        raise FileNotFoundError(
            f"{folder}: nothing is trained yet; `keras-tfm train` saves every few minutes and when it is interrupted"
        )
    found = found[-count:]
    held = files.size_of_arrays(found[-1][1])
    with files.reading(folder / "config.json", START_OVER):
        _check_plain(config["model"])
        sequence.check_capacity(config["model"], *held)
        # float32 for decoding, whatever the precision of training
        model = model_of(config["model"] | {"dtype": "float32"})
        steps = positive("steps", config["steps"])
    average_checkpoints(model, [path for _, path in found])
    step = found[-1][0]
    model.metadata = {"tokenizers": config["tokenizers"], "step": step, "averaged": len(found)}
    model.metadata["finished"] = step >= steps or state["patience"] is not None
    return model, found, steps


def _read_state(folder):
    """What state.npz says about the run, without its other arrays."""
    path = pathlib.Path(folder) / "state.npz"
    if not path.exists():
        return {"step": 0, "patience": None}
    with files.reading(path, START_OVER):
        state = json.loads(str(files.read_arrays(path, START_OVER, ["state"])["state"]))
        return state | {"step": int(state["step"]), "patience": state["patience"]}


# ── variables ↔ arrays ──


def _variables(model):
    """All variables that training changes, by kind and path, except metrics."""
    weights = _by_path("weights", model.weights)
    averages = {f"{weight.path.replace('/', '_')}_average": key for key, weight in weights.items()}  # Keras' names
    known = {id(variable) for variable in (*model.weights, *model.metrics_variables)}
    found = weights | _by_path("seeds", [v for v in model.variables if id(v) not in known])
    for key, variable in _by_path("optimizer", model.optimizer.variables).items():
        if variable.name in averages:
            key = averages[variable.name].replace("weights/", "averages/", 1)
        found[key] = variable
    return found


def _by_path(kind, variables):
    """Variables by kind and path, with the same keys in every process.

    Keras appends numbers to names, `dense_3`, by counting all layers of the process. These are replaced by a number
    that counts the variables here.
    """
    found, seen = {}, collections.Counter()
    for variable in variables:
        key = f"{kind}/" + re.sub(r"_\d+(?=[/_]|$)", "", variable.path)
        found[f"{key}_{seen[key]}" if seen[key] else key] = variable
        seen[key] += 1
    return found


def _check_same(path, variables, arrays):
    """Raises an error that names the arrays of a file that are missing, extra or of another shape."""
    wrong = [f"no {key} ({variable.path})" for key, variable in variables.items() if key not in arrays]
    wrong += [f"{key}, which the model does not have" for key in arrays if key not in variables]
    shapes = {key: (arrays[key].shape, tuple(variables[key].shape)) for key in variables if key in arrays}
    wrong += [f"{key} of shape {ours} instead of {theirs}" for key, (ours, theirs) in shapes.items() if ours != theirs]
    if wrong:
        received = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more differences" if len(wrong) > 3 else "")
        raise ValueError(f"{path}: must come from the same model and optimizer. Received: {received}")


def _result(arrays):
    """The arrays of weights only: their moving averages where the optimizer keeps them."""
    names = [key for key in arrays if key.startswith("weights/")]
    return {key: arrays.get(key.replace("weights/", "averages/", 1), arrays[key]) for key in names}


def _arrays(variables):
    """The values of variables, by key."""
    arrays = dict(zip(variables, tensors.to_numpy(variables.values()), strict=True))
    # NumPy cannot save bfloat16
    return {key: array.astype("float32") if array.dtype.kind == "V" else array for key, array in arrays.items()}
