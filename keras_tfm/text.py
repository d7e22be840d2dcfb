"""Text to token ids and back: one tokenizer, in plain Python and inside a TensorFlow graph.

Ids 0 to 3 are the same in every tokenizer: padding, start, end and unknown.
"""

import concurrent.futures
import hashlib
import io
import json
import pathlib
import tempfile

from keras_tfm import files
from keras_tfm.arguments import one_of, positive, rate

PAD, START, END, UNKNOWN = SPECIALS = range(4)

# What SentencePiece learns, by kind. Nothing is normalised away, and what it never saw is spelled in bytes: text
# comes back as it was. Only whole words stay without such a way out: that is their unknown-word problem.
LOSSLESS = {"add_dummy_prefix": False, "byte_fallback": True, "remove_extra_whitespaces": False}
KINDS = {
    "bpe": LOSSLESS,  # https://arxiv.org/abs/1508.07909
    "unigram": LOSSLESS,  # https://arxiv.org/abs/1804.10959
    "char": LOSSLESS,
    "word": {"remove_extra_whitespaces": True},  # a word is the same wherever it stands
    "bytes": None,  # needs no training
}


def train_tokenizer(texts, kind="bpe", vocab_size=8000, **options):
    """Learns a tokenizer from text.

    Args:
        texts: an iterable of strings; of more than a million, a random sample is used.
        kind: "bpe", "unigram" (subwords), "char", "word" or "bytes" (https://arxiv.org/abs/2105.13626).
        vocab_size: at most so many tokens, with the special ones and, where unseen characters are spelled, 256 bytes.
        **options: any other option of the SentencePiece trainer.

    Returns:
        A `SentencePieceTokenizer`, or a `ByteTokenizer`.

    All kinds but "word" give text back as it was; only "▁" (U+2581), SentencePiece's own sign for it, comes back as a
    space. Lone surrogates, which are no text, are read as "?" by every tokenizer.

    >>> tokenizer = train_tokenizer(["the cat sat on the mat", "a cat and a dog"] * 50, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["the dog sat", "żółw"]))
    ['the dog sat', 'żółw']
    """
    if one_of("kind", kind, KINDS) == "bytes":
        return ByteTokenizer()
    positive("vocab_size", vocab_size)
    model = io.BytesIO()
    settings = {
        "model_type": kind,
        "vocab_size": vocab_size,
        "hard_vocab_limit": False,
        "pad_id": PAD,
        "bos_id": START,
        "eos_id": END,
        "unk_id": UNKNOWN,
        "normalization_rule_name": "identity",
        "character_coverage": 1.0,
        "input_sentence_size": 1_000_000,
        "shuffle_input_sentence": True,
        "minloglevel": 2,
        **KINDS[kind],
        **options,
    }
    try:
        _sentencepiece().SentencePieceTrainer.train(sentence_iterator=_clean(texts), model_writer=model, **settings)
    except RuntimeError as error:
        raise ValueError(
            "`vocab_size` must leave room for each character of `texts`, which must not be empty, and `options` must "
            f"be SentencePiece's. Received: {vocab_size=}, {options=}; SentencePiece says: {error}"
        ) from error
    return SentencePieceTokenizer(model.getvalue())


