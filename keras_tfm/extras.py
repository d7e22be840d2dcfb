"""Optional packages: what each is for, and which extra of keras_tfm installs it."""

import importlib
import importlib.util

# Package → what it is required for, and the extra that installs it.
PACKAGES = {
    "tensorflow": ("the TensorFlow backend and for exports", "tensorflow"),
    "jax": ("the JAX backend", "jax"),
    "torch": ("the PyTorch backend", "torch"),
    "sentencepiece": ("subword, word and character tokenizers", "train"),
    "babel": ("the dates task", "train"),
    "sacrebleu": ("BLEU and chrF", "train"),
    "tensorboard": ("TensorBoard events", "train"),
    "matplotlib": ("plots", "plot"),
    "tensorflow_text": ("SavedModels and tokenizers inside a TensorFlow graph", "text"),
    "ai_edge_litert": ("running LiteRT files", "litert"),
    "ctranslate2": ("CTranslate2 exports", "ctranslate2"),
    "onnxruntime": ("running ONNX files", "onnx"),
    "tf2onnx": ("writing ONNX files", "onnx"),
}


def load(name):
    """Imports and returns a module of an optional package, such as "sacrebleu" or "matplotlib.figure"."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing(name) from error


def require(*names):
    """Raises the error of `load` unless all of these packages are installed; imports none of them."""
    for name in names:
        try:
            found = importlib.util.find_spec(name) is not None
        except ValueError:  # `find_spec` raises it where sys.modules blocks the import
            found = False
        if not found:
            raise missing(name)


def missing(name):
    """The error that says how to install the package of a module."""
    package = name.partition(".")[0]
    purpose, extra = PACKAGES[package]
    return ModuleNotFoundError(f"{package} is required for {purpose}: pip install 'keras_tfm[{extra}]'", name=package)
