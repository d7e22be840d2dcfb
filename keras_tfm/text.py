"""Tokenizers: text to token ids and back, in plain Python and inside a TensorFlow graph.

Every tokenizer uses ids 0 to 3 for padding, start, end and unknown.
"""

import concurrent.futures
import hashlib
import io
import json
import pathlib
import re
import tempfile
import warnings

from keras_tfm import extras, files
from keras_tfm.arguments import one_of, positive, rate

PAD, START, END, UNKNOWN = SPECIALS = range(4)
# Where a `Translator` splits texts.
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*")
LINE_END = re.compile(r"\r?\n")

COMMON = dict(pad_id=PAD, bos_id=START, eos_id=END, unk_id=UNKNOWN, normalization_rule_name="identity", minloglevel=2)
COMMON |= dict(character_coverage=1.0, input_sentence_size=1_000_000, shuffle_input_sentence=True)
# Kind → options for SentencePiece. Nothing is normalised, and unseen characters are spelled as bytes, so text survives
# the round trip unchanged. Only "word" has no such fallback: unseen words become unknown.
LOSSLESS = {"add_dummy_prefix": False, "byte_fallback": True, "remove_extra_whitespaces": False}
KINDS = {
    "bpe": LOSSLESS,  # https://arxiv.org/abs/1508.07909
    "unigram": LOSSLESS,  # https://arxiv.org/abs/1804.10959
    "char": LOSSLESS,
    "word": {"remove_extra_whitespaces": True},  # a word has the same id wherever it stands
    "bytes": None,  # needs no training
}


def train_tokenizer(texts, kind="bpe", vocab_size=8000, **options):
    """Trains a tokenizer on text: a `SentencePieceTokenizer`, or a `ByteTokenizer` for "bytes".

    Args:
        texts: an iterable of strings. SentencePiece uses a random sample of at most a million.
        kind: "bpe", "unigram" (subwords), "char", "word" or "bytes" (https://arxiv.org/abs/2105.13626).
        vocab_size: maximum number of tokens, including the special tokens and, except for "word", the 256 bytes.
        **options: any other option of the SentencePiece trainer.

    All kinds but "word" are lossless, with one exception: "▁" (U+2581), which SentencePiece uses for spaces, comes back
    as a space. Every tokenizer reads lone surrogates, which are not valid text, as "?".

    >>> tokenizer = train_tokenizer(["the cat sat on the mat", "a cat and a dog"] * 50, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["the dog sat", "żółw"]))
    ['the dog sat', 'żółw']
    """
    if one_of("kind", kind, KINDS) == "bytes":
        return ByteTokenizer()
    positive("vocab_size", vocab_size)
    model = io.BytesIO()
    settings = {"model_type": kind, "vocab_size": vocab_size, "hard_vocab_limit": False}
    settings |= {**COMMON, **KINDS[kind], **options}
    trainer = extras.load("sentencepiece").SentencePieceTrainer
    try:
        trainer.train(sentence_iterator=_clean(texts), model_writer=model, **settings)
    except RuntimeError as error:
        raise ValueError(
            "`texts` must not be empty, `vocab_size` must be large enough for all their characters, and `options` must "
            f"be options of SentencePiece. Received: {vocab_size=}, {options=}; SentencePiece's error: {error}"
        ) from error
    return SentencePieceTokenizer(model.getvalue())


class Tokenizer:
    """What all tokenizers share. They also have:

    vocab_size: the number of tokens.
    pieces(text): the tokens of a string as text.
    in_graph(): an object that tokenizes inside a TensorFlow graph, with the methods `tokenize` and `detokenize`.
    save(folder), load(folder): write and read the files of the tokenizer; see `save_tokenizer` and `load_tokenizer`.
    """

    def encode(self, texts, sampling=0.0, seed=0):
        """Converts strings to lists of ids.

        Args:
            texts: an iterable of strings.
            sampling: segments texts randomly, for training (BPE and unigram only). For BPE, the share of merges that
                are skipped (https://arxiv.org/abs/1910.13267); for unigram, the smoothing of its probabilities.
            seed: seed of the random segmentation.
        """
        texts = list(_clean(texts))
        return self._sample(texts, sampling, seed) if rate("sampling", sampling) else self._encode(texts)

    def decode(self, ids):
        """Converts lists of ids to strings: each up to its first end token, without special tokens."""
        texts = []
        for row in ids:
            row = [int(i) for i in row]
            row = row[: row.index(END)] if END in row else row
            texts.append(self._decode([i for i in row if i == UNKNOWN or i >= len(SPECIALS)]))
        return texts

    def names(self):
        """Names of the tokens with ids 4, 5, …: pieces, or ids of tokenizers without pieces."""
        return list(map(str, range(len(SPECIALS), self.vocab_size)))

    def _sample(self, texts, sampling, seed):
        name = type(self).__name__
        raise ValueError(f"`sampling` must be 0 except for BPE and unigram. Received: {sampling=} for a {name}")