class SentencePieceTokenizer:
    """Subwords, characters or words, as a SentencePiece model tells them.

    Args:
        model: the model's bytes; its first four ids must be padding, start, end and unknown.

    >>> tokenizer = train_tokenizer(["a b c d"], kind="char", vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["d c", ""]))
    ['d c', '']
    """

    def __init__(self, model):
        self.model = model
        self.processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        specials = tuple(getattr(self.processor, name)() for name in ("pad_id", "bos_id", "eos_id", "unk_id"))
        if specials != tuple(SPECIALS):
            raise ValueError(
                f"`model` must have ids 0 to 3 for padding, start, end, unknown. Received: model with {specials}"
            )
        self.vocab_size = self.processor.vocab_size()

    def encode(self, texts, sampling=0.0, seed=0):
        """Strings → lists of ids.

        Args:
            texts: a list of strings.
            sampling: for training, other segmentations at random: the share of merges that BPE leaves out
                (https://arxiv.org/abs/1910.13267); for unigram, the smoothing of its probabilities.
            seed: other seeds sample other segmentations.
        """
        texts = list(_clean(texts))
        if not rate("sampling", sampling):
            return self.processor.encode(texts)
        # SentencePiece seeds a generator once for each thread: a new thread is the way to a seed of one's own.
        _sentencepiece().set_random_generator_seed(seed % 2**32)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            options = {"enable_sampling": True, "alpha": sampling, "nbest_size": -1, "num_threads": 1}
            try:
                return thread.submit(self.processor.encode, texts, **options).result()
            except RuntimeError as error:
                raise ValueError(f"`sampling` must be 0 but for BPE and unigram. Received: {sampling=}") from error

    def decode(self, ids):
        """Lists of ids → strings, up to the first end token and without other special ones."""
        return [self.processor.decode(_content(row)) for row in ids]

    def pieces(self, text):
        """The tokens of a string as a reader would see them."""
        return self.processor.encode(*_clean([text]), out_type=str)

    def in_graph(self):
        """The same tokenizer for TensorFlow graphs: `tokenize` and `detokenize` of tensors; needs tensorflow-text.

        Seeds are to be set before: with `keras.utils.set_random_seed` TensorFlow forgets tokenizers that it has.
        """
        return _text().SentencepieceTokenizer(self.model)

    def save(self, folder):
        """Writes the model into a folder; other SentencePiece tools can read it."""
        (folder / "sentencepiece.model").write_bytes(self.model)

    @classmethod
    def load(cls, folder):
        """Reads what `save` wrote."""
        with files.reading(folder / "sentencepiece.model"):
            return cls((folder / "sentencepiece.model").read_bytes())


class ByteTokenizer:
    """UTF-8 bytes, each a token: no vocabulary to learn, nothing unknown, long sequences.

    >>> ByteTokenizer().encode(["hé"])
    [[108, 199, 173]]
    """

    vocab_size = len(SPECIALS) + 256

    def encode(self, texts, sampling=0.0, seed=0):
        """Strings → lists of ids; there is only one way, so nothing to sample."""
        if sampling:
            raise ValueError(f"`sampling` must be 0 for bytes. Received: {sampling=}")
        first = len(SPECIALS)
        return [[byte + first for byte in text.encode()] for text in _clean(texts)]

    def decode(self, ids):
        """Lists of ids → strings, up to the first end token; bytes that are no UTF-8 become U+FFFD."""
        rows = ([i - len(SPECIALS) for i in _content(row) if i != UNKNOWN] for row in ids)
        return [bytes(row).decode("utf-8", "replace") for row in rows]

    def pieces(self, text):
        """The tokens of a string as a reader would see them."""
        return [chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in next(_clean([text])).encode()]

    def in_graph(self):
        """The same tokenizer for TensorFlow graphs: `tokenize` and `detokenize` of tensors."""
        return _BytesInGraph()

    def save(self, folder):
        """There is nothing to write."""

    @classmethod
    def load(cls, folder):
        """Reads what `save` wrote."""
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


