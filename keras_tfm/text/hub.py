"""Tokenizers of keras-hub."""

import json
import pathlib
from typing import Any, Self

from keras_tfm.common import files
from keras_tfm.common.arguments import UserError
from keras_tfm.text.base import SPECIALS, UNKNOWN, Tokenizer, register_tokenizer


@register_tokenizer
class KerasHubTokenizer(Tokenizer):
    """Wraps a tokenizer of keras-hub (keras-nlp). Its ids are shifted by four, after the special tokens.

    Args:
        tokenizer: a `SentencePieceTokenizer`, `BytePairTokenizer` or `WordPieceTokenizer` of keras-hub that returns
            integers and does not pad.
    """

    # the vocabularies are written by keras-hub
    files = ("keras_hub.json", "merges.txt", "vocabulary.txt", "vocabulary.json", "vocabulary.spm")

    def __init__(self, tokenizer: Any):
        if "int" not in tokenizer.compute_dtype or tokenizer.sequence_length:
            received = f"dtype={tokenizer.compute_dtype!r}, sequence_length={tokenizer.sequence_length}"
            raise UserError(f"`tokenizer` must return integers without padding. Received: a tokenizer with {received}")
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocabulary_size() + len(SPECIALS)

    def _encode(self, texts):
        rows = self.tokenizer.tokenize(texts) if texts else []
        rows = rows.to_list() if hasattr(rows, "to_list") else rows
        return [[int(i) + len(SPECIALS) for i in row] for row in rows]

    def _decode(self, ids):
        ids = [i - len(SPECIALS) for i in ids if i != UNKNOWN]
        text = self.tokenizer.detokenize(ids) if ids else ""
        text = text.numpy() if hasattr(text, "numpy") else text
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)

    def pieces(self, text: str) -> list[str]:
        return [self.tokenizer.id_to_token(i - len(SPECIALS)) for i in self.encode([text])[0]]

    def in_graph(self) -> Any:
        return _KerasHubInGraph(self.tokenizer)

    def save(self, folder: pathlib.Path) -> None:
        name, config = type(self.tokenizer).__name__, self.tokenizer.get_config()
        if _keras_hub_classes().get(name) is not type(self.tokenizer):
            raise UserError(f"`tokenizer` must be of a class of keras_hub.tokenizers. Received: {self.tokenizer}")
        files.write_json(folder / "keras_hub.json", {"class_name": name, "config": {**config, "dtype": "int32"}})
        self.tokenizer.save_assets(str(folder))

    @classmethod
    def load(cls, folder: pathlib.Path) -> Self:
        # not by Keras' own deserialization, which would import any module that the file names
        path, assets = folder / "keras_hub.json", {"vocabulary", "merges", "proto"}  # which could name other files
        content = files.read_json(path, required=("class_name", "config"))
        with files.reading(path):
            make = _keras_hub_classes()[content["class_name"]]
            config = {**content["config"], "dtype": "int32", **dict.fromkeys(assets & {*content["config"]})}
            if "class_name" in json.dumps(config):
                raise UserError("must hold plain values only")
            tokenizer = make(**config)
        with files.reading(folder):
            tokenizer.load_assets(str(folder))
            return cls(tokenizer)


def _keras_hub_classes():
    """The tokenizer classes of keras-hub by name, without their abstract base."""
    from keras_hub import tokenizers

    return {name: cls for name, cls in vars(tokenizers).items() if isinstance(cls, type) and name != "Tokenizer"}


class _KerasHubInGraph:
    def __init__(self, tokenizer):
        import tensorflow as tf

        self.tokenizer, self.keep = tokenizer, tf.ragged.boolean_mask
        # always in a graph, since keras-hub returns Python lists outside of one
        self.tokenize, self.detokenize = (tf.function(f, autograph=False) for f in (self._tokenize, self._detokenize))

    def _tokenize(self, texts):
        return self.tokenizer.tokenize(texts) + len(SPECIALS)

    def _detokenize(self, ids):
        return self.tokenizer.detokenize(self.keep(ids, ids >= len(SPECIALS)) - len(SPECIALS))
