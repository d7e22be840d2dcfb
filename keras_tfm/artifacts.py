"""The files of a run, a saved translator and an export: which there are, and what a folder contains.

A module that writes a format may name files that only this format has. Nothing here imports Keras, so it is fast.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_tfm import text
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, check, one_of

if TYPE_CHECKING:
    import keras_tfm

__all__ = ["FORMATS", "Format", "Run", "SHIPPED", "describe", "format_of", "load", "load_tokenizers"]
SHIPPED = pathlib.Path(__file__).parent / "shipped" / "dates"  # the translator of dates that comes with the package
PRESETS = {"dates": SHIPPED}  # trained translators by name
MANIFEST = "translator.json"  # settings of a saved translator or an export, and the checksums of its files
TOKENIZERS = ["tokenizer"], ["source_tokenizer", "target_tokenizer"]  # one for both sides, or one for each
MODEL, MODEL_GLOB = "model.keras", "model*.keras"
TRANSLATOR, RUNNERS = "keras_tfm.translator", "keras_tfm.export.runners"  # modules that load folders


def __dir__():
    return __all__


class Run:
    """The files of a training run.

    config          options of the run and configuration of the model
    tokenizer/      or source_tokenizer/ and target_tokenizer/
    data            encoded texts
    state           everything that training needs to resume; saved every few minutes and at the end of each epoch
    checkpoints     folder of the weights at the end of each of the last epochs, named by their step
    metrics         one row per epoch
    model           the result: the last checkpoint, or the mean of several
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = pathlib.Path(folder)
        self.config, self.state = self.folder / "config.json", self.folder / "state.npz"
        self.checkpoints, self.metrics = self.folder / "checkpoints", self.folder / "metrics.csv"
        self.model, self.learning_curve = self.folder / MODEL, self.folder / "learning_curve.png"
        self.tensorboard, self.data = self.folder / "tensorboard", self.folder / "data"
        self.valid_data, self.tokenizer_options = self.data / "valid", self.data / "tokenizers.json"

    def checkpoint(self, step: int) -> pathlib.Path:
        """The file of the weights after a step."""
        return self.checkpoints / f"{step:08d}.npz"

    def all_checkpoints(self) -> list[tuple[int, pathlib.Path]]:
        """All files of weights: [(step, path), …], oldest first."""
        return [(int(path.stem), path) for path in sorted(self.checkpoints.glob("[0-9]*.npz"))]

    def train_data(self, number: int) -> pathlib.Path:
        """The folder of the encoded training texts; several with subword sampling."""
        return self.data / f"train-{number}"

    def tokenizers(self, separate: bool) -> list[pathlib.Path]:
        """Folders of the shared tokenizer, or of those of both sides."""
        return [self.folder / name for name in TOKENIZERS[separate]]

    def read_config(self) -> dict[str, Any]:
        """The content of `config`."""
        required = ("options", "texts", "model", "tokenizers", "average", "steps")
        return files.read_json(self.config, required, "delete it, and run the same `keras-tfm train` command again")

    def check_free(self) -> None:
        """Refuses a folder in which a run would replace files of others, or mix its own with them."""
        if self.state.exists() or self.all_checkpoints():
            return
        with contextlib.suppress(files.DamagedFile):
            if self.exists() and self.read_config():
                return
        written = self.config, self.model, self.metrics, self.learning_curve, self.tensorboard
        others = [path.name for path in written if path.exists()]
        inside = self.data.iterdir() if self.data.is_dir() else ()
        if not all(re.fullmatch(r"train-\d+|valid|tokenizers\.json|\..*", path.name) for path in inside):
            others.append(self.data.name)
        if others:
            rule = "must be a new folder, or that of a run"
            raise UserError(f"`folder` {rule}. Received: {self.folder}, which has another {', '.join(sorted(others))}")

    def exists(self) -> bool:
        """Whether the folder is that of a run; CTranslate2 exports have a `config.json` too."""
        return self.config.exists() and not (self.folder / MANIFEST).exists()


# ── tokenizers and models of a run or a saved translator ──


