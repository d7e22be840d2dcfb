"""The tokenizer of Marian's models."""

import functools
import pathlib
import re
from collections.abc import Iterable
from typing import Any, Self

from keras_tfm.common import extras, files
from keras_tfm.text.base import SPECIALS, UNKNOWN, Tokenizer, clean, register_tokenizer


@register_tokenizer
class MarianTokenizer(Tokenizer):
    """Splits text with a SentencePiece model whose pieces have the ids of another vocabulary, as Marian's models do.

    A text may start with a language code such as ">>fra<<", which is one token.

    Args:
        model: the bytes of the SentencePiece model.
        vocabulary: the pieces with ids 4, 5, …; others are unknown.

    >>> from keras_tfm.text import train_tokenizer
    >>> model = train_tokenizer(["a b c d"], kind="char", vocab_size=300).model
    >>> MarianTokenizer(model, [">>fra<<", "a", "▁", "b"]).encode([">>fra<<a b", "a c"])
    [[4, 5, 6, 7], [5, 6, 3]]
    """

    CODE = "^>>.*?<<"
    files = ("sentencepiece.model", "vocabulary.json")

    def __init__(self, model: bytes, vocabulary: Iterable[str]):
        self.model, self.vocabulary = model, list(vocabulary)
        self.processor = extras.load("sentencepiece").SentencePieceProcessor(model_proto=model)
        self.vocab_size = len(SPECIALS) + len(self.vocabulary)
        self._ids = {piece: number for number, piece in enumerate(self.vocabulary, len(SPECIALS))}
        self.adds_space = self.processor.encode("a", out_type=str)[0].startswith("▁")
        self.bytes = [b""] * len(SPECIALS) + [_bytes_of(piece) for piece in self.vocabulary]

    def _encode(self, texts):
        return [[self._ids.get(piece, UNKNOWN) for piece in self._pieces(text)] for text in texts]

    def _decode(self, ids):
        text = b"".join(self.bytes[i] for i in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.adds_space else text

    def _pieces(self, text):
        codes = re.findall(self.CODE, text, re.DOTALL)  # at most one
        return codes + self.processor.encode(text.removeprefix("".join(codes)), out_type=str)

    def pieces(self, text: str) -> list[str]:
        return self._pieces(*clean([text]))

    def names(self) -> list[str]:
        return self.vocabulary

    @functools.cached_property
    def characters(self) -> str | None:
        return "".join(sorted(name for name in self.vocabulary if len(name) == 1))

    def in_graph(self) -> Any:
        return _marian_in_graph(self)

    def save(self, folder: pathlib.Path) -> None:
        (folder / "sentencepiece.model").write_bytes(self.model)
        files.write_json(folder / "vocabulary.json", {"pieces": self.vocabulary})

    @classmethod
    def load(cls, folder: pathlib.Path) -> Self:
        vocabulary = files.read_json(folder / "vocabulary.json", required=("pieces",))["pieces"]
        with files.reading(folder / "sentencepiece.model"):
            return cls(files.read_bytes(folder / "sentencepiece.model"), vocabulary)


def _bytes_of(piece):
    """What a piece of SentencePiece stands for."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


def _marian_in_graph(tokenizer):
    import tensorflow as tf

    class MarianInGraph(tf.Module):  # so that a SavedModel keeps its table
        def __init__(self):
            ids = list(range(len(SPECIALS), tokenizer.vocab_size))
            pairs = tf.lookup.KeyValueTensorInitializer(tokenizer.vocabulary, ids, "string", "int32")
            self.table = tf.lookup.StaticHashTable(pairs, UNKNOWN)
            self.splitter = extras.load("tensorflow_text").SentencepieceTokenizer(tokenizer.model, tf.string)

        def tokenize(self, texts):
            pattern = f"(?s)({tokenizer.CODE}).*"
            coded = tf.strings.regex_full_match(texts, pattern)
            codes = tf.where(coded, tf.strings.regex_replace(texts, pattern, r"\1"), "")
            pieces = self.splitter.tokenize(
                tf.strings.substr(texts, tf.strings.length(codes), tf.strings.length(texts))
            )
            codes = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(codes, coded), tf.cast(coded, "int64"))
            return tf.ragged.map_flat_values(self.table.lookup, tf.concat([codes, pieces], axis=1))

        def detokenize(self, ids):
            joined = tf.strings.reduce_join(tf.gather(tf.constant(tokenizer.bytes), ids), axis=-1)
            joined = tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")
            return tf.strings.regex_replace(joined, "^ ", "") if tokenizer.adds_space else joined

    return MarianInGraph()
