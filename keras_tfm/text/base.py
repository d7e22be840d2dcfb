"""What all tokenizers share. Every tokenizer uses ids 0 to 3 for padding, start, end and unknown."""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

from keras_tfm.common.arguments import UserError, rate
from keras_tfm.text.masking import SLOT, TAG, characters_except

PAD, START, END, UNKNOWN = SPECIALS = range(4)
# Where a `Translator` splits texts.
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*")
LINE_END = re.compile(r"\r?\n")


T = TypeVar("T", bound=type)
# Classes by name, which is what a saved tokenizer names; `register_tokenizer` adds to it.
TOKENIZERS: dict[str, Any] = {}


def register_tokenizer(cls: T) -> T:
    """Decorates a `Tokenizer` class, so that `save_tokenizer` and `load_tokenizer` know it by its name.

    >>> @register_tokenizer
    ... class Letters(Tokenizer):
    ...     vocab_size = 30
    >>> TOKENIZERS.pop("Letters") is Letters
    True
    """
    other = TOKENIZERS.get(cls.__name__)
    if other is not None and other.__module__ != cls.__module__:
        raise UserError(f"`cls` must have a name of its own. Received: {cls}, and there is {other}")
    TOKENIZERS[cls.__name__] = cls
    return cls


class Tokenizer:
    """What all tokenizers share.

    Attributes:
        vocab_size: the number of tokens.
        files: names of the files that `save` may write.
    """

    files: tuple[str, ...] = ()
    vocab_size: int

    def encode(self, texts: Iterable[str], sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Converts strings to lists of ids.

        Args:
            texts: an iterable of strings.
            sampling: segments texts randomly, for training, if the tokenizer can. For BPE, the share of merges that
                are skipped (https://arxiv.org/abs/1910.13267); for unigram, the smoothing of its probabilities.
            seed: seed of the random segmentation.
        """
        texts = list(clean(texts))
        return self._sample(texts, sampling, seed) if rate("sampling", sampling) else self._encode(texts)

    def decode(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Converts lists of ids to strings: each up to its first end token, without special tokens."""
        texts = []
        for row in ids:
            row = [int(i) for i in row]
            row = row[: row.index(END)] if END in row else row
            texts.append(self._decode([i for i in row if i == UNKNOWN or i >= len(SPECIALS)]))
        return texts

    def tokenize(self, inputs: str | Iterable[str]) -> Any:
        """A string → a list of ids, or a list of strings → a list of lists; the name that KerasHub has for `encode`.

        >>> from keras_tfm.text import ByteTokenizer
        >>> ByteTokenizer().tokenize("hi"), ByteTokenizer().detokenize([[108, 109]])
        ([108, 109], ['hi'])
        """
        return self.encode([inputs])[0] if isinstance(inputs, str) else self.encode(inputs)

    def detokenize(self, inputs: Iterable) -> Any:
        """A list of ids → a string, or a list of lists → a list of strings; KerasHub's name for `decode`."""
        inputs = list(inputs)
        return self.decode(inputs) if inputs and hasattr(inputs[0], "__len__") else self.decode([inputs])[0]

    def names(self) -> list[str]:
        """Names of the tokens with ids 4, 5, …: pieces, or ids of tokenizers without pieces."""
        return list(map(str, range(len(SPECIALS), self.vocab_size)))

    @functools.cached_property
    def languages(self) -> list[str]:
        """Codes of the languages whose tag, such as ">>de<<", is a token; in the order of their ids."""
        return [match[1] for name in self.names() if (match := TAG.fullmatch(name))]

    @functools.cached_property
    def slots(self) -> list[int]:
        """Ids of the tokens "⟦1⟧", "⟦2⟧", …, which stand for placeholders; see `keras_tfm.text.masking`."""
        ids = {name: number for number, name in enumerate(self.names(), len(SPECIALS)) if SLOT.fullmatch(name)}
        return [ids[name] for name in itertools.takewhile(ids.__contains__, map("⟦{}⟧".format, itertools.count(1)))]

    @functools.cached_property
    def characters(self) -> str | None:
        """All characters of the training texts, which are tokens; None if the tokenizer does not know them."""
        return None

    @functools.cached_property
    def unseen_characters(self) -> re.Pattern | None:
        """Pattern of characters that no training text had, so that a model can only copy them; None if unknown."""
        return None if self.characters is None else characters_except(self.characters)

    def pieces(self, text: str) -> list[str]:
        """The tokens of a string as text."""
        raise NotImplementedError

    def in_graph(self) -> Any:
        """An object that tokenizes inside a TensorFlow graph, with the methods `tokenize` and `detokenize`."""
        raise NotImplementedError

    def save(self, folder: pathlib.Path) -> None:
        """Writes the files of the tokenizer; see `save_tokenizer`."""
        raise NotImplementedError

    @classmethod
    def load(cls, folder: pathlib.Path) -> Self:
        """Reads what `save` wrote; see `load_tokenizer`."""
        raise NotImplementedError

    def _encode(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError

    def _decode(self, ids: list[int]) -> str:
        raise NotImplementedError

    def _sample(self, texts, sampling, seed):
        name = type(self).__name__
        rule = "`sampling` must be 0 for a tokenizer that cannot segment texts randomly"
        raise UserError(f"{rule}. Received: {sampling=} for a {name}")


def longest_translation(length: int) -> int:
    """Returns the maximum length of a translation for a source of this length; both count the end token."""
    return 2 * length + 16


def max_tokens(line: str) -> int:
    """Maximum number of tokens of a line, counting those that mark its beginning and its end."""
    variants = line, unicodedata.normalize("NFKC", line)
    return 2 + max(len(variant.encode()) for variant in variants)  # each token has at least a byte


def encode_truncated(tokenizer: Tokenizer, texts: Sequence[str], length: int, stacklevel: int) -> list[list[int]]:
    """The first `length` ids of each text. Truncation is reported, with the `stacklevel` of `warnings`."""
    rows = tokenizer.encode(texts)
    for ids, text in zip(rows, texts, strict=True):
        if len(ids) > length:
            message = f"{len(ids) - length} of {len(ids)} tokens were cut off: {text[:40]!r} …"
            warnings.warn(message, stacklevel=stacklevel)
    return [ids[:length] for ids in rows]


def clean(texts):
    """Replaces what UTF-8 cannot encode by "?"."""
    if isinstance(texts, str):
        raise UserError(f"`texts` must be a list of strings. Received: texts={texts[:80]!r}")
    return (text.encode("utf-8", "replace").decode() for text in texts)
