"""What the exported forms share: a folder that appears when all is well, and a comparison with the translator."""

import contextlib
import os
import pathlib
import shutil
import statistics
import time
import typing

import keras

from keras_tfm import text

# What the forms write: a file of each that only it has, and all of them.
MAIN = {"saved_model.pb", "model.tflite", "model.bin", "step.onnx"}
OWN = MAIN | {"variables", "assets", "fingerprint.pb", "encoder.onnx", "config.json", "translator.json"}
OWN |= {f"{side}_vocabulary.json" for side in ("source", "target", "shared")} | {"source_tokenizer", "target_tokenizer"}


class Verdict(typing.NamedTuple):
    """How an exported translator compares with the one that it came from."""

    same: int
    texts: int
    megabytes: float
    milliseconds: float

    def __str__(self):
        return (
            f"{self.same} of {self.texts} sentences as the model translates them, {self.megabytes:.1f} MB, "
            f"{self.milliseconds:.1f} ms for a sentence"
        )


def compare(folder, run, translator, texts):
    """The `Verdict` about a folder and what it translates, by `run(string)`, beside the translator it came from."""
    found = [run(string) for string in texts]  # and warms up
    times = []
    for string in texts:
        start = time.perf_counter()
        run(string)
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
    return Verdict(same, len(texts), size / 2**20, 1000 * statistics.median(times))


class NewFolder:
    """A new folder beside `folder`, which takes its place if all goes well."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"`folder` must be new, empty or an earlier export. Received: {self.folder}, a file")
        files = {file.name for file in self.folder.iterdir()} if self.folder.exists() else set()
        others = files - OWN if files & MAIN else files  # which nobody shall lose
        if others:
            raise ValueError(
                "`folder` must be new, empty or an earlier export. "
                f"Received: {self.folder}, with {', '.join(sorted(others))}"
            )

    def __enter__(self):
        self.new = self.folder.absolute().parent / f".{self.folder.name}.unfinished"
        shutil.rmtree(self.new, ignore_errors=True)  # of one that was killed
        self.new.mkdir(parents=True)
        return self.new

    def __exit__(self, error, *_):
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(self.new, self.folder)
        else:
            shutil.rmtree(self.new)


@contextlib.contextmanager
def replaced(thing, name, value):
    """Gives a thing another attribute, for a while."""
    own = vars(thing).get(name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name) if own is None else setattr(thing, name, own)


def save_tokenizers(translator, folder):
    text.save_tokenizer(translator.source_tokenizer, folder / "source_tokenizer")
    text.save_tokenizer(translator.target_tokenizer, folder / "target_tokenizer")


def graph_of(function, *specs):
    """`function` of tensors as a function of a TensorFlow graph; specs are shape, type and name of each."""
    tf = tensorflow()
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def tensorflow():
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Export needs Keras' TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow. "
            f"Received: the {keras.backend.backend()} backend"
        )
    import tensorflow as tf

    return tf
