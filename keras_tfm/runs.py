"""The folder of a training run: training that goes on after a kill, and models that can be had from it at any time.

config.json       options of the run and the configuration of the model
tokenizer/        or source_tokenizer/ and target_tokenizer/
data/             encoded texts
state.npz         all that training needs to go on, written every few minutes and at the end of every epoch
checkpoints/      weights at the end of the last epochs
metrics.csv       a row for each epoch
model.keras       the result
"""

import contextlib
import csv
import json
import math
import pathlib
import signal
import sys
import threading
import time
import typing

import keras
import numpy as np
from keras import ops

from keras_tfm import files, text
from keras_tfm.arguments import positive
from keras_tfm.progress import duration

BEGIN_AGAIN = "delete it, and the same command begins again, while `keras-tfm finish` takes the last checkpoint"
TOKENIZERS = ["tokenizer"], ["source_tokenizer", "target_tokenizer"]  # one for both sides, or one for each


class Interrupted(KeyboardInterrupt):
    """Training was interrupted by a signal, and its state was saved."""

    def __init__(self, message, number):
        super().__init__(message)
        self.signal = number


class Place(typing.NamedTuple):
    """Where training stands: epochs that are done, and steps that are done in the next one."""

    epoch: int = 0
    step: int = 0


class Run(keras.callbacks.Callback):
    """A folder from which training goes on after a kill as if nothing had happened.

    Args:
        folder: where state, checkpoints and metrics are written, each whole or not at all.
        keep: how many checkpoints of weights stay, for `average_checkpoints`.
        siblings: callbacks such as `EarlyStopping` whose best value and patience must survive.
        minutes: how often the state is saved within an epoch.

    `Run(folder).fit(model, batches, epochs=10)` takes the place of `model.fit`. While it runs, Ctrl-C and SIGTERM end
    it after the current step, with the state saved; the second time at once.
    """

    SIBLING_STATE = ("best", "best_epoch", "wait", "stopped_epoch")

    def __init__(self, folder, keep=10, siblings=(), minutes=3.0):
        super().__init__()
        self.folder, self.keep, self.siblings = pathlib.Path(folder), positive("keep", keep), list(siblings)
        if not minutes > 0:
            raise ValueError(f"`minutes` must be positive. Received: {minutes=}")
        self.seconds, self.place, self.saved_place = 60 * minutes, Place(), Place()
        self.history, self.sibling_state, self.metrics, self.patience = [], [], [], None
        self.steps_per_epoch = self.saved_steps_per_epoch = self.divided_epoch = self.signal = None

    def fit(self, model, batches, epochs, steps_per_epoch=None, callbacks=(), **options):
        """Trains like `model.fit`, from where the last run in this folder was stopped.

        Args:
            model: compiled.
            batches: `Batches` or `PackedBatches`.
            epochs, steps_per_epoch: how many epochs, of how many steps each; by default those of `batches`.
            callbacks, **options: of `model.fit`; metrics that callbacks add to the logs are written as well.
        """
        self.steps_per_epoch = positive("steps_per_epoch", steps_per_epoch or len(batches))
        with self.catching_signals():
            while True:  # twice at most: what is left of an epoch, and all others
                self.place = self.restore(model)
                epoch, step = self.place
                self.divided_epoch = epoch + 1 if step else None
                if self.saved_steps_per_epoch not in (None, self.steps_per_epoch):
                    raise ValueError(
                        f"`steps_per_epoch` must be {self.saved_steps_per_epoch}, since {self.folder / 'state.npz'} "
                        f"was saved with it. Received: steps_per_epoch={self.steps_per_epoch}"
                    )
                if epoch >= epochs or self.stopped_early():
                    model.optimizer.finalize_variable_values(model.trainable_variables)  # a moving average, if any
                    self.write_metrics()  # which may have been damaged since
                    return
                model.fit(
                    batches.repeat(epoch * self.steps_per_epoch + step),
                    steps_per_epoch=self.steps_per_epoch - step,
                    initial_epoch=epoch,
                    epochs=epochs,
                    callbacks=[*callbacks, *self.siblings, self],
                    shuffle=False,
                    **options,
                )
                if self.place.epoch >= epochs or self.stopped_early():
                    return

    def restore(self, model):
        """Sets all variables to the saved ones, and returns the `Place` at which training goes on."""
        path = self.folder / "state.npz"
        model.optimizer.build(model.trainable_variables)  # inside `fit`, TensorFlow would trace the step twice for it
        if not path.exists():
            return Place()
        arrays = files.read_arrays(path, BEGIN_AGAIN)
        state = _read_state(path, arrays)
        for kind, variables in {"weights": model.weights, "others": _others(model)}.items():
            _assign(path, kind, variables, arrays)
        self.metrics = _of_kind("metrics", arrays)
        self.history, self.sibling_state, self.patience = state["history"], state["siblings"], state["patience"]
        self.saved_place, self.saved_steps_per_epoch = state["place"], state["steps_per_epoch"]
        return self.saved_place

    def stopped_early(self):
        """Whether `EarlyStopping` ended the run before, and has no more patience now than then."""
        patience = _patience(self.siblings)
        return self.patience is not None and patience is not None and patience <= self.patience

    @property
    def step(self):
        """Steps since the beginning of the run."""
        return self.place.epoch * self.steps_per_epoch + self.place.step

    def on_train_begin(self, logs=None):
        self.saved = time.monotonic()
        for sibling, state in zip(self.siblings, self.sibling_state, strict=False):
            for name, value in state.items():
                setattr(sibling, name, value)

    def on_train_batch_end(self, batch, logs=None):
        self.place = Place(self.place.epoch, self.place.step + 1)
        for variable, value in zip(self.model.metrics_variables if self.metrics else (), self.metrics, strict=True):
            variable.assign(variable + value)  # sums of what the first part of this epoch has seen
        self.metrics = []
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self.diverged(f"the loss became {loss}")
        if self.place.step == self.steps_per_epoch:
            return  # the end of the epoch saves more, and is near
        if self.steps_per_epoch and (self.signal is not None or time.monotonic() - self.saved > self.seconds):
            self.save()
        self.raise_interrupted()

    def on_epoch_end(self, epoch, logs=None):
        self.history.append({"epoch": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}})
        self.place = Place(epoch + 1, 0)
        if self.model.stop_training:
            self.patience = _patience(self.siblings)
        weights = _result(self.model)
        self.check_finite(weights)
        files.write_arrays(self.folder / "checkpoints" / f"{epoch + 1:05d}.npz", weights)
        self.write_metrics()
        self.save()
        if len(self.history) == self.divided_epoch:
            self.model.stop_training = True  # the epochs behind it have all their steps, in another `fit`
        for other in {*_all_checkpoints(self.folder)} - {*checkpoints(self.folder)[-self.keep :]}:
            other.unlink()
        self.raise_interrupted()

    def raise_interrupted(self):
        if self.signal is not None:
            raise Interrupted(f"{signal.Signals(self.signal).name} after step {self.step:,}", self.signal)

    def save(self):
        """Writes the state."""
        model = self.model  # on JAX, this is what brings the variables up to date
        weights = _arrays("weights", model.weights)
        self.check_finite(weights)
        siblings = [{name: getattr(s, name) for name in self.SIBLING_STATE if hasattr(s, name)} for s in self.siblings]
        state = {"place": self.place, "history": self.history, "siblings": siblings, "patience": self.patience}
        state["steps_per_epoch"] = self.steps_per_epoch
        arrays = weights | _arrays("others", _others(model))
        if self.place.step:
            arrays |= _arrays("metrics", model.metrics_variables)
        files.write_arrays(self.folder / "state.npz", {"state": np.array(json.dumps(state, default=float)), **arrays})
        self.sibling_state, self.saved, self.saved_place = siblings, time.monotonic(), self.place

    def check_finite(self, weights):
        if not all(np.isfinite(value).all() for value in weights.values()):
            self.diverged("weights became infinite or NaN")

    def diverged(self, what):
        rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        saved = self.saved_place.epoch * (self.steps_per_epoch or 0) + self.saved_place.step
        kept = f"{self.folder / 'state.npz'} keeps step {saved:,}" if saved else "nothing was saved before"
        where = f"epoch {self.place.epoch + 1}, step {self.place.step:,}, at a learning rate of {rate:.2g}"
        raise FloatingPointError(
            f"{what} in {where}; {kept}. Try a lower learning rate, more warm-up steps, `clipnorm=1`, or float32"
        )

    def write_metrics(self):
        names = list(dict.fromkeys(name for row in self.history for name in row))
        with files.whole(self.folder / "metrics.csv") as new, open(new, "w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(self.history)

    @contextlib.contextmanager
    def catching_signals(self):
        """In the main thread, the first Ctrl-C or SIGTERM waits for the end of a step; the second does not."""
        self.signal = None
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def caught(number, frame):
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            print("\nstopping after this step; once more to stop at once", file=sys.stderr, flush=True)

        before = {number: signal.signal(number, caught) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class TimeEstimate(keras.callbacks.Callback):
    """Says once, after a few steps, how long training will take.

    Args:
        run: the `Run` whose steps are counted.
        steps: how many there are in all.
        hint: what to say beside it if that is longer than half an hour.
    """

    AFTER, LONG = 12, 1800  # steps, of which the first ones compile; seconds

    def __init__(self, run, steps, hint=""):
        super().__init__()
        self.run, self.steps, self.hint, self.times = run, steps, hint, []

    def on_train_batch_end(self, batch, logs=None):
        if self.times is None:
            return
        self.times.append(time.monotonic())
        if len(self.times) <= self.AFTER:
            return
        step = float(np.median(np.diff(self.times)))
        left = self.steps - self.run.step
        hint = f"\n{self.hint}" if self.hint and left * step > self.LONG else ""
        print(f"\nabout {duration(left * step)} for {left:,} steps of {step:.2g} s{hint}", file=sys.stderr)
        self.times = None


def checkpoints(folder):
    """The checkpoints of a `Run`, oldest first; without those of epochs that are yet to be done again."""
    found = _all_checkpoints(folder)
    if not (pathlib.Path(folder) / "state.npz").exists():
        return found
    epoch = saved_place(folder).epoch
    return [path for path in found if int(path.stem) <= epoch]


def average_checkpoints(model, paths):
    """Sets the weights of a model to the mean of those in checkpoint files, which `Run` wrote."""
    paths = list(paths)
    if not paths:
        raise ValueError("`paths` must name at least one checkpoint. Received: none")
    sums = [0.0] * len(model.weights)
    for path in paths:
        arrays = _checked(path, "weights", model.weights, files.read_arrays(path))
        sums = [total + array.astype("float64") for total, array in zip(sums, arrays, strict=True)]
    for weight, total in zip(model.weights, sums, strict=True):
        weight.assign((total / len(paths)).astype("float32"))


def is_run(folder):
    """Whether `keras-tfm train` has been here; exports for CTranslate2 have a `config.json`, too."""
    folder = pathlib.Path(folder)
    return (folder / "config.json").exists() and not (folder / "translator.json").exists()


def load_tokenizers(folder):
    """The one tokenizer of a folder, or those of source and target."""
    folder = pathlib.Path(folder)
    names = next((names for names in TOKENIZERS if (folder / names[0]).exists()), TOKENIZERS[0])
    return [text.load_tokenizer(folder / name) for name in names]


def load_model(folder):
    """The model of a run at any moment: the result if it is up to date, else the latest state or checkpoint.

    Returns:
        the model, and a sentence that says what it is; "" for the result of a finished run.
    """
    folder = pathlib.Path(folder)
    path, newest = folder / "model.keras", saved_step(folder)
    if path.exists():
        model = load_keras(path)
        if model.metadata.get("step", newest) >= newest:
            return model, "" if model.metadata.get("finished", True) else f"{path}, of a run that is not finished"
    config = read_config(folder)
    model = new_model(folder, config)
    found = [path for path in (folder / "state.npz", *checkpoints(folder)[-1:]) if path.exists()]
    newest = newest or _step(checkpoints(folder), config)
    if not found:
        raise FileNotFoundError(
            f"{folder}: nothing is trained yet; `keras-tfm train` saves every few minutes and when it is interrupted"
        )
    average_checkpoints(model, found[:1])
    model.metadata |= {"step": newest, "finished": False}
    return model, f"{found[0]}, step {newest:,} of {config['steps']:,}; `keras-tfm finish {folder}` makes a model of it"


def finish(folder, average=1):
    """Writes `model.keras` of a run at any moment: the mean of its last checkpoints, without the optimizer.

    Args:
        folder: of a run.
        average: of how many checkpoints; the latest state counts as one of them.

    Returns:
        the model, and a sentence that says what it is made of.
    """
    folder = pathlib.Path(folder)
    config, found = read_config(folder), checkpoints(folder)
    model, step = new_model(folder, config), saved_step(folder) or _step(found, config)
    behind = _step(found, config) < step and not config["moving_average"]  # which only checkpoints have
    if (behind or not found) and (folder / "state.npz").exists():
        found.append(folder / "state.npz")
    if not found:
        raise FileNotFoundError(f"{folder}: nothing is trained yet")
    found = found[-average:]
    average_checkpoints(model, found)
    stopped_early = _saved_state(folder).get("patience") is not None
    model.metadata |= {"step": step, "averaged": len(found), "finished": step >= config["steps"] or stopped_early}
    with files.whole(folder / "model.keras") as new:
        model.save(new)
    number = "the mean of the last " + str(len(found)) + " checkpoints" if len(found) > 1 else found[0].name
    if len(found) < average:
        number += f" ({average} were asked for)"
    return model, f"{number}, after step {step:,} of {config['steps']:,}"


def new_model(folder, config):
    """The model of a run's configuration, with new weights."""
    import keras_tfm.models

    with files.reading(pathlib.Path(folder) / "config.json", BEGIN_AGAIN):
        # decodes in float32, whatever the precision of training
        model = keras_tfm.models.SequenceModel.from_config(config["model"] | {"dtype": "float32"})
    model.metadata = {"tokenizers": config["tokenizers"]}
    return model


def load_keras(path):
    """A model that was saved as a .keras file; nothing in the file is executed."""
    import keras_tfm.models

    path = pathlib.Path(path)
    files.check_zip(path)
    with files.reading(path):
        model = keras.models.load_model(path, compile=False)  # `safe_mode` is on by default
    if not isinstance(model, keras_tfm.models.SequenceModel):
        raise files.DamagedFile(path, f"holds a {type(model).__name__}, no model of keras_tfm.models")
    return model


def read_config(folder):
    """What `config.json` says of a run."""
    required = ("options", "texts", "model", "tokenizers", "average", "moving_average", "steps", "steps_per_epoch")
    required += ("batch_tokens", "num_shapes", "learning_rate", "warmup_steps")
    again = "delete it, and run the same `keras-tfm train` command again"
    return files.read_json(pathlib.Path(folder) / "config.json", required, again)


def saved_place(folder):
    """The `Place` at which a run would go on."""
    return _saved_state(folder)["place"]


def saved_step(folder):
    """How many steps a run has saved."""
    state = _saved_state(folder)
    return state["place"].epoch * (state["steps_per_epoch"] or 0) + state["place"].step


def _all_checkpoints(folder):
    return sorted((pathlib.Path(folder) / "checkpoints").glob("[0-9]*.npz"))


def _step(paths, config):
    """The step of the last checkpoint; 0 if there is none."""
    return int(paths[-1].stem) * config["steps_per_epoch"] if paths else 0


def _saved_state(folder):
    path = pathlib.Path(folder) / "state.npz"
    if not path.exists():
        return {"place": Place(), "steps_per_epoch": None}
    with files.reading(path, BEGIN_AGAIN), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return _read_state(path, arrays)  # of which only the state is read


def _read_state(path, arrays):
    with files.reading(path, BEGIN_AGAIN):
        state = json.loads(str(arrays["state"]))
        epoch, step = state["place"]
        return state | {"place": Place(int(epoch), int(step))}


def _patience(siblings):
    return max((sibling.patience for sibling in siblings if hasattr(sibling, "patience")), default=None)


def _others(model):
    """Seeds of dropout, and what the optimizer remembers."""
    known = {id(variable) for variable in (*model.weights, *model.metrics_variables)}
    return [v for v in model.variables if id(v) not in known] + list(model.optimizer.variables)


def _result(model):
    """The weights that training is for, as arrays: a moving average, where the optimizer has one."""
    weights = _arrays("weights", model.weights)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not optimizer.use_ema:
        return weights
    optimizer.finalize_variable_values(model.trainable_variables)
    averages = _arrays("weights", model.weights)
    _assign("", "weights", model.weights, weights)
    return averages


def _arrays(kind, variables):
    return {f"{kind}/{number}": _numpy(variable) for number, variable in enumerate(variables)}


def _of_kind(kind, arrays):
    count = sum(name.startswith(f"{kind}/") for name in arrays)
    return [arrays[f"{kind}/{number}"] for number in range(count)]


def _checked(path, kind, variables, arrays):
    """The arrays of a kind, or an error if these are not those of the variables."""
    found = _of_kind(kind, arrays)
    if [array.shape for array in found] != [tuple(variable.shape) for variable in variables]:
        raise ValueError(
            f"{path}: must come from the same model and optimizer. "
            f"Received: {len(found)} {kind}, the model has {len(variables)}, or of other shapes"
        )
    return found


def _assign(path, kind, variables, arrays):
    for variable, value in zip(variables, _checked(path, kind, variables, arrays), strict=True):
        variable.assign(value)


def _numpy(variable):
    value = ops.convert_to_numpy(variable)
    return value.astype("float32") if value.dtype.kind == "V" else value  # NumPy's files know no bfloat16