class KerasHubTokenizer:
    """A tokenizer of keras-hub (keras-nlp) in the place of ours; its ids move up, behind our special ones.

    Args:
        tokenizer: a `SentencePieceTokenizer`, `BytePairTokenizer` or `WordPieceTokenizer` of keras-hub that gives ids
            and does not pad.
    """

    def __init__(self, tokenizer):
        if "int" not in tokenizer.compute_dtype or tokenizer.sequence_length:
            received = f"dtype={tokenizer.compute_dtype!r}, sequence_length={tokenizer.sequence_length}"
            raise ValueError(f"`tokenizer` must give ids and no padding. Received: tokenizer with {received}")
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocabulary_size() + len(SPECIALS)

    def encode(self, texts, sampling=0.0, seed=0):
        """Strings → lists of ids."""
        if sampling:
            raise ValueError(f"`sampling` must be 0 for a tokenizer of keras-hub. Received: {sampling=}")
        texts = list(_clean(texts))
        rows = self.tokenizer.tokenize(texts) if texts else []
        rows = rows.to_list() if hasattr(rows, "to_list") else rows
        return [[int(i) + len(SPECIALS) for i in row] for row in rows]

    def decode(self, ids):
        """Lists of ids → strings, up to the first end token and without other special ones."""
        return [self._decode([i - len(SPECIALS) for i in _content(row) if i != UNKNOWN]) for row in ids]

    def _decode(self, row):
        text = self.tokenizer.detokenize(row) if row else ""
        text = text.numpy() if hasattr(text, "numpy") else text
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)

    def pieces(self, text):
        """The tokens of a string as a reader would see them."""
        return [self.tokenizer.id_to_token(i - len(SPECIALS)) for i in self.encode([text])[0]]

    def in_graph(self):
        """The same tokenizer for TensorFlow graphs: `tokenize` and `detokenize` of tensors."""
        return _ShiftedInGraph(self.tokenizer)

    def save(self, folder):
        """Writes configuration and vocabulary into a folder."""
        name, config = type(self.tokenizer).__name__, self.tokenizer.get_config()
        if _keras_hub_classes().get(name) is not type(self.tokenizer):
            raise ValueError(f"`tokenizer` must be of a class of keras_hub.tokenizers. Received: {self.tokenizer}")
        files.write_json(folder / "keras_hub.json", {"class_name": name, "config": {**config, "dtype": "int32"}})
        self.tokenizer.save_assets(str(folder))

    @classmethod
    def load(cls, folder):
        """Reads what `save` wrote. Keras' own way of loading would import any module that the file names."""
        path, assets = folder / "keras_hub.json", {"vocabulary", "merges", "proto"}  # which may name foreign files
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
    """The tokenizers of keras-hub by name."""
    from keras_hub import tokenizers

    classes = {name: value for name, value in vars(tokenizers).items() if isinstance(value, type)}
    return {name: value for name, value in classes.items() if value is not tokenizers.Tokenizer}


class _ShiftedInGraph:
    """keras-hub gives Python lists outside of a graph: there is always one here."""

    def __init__(self, tokenizer):
        import tensorflow as tf

        def detokenize(ids):
            return tokenizer.detokenize(tf.ragged.boolean_mask(ids, ids >= len(SPECIALS)) - len(SPECIALS))

        self.tokenize = tf.function(lambda texts: tokenizer.tokenize(texts) + len(SPECIALS), autograph=False)
        self.detokenize = tf.function(detokenize, autograph=False)


TOKENIZERS = {cls.__name__: cls for cls in (SentencePieceTokenizer, ByteTokenizer, KerasHubTokenizer)}


# All files that they write.
OWN = {"tokenizer.json", "sentencepiece.model", "keras_hub.json", "merges.txt"}
OWN |= {f"vocabulary.{kind}" for kind in ("txt", "json", "spm")}  # of keras-hub


def save_tokenizer(tokenizer, folder):
    """Writes a tokenizer into a folder of its own, whole or not at all; an earlier tokenizer is replaced.

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
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"`folder` must be one that `save_tokenizer` wrote. Received: folder={str(folder)!r}")
    name = files.read_manifest(folder, "tokenizer.json", required=("class",))["class"]
    with files.reading(path):
        one_of("class", name, TOKENIZERS)
    return TOKENIZERS[name].load(folder)


def fingerprint(tokenizer):
    """A string that is another one for another tokenizer: a hash of its class and of all that it writes."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(pathlib.Path(folder))
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.name} {files.checksum(path)}".encode())
    return digest.hexdigest()


def longest_translation(length):
    """How many tokens a translation has at the most, for a source of so many; both with their end token."""
    return 2 * length + 16


def _clean(texts):
    """The texts, with "?" in the place of what UTF-8 cannot hold."""
    if isinstance(texts, str):
        raise ValueError(f"`texts` must be several strings. Received: texts={texts[:80]!r}")
    return (text.encode("utf-8", "replace").decode() for text in texts)


def _content(row):
    """Ids of a row before its end token, without special ones."""
    row = [int(i) for i in row]
    row = row[: row.index(END)] if END in row else row
    return [i for i in row if i == UNKNOWN or i >= len(SPECIALS)]


def _sentencepiece():
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError("Subwords need SentencePiece: pip install 'keras_tfm[train]'") from error
    return sentencepiece


def _text():
    try:
        import tensorflow_text
    except ImportError as error:
        raise ImportError("Tokenizers inside a graph need tensorflow-text: pip install 'keras_tfm[text]'") from error
    return tensorflow_text