def load_tokenizers(folder: str | os.PathLike[str]) -> list[text.Tokenizer]:
    """A list of the shared tokenizer, or of the source and target tokenizers."""
    folder = pathlib.Path(folder)
    names = next((names for names in TOKENIZERS if any((folder / name).exists() for name in names)), TOKENIZERS[0])
    for name in names:
        if not text.saving.is_tokenizer(folder / name):
            remedy = "the same `keras-tfm train` command writes it again" if Run(folder).exists() else files.RESTORE
            raise FileNotFoundError(f"{folder / name}: is missing or incomplete; {remedy}")
    return [text.load_tokenizer(folder / name) for name in names]


def check_tokenizers(run, tokenizers):
    """Raises an error unless these are the tokenizers that a `Run` was started with."""
    if [text.saving.fingerprint(tokenizer) for tokenizer in tokenizers] != run.read_config()["tokenizers"]:
        names = " and ".join(TOKENIZERS[len(tokenizers) - 1])
        raise UserError(
            f"{run.folder}: must have the tokenizers that the run was started with. Received: another {names}"
        )


def write_tokenizers(folder, tokenizers):
    """Writes tokenizers, unless the folder has the same."""
    for name, tokenizer in zip(TOKENIZERS[len(tokenizers) - 1], tokenizers, strict=True):
        try:
            same = text.saving.fingerprint(text.load_tokenizer(folder / name)) == text.saving.fingerprint(tokenizer)
        except ValueError:  # missing or damaged
            same = False
        if not same:
            text.save_tokenizer(tokenizer, folder / name)


def models_of(folder):
    """The files of the models of a run or a saved translator."""
    return sorted(pathlib.Path(folder).glob(MODEL_GLOB))


def new_translator(folder, count):
    """A context that writes the folder of a saved translator, and the names of the files of its models."""
    models = {path.name for path in models_of(folder)} | {MODEL}
    names = models | {MANIFEST, *TOKENIZERS[0], *TOKENIZERS[1]}
    files_of_models = [f"model-{n}.keras" for n in range(count)] if count > 1 else [MODEL]
    return files.NewFolder(folder, models, names, "saved translator"), files_of_models


def write_manifest(folder, **settings):
    """Writes the settings of a saved translator or an export, with the checksums of all files in its folder."""
    files.write_manifest(folder, MANIFEST, **settings)


def read_manifest(folder, required=()):
    """The settings of a saved translator or an export, after a check of its files."""
    return files.read_manifest(folder, MANIFEST, required)


# ── exports ──


class Format(NamedTuple):
    """An export format: how its folder is recognized, written and run."""

    main: str  # the file that only this format has
    writer: str  # module with a function `write(translator, folder, settings)`
    runner: str | None = None  # class that runs it, "module.Class"; None if `load` makes a `Translator` of it
    packages: tuple = ()  # needed to run it
    writing_packages: tuple = ()  # needed to write it, besides
    precisions: tuple = ("float32",)  # the default first
    own: tuple = ()  # its other files
    max_length: int = 128  # of sources, by default
    n_best: bool = False  # whether it returns several hypotheses
    jit_compile: bool = False  # whether it can hold searches for XLA
    tokenizers: bool = True  # whether they are in files of their own
    needs_tensorflow: bool = True  # whether TensorFlow writes it
    page: bool = False  # whether it is a web page, with a title, examples and a runtime


