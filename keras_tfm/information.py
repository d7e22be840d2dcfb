"""What a folder contains: a run, a saved translator or an export. Does not import Keras, so it is fast."""

import json
import pathlib

from keras_tfm import exported, files, text

SIZES = ("num_layers", "num_decoder_layers", "model_dim", "units", "num_heads", "ff_dim", "cell", "attention")
SIZES += ("kernel_size", "dilations", "positions", "norm_first", "dtype")


def describe(folder):
    """Names and values to show, in order: [(name, value), …].

    >>> import tempfile
    >>> describe(tempfile.mkdtemp())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: ...: contains no run, no saved translator and no export
    """
    folder = pathlib.Path(folder)
    form, models = exported.form(folder), sorted(folder.glob("model*.keras"))
    size = f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 2**20:.1f} MB"
    if form is not None:
        settings = files.read_manifest(folder).items()
        shown = [(name, value) for name, value in settings if name not in ("format", "tokenizers")]
        return [("kind", f"export, {form}"), *shown, ("size", size)]
    if (folder / "config.json").exists():
        with files.reading(folder / "config.json"):
            return [("kind", "run"), *_run(folder), *_tokenizers(folder)]
    if models:
        kind = "saved translator" + (f" of {len(models)} models" if len(models) > 1 else "")
        with files.reading(models[0]):
            return [("kind", kind), *_model(models[0]), *_tokenizers(folder), *_settings(folder), ("size", size)]
    more = "; only the state of a `TrainingRun`" if (folder / "state.npz").exists() else ""
    raise FileNotFoundError(f"{folder}: contains no run, no saved translator and no export{more}")


def _run(folder):
    config = files.read_json(folder / "config.json", ("options", "model", "steps"))
    given = {name: value for name, value in config["options"].items() if value is not None}
    yield "options", ", ".join(f"{name} {value}" for name, value in given.items())
    yield "model", _architecture(config["model"])
    path, result = folder / "state.npz", folder / "model.keras"
    if path.exists():
        with files.reading(path):
            arrays = files.read_arrays(path)
            state = json.loads(str(arrays["state"]))
            weights = sum(array.size for name, array in arrays.items() if name.startswith("weights/"))
            epoch = ", ".join(f"{name} {value:.4g}" for name, value in (state["history"] or [{}])[-1].items())
            trained = f"{int(state['step']):,} of {config['steps']:,} steps"
        yield from (("parameters", f"{weights:,}"), ("trained", trained))
        if epoch:
            yield "last epoch", epoch
    else:
        yield "trained", "nothing is saved yet"
    if result.exists():
        yield "result", f"model.keras of step {_config(result)['metadata'].get('step', 0):,}"
    else:
        yield "result", f"none yet; `keras-tfm finish {folder}` writes one from what is saved"


def _model(path):
    import h5py

    config, sizes = _config(path), {}
    with files.archive_of(path) as archive, archive.open("model.weights.h5") as file, h5py.File(file) as weights:
        weights.visititems(lambda name, item: sizes.update({name: getattr(item, "size", 0)}))  # groups have no size
    yield "model", _architecture(config)
    yield "parameters", f"{sum(size for name, size in sizes.items() if 'seed_generator' not in name):,}"
    if config["metadata"].get("step"):
        yield "trained", f"{config['metadata']['step']:,} steps"


def _config(path):
    files.check_zip(path)
    with files.archive_of(path) as archive:
        return {"metadata": {}, **json.loads(archive.read("config.json"))["config"]}


def _architecture(config):
    sizes = ", ".join(f"{name} {config[name]}" for name in SIZES if config.get(name) is not None)
    return f"{config.get('name')}, vocabulary {config.get('vocab_size')}, {sizes}"


def _settings(folder):
    path = folder / "translator.json"
    found = files.read_json(path) if path.exists() else {}
    shown = [f"{name} {value}" for name, value in found.items() if name not in ("format", "files")]
    return [("settings", ", ".join(shown))] if shown else []  # none in folders of earlier versions


def _tokenizers(folder):
    for path in sorted(folder.glob("*tokenizer")):
        tokenizer = text.load_tokenizer(path)
        yield path.name.replace("_", " "), f"{type(tokenizer).__name__}, {tokenizer.vocab_size:,} tokens"
