import functools
import json

import numpy as np
import pytest
from conftest import BACKEND, refused

from keras_tfm import text
from keras_tfm.common.files import DamagedFile
from keras_tfm.text import (
    END,
    KINDS,
    PAD,
    START,
    UNKNOWN,
    ByteTokenizer,
    KerasHubTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_tokenizer,
    register_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from keras_tfm.text.base import SPECIALS, TOKENIZERS

CORPUS = ["the cat sat on the mat", "a cat and a dog", "ein Hund, zwei Hunde!", "Übermut tut selten gut"] * 50
HARD = [
    "",
    " ",
    "   ",
    " leading",
    "trailing ",
    "two  spaces",
    "tab\tinside\t",
    "new\nline\r\n",
    "\u2028line\u2029ends\x85",
    "😀 👩‍👩‍👧 \U0010ffff",
    "你好，世界",
    "e\u0301 \u0301 ﬁ ① Å \u212b",
    "\x00 \x01 \x1f \x7f",
    "\ufeff\u00a0\u3000\u200b\ufffd",
    "<s> </s> <pad> <unk> <0x41>",
    " ⁇ ",
    "the cats sat on mats " * 40,
]
LOSSLESS = [kind for kind in KINDS if kind != "word"]
SUBWORDS = ["bpe", "unigram"]
VOCAB_SIZE = 340


@functools.cache
def tokenizer(kind):
    return train_tokenizer(CORPUS, kind, VOCAB_SIZE)


@functools.cache
def keras_hub_tokenizer(kind):
    hub = pytest.importorskip("keras_hub", reason="keras-hub is not installed").tokenizers
    if kind == "word_piece":
        return KerasHubTokenizer(hub.WordPieceTokenizer(["[UNK]", "the", "cat", "##s", "dog", "!"], lowercase=True))
    if kind == "byte_pair":
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 writes other bytes from U+0100 on
        letters = [*map(chr, printable), *(chr(256 + n) for n in range(256 - len(printable)))]
        vocabulary = {token: number for number, token in enumerate([*letters, "th", "the"])}
        return KerasHubTokenizer(hub.BytePairTokenizer(vocabulary, ["t h", "th e"]))
    return KerasHubTokenizer(hub.SentencePieceTokenizer(tokenizer("bpe").model))


HUB_KINDS = ["word_piece", "byte_pair", "sentence_piece"]


def every_tokenizer():
    yield from ((tokenizer, kind) for kind in KINDS)
    yield from ((keras_hub_tokenizer, kind) for kind in HUB_KINDS)


EVERY_TOKENIZER = pytest.mark.parametrize("make, kind", list(every_tokenizer()))


# ── text to ids and back ──


@pytest.mark.parametrize("kind", LOSSLESS)
def test_encoding_is_lossless_and_nothing_is_unknown(kind):
    ids = tokenizer(kind).encode(HARD)
    assert tokenizer(kind).decode(ids) == HARD
    assert all(len(SPECIALS) <= i < tokenizer(kind).vocab_size for row in ids for i in row)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_any_character_comes_back(kind):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 0x110000, (200, 5))
    codes = np.where((codes >= 0xD800) & (codes < 0xE000) | (codes == 0x2581), 32, codes)
    texts = ["".join(map(chr, row)) for row in codes]
    assert tokenizer(kind).decode(tokenizer(kind).encode(texts)) == texts


@pytest.mark.parametrize("kind", LOSSLESS)
def test_the_sign_that_sentencepiece_has_for_a_space_is_the_one_exception(kind):
    expected = "a▁ b" if kind == "bytes" else "a  b"
    assert tokenizer(kind).decode(tokenizer(kind).encode(["a▁ b"])) == [expected]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_what_is_read_from_a_text_with_that_sign_is_still_lossless(kind):
    learned = train_tokenizer(["▁a b\tc\nd\x00", "\ud800", ""] * 5, kind, 300)
    assert learned.decode(learned.encode(HARD)) == HARD


