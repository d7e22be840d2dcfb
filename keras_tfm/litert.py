"""Runs what `export.litert` wrote. Needs numpy, sentencepiece and ai-edge-litert; neither Keras nor TensorFlow."""

import threading

import numpy as np

from keras_tfm import files
from keras_tfm.runner import TokenRunner


class LiteRTTranslator(TokenRunner):
    """Strings in, strings out, by a LiteRT file. Several threads may use one; they take turns, sentence by sentence.

    Args:
        folder: what `export.litert` wrote.
        num_threads: how many threads the runtime uses.
    """

    form, main = "litert", "model.tflite"

    def __init__(self, folder, num_threads=1):
        super().__init__(folder)
        path = self.folder / self.main
        make = _interpreter()
        with files.reading(path):
            self.interpreter = make(str(path), num_threads=num_threads)
            self.signature = self.interpreter.get_signature_runner("translate")
        self._turn = threading.Lock()

    def _search(self, rows):
        return [self._translated(row) for row in rows]

    def _translated(self, row):
        with self._turn:
            return self.signature(ids=np.array([row], "int32"))["ids"][0]


def _interpreter():
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError("LiteRT files need their runtime: pip install 'keras_tfm[litert]'") from error
    return Interpreter
