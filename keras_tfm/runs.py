"""The folder of a training run: training can stop at any time and resume, and a model can be loaded at any time.

config.json       options of the run and configuration of the model
tokenizer/        or source_tokenizer/ and target_tokenizer/
data/             encoded texts
state.npz         everything that training needs to resume; saved every few minutes and at the end of each epoch
checkpoints/      weights at the end of each of the last epochs, named by their step
metrics.csv       one row per epoch
model.keras       the result: the mean of the last checkpoints

Arrays in state.npz and in checkpoints are stored by the path of their variable, such as
`weights/decoder/decoder_1/feed_forward/inner/kernel`.
"""

import contextlib
import csv
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
from keras_tfm.arguments import positive
from keras_tfm.progress import duration

START_OVER = "delete it; then the same command starts over, or `keras-tfm finish` uses the last checkpoint"
TOKENIZERS = ["tokenizer"], ["source_tokenizer", "target_tokenizer"]  # one for both sides, or one for each


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by a signal, after its state was saved."""

    def __init__(self, message, number):
        super().__init__(message)
        self.signal = number


class EarlyStopping(keras.callbacks.EarlyStopping):
    """Keras' `EarlyStopping`; its best value and its patience survive when a `TrainingRun` resumes."""

    saved = None  # state to resume from

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.saved:
            self.best, self.best_epoch, self.wait, self.stopped_epoch = self.saved

    def state(self):
        return [self.best, self.best_epoch, self.wait, self.stopped_epoch]