_CTRANSLATE2 = ("float32", "float16", "int16", "int8", "int8_float16")
_HUGGING_FACE = ("config", "generation_config", "tokenizer_config", "vocab", "target_vocab")
MAX_TOKENS = 2**16  # largest `max_length` of an export, from a caller or a manifest
ENCODER = "encoder.onnx"
PAGE = "index.html", "page.css", "page.js", "map.js", "worker.js", "tokenizer.js", "protected.js"  # of the web format
EXPLAIN = "explain.html", "explain.tflite", "explain"  # of a web format with a page that explains the model
FORMATS = {
    "saved_model": Format(
        "saved_model.pb",
        "keras_tfm.export.to_saved_model",
        "keras_tfm.export.runners.SavedModelTranslator",
        ("tensorflow", "tensorflow_text"),
        own=("variables", "assets", "fingerprint.pb"),
        n_best=True,
        jit_compile=True,
        tokenizers=False,
    ),
    "litert": Format(
        "model.tflite",
        "keras_tfm.export.to_litert",
        "keras_tfm.export.runners.LiteRTTranslator",
        ("ai_edge_litert",),
        precisions=("float32", "float16", "int8"),
    ),
    "ctranslate2": Format(
        "model.bin",
        "keras_tfm.export.to_ctranslate2",
        "keras_tfm.export.runners.CTranslate2Translator",
        ("ctranslate2",),
        precisions=_CTRANSLATE2,
        own=("config.json", *(f"{side}_vocabulary.json" for side in ("source", "target", "shared"))),
        max_length=MAX_TOKENS,
        needs_tensorflow=False,
    ),
    "onnx": Format(
        "step.onnx",
        "keras_tfm.export.to_onnx",
        "keras_tfm.export.runners.ONNXTranslator",
        ("onnxruntime",),
        ("tf2onnx",),
        own=(ENCODER,),
    ),
    "web": Format(
        "translator.tflite",
        "keras_tfm.export.to_web",
        "keras_tfm.export.runners.WebTranslator",
        ("ai_edge_litert",),
        precisions=("int8", "float16", "float32"),  # int8 first, since visitors download it
        own=(*PAGE, *EXPLAIN, "runtime"),
        n_best=True,
        page=True,
    ),
    "huggingface": Format(
        "model.safetensors",
        "keras_tfm.export.to_huggingface",
        writing_packages=("safetensors",),
        own=("source.spm", "target.spm", *(f"{name}.json" for name in _HUGGING_FACE)),
        tokenizers=False,
        needs_tensorflow=False,
    ),
}


def check_precision(format: str, precision: str | None) -> str:
    """Returns the precision of a format, its default for None; raises an error if the format does not have it."""
    allowed = FORMATS[one_of("format", format, FORMATS)].precisions
    precision = allowed[0] if precision is None else precision
    return check("precision", precision, precision in allowed, f"one of {', '.join(allowed)} for {format=}")


def format_of(folder: str | os.PathLike[str]) -> str | None:
    """The format of the export in a folder, a key of `FORMATS`, or None if it contains no export."""
    folder = pathlib.Path(folder)
    files.recover_replace(folder)
    return next((name for name, format in FORMATS.items() if (folder / format.main).exists()), None)


def is_runnable(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder contains an export that a runner of `keras_tfm.export` translates with."""
    format = format_of(folder)
    return format is not None and FORMATS[format].runner is not None


def load(folder: str | os.PathLike[str], **options: Any) -> keras_tfm.Translator | keras_tfm.export.Runner:
    """Returns what translates with a folder: a run, a saved translator, or an export in any format.

    Args:
        folder: one that `keras-tfm train`, `Translator.save` or `Translator.export` wrote, or a Marian model of
            Hugging Face.
        **options: arguments of `Translator`, except for an export, which has fixed them.

    Returns:
        a `Translator`, or for an export a `keras_tfm.export.Runner`, which imports neither Keras nor TensorFlow unless
        its format needs them. Both are called with a string or a list of strings, and have the methods `n_best`,
        `score` and `stream`; a runner raises an error where its format cannot do it.

    >>> load(SHIPPED, max_length=64)("3. Mai 2023")
    '2023-05-03'
    """
    if pathlib.Path(folder).is_file():
        raise UserError(f"`folder` must be a folder; `keras_tfm.load_model` reads a .keras file. Received: {folder}")
    if is_runnable(folder):
        return importlib.import_module(RUNNERS).load(folder, **options)
    translator = importlib.import_module(TRANSLATOR).Translator
    return (translator.load if format_of(folder) is None else translator.from_marian)(folder, **options)


def new_export(folder):
    """A context for writing an export; refuses folders that contain anything else."""
    main = {format.main for format in FORMATS.values()}
    own = {name for format in FORMATS.values() for name in format.own}
    return files.NewFolder(folder, main, main | own | {MANIFEST, *TOKENIZERS[1]})


# ── describing a folder ──

SIZES = ["num_layers", "num_decoder_layers", "model_dim", "units", "num_heads", "ff_dim", "cell", "attention"]
OPTIONAL_SETTINGS = "languages", "target_language", "placeholders"  # which few models have
SIZES += ["kernel_size", "dilations", "positions", "norm_first", "dtype"]


def describe(folder: str | os.PathLike[str]) -> list[tuple[str, Any]]:
    """Names and values to show, in order: [(name, value), …].

    >>> import tempfile
    >>> describe(tempfile.mkdtemp())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: ...: contains no run, no saved translator and no export
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    format, models = format_of(folder), models_of(folder)
    size = f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 2**20:.1f} MB"
    if format is not None:
        return [("kind", f"export, {format}"), *_describe_export(folder), ("size", size)]
    run = Run(folder)
    if run.config.exists():
        with files.reading(run.config):
            return [("kind", "run"), *_describe_run(run), *_describe_tokenizers(folder)]
    if models:
        kind = "saved translator" + (f" of {len(models)} models" if len(models) > 1 else "")
        with files.reading(models[0]):
            return [
                ("kind", kind),
                *_describe_model(models[0]),
                *_describe_tokenizers(folder),
                *_describe_settings(folder),
                ("size", size),
            ]
    more = "; only the state of a `TrainingRun`" if run.state.exists() else ""
    raise FileNotFoundError(f"{folder}: contains no run, no saved translator and no export{more}")


