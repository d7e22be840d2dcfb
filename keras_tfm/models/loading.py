"""Models from files: a .keras file, or what a training run has saved so far.

Arrays in the state and the checkpoints of a run are stored by the path of their variable, such as
`weights/decoder/decoder/feed_forward/inner/kernel`, and `…/kernel_1` for the next variable with the same path.
"""

import collections
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import keras

from keras_tfm import artifacts, ops
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, positive
from keras_tfm.models import builders  # noqa: F401, registers all models with Keras
from keras_tfm.models.sequence import SequenceModel

START_OVER = "delete it; then the same command starts over, or `keras-tfm finish` uses the last checkpoint"
PLAIN = ("keras.initializers", "keras.activations", "keras.quantizers", "builtins")  # what options of a model may be
# Layers that `source_embedding` and `target_embedding` may be: module, class and name that it is registered under.
EMBEDDINGS = [("keras.layers", "Embedding", None), ("keras.layers", "ReversibleEmbedding", None)]
EMBEDDINGS += [("keras_tfm.models.encoder_decoder", "TokenEmbedding", "keras_tfm>TokenEmbedding")]
# Sizes that a model multiplies by its width for tables of embeddings and for the output.
TABLES = ("vocab_size", "target_vocab_size", "num_classes")


def load_model(path: str | os.PathLike[str], **options: Any) -> keras.Model:
    """`keras.saving.load_model`, after all classes of this package have been registered with Keras.

    Args:
        path: a .keras file that `model.save` wrote.
        **options: arguments of `keras.saving.load_model`.

    >>> import tempfile, keras_tfm
    >>> path = tempfile.mkdtemp() + "/model.keras"
    >>> keras.Sequential([keras.Input((5, 8)), keras_tfm.layers.PositionalEncoding()]).save(path)
    >>> load_model(path).output_shape
    (None, 5, 8)
    """
    if pathlib.Path(path).is_dir():
        raise UserError(f"`path` must be a .keras file; `keras_tfm.load` reads a folder. Received: {path}")
    return keras.saving.load_model(path, **options)


def load_keras(path):
    """The model of a .keras file, with finite weights; nothing in it is executed, no more is built than it holds."""
    files.check_zip(path)
    with files.open_archive(path) as archive:
        config = json.loads(archive.read("config.json"))
        kind = keras.saving.get_registered_object(str(config["registered_name"]))
        if not (isinstance(kind, type) and issubclass(kind, SequenceModel)):
            raise UserError(f"holds a {config['class_name']}, not a model of keras_tfm.models")
        _check_options(config["config"])
        check_capacity(config["config"], *files.size_of_arrays(path))
    with files.reading(path), ops.using(ops.current()._replace(initializes=False)):
        model = keras.models.load_model(path, compile=False)  # `safe_mode` is on by default
    model.check_finite(path)
    return model


def _check_options(config):
    """Raises an error if the configuration of a model holds other layers than embeddings, or models."""
    for name, value in config.items():
        if name in ("source_embedding", "target_embedding") and value is not None:
            keys = ("module", "class_name", "registered_name")
            if not isinstance(value, dict) or tuple(map(value.get, keys)) not in EMBEDDINGS:
                raise UserError(f"`{name}` must be one of {[known for _, known, _ in EMBEDDINGS]}. Received: {value}")
            value = {key: inner for key, inner in value["config"].items() if key != "dtype"}
        _check_plain(value)


def _check_plain(value):
    """Raises an error if a configuration holds layers or models, which Keras would build, of any size."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(inner)
    module = value.get("module") if isinstance(value, dict) else None
    if str(module).partition(".")[0] == "keras" and module not in PLAIN:
        raise UserError(f"an option of the model must not be of {module}")


def check_capacity(arguments, arrays, size):
    """Raises an error if a model would have more layers or weights than a file of `arrays` arrays in `size` bytes has.

    To build it could take as much time and memory as a hostile file asks for. The numbers of layers and weights are
    lower bounds.

    Args:
        arguments: those of the model's constructor.
        arrays, size: as `keras_tfm.common.files.size_of_arrays` returns them.
    """

    def number(name, default=1):
        return arguments[name] if type(arguments.get(name)) is int else default

    width, layers = number("model_dim"), number("num_layers") + number("num_decoder_layers", 0)
    heads = number("num_heads") * number("head_dim", width if arguments.get("heads") == "wide" else 0) or width
    in_layer = width * max(number("ff_dim"), heads)
    if "units" in arguments:  # recurrent or convolutional; directions may share the units
        layers, in_layer = layers * number("dilations"), number("kernel_size") * number("units") ** 2 // 4
    rows = sum(number(name, 0) for name in TABLES)
    rows += number("max_length", 0) if arguments.get("positions") == "learned" else 0
    weights = width * rows + layers * in_layer
    if layers > arrays or weights > 2 * size:  # weights of four bits take half a byte
        raise UserError(
            f"its configuration describes {layers:,} layers and {weights:,} weights, which its {arrays:,} arrays of "
            f"{size:,} bytes cannot hold"
        )


def load_run(folder: str | os.PathLike[str]) -> tuple[keras.Model, str]:
    """The model of a run at any time: `model.keras` if it is up to date, else the latest state or checkpoint.

    Also returns a sentence that says where it comes from; "" for the result of a finished run.
    """
    run = artifacts.Run(folder)
    path, newest = run.model, saved_step(folder)
    model = load_keras(path) if path.exists() else None
    if model and model.metadata.get("step", newest) >= newest:
        return model, "" if model.metadata.get("finished", True) else f"{path}, of a run that is not finished"
    model, ((step, path),), steps = _average_of_last(run, 1)
    return model, f"{path}, step {step:,} of {steps:,}; `keras-tfm finish {folder}` writes it as {run.model.name}"


def finish(folder, average=1):
    """Writes `model.keras` of a run at any time: the mean of its last `average` checkpoints, without the optimizer.

    The state counts as a checkpoint if it is newer than the last one. Returns the model, and a sentence that says what
    it was made from.
    """
    run = artifacts.Run(folder)
    model, snapshots, steps = _average_of_last(run, average)
    artifacts.check_tokenizers(run, artifacts.load_tokenizers(folder))
    step, path = snapshots[-1]
    with files.atomic_write(run.model) as new:
        model.save(new)
    made_from = f"the mean of the last {len(snapshots)} checkpoints" if len(snapshots) > 1 else path.name
    if len(snapshots) < average:
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


def _average_of_last(run, count):
    """The model with the mean of a run's last `count` snapshots, these as [(step, path)], and the run's total steps."""
    config, state = run.read_config(), read_state(run.folder)
    snapshots = _checkpoints(run)
    if state["step"] > max((step for step, _ in snapshots), default=0):
        snapshots.append((state["step"], run.state))
    if not snapshots:
        raise FileNotFoundError(
            f"{run.folder}: nothing is trained yet; `keras-tfm train` saves every few minutes and when interrupted"
        )
    snapshots = snapshots[-count:]
    held = files.size_of_arrays(snapshots[-1][1])
    with files.reading(run.config, START_OVER):
        _check_options(config["model"])
        check_capacity(config["model"], *held)
        # float32 for decoding, whatever the precision of training
        model = model_of(config["model"] | {"dtype": "float32"})
        steps = positive("steps", config["steps"])
    average_checkpoints(model, [path for _, path in snapshots])
    step = snapshots[-1][0]
    model.metadata = {"tokenizers": config["tokenizers"], "step": step, "averaged": len(snapshots)}
    model.metadata["finished"] = step >= steps or state["patience"] is not None
    return model, snapshots, steps


def saved_step(folder):
    """The number of steps that a run has saved."""
    return read_state(folder)["step"]


def checkpoints(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Paths of a run's checkpoints, oldest first, without any newer than the saved state."""
    return [path for _, path in _checkpoints(artifacts.Run(folder))]


