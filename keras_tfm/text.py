"""Text to token ids and back: one tokenizer, in plain Python and inside a TensorFlow graph.

Ids 0 to 3 are the same in every tokenizer: padding, start, end and unknown.
"""

import io
import json
import pathlib
import threading

from keras_tfm.arguments import one_of, positive

PAD, START, END, UNKNOWN = SPECIALS = range(4)

# What SentencePiece learns, by kind. Nothing is normalised away, and what it never saw is spelled in bytes: text
# comes back as it was. Only whole words stay without such a way out: that is their unknown-word problem.
LOSSLESS = {"add_dummy_prefix": False, "byte_fallback": True}
KINDS = {
    "bpe": LOSSLESS,  # https://arxiv.org/abs/1508.07909
    "unigram": LOSSLESS,  # https://arxiv.org/abs/1804.10959
    "char": LOSSLESS,
    "word": {"use_all_vocab": False},
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

    >>> tokenizer = train_tokenizer(["the cat sat on the mat", "a cat and a dog"] * 50, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode(["the dog sat", "żółw"]))
    ['the dog sat', 'żółw']
    """
    if one_of("kind", kind, KINDS) == "bytes":
        return ByteTokenizer()
    positive("vocab_size", vocab_size)
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            character_coverage=1.0,
            input_sentence_size=1_000_000,
            shuffle_input_sentence=True,
            minloglevel=2,
            **{**KINDS[kind], **options},
        )
    except RuntimeError as error:
        raise ValueError(
            f"`vocab_size` must fit the text, and other options SentencePiece. Received: {vocab_size=}, {options=}; "
            f"SentencePiece says: {error}"
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
            raise ValueError(f"`model` must have ids 0 to 3 for padding, start, end, unknown. Received: {specials}")
        self.vocab_size = self.processor.vocab_size()

    def encode(self, texts, sampling=0.0, seed=0):
        """Strings → lists of ids.

        Args:
            texts: a list of strings.
            sampling: for training, other segmentations at random: the share of merges that BPE leaves out
                (https://arxiv.org/abs/1910.13267); for unigram, the smoothing of its probabilities.
            seed: other seeds sample other segmentations.
        """
        texts = list(texts)
        if not sampling:
            return self.processor.encode(texts)
        ids = []

        def sample():
            ids.extend(self.processor.encode(texts, enable_sampling=True, alpha=sampling, nbest_size=-1, num_threads=1))

        # SentencePiece seeds a generator once for each thread: a new thread is the way to a seed of one's own.
        _sentencepiece().set_random_generator_seed(seed % 2**32)
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        return ids

    def decode(self, ids):
        """Lists of ids → strings, up to the first end token and without other special ones."""
        return self.processor.decode([_content(row) for row in ids])

    def pieces(self, text):
        """The tokens of a string as a reader would see them."""
        return self.processor.encode(text, out_type=str)

    def in_graph(self):
        """The same tokenizer for TensorFlow graphs: `tokenize` and `detokenize` of tensors; needs tensorflow-text."""
        return _text().SentencepieceTokenizer(self.model)

    def save(self, folder):
        """Writes the model into a folder; other SentencePiece tools can read it."""
        (folder / "sentencepiece.model").write_bytes(self.model)

    @classmethod
    def load(cls, folder):
        """Reads what `save` wrote."""
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
        return [[byte + len(SPECIALS) for byte in text.encode("utf-8", "surrogatepass")] for text in texts]

    def decode(self, ids):
        """Lists of ids → strings, up to the first end token; bytes that are no UTF-8 become U+FFFD."""
        rows = ([i - len(SPECIALS) for i in _content(row) if i != UNKNOWN] for row in ids)
        return [bytes(row).decode("utf-8", "replace") for row in rows]

    def pieces(self, text):
        """The tokens of a string as a reader would see them."""
        return [chr(byte) if 32 < byte < 127 else f"<{byte:02X}>" for byte in text.encode()]

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

        codes = tf.ragged.map_flat_values(lambda b: tf.io.decode_raw(b, tf.uint8)[:, 0], tf.strings.bytes_split(texts))
        return tf.cast(codes, tf.int32) + len(SPECIALS)

    def detokenize(self, ids):
        import tensorflow as tf

        table = tf.constant([bytes([max(i - len(SPECIALS), 0)]) for i in range(ByteTokenizer.vocab_size)])
        content = tf.ragged.boolean_mask(ids, ids >= len(SPECIALS))
        joined = tf.strings.reduce_join(tf.gather(table, content), axis=-1)
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")


class KerasHubTokenizer:
    """A tokenizer of keras-hub (keras-nlp) in the place of ours; its ids move up, behind our special ones.

    Args:
        tokenizer: a `SentencePieceTokenizer`, `BytePairTokenizer` or `WordPieceTokenizer` of keras-hub that gives ids.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocabulary_size() + len(SPECIALS)

    def encode(self, texts, sampling=0.0, seed=0):
        """Strings → lists of ids."""
        if sampling:
            raise ValueError(f"`sampling` must be 0 for a tokenizer of keras-hub. Received: {sampling=}")
        texts = list(texts)
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
        import keras

        (folder / "keras_hub.json").write_text(json.dumps(keras.saving.serialize_keras_object(self.tokenizer)))
        self.tokenizer.save_assets(str(folder))

    @classmethod
    def load(cls, folder):
        """Reads what `save` wrote."""
        import keras
        import keras_hub  # noqa: F401, registers its classes

        tokenizer = keras.saving.deserialize_keras_object(json.loads((folder / "keras_hub.json").read_text()))
        tokenizer.load_assets(str(folder))
        return cls(tokenizer)


class _ShiftedInGraph:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def tokenize(self, texts):
        return self.tokenizer.tokenize(texts) + len(SPECIALS)

    def detokenize(self, ids):
        import tensorflow as tf

        return self.tokenizer.detokenize(tf.ragged.boolean_mask(ids, ids >= len(SPECIALS)) - len(SPECIALS))


TOKENIZERS = {cls.__name__: cls for cls in (SentencePieceTokenizer, ByteTokenizer, KerasHubTokenizer)}


def save_tokenizer(tokenizer, folder):
    """Writes a tokenizer into a folder, which is made if need be.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_tokenizer(ByteTokenizer(), folder)
    >>> load_tokenizer(folder).vocab_size
    260
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"class": type(tokenizer).__name__}))


def load_tokenizer(folder):
    """Reads a tokenizer that `save_tokenizer` wrote."""
    folder = pathlib.Path(folder)
    if not (folder / "tokenizer.json").exists():
        raise ValueError(f"`folder` must be one that `save_tokenizer` wrote. Received: {str(folder)!r}")
    name = json.loads((folder / "tokenizer.json").read_text())["class"]
    return TOKENIZERS[one_of("class", name, TOKENIZERS)].load(folder)


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