class SentencePieceTokenizer(Tokenizer):
    """Splits text into subwords, characters or words with a SentencePiece model.

    Args:
        model: the bytes of the model, whose ids 0 to 3 must be padding, start, end and unknown.

    >>> tokenizer = train_tokenizer(["a b c d"], kind="char", vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["d c", ""]))
    ['d c', '']
    """

    def __init__(self, model):
        self.model = model
        self.processor = extras.load("sentencepiece").SentencePieceProcessor(model_proto=model)
        specials = tuple(getattr(self.processor, name)() for name in ("pad_id", "bos_id", "eos_id", "unk_id"))
        if specials != tuple(SPECIALS):
            rule = "`model` must use ids 0 to 3 for padding, start, end and unknown."
            raise ValueError(f"{rule} Received: a model that uses {specials}")
        self.vocab_size = self.processor.vocab_size()
        self._encode, self._decode = self.processor.encode, self.processor.decode

    def _sample(self, texts, sampling, seed):
        # SentencePiece seeds one generator per thread, when it first samples: only a new thread takes a new seed.
        extras.load("sentencepiece").set_random_generator_seed(seed % 2**32)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            options = {"enable_sampling": True, "alpha": sampling, "nbest_size": -1, "num_threads": 1}
            try:
                return thread.submit(self.processor.encode, texts, **options).result()
            except RuntimeError:  # characters and words
                return super()._sample(texts, sampling, seed)

    def pieces(self, text):
        return self.processor.encode(*_clean([text]), out_type=str)

    def names(self):
        return [self.processor.id_to_piece(number) for number in range(len(SPECIALS), self.vocab_size)]

    def in_graph(self):
        """Set seeds before calling this: `keras.utils.set_random_seed` makes TensorFlow forget existing tokenizers."""
        return extras.load("tensorflow_text").SentencepieceTokenizer(self.model)

    def save(self, folder):
        (folder / "sentencepiece.model").write_bytes(self.model)

    @classmethod
    def load(cls, folder):
        with files.reading(folder / "sentencepiece.model"):
            return cls(files.read_bytes(folder / "sentencepiece.model"))


class MarianTokenizer(Tokenizer):
    """Splits text with a SentencePiece model whose pieces have the ids of another vocabulary, as Marian's models do.

    A text may start with a language code such as ">>fra<<", which is one token.

    Args:
        model: the bytes of the SentencePiece model.
        vocabulary: the pieces with ids 4, 5, …; others are unknown.

    >>> model = train_tokenizer(["a b c d"], kind="char", vocab_size=300).model
    >>> MarianTokenizer(model, [">>fra<<", "a", "▁", "b"]).encode([">>fra<<a b", "a c"])
    [[4, 5, 6, 7], [5, 6, 3]]
    """

    CODE = "^>>.*?<<"

    def __init__(self, model, vocabulary):
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

    def pieces(self, text):
        return self._pieces(*_clean([text]))

    def names(self):
        return self.vocabulary

    def in_graph(self):
        return _marian_in_graph(self)

    def save(self, folder):
        (folder / "sentencepiece.model").write_bytes(self.model)
        files.write_json(folder / "vocabulary.json", {"pieces": self.vocabulary})

    @classmethod
    def load(cls, folder):
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

    def pieces(self, text):
        return [chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in next(_clean([text])).encode()]

    def in_graph(self):
        return _BytesInGraph()

    def save(self, folder):
        pass  # there is nothing to write

    @classmethod
    def load(cls, folder):
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