def _checkpoints(run):
    """The same with their steps: [(step, path), …]."""
    newest = saved_step(run.folder) or math.inf  # without a state, all of them
    return [(step, path) for step, path in run.all_checkpoints() if step <= newest]


def average_checkpoints(model: keras.Model, paths: Iterable[str | os.PathLike[str]]) -> None:
    """Sets the weights of a model to the mean of those in files that a `TrainingRun` wrote.

    If the optimizer keeps moving averages, those in `state.npz` are used.
    """
    paths = list(paths)
    if not paths:
        raise UserError("`paths` must name at least one checkpoint. Received: none")
    weights = by_path("weights", model.weights)
    sums = dict.fromkeys(weights, 0.0)
    for path in paths:
        arrays = weights_only(files.read_arrays(path))
        check_same(path, weights, arrays)
        sums = {key: total + arrays[key].astype("float64") for key, total in sums.items()}
    for key, weight in weights.items():
        weight.assign((sums[key] / len(paths)).astype("float32"))


def read_state(folder):
    """What state.npz says about the run, without its other arrays."""
    path = artifacts.Run(folder).state
    if not path.exists():
        return {"step": 0, "patience": None}
    with files.reading(path, START_OVER):
        state = json.loads(str(files.read_arrays(path, START_OVER, ["state"])["state"]))
        return state | {"step": int(state["step"]), "patience": state["patience"]}


def by_path(kind, variables):
    """Variables by kind and path, with the same keys in every process.

    Keras appends numbers to names, `dense_3`, by counting all layers of the process. These are replaced by a number
    that counts the variables here.
    """
    by_key, seen = {}, collections.Counter()
    for variable in variables:
        key = f"{kind}/" + re.sub(r"_\d+(?=[/_]|$)", "", variable.path)
        by_key[f"{key}_{seen[key]}" if seen[key] else key] = variable
        seen[key] += 1
    return by_key


def check_same(path, variables, arrays):
    """Raises an error that names the arrays of a file that are missing, extra or of another shape."""
    wrong = [f"no {key} ({variable.path})" for key, variable in variables.items() if key not in arrays]
    wrong += [f"{key}, which the model does not have" for key in arrays if key not in variables]
    shapes = {key: (arrays[key].shape, tuple(variables[key].shape)) for key in variables if key in arrays}
    wrong += [f"{key} of shape {ours} instead of {theirs}" for key, (ours, theirs) in shapes.items() if ours != theirs]
    if wrong:
        received = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more differences" if len(wrong) > 3 else "")
        raise UserError(f"{path}: must come from the same model and optimizer. Received: {received}")


def weights_only(arrays):
    """The arrays of weights only: their moving averages where the optimizer keeps them."""
    names = [key for key in arrays if key.startswith("weights/")]
    return {key: arrays.get(key.replace("weights/", "averages/", 1), arrays[key]) for key in names}


def check_tokenizers(model, source_tokenizer, target_tokenizer, fingerprints):
    """Raises an error if the model was not trained with these tokenizers."""
    if model.metadata.get("tokenizers", fingerprints) != fingerprints:
        raise UserError(
            "tokenizers must be those that the model was trained with. Received: ones with other fingerprints"
        )
    sizes = [model.arguments["vocab_size"]]
    sizes.append(model.arguments.get("target_vocab_size") or sizes[0])
    received = [source_tokenizer.vocab_size, target_tokenizer.vocab_size]
    if received[0] > sizes[0] or received[1] > sizes[1]:
        raise UserError(f"tokenizers must have at most {sizes} tokens, like the model. Received: {received}")