def _describe_export(folder):
    settings = read_manifest(folder)
    left_out = {"format", "tokenizers", "expressions", "characters", "explain"} | {
        name for name in OPTIONAL_SETTINGS if not settings.get(name)
    }
    left_out |= {"copied_tokens"} if settings.get("placeholders") else set()  # which are these
    for name, value in settings.items():
        if name not in left_out:
            yield name, ", ".join(map(str, value)) if isinstance(value, list) else value


def _describe_run(run):
    config = files.read_json(run.config, ("options", "model", "steps"))
    given = {name: value for name, value in config["options"].items() if value is not None}
    yield "options", ", ".join(f"{name} {value}" for name, value in given.items())
    yield "model", _architecture(config["model"])
    if run.state.exists():
        with files.reading(run.state):
            arrays = files.read_arrays(run.state)
            state = json.loads(str(arrays["state"]))
            weights = sum(array.size for name, array in arrays.items() if name.startswith("weights/"))
            epoch = ", ".join(f"{name} {value:.4g}" for name, value in (state["history"] or [{}])[-1].items())
            trained = f"{int(state['step']):,} of {config['steps']:,} steps"
        yield from (("parameters", f"{weights:,}"), ("trained", trained))
        if epoch:
            yield "last epoch", epoch
    else:
        yield "trained", "nothing is saved yet"
    if run.model.exists():
        yield "result", f"{run.model.name} of step {_config(run.model)['metadata'].get('step', 0):,}"
    else:
        yield "result", f"none yet; `keras-tfm finish {run.folder}` writes one from what is saved"


def _describe_model(path):
    import h5py

    config, sizes = _config(path), {}
    with files.open_archive(path) as archive, archive.open("model.weights.h5") as file, h5py.File(file) as weights:
        weights.visititems(lambda name, item: sizes.update({name: getattr(item, "size", 0)}))  # groups have no size
    yield "model", _architecture(config)
    yield "parameters", f"{sum(size for name, size in sizes.items() if 'seed_generator' not in name):,}"
    if config["metadata"].get("step"):
        yield "trained", f"{config['metadata']['step']:,} steps"


def _config(path):
    files.check_zip(path)
    with files.open_archive(path) as archive:
        return {"metadata": {}, **json.loads(archive.read("config.json"))["config"]}


def _architecture(config):
    sizes = ", ".join(f"{name} {config[name]}" for name in SIZES if config.get(name) is not None)
    return f"{config.get('name')}, vocabulary {config.get('vocab_size')}, {sizes}"


def _describe_settings(folder):
    path = folder / MANIFEST
    settings = files.read_json(path) if path.exists() else {}
    shown = [f"{name} {value}" for name, value in settings.items() if name not in ("format", "files")]
    return [("settings", ", ".join(shown))] if shown else []  # none in folders of earlier versions


def _describe_tokenizers(folder):
    for path in sorted(folder.glob("*tokenizer")):
        tokenizer = text.load_tokenizer(path)
        yield path.name.replace("_", " "), f"{type(tokenizer).__name__}, {tokenizer.vocab_size:,} tokens"
        if not path.name.startswith("target"):
            known = {"languages": ", ".join(tokenizer.languages), "placeholders": len(tokenizer.slots)}
            yield from ((name, value) for name, value in known.items() if value)