class TrainingRun(keras.callbacks.Callback):
    """A folder in which training resumes after an interruption as if nothing had happened.

    Args:
        folder: where state, checkpoints and metrics are written. Each file is written completely or not at all.
        keep: number of checkpoints to keep, for `average_checkpoints`.
        stopping: None, or an `EarlyStopping` of this module.
        minutes: how often to save the state within an epoch.

    Use `TrainingRun(folder).fit(model, batches, epochs=10)` instead of `model.fit`. Ctrl-C or SIGTERM then ends
    training after the current step, with the state saved. A second one ends it at once.
    """

    def __init__(self, folder, keep=10, stopping=None, minutes=3.0):
        super().__init__()
        self.folder, self.keep, self.stopping = pathlib.Path(folder), positive("keep", keep), stopping
        if not minutes > 0:
            raise ValueError(f"`minutes` must be positive. Received: {minutes=}")
        self.seconds, self.step, self.saved_step, self.steps_per_epoch = 60 * minutes, 0, 0, None
        self.history, self.metrics, self.patience, self.signal = [], {}, None, None

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
        with self.catching_signals():
            self.restore(model)
            while self.step < epochs * self.steps_per_epoch and not self.stopped_early():
                epoch, step = divmod(self.step, self.steps_per_epoch)
                self.partial, self.stopped, self.patience = step > 0, False, None
                model.fit(
                    batches.repeat(self.step),
                    steps_per_epoch=self.steps_per_epoch - step,
                    initial_epoch=epoch,
                    epochs=epochs,
                    callbacks=callbacks,
                    shuffle=False,
                    **options,
                )
                if self.stopped or not self.partial:
                    break
                self.restore(model)  # since Keras has ended the rest of an epoch as if it were the end of all training
            model.optimizer.finalize_variable_values(model.trainable_variables)  # the moving average, if any
            self.write_metrics()

    def restore(self, model):
        """Loads the saved state into the model and its optimizer. Returns the step at which training resumes."""
        path = self.folder / "state.npz"
        model.optimizer.build(model.trainable_variables)  # if `fit` did it, TensorFlow would trace the step twice
        if not path.exists():
            return self.step
        state, arrays, variables = _read_state(self.folder), files.read_arrays(path, START_OVER), _variables(model)
        if self.steps_per_epoch not in (None, state["steps_per_epoch"]):
            raise ValueError(
                f"`steps_per_epoch` must be {state['steps_per_epoch']}, as in {path}. "
                f"Received: steps_per_epoch={self.steps_per_epoch}"
            )
        for key, value in _matching(path, variables, arrays, STATE_KINDS).items():
            variables[key].assign(value)
        self.metrics = {key: value for key, value in arrays.items() if key.startswith("metrics/")}
        self.history, self.patience = state["history"], state["patience"]
        self.step = self.saved_step = state["step"]
        if self.stopping:
            self.stopping.saved = state["stopping"]
        return self.step

    def stopped_early(self):
        """Whether `EarlyStopping` has ended this run, with at least as much patience as now."""
        return self.stopping is not None and self.patience is not None and self.stopping.patience <= self.patience

    def on_train_begin(self, logs=None):
        if self.steps_per_epoch is None:
            raise ValueError("`TrainingRun` must be used by its method `fit`. Received: a `TrainingRun` as a callback")
        self.saved_at = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.metrics:  # add what the metrics had summed up before this epoch was interrupted
            variables = _by_path("metrics", self.model.metrics_variables)
            for key, value in _matching(self.folder / "state.npz", variables, self.metrics, ("metrics",)).items():
                variables[key].assign(variables[key] + value)
            self.metrics = {}
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self.raise_diverged(f"the loss became {loss}")
        if self.step % self.steps_per_epoch == 0:
            return  # `on_epoch_end` is next, and saves
        if self.signal is not None or time.monotonic() - self.saved_at > self.seconds:
            self.save(self.arrays())
        self.raise_interrupted()

    def on_epoch_end(self, epoch, logs=None):
        self.stopped, arrays = self.model.stop_training, self.arrays()
        if self.step % self.steps_per_epoch:  # some callback has stopped training within the epoch
            return self.save(arrays)
        self.history.append({"epoch": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}})
        if self.stopped and self.stopping:
            self.patience = self.stopping.patience
        result = {key: _averaged(key, arrays) for key in arrays if key.startswith("weights/")}
        files.write_arrays(self.folder / "checkpoints" / f"{self.step:08d}.npz", result)
        self.write_metrics()
        self.save(arrays)
        if self.partial:
            self.model.stop_training = True  # the other epochs have more steps: `TrainingRun.fit` goes on with them
        for path in {*_all_checkpoints(self.folder)} - {*checkpoints(self.folder)[-self.keep :]}:
            path.unlink()
        self.raise_interrupted()

    def arrays(self):
        """The arrays of all variables to save, after a check that the weights are finite."""
        arrays = _arrays(_variables(self.model))  # on JAX, this property of Keras brings the variables up to date
        if not all(np.isfinite(value).all() for key, value in arrays.items() if key.startswith("weights/")):
            self.raise_diverged("weights became infinite or NaN")
        return arrays

    def save(self, arrays):
        """Writes state.npz."""
        state = {"step": self.step, "steps_per_epoch": self.steps_per_epoch, "history": self.history}
        state |= {"patience": self.patience, "stopping": self.stopping and self.stopping.state()}
        if self.step % self.steps_per_epoch:
            arrays |= _arrays(_by_path("metrics", self.model.metrics_variables))
        files.write_arrays(self.folder / "state.npz", {"state": np.array(json.dumps(state, default=float)), **arrays})
        self.saved_at, self.saved_step = time.monotonic(), self.step

    def write_metrics(self):
        names = list(dict.fromkeys(name for row in self.history for name in row))
        with files.whole(self.folder / "metrics.csv") as new, open(new, "w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(self.history)

    def raise_diverged(self, what):
        rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        saved = f"{self.folder / 'state.npz'} still holds step {self.saved_step:,}"
        raise FloatingPointError(
            f"{what} in step {self.step:,}, at a learning rate of {rate:.2g}; "
            f"{saved if self.saved_step else 'nothing was saved before'}. "
            "Try a lower learning rate, more warm-up steps, `clipnorm=1`, or float32"
        )

    def raise_interrupted(self):
        if self.signal is not None:
            raise Interrupted(f"{signal.Signals(self.signal).name} after step {self.step:,}", self.signal)

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
    """Prints once, after a few steps, how long training will take.

    Args:
        run: the `TrainingRun` whose steps are counted.
        steps: total number of steps.
        hint: a line to print as well if training will take longer than half an hour.
    """

    AFTER, LONG = 12, 1800  # steps to measure, since the first ones compile; seconds

    def __init__(self, run, steps, hint=""):
        super().__init__()
        self.run, self.steps, self.hint, self.times = run, steps, hint, []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.monotonic())
        if len(self.times) == self.AFTER + 1:
            step, left = float(np.median(np.diff(self.times))), self.steps - self.run.step
            hint = f"\n{self.hint}" if self.hint and left * step > self.LONG else ""
            print(f"\nabout {duration(left * step)} for {left:,} steps of {step:.2g} s{hint}", file=sys.stderr)