@EVERY_TOKENIZER
def test_lone_surrogates_are_question_marks(make, kind):
    encode = make(kind).encode
    assert encode(["a\ud800", "\udc80 the \ud83d\ude00"]) == encode(["a?", "? the ??"])
    assert make(kind).pieces("a\ud800") == make(kind).pieces("a?")


def test_an_unseen_word_is_unknown():
    word = tokenizer("word")
    known, unknown = word.encode(["the cat sat", "the walrus sat"])
    assert UNKNOWN not in known and known[::2] == unknown[::2] and unknown[1] == UNKNOWN
    assert word.decode([known]) == ["the cat sat"] and "walrus" not in word.decode([unknown])[0]


def test_a_word_has_the_same_id_wherever_it_stands():
    ((cat,), *others) = tokenizer("word").encode(["cat", " cat", "cat ", "the  cat"])
    assert [row[-1] for row in others] == [cat] * 3 and [len(row) for row in others] == [1, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_the_same_in_all_kinds(kind):
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    assert tokenizer(kind).decode([list(SPECIALS)[:3]]) == [""]
    assert tokenizer(kind).encode(["", ""]) == [[], []]  # none is added
    if kind != "bytes":
        names = [tokenizer(kind).processor.id_to_piece(i) for i in SPECIALS]
        assert names == ["<pad>", "<s>", "</s>", "<unk>"]


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 100_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_has_at_most_the_given_size(kind, vocab_size):
    learned = train_tokenizer(CORPUS, kind, vocab_size)
    largest = max(i for row in learned.encode(CORPUS) for i in row)
    assert largest < learned.vocab_size <= vocab_size
    if kind == "bpe":
        assert learned.vocab_size >= VOCAB_SIZE


@EVERY_TOKENIZER
def test_decoding_ends_at_the_end_token_and_drops_padding(make, kind):
    tokens = make(kind)
    (row,) = tokens.encode(["the cat"])
    expected = tokens.decode([row])
    for ids in ([START, *row, END, row[0], PAD], [*row, PAD, PAD], [PAD, START, *row]):
        assert tokens.decode([ids]) == tokens.decode(np.array([ids])) == expected
        assert tokens.decode(np.array([ids], "uint16")) == tokens.decode([np.array(ids)]) == expected
    assert tokens.decode([]) == tokens.encode([]) == [] and tokens.decode([[], [END, *row]]) == ["", ""]


@EVERY_TOKENIZER
def test_texts_may_come_in_any_iterable_and_each_is_encoded_by_itself(make, kind):
    texts = ["the cat", "", "a dog!"]
    rows = make(kind).encode(texts)
    assert rows == make(kind).encode(tuple(texts)) == make(kind).encode(iter(texts))
    assert rows == [row for one in texts for row in make(kind).encode([one])]


@EVERY_TOKENIZER
def test_pieces_are_as_many_as_ids(make, kind):
    for one in ("the cat sat!", "", "Übermut 😀"):
        pieces = make(kind).pieces(one)
        assert len(pieces) == len(make(kind).encode([one])[0]) and all(isinstance(piece, str) for piece in pieces)


def test_invalid_utf_8_is_replaced():
    assert ByteTokenizer().decode([[ord("a") + 4, 0xC3 + 4, ord("b") + 4, UNKNOWN]]) == ["a�b"]


# ── sampling ──

SENTENCES = ["the cat sat on the mat and the dog sat on the cat", "selten tut ein Hund gut, zwei Hunde selten!"] * 10


@pytest.mark.parametrize("kind", SUBWORDS)
def test_sampling_is_a_function_of_the_seed(kind):
    encode = tokenizer(kind).encode
    first = encode(SENTENCES, sampling=0.3, seed=1)
    others = [encode(SENTENCES, sampling=0.3, seed=seed) for seed in (2, 3, 2**40)]
    assert encode(SENTENCES, sampling=0.3, seed=1) == first
    assert all(other != first for other in others) and others[0] != others[1]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_samples_decode_to_the_same_text_and_often_differ_from_the_best(kind):
    samples = tokenizer(kind).encode(SENTENCES, sampling=0.3, seed=1)
    assert tokenizer(kind).decode(samples) == SENTENCES
    best = tokenizer(kind).encode(SENTENCES)
    assert np.mean([a != b for a, b in zip(samples, best, strict=True)]) > 0.5
    assert len(set(map(tuple, samples[::2]))) > 1  # the same text, not always the same way
    assert tokenizer(kind).decode(tokenizer(kind).encode(HARD, sampling=0.3, seed=1)) == HARD


def test_the_more_merges_are_left_out_the_longer_the_rows():
    lengths = [
        sum(map(len, tokenizer("bpe").encode(SENTENCES, sampling=sampling, seed=1))) for sampling in (0, 0.1, 0.5, 0.99)
    ]
    assert lengths == sorted(set(lengths))


# ── inside a TensorFlow graph ──

IN_GRAPH = pytest.mark.skipif(BACKEND != "tensorflow", reason="a TensorFlow graph; tested with the TensorFlow backend")


@IN_GRAPH
@EVERY_TOKENIZER
def test_a_graph_gives_the_same_ids_and_text(make, kind):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    tokens = make.__wrapped__(kind)  # a new one: TensorFlow forgot older ones when the test's seed was set
    inside = tokens.in_graph()
    # keras-hub itself does white space and controls in its own way outside of a graph
    texts = [*CORPUS[:4], *(HARD if make is tokenizer else ["", "the cats!", "Übermut 😀 你好 the dog"]), "a▁b"]
    rows = tokens.encode(texts)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def both(strings):
        ids = inside.tokenize(strings)
        return ids, inside.detokenize(ids), inside.detokenize(ids.to_tensor(PAD))

    for function in (both, both.python_function)[: 2 if make is tokenizer else 1]:  # keras-hub is slow without a graph
        ids, *decoded = function(tf.constant(texts))
        assert ids.to_list() == rows and ids.dtype == "int32"
        for strings in decoded:
            assert [string.decode() for string in strings.numpy()] == tokens.decode(rows)
    ids, *decoded = both(tf.constant([], tf.string))
    assert ids.nrows() == 0 and all(strings.shape == (0,) for strings in decoded)


@IN_GRAPH
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_decodes_any_ids_as_python_does(kind):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    rng = np.random.default_rng(0)
    ids = rng.integers(len(SPECIALS), tokenizer(kind).vocab_size, (300, 9), "int32")  # bytes that are no UTF-8, too
    decoded = tokenizer(kind).in_graph().detokenize(tf.constant(ids)).numpy()
    assert [string.decode() for string in decoded] == tokenizer(kind).decode(ids)


@IN_GRAPH
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "Marian"])
def test_tags_and_slots_are_tokens_inside_a_graph_and_outside(kind):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    symbols = [">>de<<", ">>fr<<", "⟦1⟧", "⟦2⟧", "⟦10⟧"]
    tokens = train_tokenizer(CORPUS, "bpe" if kind == "Marian" else kind, 400, symbols)
    tokens = text.MarianTokenizer(tokens.model, tokens.names()) if kind == "Marian" else tokens
    assert tokens.languages == ["de", "fr"] and len(tokens.slots) == 2  # "⟦3⟧" is lacking
    texts = [">>de<<the ⟦1⟧cat⟦10⟧", ">>fr<<⟦2⟧", ">>de<<", "⟦1⟧⟦1⟧ ⟦2⟧"]
    inside, rows = tokens.in_graph(), tokens.encode(texts)
    ids = {name: number for number, name in enumerate(tokens.names(), len(SPECIALS))}
    assert rows[0][0] == ids[">>de<<"] and {ids["⟦1⟧"], ids["⟦10⟧"]} < {*rows[0]} and rows[1][-1] == tokens.slots[1]
    actual = inside.tokenize(tf.constant(texts))
    assert actual.to_list() == rows
    assert [text.decode() for text in inside.detokenize(actual).numpy()] == tokens.decode(rows)


