"""UTF-8 bytes as tokens."""

import pathlib
from typing import Any, Self

from keras_tfm.text.base import SPECIALS, UNKNOWN, Tokenizer, clean, register_tokenizer


@register_tokenizer
class ByteTokenizer(Tokenizer):
    """Uses each UTF-8 byte as a token: nothing to train and nothing unknown, but long sequences.

    >>> ByteTokenizer().encode(["hé"])
    [[108, 199, 173]]
    """

    vocab_size = len(SPECIALS) + 256

    def _encode(self, texts):
        return [[byte + len(SPECIALS) for byte in text.encode()] for text in texts]

    def _decode(self, ids):  # invalid UTF-8 becomes U+FFFD
        return bytes(i - len(SPECIALS) for i in ids if i != UNKNOWN).decode("utf-8", "replace")

    def pieces(self, text: str) -> list[str]:
        return [chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in next(clean([text])).encode()]

    def in_graph(self) -> Any:
        return _BytesInGraph()

    def save(self, folder: pathlib.Path) -> None:
        pass  # there is nothing to write

    @classmethod
    def load(cls, folder: pathlib.Path) -> Self:
        return cls()


class _BytesInGraph:
    def tokenize(self, texts):
        import tensorflow as tf

        codes = lambda letters: tf.reshape(tf.io.decode_raw(letters, tf.uint8), [-1])  # noqa: E731
        return tf.cast(tf.ragged.map_flat_values(codes, tf.strings.bytes_split(texts)), tf.int32) + len(SPECIALS)

    def detokenize(self, ids):
        import tensorflow as tf

        table = tf.constant([bytes([max(i - len(SPECIALS), 0)]) for i in range(ByteTokenizer.vocab_size)])
        content = tf.ragged.boolean_mask(ids, ids >= len(SPECIALS))
        joined = tf.strings.reduce_join(tf.gather(table, content), axis=-1)
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")