class KerasHubTokenizer(Tokenizer):
    """Wraps a tokenizer of keras-hub (keras-nlp). Its ids are shifted by four, to make room for the special tokens.

    Args:
        tokenizer: a `SentencePieceTokenizer`, `BytePairTokenizer` or `WordPieceTokenizer` of keras-hub that returns
            integers and does not pad.
    """

    def __init__(self, tokenizer):
        if "int" not in tokenizer.compute_dtype or tokenizer.sequence_length:
            received = f"dtype={tokenizer.compute_dtype!r}, sequence_length={tokenizer.sequence_length}"
            raise ValueError(f"`tokenizer` must return integers without padding. Received: a tokenizer with {received}")
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

    def pieces(self, text):
        return [self.tokenizer.id_to_token(i - len(SPECIALS)) for i in self.encode([text])[0]]

    def in_graph(self):
        return _KerasHubInGraph(self.tokenizer)

    def save(self, folder):
        name, config = type(self.tokenizer).__name__, self.tokenizer.get_config()
        if _keras_hub_classes().get(name) is not type(self.tokenizer):
            raise ValueError(f"`tokenizer` must be of a class of keras_hub.tokenizers. Received: {self.tokenizer}")
        files.write_json(folder / "keras_hub.json", {"class_name": name, "config": {**config, "dtype": "int32"}})
        self.tokenizer.save_assets(str(folder))

    @classmethod
    def load(cls, folder):
        # not by Keras' own deserialization, which would import any module that the file names
        path, assets = folder / "keras_hub.json", {"vocabulary", "merges", "proto"}  # which could name other files
        content = files.read_json(path, required=("class_name", "config"))
        with files.reading(path):
            make = _keras_hub_classes()[content["class_name"]]
            config = {**content["config"], "dtype": "int32", **dict.fromkeys(assets & {*content["config"]})}
            if "class_name" in json.dumps(config):
                raise ValueError("must hold plain values only")
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


TOKENIZERS = {cls.__name__: cls for cls in (SentencePieceTokenizer, MarianTokenizer, ByteTokenizer, KerasHubTokenizer)}

# All files that tokenizers write, the vocabularies by keras-hub.
OWN = {"tokenizer.json", "sentencepiece.model", "keras_hub.json", "merges.txt"}
OWN |= {f"vocabulary.{kind}" for kind in ("txt", "json", "spm")}


def save_tokenizer(tokenizer, folder):
    """Writes a tokenizer into a folder of its own, completely or not at all. An earlier tokenizer is replaced.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_tokenizer(ByteTokenizer(), folder)
    >>> load_tokenizer(folder).vocab_size
    260
    """
    name = one_of("tokenizer", type(tokenizer).__name__, TOKENIZERS)
    with files.NewFolder(folder, {"tokenizer.json"}, OWN) as new:
        tokenizer.save(new)
        files.write_manifest(new, "tokenizer.json", **{"class": name})


def load_tokenizer(folder):
    """Reads a tokenizer that `save_tokenizer` wrote."""
    folder = pathlib.Path(folder)
    files.settle(folder)
    if not (folder / "tokenizer.json").exists():
        raise ValueError(f"`folder` must be one that `save_tokenizer` wrote. Received: folder={str(folder)!r}")
    name = files.read_manifest(folder, "tokenizer.json", required=("class",))["class"]
    with files.reading(folder / "tokenizer.json"):
        tokenizer = TOKENIZERS[one_of("class", name, TOKENIZERS)]
    return tokenizer.load(folder)


def fingerprint(tokenizer):
    """Returns a hash of the tokenizer's class and files, by which tokenizers are told apart."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(pathlib.Path(folder))
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.name} {files.checksum(path)}".encode())
    return digest.hexdigest()


def longest_translation(length):
    """Returns the maximum length of a translation for a source of this length; both count the end token."""
    return 2 * length + 16


def truncated(ids, length, text, stacklevel):
    """Returns the first `length` of the ids of a text. Warns if there are more, with the `stacklevel` of `warnings`."""
    if len(ids) > length:
        message = f"{len(ids) - length} of {len(ids)} tokens were cut off: {text[:40]!r} …"
        warnings.warn(message, stacklevel=stacklevel)
    return ids[:length]


def _clean(texts):
    """Replaces what UTF-8 cannot encode by "?"."""
    if isinstance(texts, str):
        raise ValueError(f"`texts` must be a list of strings. Received: texts={texts[:80]!r}")
    return (text.encode("utf-8", "replace").decode() for text in texts)
