"""What the folder of a run, a saved translator or an export holds; read without Keras, so that it takes no time."""

import json
import math
import pathlib
import zipfile

import numpy as np

from keras_tfm import exported, files, text

SIZES = ("num_layers", "num_decoder_layers", "model_dim", "num_heads", "ff_dim", "positions", "norm_first", "dtype")


def describe(folder):
    """Names and values, in the order to show them: [(name, value), …].

    >>> import tempfile
    >>> describe(tempfile.mkdtemp())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: ...: holds no run, no saved translator and no export
    """
    folder = pathlib.Path(folder)
    form = exported.form(folder)
    if form is not None:
        return [("kind", f"export, {form}"), *_of_export(folder), *_size(folder)]
    if (folder / "config.json").exists():
        with files.reading(folder / "config.json"):
            return [("kind", "run"), *_of_run(folder), *_tokenizers(folder)]
    models = sorted(folder.glob("model*.keras"))
    if models:
        found = [("kind", "saved translator" + (f" of {len(models)} models" if len(models) > 1 else ""))]
        with files.reading(models[0]):
            return [*found, *_of_model(models[0]), *_tokenizers(folder), *_size(folder)]
    more = "; only the state of a `TrainingRun`" if (folder / "state.npz").exists() else ""
    raise FileNotFoundError(f"{folder}: holds no run, no saved translator and no export{more}")


def _of_export(folder):
    if not (folder / "translator.json").exists():
        return []
    return [
        (name, value) for name, value in files.read_manifest(folder).items() if name not in ("format", "tokenizers")
    ]


def _of_run(folder):
    config = files.read_json(folder / "config.json", ("options", "model", "steps"))
    yield "options", ", ".join(f"{name} {value}" for name, value in config["options"].items())
    yield "model", _architecture(config["model"])
    state = folder / "state.npz"
    if state.exists():
        with files.reading(state), open(state, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            saved = json.loads(str(arrays["state"]))
            weights = sum(math.prod(arrays[name].shape) for name in arrays.files if name.startswith("weights/"))
            done = int(saved["step"])
        yield "parameters", f"{weights:,}"
        yield "trained", f"{done:,} of {config['steps']:,} steps"
        if saved["history"]:
            yield "last epoch", ", ".join(f"{name} {value:.4g}" for name, value in saved["history"][-1].items())
    else:
        yield "trained", "nothing is saved yet"
    if (folder / "model.keras").exists():
        metadata = _config(folder / "model.keras").get("metadata", {})
        yield "result", f"model.keras of step {metadata.get('step', 0):,}"
    else:
        yield "result", f"none yet; `keras-tfm finish {folder}` writes one of what is saved"


def _of_model(path):
    import h5py

    config = _config(path)
    with files.reading(path), zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as weights:
        items = []
        with h5py.File(weights) as tables:
            tables.visititems(lambda name, item: items.append((name, item)))
            count = sum(item.size for name, item in items if hasattr(item, "size") and "seed_generator" not in name)
    yield "model", _architecture(config)
    yield "parameters", f"{count:,}"
    if config.get("metadata", {}).get("step"):
        yield "trained", f"{config['metadata']['step']:,} steps"


def _config(path):
    files.check_zip(path)
    with files.reading(path), zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))["config"]


def _architecture(config):
    sizes = ", ".join(f"{name} {config[name]}" for name in SIZES if config.get(name) is not None)
    return f"{config.get('builder', 'model')}: vocabulary {config.get('vocab_size')}, {sizes}"


def _tokenizers(folder):
    for path in sorted(folder.glob("*tokenizer")):
        tokenizer = text.load_tokenizer(path)
        yield path.name.replace("_", " "), f"{type(tokenizer).__name__}, {tokenizer.vocab_size:,} tokens"


def _size(folder):
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return [("size", f"{size / 2**20:.1f} MB")]
