"""Subwords, characters and words, by SentencePiece."""

import concurrent.futures
import functools
import io
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError, check, one_of, positive
from keras_tfm.text.base import END, PAD, SPECIALS, START, UNKNOWN, Tokenizer, clean, register_tokenizer
from keras_tfm.text.byte import ByteTokenizer

COMMON = dict(pad_id=PAD, bos_id=START, eos_id=END, unk_id=UNKNOWN, normalization_rule_name="identity", minloglevel=2)
COMMON |= dict(character_coverage=1.0, input_sentence_size=1_000_000, shuffle_input_sentence=True)
# Nothing is normalised, and unseen characters are spelled as bytes, so text survives the round trip unchanged.
LOSSLESS = {"add_dummy_prefix": False, "byte_fallback": True, "remove_extra_whitespaces": False}


def train_sentencepiece(texts, vocab_size, **options):
    """A `SentencePieceTokenizer`, trained with options of SentencePiece."""
    positive("vocab_size", vocab_size)
    model, settings = io.BytesIO(), {"vocab_size": vocab_size, "hard_vocab_limit": False, **COMMON, **options}
    trainer = extras.load("sentencepiece").SentencePieceTrainer
    try:
        trainer.train(sentence_iterator=clean(texts), model_writer=model, **settings)
    except RuntimeError as error:
        if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            rule = f"at least {least[1]} for these texts: their characters and, unless they are words, 256 bytes"
            check("vocab_size", vocab_size, False, rule)
        raise UserError(
            "`texts` must not be empty, `vocab_size` must be large enough for all their characters, and `options` must "
            f"be options of SentencePiece. Received: {vocab_size=}, {options=}; SentencePiece's error: {error}"
        ) from error
    return SentencePieceTokenizer(model.getvalue())


class Kind(NamedTuple):
    """A kind of tokenizer that `train_tokenizer` knows."""

    train: Callable  # (texts, vocab_size=…, **options) → tokenizer
    samples: bool = False  # whether it can segment texts randomly
    symbols: bool = False  # whether it can keep given strings as single tokens
    packages: tuple = ()  # needed to train it


def _by_sentencepiece(kind, samples=False, symbols=True, **options):
    train = functools.partial(train_sentencepiece, model_type=kind, **options)
    return Kind(train, samples, symbols, ("sentencepiece",))


KINDS = {
    "bpe": _by_sentencepiece("bpe", samples=True, **LOSSLESS),  # https://arxiv.org/abs/1508.07909
    "unigram": _by_sentencepiece("unigram", samples=True, **LOSSLESS),  # https://arxiv.org/abs/1804.10959
    "char": _by_sentencepiece("char", **LOSSLESS),
    # a word has the same id wherever it stands; one that has not been seen, or has a symbol in it, is unknown
    "word": _by_sentencepiece("word", symbols=False, remove_extra_whitespaces=True),
    "bytes": Kind(lambda texts, **options: ByteTokenizer()),
}


def train_tokenizer(
    texts: Iterable[str], kind: str = "bpe", vocab_size: int = 8000, symbols: Iterable[str] = (), **options: Any
) -> Tokenizer:
    """Trains a tokenizer of a kind on text.

    Args:
        texts: an iterable of strings. SentencePiece uses a random sample of at most a million.
        kind: a word of `KINDS`: subwords, characters, words or bytes (https://arxiv.org/abs/2105.13626).
        vocab_size: maximum number of tokens, including the special tokens and, except for "word", the 256 bytes.
        symbols: strings that are one token each wherever they stand, such as the language tag ">>de<<".
        **options: any other option of the SentencePiece trainer.

    All kinds but "word" are lossless, with one exception: "▁" (U+2581), which SentencePiece uses for spaces, comes back
    as a space. Every tokenizer reads lone surrogates, which are not valid text, as "?".

    >>> tokenizer = train_tokenizer(["the cat sat on the mat", "a cat and a dog"] * 50, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["the dog sat", "żółw"]))
    ['the dog sat', 'żółw']
    """
    if symbols := list(symbols):
        able = [name for name in KINDS if KINDS[name].symbols]
        check("kind", kind, one_of("kind", kind, KINDS) in able, f"one of {able} for texts with `symbols`")
        options["user_defined_symbols"] = symbols
    return KINDS[one_of("kind", kind, KINDS)].train(texts, vocab_size=vocab_size, **options)


@register_tokenizer
class SentencePieceTokenizer(Tokenizer):
    """Splits text into subwords, characters or words with a SentencePiece model.

    Args:
        model: the bytes of the model, whose ids 0 to 3 must be padding, start, end and unknown.

    >>> tokenizer = train_tokenizer(["a b c d"], kind="char", vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["d c", ""]))
    ['d c', '']
    """

    files = ("sentencepiece.model",)

    def __init__(self, model: bytes):
        self.model = model
        self.processor = extras.load("sentencepiece").SentencePieceProcessor(model_proto=model)
        specials = tuple(getattr(self.processor, name)() for name in ("pad_id", "bos_id", "eos_id", "unk_id"))
        if specials != tuple(SPECIALS):
            rule = "`model` must use ids 0 to 3 for padding, start, end and unknown."
            raise UserError(f"{rule} Received: a model that uses {specials}")
        self.vocab_size = self.processor.vocab_size()

    def _encode(self, texts):
        return self.processor.encode(texts)

    def _decode(self, ids):
        return self.processor.decode(ids)

    def _sample(self, texts, sampling, seed):
        # SentencePiece seeds one generator per thread, when it first samples: only a new thread takes a new seed.
        extras.load("sentencepiece").set_random_generator_seed(seed % 2**32)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            options = {"enable_sampling": True, "alpha": sampling, "nbest_size": -1, "num_threads": 1}
            try:
                return thread.submit(self.processor.encode, texts, **options).result()
            except RuntimeError:  # characters and words
                return super()._sample(texts, sampling, seed)

    def pieces(self, text: str) -> list[str]:
        return self.processor.encode(*clean([text]), out_type=str)

    def names(self) -> list[str]:
        return [self.processor.id_to_piece(number) for number in range(len(SPECIALS), self.vocab_size)]

    @functools.cached_property
    def characters(self) -> str | None:
        return "".join(sorted(name for name in self.names() if len(name) == 1))

    def in_graph(self) -> Any:
        """Set seeds before calling this: `keras.utils.set_random_seed` makes TensorFlow forget existing tokenizers."""
        return extras.load("tensorflow_text").SentencepieceTokenizer(self.model)

    def save(self, folder: pathlib.Path) -> None:
        (folder / "sentencepiece.model").write_bytes(self.model)

    @classmethod
    def load(cls, folder: pathlib.Path) -> Self:
        with files.reading(folder / "sentencepiece.model"):
            return cls(files.read_bytes(folder / "sentencepiece.model"))
