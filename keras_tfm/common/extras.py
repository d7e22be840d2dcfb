"""Optional packages: what each is for, and which extra of keras_tfm installs it."""

import importlib
import importlib.util
import pathlib
import sys

from keras_tfm.common.arguments import UserError

# Package, or a module of it → what it is required for, and the extra that installs it.
PACKAGES = {
    "tensorflow": ("the TensorFlow backend and for exports", "tensorflow"),
    "jax": ("the JAX backend", "jax"),
    "filelock": ("JAX's compilation cache", "jax"),
    "torch": ("the PyTorch backend", "torch"),
    "sentencepiece": ("subword, word and character tokenizers", "train"),
    "babel": ("the dates task", "train"),
    "babel.messages": ("plural forms", "documents"),
    "sacrebleu": ("BLEU and chrF", "train"),
    "tensorboard": ("TensorBoard events", "train"),
    "matplotlib": ("plots", "plot"),
    "tensorflow_text": ("SavedModels and tokenizers inside a TensorFlow graph", "text"),
    "ai_edge_litert": ("running LiteRT files", "litert"),
    "ctranslate2": ("CTranslate2 exports", "ctranslate2"),
    "safetensors": ("checkpoints of Hugging Face", "huggingface"),
    "yaml": ("checkpoints in Marian's own format", "huggingface"),
    "onnxruntime": ("running ONNX files", "onnx"),
    "tf2onnx": ("writing ONNX files", "onnx"),
    "h11": ("serving over HTTP", "serve"),
    "prometheus_client": ("serving over HTTP", "serve"),
    "sklearn": ("the images of scikit-learn", "examples"),
    "fluent": ("Fluent files", "documents"),
    "javaproperties": ("Java's .properties files", "documents"),
    "markdown_it": ("Markdown files", "documents"),
    "sentencex": ("splitting texts into sentences", "documents"),
    "ray": ("training in processes that Ray starts", "ray"),
}

BACKENDS = "tensorflow", "jax", "torch"  # of Keras

# What `keras_tfm.export.to_web` copies into a page, from these packages of npm; a browser loads one of the two .wasm.
NPM_PACKAGES = {"@litertjs/core": "2.5.3", "@litertjs/wasm-utils": "2.5.3"}
NPM_FILES = {"litert.js": "@litertjs/core/dist/index.js", "wasm-utils.js": "@litertjs/wasm-utils/dist/index.js"}
WASM = ("litert_wasm_internal", "litert_wasm_compat_internal")
NPM_FILES |= {f"{name}.{kind}": f"@litertjs/core/wasm/{name}.{kind}" for name in WASM for kind in ("js", "wasm")}
# What a page that explains the model draws with.
D3_PACKAGES = {"d3": "7.9.0"}
D3_FILES = {"d3.js": "d3/dist/d3.min.js", "d3.LICENSE": "d3/LICENSE"}


def load(name):
    """Imports and returns a module of an optional package, such as "sacrebleu" or "matplotlib.figure"."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing(name) from error


def require(*names):
    """Raises the error of `load` unless all of these packages are installed; imports none of them."""
    for name in names:
        if not is_installed(name):
            raise missing(name)


def is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # `find_spec` raises it where sys.modules blocks the import
        return False


def other_backends(package):
    """The installed backends of Keras, if this package is one of them that is not."""
    return [name for name in BACKENDS if is_installed(name)] if package in BACKENDS else []


def require_or_exit(*names):
    """`require` for the `main` of a program: what is missing is reported in one line, without a traceback."""
    try:
        require(*names)
    except ModuleNotFoundError as error:
        sys.exit(str(error))


def missing(name):
    """The error that says how to install the package of a module."""
    package = name.partition(".")[0]
    purpose, extra = PACKAGES.get(".".join(name.split(".")[:2])) or PACKAGES[package]
    return ModuleNotFoundError(f"{package} is required for {purpose}: pip install 'keras_tfm[{extra}]'", name=package)


def npm_files(folder=None, explain=False):
    """The files of LiteRT.js, and of D3 to explain a model, in a folder of npm or node_modules: {name: path}."""
    folder = pathlib.Path("node_modules" if folder is None else folder)
    files, packages = NPM_FILES | (D3_FILES if explain else {}), NPM_PACKAGES | (D3_PACKAGES if explain else {})
    for file in files.values():
        if not (folder / file).is_file():
            names = " ".join(f"{name}@{version}" for name, version in packages.items())
            raise UserError(
                f"`runtime` must be a folder that contains LiteRT.js{' and D3' if explain else ''}, such as the "
                f"node_modules that `npm install --no-package-lock {names}` makes. Received: {folder}, without {file}"
            )
    return {name: folder / file for name, file in files.items()}
