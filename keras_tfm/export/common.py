"""What the export formats share."""

import pathlib
import statistics
import time
from typing import NamedTuple

import keras


class Verdict(NamedTuple):
    """How an exported translator compares with the original."""

    same: int
    texts: int
    megabytes: float
    milliseconds: float

    def __str__(self):
        return (
            f"{self.same} of {self.texts} sentences translated like the model does, {self.megabytes:.1f} MB, "
            f"{self.milliseconds:.1f} ms per sentence"
        )


def compare(folder, run, translator, texts):
    """The `Verdict` on an exported folder, where `run(texts)` translates with it."""
    found = run(texts)  # which also warms it up
    times = []
    for string in texts:
        start = time.perf_counter()
        run([string])
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
    return Verdict(same, len(texts), size / 2**20, 1000 * statistics.median(times))


def graph_of(function, *specs):
    """`function` as a TensorFlow graph; `specs` are shape, dtype and name of each argument."""
    tf = tensorflow()
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def tensorflow():
    """The module `tensorflow`; raises an error if Keras runs on another backend."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "This export needs the TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow."
            f" Received: the {keras.backend.backend()} backend"
        )
    import tensorflow as tf

    return tf