@pytest.mark.parametrize("kind", ["word", "bytes"])
def test_symbols_are_refused_for_kinds_that_would_split_them(kind):
    with refused("kind"):
        train_tokenizer(CORPUS, kind, 400, [">>de<<"])


# ── on disk ──


@pytest.mark.filterwarnings("ignore:unclosed file.*vocabulary.spm:ResourceWarning")  # of keras-hub
@EVERY_TOKENIZER
def test_saved_and_loaded_it_is_the_same(make, kind, tmp_path):
    before = make(kind)
    save_tokenizer(before, tmp_path / "new" / "folder")
    after = load_tokenizer(str(tmp_path / "new" / "folder"))
    assert type(after) is type(before) and after.vocab_size == before.vocab_size
    assert after.encode(HARD) == before.encode(HARD) and after.pieces("the cats") == before.pieces("the cats")
    assert text.saving.fingerprint(after) == text.saving.fingerprint(before)


def test_other_tokenizers_have_other_fingerprints():
    others = [tokenizer(kind) for kind in KINDS] + [train_tokenizer(CORPUS, "bpe", VOCAB_SIZE - 1)]
    assert len({text.saving.fingerprint(other) for other in others}) == len(others)


def test_a_fingerprint_is_that_of_what_the_tokenizer_does_not_of_its_file(tmp_path):
    save_tokenizer(tokenizer("char"), tmp_path / "folder")
    (tmp_path / "folder/tokenizer.json").write_text('{"class":\n"SentencePieceTokenizer"}')  # as earlier versions wrote
    assert text.saving.fingerprint(load_tokenizer(tmp_path / "folder")) == text.saving.fingerprint(tokenizer("char"))