# ── reading a run ──


def is_run(folder):
    """Whether the folder is that of a run; CTranslate2 exports have a `config.json` too."""
    folder = pathlib.Path(folder)
    return (folder / "config.json").exists() and not (folder / "translator.json").exists()


def read_config(folder):
    """The content of a run's `config.json`."""
    required = ("options", "texts", "model", "tokenizers", "average", "steps", "steps_per_epoch")
    required += ("batch_tokens", "num_shapes", "learning_rate", "warmup_steps")
    remedy = "delete it, and run the same `keras-tfm train` command again"
    return files.read_json(pathlib.Path(folder) / "config.json", required, remedy)


def saved_step(folder):
    """The number of steps that a run has saved."""
    return _read_state(folder)["step"]


def checkpoints(folder):
    """Paths of a run's checkpoints, oldest first; without those of steps that it would train again."""
    newest = saved_step(folder) or math.inf  # without a state, all of them
    return [path for path in _all_checkpoints(folder) if int(path.stem) <= newest]


def average_checkpoints(model, paths):
    """Sets the weights of a model to the mean of those in files that a `TrainingRun` wrote.

    Of a `state.npz`, the moving averages are used where the optimizer has them.
    """
    paths = list(paths)
    if not paths:
        raise ValueError("`paths` must name at least one checkpoint. Received: none")
    weights = _by_path("weights", model.weights)
    sums = dict.fromkeys(weights, 0.0)
    for path in paths:
        arrays = files.read_arrays(path)
        _matching(path, weights, arrays, ("weights",))
        sums = {key: total + _averaged(key, arrays).astype("float64") for key, total in sums.items()}
    for key, weight in weights.items():
        weight.assign((sums[key] / len(paths)).astype("float32"))


def load_tokenizers(folder):
    """The tokenizer of both sides in a list, or those of source and target."""
    folder = pathlib.Path(folder)
    names = next((names for names in TOKENIZERS if (folder / names[0]).exists()), TOKENIZERS[0])
    return [text.load_tokenizer(folder / name) for name in names]


def load_keras(path):
    """The model of a .keras file; nothing in the file is executed."""
    files.check_zip(path)
    with files.reading(path):
        model = keras.models.load_model(path, compile=False)  # `safe_mode` is on by default
    if not isinstance(model, models.SequenceModel):
        raise files.DamagedFile(path, f"holds a {type(model).__name__}, not a model of keras_tfm.models")
    return model


def load_model(folder):
    """The model of a run at any time: `model.keras` if it is up to date, else the latest state or checkpoint.

    Returns:
        the model, and a sentence that says where it comes from; "" for the result of a finished run.
    """
    folder = pathlib.Path(folder)
    path, newest = folder / "model.keras", saved_step(folder)
    model = load_keras(path) if path.exists() else None
    if model and model.metadata.get("step", newest) >= newest:
        return model, "" if model.metadata.get("finished", True) else f"{path}, of a run that is not finished"
    model, ((step, path),), steps = _average_of_last(folder, 1)
    return model, f"{path}, step {step:,} of {steps:,}; `keras-tfm finish {folder}` writes it as model.keras"


def finish(folder, average=1):
    """Writes `model.keras` of a run at any time: the mean of its last checkpoints, without the optimizer.

    Args:
        folder: folder of the run.
        average: number of checkpoints to average. The state counts as one if it is newer than the last checkpoint.

    Returns:
        the model, and a sentence that says what it was made from.
    """
    folder = pathlib.Path(folder)
    model, found, steps = _average_of_last(folder, average)
    step, path = found[-1]
    with files.whole(folder / "model.keras") as new:
        model.save(new)
    made_from = f"the mean of the last {len(found)} checkpoints" if len(found) > 1 else path.name
    if len(found) < average:
        made_from += f" ({average} were requested)"
    return model, f"{made_from}, after step {step:,} of {steps:,}"


