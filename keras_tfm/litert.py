"""Runs what `export.litert` wrote. Needs numpy, sentencepiece and ai-edge-litert; neither Keras nor TensorFlow."""

import json
import pathlib
import warnings

import numpy as np

from keras_tfm import text
from keras_tfm.text import END


class LiteRTTranslator:
    """Strings in, strings out, by a LiteRT file.

    Args:
        folder: what `export.litert` wrote.
        num_threads: how many threads the runtime uses.

    An empty text stays empty; of a text that is too long, the end is cut off, with a warning that says how much.
    """

    def __init__(self, folder, num_threads=1):
        folder = pathlib.Path(folder)
        if not (folder / "model.tflite").exists():
            raise FileNotFoundError(f"{folder}: must hold a model.tflite, as `keras-tfm export` writes it")
        self.max_length = json.loads((folder / "translator.json").read_text())["max_length"]
        names = ("source_tokenizer", "target_tokenizer")
        self.source_tokenizer, self.target_tokenizer = (text.load_tokenizer(folder / name) for name in names)
        self.interpreter = _interpreter()(str(folder / "model.tflite"), num_threads=num_threads)
        self.signature = self.interpreter.get_signature_runner("translate")

    def __call__(self, texts):
        """Strings → strings; one by one, those of a length together, since the runtime gets ready for each length."""
        if isinstance(texts, str):
            raise ValueError(f"`texts` must be a list of strings. Received: a string, {texts[:40]!r}")
        texts, found = list(texts), {}
        rows = self.source_tokenizer.encode(texts)
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
            found[place] = self._translated(texts[place], rows[place])
        return [found[place] for place in range(len(rows))]

    def _translated(self, string, ids):
        if not string.strip():
            return ""
        room = self.max_length - 1
        if len(ids) > room:
            warnings.warn(f"{len(ids) - room} of {len(ids)} tokens were cut off: {string[:40]!r} …", stacklevel=3)
        found = self.signature(ids=np.array([[*ids[:room], END]], "int32"))["ids"]
        return self.target_tokenizer.decode(found)[0]


def _interpreter():
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError("LiteRT files need their runtime: pip install 'keras_tfm[litert]'") from error
    return Interpreter