def test_a_tokenizer_is_written_atomically_and_deletes_no_other_files(tmp_path, monkeypatch):
    folder = tmp_path / "tokenizer"
    save_tokenizer(tokenizer("char"), folder)

    def fail(self, folder):
        (folder / "sentencepiece.model").write_bytes(b"half of i")
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(SentencePieceTokenizer, "save", fail)
        save_tokenizer(tokenizer("bpe"), folder)
    assert load_tokenizer(folder).model == tokenizer("char").model and list(tmp_path.iterdir()) == [folder]
    save_tokenizer(tokenizer("bytes"), folder)  # nothing of the other one is left
    assert [file.name for file in folder.iterdir()] == ["tokenizer.json"]
    (folder / "notes").write_text("of mine")
    with refused("folder"):
        save_tokenizer(tokenizer("char"), folder)
    assert (folder / "notes").read_text() == "of mine"


def damages(content):
    """Bytes that are no longer what was written: none, half, a flipped bit, JSON of another kind."""
    yield b""
    yield content[: len(content) // 2]
    for place in range(3, len(content), max(len(content) // 5, 1)):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    yield from (b"[]", b"7", b"null", b'"class"', b"{}", b'{"class": 3}', b'{"class": "os.system"}', b"\x80\x04.")


@pytest.mark.parametrize("make, kind", [(tokenizer, "bpe"), (tokenizer, "bytes"), (keras_hub_tokenizer, "word_piece")])
def test_a_damaged_file_is_named(make, kind, tmp_path):
    save_tokenizer(make(kind), tmp_path / "tokenizer")
    for file in sorted((tmp_path / "tokenizer").iterdir()):
        content = file.read_bytes()
        for damaged in damages(content):
            file.write_bytes(damaged)
            with pytest.raises(DamagedFile, match=f"{file.name}: damaged, or not the right kind of file"):
                load_tokenizer(tmp_path / "tokenizer")
        file.unlink()
        with pytest.raises(ValueError, match=f"{file.name}|`folder` must be one that `save_tokenizer` wrote"):
            load_tokenizer(tmp_path / "tokenizer")
        file.write_bytes(content)
    load_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize("damaged", [b"", b"half of i", b"\x0a\xff\xff\xff\x7f"])
def test_a_damaged_model_is_named_where_no_checksum_was_written(damaged, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"class": "SentencePieceTokenizer"}')
    (tmp_path / "sentencepiece.model").write_bytes(damaged)
    with pytest.raises(DamagedFile, match="sentencepiece.model: damaged, or not the right kind of file"):
        load_tokenizer(tmp_path)


# ── keras-hub ──


@pytest.mark.parametrize(
    "content",
    [
        {"module": "keras.layers", "class_name": "Dense", "config": {"units": 1}},
        {"module": "touching", "class_name": "Tokenizer", "config": {}},  # a module beside the program
        {
            "class_name": "WordPieceTokenizer",
            "config": {"split": {"module": "touching", "class_name": "A", "config": {}}},
        },
        {"class_name": "compute_word_piece_vocabulary", "config": {}},
        {"class_name": "Tokenizer", "config": {}},
        {"class_name": ["WordPieceTokenizer"], "config": {}},
        {"class_name": "WordPieceTokenizer", "config": {"dtype": {"module": "touching", "class_name": "A"}}},
        {"class_name": "WordPieceTokenizer", "config": {"vocabulary": __file__}},
    ],
)
def test_nothing_in_a_file_of_keras_hub_is_executed(content, tmp_path, monkeypatch):
    pytest.importorskip("keras_hub", reason="keras-hub is not installed")
    (tmp_path / "touching.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\nclass A: pass\nTokenizer = A")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/tokenizer.json").write_text('{"class": "KerasHubTokenizer"}')
    (tmp_path / "tokenizer/keras_hub.json").write_text(json.dumps(content))
    with pytest.raises((DamagedFile, FileNotFoundError), match="keras_hub.json|tokenizer/vocabulary.txt: is missing"):
        load_tokenizer(tmp_path / "tokenizer")
    assert not (tmp_path / "touched").exists()


def test_an_unregistered_class_is_refused_before_it_is_written(tmp_path):
    hub = pytest.importorskip("keras_hub", reason="keras-hub is not installed").tokenizers

    class Mine(hub.WordPieceTokenizer):
        pass

    with refused("tokenizer"):
        save_tokenizer(KerasHubTokenizer(Mine(["[UNK]", "a"])), tmp_path / "tokenizer")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", HUB_KINDS)
def test_ids_of_keras_hub_come_after_the_special_ones(kind):
    tokens = keras_hub_tokenizer(kind)
    texts = ["the cats the dog!", "walrus", ""]
    theirs, ours = tokens.tokenizer.tokenize(texts), tokens.encode(texts)
    theirs = theirs.to_list() if hasattr(theirs, "to_list") else theirs
    assert ours == [[int(i) + len(SPECIALS) for i in row] for row in theirs]
    assert all(len(SPECIALS) <= i < tokens.vocab_size for row in ours for i in row)
    assert tokens.vocab_size == tokens.tokenizer.vocabulary_size() + len(SPECIALS)


@pytest.mark.parametrize("kind", ["byte_pair", "sentence_piece"])
def test_keras_hub_tokenizers_are_lossless(kind):
    texts = ["the cats, the dog!", "Übermut 😀 你好", ""]
    assert keras_hub_tokenizer(kind).decode(keras_hub_tokenizer(kind).encode(texts)) == texts


def test_keras_hub_must_give_ids_and_no_padding():
    hub = pytest.importorskip("keras_hub", reason="keras-hub is not installed").tokenizers
    for options in ({"sequence_length": 5}, {"dtype": "string"}):
        with refused("tokenizer"):
            KerasHubTokenizer(hub.WordPieceTokenizer(["[UNK]", "a"], **options))


# ── errors ──


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: train_tokenizer(CORPUS, "syllable"), ["`kind` must be one of", "unigram", "kind='syllable'"]),
        (lambda: train_tokenizer(CORPUS, vocab_size=0), ["`vocab_size` must be a positive", "vocab_size=0"]),
        (lambda: train_tokenizer(CORPUS, vocab_size=8.5), ["`vocab_size` must be a positive", "vocab_size=8.5"]),
        (lambda: train_tokenizer(CORPUS, "bpe", 270), ["`vocab_size` must be at least", "vocab_size=270"]),
        (lambda: train_tokenizer(CORPUS, "char", 100), ["`vocab_size` must be large enough", "vocab_size=100"]),
        (lambda: train_tokenizer([]), ["`texts` must not be empty"]),
        (lambda: train_tokenizer("a text"), ["`texts` must be a list of strings", "texts='a text'"]),
        (
            lambda: train_tokenizer(CORPUS, colour="blue"),
            ["`options` must be options", "'colour': 'blue'"],
        ),
        (lambda: tokenizer("bpe").encode("a text"), ["`texts` must be a list of strings", "texts='a text'"]),
        (lambda: tokenizer("bpe").encode(["a"], sampling=1.5), ["`sampling` must be", "sampling=1.5"]),
        (lambda: tokenizer("bpe").encode(["a"], sampling=-0.1), ["`sampling` must be", "sampling=-0.1"]),
        (lambda: tokenizer("char").encode(["a"], sampling=0.1), ["`sampling` must be 0", "sampling=0.1"]),
        (lambda: tokenizer("word").encode(["a"], sampling=0.1), ["`sampling` must be 0", "sampling=0.1"]),
        (lambda: tokenizer("bytes").encode(["a"], sampling=0.1), ["`sampling` must be 0", "sampling=0.1"]),
        (lambda: load_tokenizer("/no/such"), ["`folder` must be one that `save_tokenizer` wrote", "'/no/such'"]),
        (lambda: load_tokenizer(__file__), ["`folder` must be one that `save_tokenizer` wrote", "test_tokenizers.py"]),
        (lambda: save_tokenizer("a string", "/tmp"), ["`tokenizer` must be one of", "ByteTokenizer", "str"]),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in [*words, "Received: "]), str(error.value)


def test_a_model_with_other_special_ids_is_refused():
    with refused("model"):
        train_tokenizer(CORPUS, "bpe", VOCAB_SIZE, pad_id=3, unk_id=0)


def test_any_option_of_sentencepiece_can_be_set():
    assert UNKNOWN in train_tokenizer(CORPUS, "bpe", 100, byte_fallback=False).encode(["😀"])[0]
    assert isinstance(train_tokenizer(CORPUS, "bpe", 300, character_coverage=0.99), SentencePieceTokenizer)


@pytest.fixture
def same_tokenizers():
    """Forgets what a test registers."""
    before = dict(TOKENIZERS)
    yield
    TOKENIZERS.clear()
    TOKENIZERS.update(before)


@pytest.mark.usefixtures("same_tokenizers")
def test_a_registered_tokenizer_class_is_saved_and_loaded(tmp_path):
    @register_tokenizer
    class Words(Tokenizer):
        files = ("words.txt",)

        def __init__(self, words):
            self.words, self.vocab_size = list(words), 4 + len(words)

        def _encode(self, texts):
            return [[4 + self.words.index(word) for word in text.split()] for text in texts]

        def _decode(self, ids):
            return " ".join(self.words[i - 4] for i in ids)

        def save(self, folder):
            (folder / "words.txt").write_text("\n".join(self.words))

        @classmethod
        def load(cls, folder):
            return cls((folder / "words.txt").read_text().splitlines())

    words = Words(["ein", "Hund", "läuft"])
    for _ in range(2):  # an earlier one is replaced
        save_tokenizer(words, tmp_path / "words")
    again = load_tokenizer(tmp_path / "words")
    assert again.decode(again.encode(["ein Hund läuft"])) == ["ein Hund läuft"]
    with refused("cls"):
        register_tokenizer(type("ByteTokenizer", (Words,), {}))