def _average_of_last(folder, count):
    """The model of a run with the mean of its last snapshots, those snapshots, [(step, path)], and the run's steps."""
    config, state = read_config(folder), _read_state(folder)
    with files.reading(folder / "config.json", START_OVER):
        # float32 for decoding, whatever the precision of training
        model = models.Transformer.from_config(config["model"] | {"dtype": "float32"})
    found = [(int(path.stem), path) for path in checkpoints(folder)]
    if state["step"] > max((step for step, _ in found), default=0):
        found.append((state["step"], folder / "state.npz"))
    if not found:
        raise FileNotFoundError(
            f"{folder}: nothing is trained yet; `keras-tfm train` saves every few minutes and when it is interrupted"
        )
    found = found[-count:]
    average_checkpoints(model, [path for _, path in found])
    step, steps = found[-1][0], config["steps"]
    model.metadata = {"tokenizers": config["tokenizers"], "step": step, "averaged": len(found)}
    model.metadata["finished"] = step >= steps or state["patience"] is not None
    return model, found, steps


def _all_checkpoints(folder):
    return sorted((pathlib.Path(folder) / "checkpoints").glob("[0-9]*.npz"))


def _read_state(folder):
    """What state.npz says about the run, without its other arrays."""
    path = pathlib.Path(folder) / "state.npz"
    if not path.exists():
        return {"step": 0, "patience": None}
    with files.reading(path, START_OVER), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        state = json.loads(str(arrays["state"]))
        if "place" in state:
            remedy = "delete it and checkpoints/, then use model.keras or start over; or finish with that version"
            raise files.DamagedFile(path, "written by an earlier version of keras_tfm", remedy)
        return state | {"step": int(state["step"]), "patience": state["patience"]}


# ── variables ↔ arrays ──

STATE_KINDS = ("weights", "averages", "seeds", "optimizer")


def _variables(model):
    """All variables that training changes, by kind and path; metrics aside."""
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

    Keras appends numbers to names, `dense_3`, by counting all layers of the process. Here the count begins anew in each
    parent: `dense`, `dense_1`, in the order of `variables`.
    """
    found, siblings = {}, {}
    for variable in variables:
        key, parts = kind, variable.path.split("/")
        for depth, part in enumerate(parts, 1):
            key += "/" + re.sub(r"_\d+(?=_|$)", "", part)
            numbers = siblings.setdefault(key, {})
            number = numbers.setdefault(part if depth < len(parts) else id(variable), len(numbers))
            key += f"_{number}" if number else ""
        found[key] = variable
    return found


def _matching(path, variables, arrays, kinds):
    """The arrays of some kinds; an error names those that are missing, extra or of another shape."""
    found = {key: array for key, array in arrays.items() if key.split("/")[0] in kinds}
    wrong = [f"no {key} ({variable.path})" for key, variable in variables.items() if key not in found]
    wrong += [f"{key}, which the model does not have" for key in found if key not in variables]
    shapes = {key: (found[key].shape, tuple(variables[key].shape)) for key in variables if key in found}
    wrong += [f"{key} of shape {ours} instead of {theirs}" for key, (ours, theirs) in shapes.items() if ours != theirs]
    if wrong:
        more = f"; and {len(wrong) - 3} more differences" if len(wrong) > 3 else ""
        received = "; ".join(wrong[:3]) + more
        raise ValueError(f"{path}: must come from the same model and optimizer. Received: {received}")
    return found


def _averaged(key, arrays):
    """The array of a weight, or its moving average if the optimizer keeps one."""
    return arrays.get(key.replace("weights/", "averages/", 1), arrays[key])


def _arrays(variables):
    """The values of variables, by key."""
    arrays = {key: ops.convert_to_numpy(variable) for key, variable in variables.items()}
    # NumPy cannot save bfloat16
    return {key: array.astype("float32") if array.dtype.kind == "V" else array for key, array in arrays.items()}
