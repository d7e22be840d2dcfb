import gzip
import os

import numpy as np
import pytest
from conftest import BYTES, encode, once, random_texts, refused, texts_of

from keras_tfm import data
from keras_tfm.common.files import DamagedFile, checksum, read_json, write_json
from keras_tfm.data import ParallelFiles, TokenPairs, corpus, encode_pairs, token_files
from keras_tfm.text import ByteTokenizer, train_tokenizer

pytestmark = once


# ── files ──


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("names", [("s.txt", "t.txt"), ("s.gz", "t.gz"), ("s", "t.txt.gz")])
def test_pairs_of_lines_of_two_files_plain_or_compressed(names, tmp_path):
    source = write(tmp_path / names[0], "\ufeffone\n\n three\u2028 \u0085x\x0b\x0cy \nvier")
    target = write(tmp_path / names[1], "eins\r\nzwei\r\ndrei\ttab\r\n\ufefffour\r\n")
    pairs = ParallelFiles(source, str(target))
    expected = [("one", "eins"), ("", "zwei"), (" three\u2028 \u0085x\x0b\x0cy ", "drei\ttab"), ("vier", "\ufefffour")]
    assert list(pairs) == list(pairs) == expected and len(pairs) == 4


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
def test_pairs_of_columns_of_one_file(name, tmp_path):
    file = write(tmp_path / name, "\ufeffone\teins\r\n\tzwei\nthree\t\nfour \t vier")
    assert list(ParallelFiles(file)) == [("one", "eins"), ("", "zwei"), ("three", ""), ("four ", " vier")]


def damaged_gzip(content, cut=None, flip=None):
    compressed = bytearray(gzip.compress(content.encode()))
    if flip:
        compressed[flip] ^= 0xFF
    return bytes(compressed[:cut])


LINES = "\n".join(map(str, range(20_000)))


@pytest.mark.parametrize(
    "source, target, words",
    [
        ("a\nb\n", "a\nb\nc\n", ["s.txt: must have as many lines as", "line 3", "t.txt"]),
        ("a\nb\nc", "a\n", ["t.txt: must have as many lines as", "line 2", "s.txt"]),
        ("a\n", "", ["t.txt", "line 1", "s.txt"]),
        ("", "", ["s.txt", "empty"]),
        ("a\nb\n", b"a\nb\xff\xfe\n", ["t.txt", "line 2", "UTF-8", r"\xff"]),
        ("a\n", "a\n".encode("utf-16"), ["t.txt", "line 1", "UTF-8"]),
        ("", None, ["s.txt", "empty"]),
        ("a\tb\nc\n", None, ["s.txt", "line 2", "tab", "'c'"]),
        ("a\tb\tc\td\n", None, ["s.txt", "line 1", "tab"]),
        ("a\tb\n\nc\td\n", None, ["s.txt", "line 2", "tab", "''"]),
    ],
)
def test_errors_name_file_and_line(source, target, words, tmp_path):
    paths = [write(tmp_path / "s.txt", source), target is not None and write(tmp_path / "t.txt", target) or None]
    with pytest.raises(ValueError) as error:
        ParallelFiles(*paths)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "content",
    [damaged_gzip(LINES, cut=-2000), damaged_gzip(LINES, flip=5000), b"plain\ntext\n"],
    ids=["cut", "flipped", "plain"],
)
def test_errors_name_the_incomplete_gzip_file(content, tmp_path):
    (tmp_path / "s.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.gz, after line \d+: must be a complete .gz file. Received: "):
        ParallelFiles(tmp_path / "s.gz", write(tmp_path / "t.txt", LINES))


def test_errors_name_the_path_that_is_missing(tmp_path):
    file = write(tmp_path / "s.txt", "a\n")
    for paths in ((file, tmp_path / "none.txt"), (tmp_path / "none.txt", file), (tmp_path / "none.txt",)):
        with pytest.raises(FileNotFoundError, match=r"none\.txt: there is no such file"):
            ParallelFiles(*paths)
    with pytest.raises(FileNotFoundError):
        ParallelFiles(tmp_path)  # a folder


# ── token files ──


@pytest.mark.parametrize("kind, chunk", [(list, 10_000), (iter, 7), (ParallelFiles, 1)])
def test_what_is_read_back_is_what_the_tokenizers_gave(kind, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "CHUNK", chunk)
    texts = random_texts(50)
    if kind is ParallelFiles:
        pairs = ParallelFiles(write(tmp_path / "pairs.tsv", "\n".join(map("\t".join, texts))))
    else:
        pairs = kind(texts)
    bpe = train_tokenizer([target for _, target in texts], vocab_size=280)
    encoded = encode(pairs, tmp_path / "new" / "tokens", BYTES, bpe)
    sources, targets = (BYTES.encode(s for s, _ in texts), bpe.encode(t for _, t in texts))
    assert len(encoded) == len(encoded.sources) == 50 and encoded.meta["empty"] == encoded.meta["too_long"] == 0
    assert [encoded.sources[n].tolist() for n in range(50)] == sources
    assert [encoded.targets[n].tolist() for n in range(50)] == targets
    assert encoded.targets[-1].tolist() == targets[-1] and TokenPairs(tmp_path / "new" / "tokens").meta == encoded.meta
    order = np.array([3, 0, 49, 3])
    assert encoded.sources.lengths(order).tolist() == [len(sources[n]) for n in order]
    padded = encoded.sources.padded(order, 40)
    assert [row[row > 0].tolist() for row in padded] == [sources[n] for n in order] and padded.shape == (4, 40)
    with pytest.raises(IndexError):
        encoded.sources[50]


def test_pairs_that_are_too_long_or_empty_are_left_out_and_counted(tmp_path, capsys):
    texts = [("abc", "ab"), ("abcd", "a"), ("a", "abcd"), ("", "a"), ("a", ""), ("a", "abc")]
    encoded = encode_pairs(texts, tmp_path / "tokens", BYTES, max_length=3)
    assert texts_of(encoded) == [texts[0], texts[5]]
    assert {name: encoded.meta[name] for name in ("count", "empty", "too_long")} == dict(count=2, empty=2, too_long=2)
    said = capsys.readouterr().err
    assert "left out 4 of 6 pairs: 2 with an empty side, 2 with more than 3 tokens on a side" in said


@pytest.mark.parametrize("name", token_files.FILES)
@pytest.mark.parametrize("damage", ["half", "flip", "empty", "gone"])
def test_damaged_token_files_are_noticed(name, damage, tmp_path):
    encode(random_texts(20), tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes({"half": content[: len(content) // 16 * 8], "flip": content}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    with pytest.raises(DamagedFile, match=rf"{name}: damaged.* delete {tmp_path} to encode the texts again"):
        TokenPairs(tmp_path)


@pytest.mark.parametrize("vocab_size, dtype", [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_the_largest_id_is_kept(vocab_size, dtype, tmp_path):
    class Largest(ByteTokenizer):
        def encode(self, texts, sampling=0.0, seed=0):
            return [[vocab_size - 1] for _ in texts]

    tokenizer = Largest()
    tokenizer.vocab_size = vocab_size
    encoded = encode([("a", "b")], tmp_path, tokenizer)
    assert encoded.sources[0].tolist() == [vocab_size - 1] and encoded.meta["dtype"] == dtype


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "s.txt", "one\ntwo two\n"), write(tmp_path / "t.txt", "eins\nzwei zwei\n")


def written(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}


def test_the_same_files_tokenizer_and_options_are_encoded_once(files, tmp_path):
    tokenizer, folder = train_tokenizer(["one two"], vocab_size=300), tmp_path / "tokens"
    options = {"sampling": 0.1, "seed": 3, "max_length": 9}
    encode(ParallelFiles(*files), folder, tokenizer, **options)
    before = written(folder)
    again = encode(ParallelFiles(*files), folder, train_tokenizer(["one two"], vocab_size=300), **options)
    assert written(folder) == before and len(again) == 2


def test_other_files_tokenizers_and_options_are_encoded_anew(files, tmp_path):
    corpus, folder = ["one two eins zwei"], tmp_path / "tokens"
    tokenizers = [train_tokenizer(corpus, kind, 300) for kind in ("bpe", "unigram")]
    pairs = ParallelFiles(*files)
    encode(pairs, folder, tokenizers[0])
    for arguments, options in [
        ([tokenizers[1]], {}),
        ([tokenizers[0], tokenizers[1]], {}),
        ([tokenizers[0]], {"max_length": 100}),
        ([tokenizers[0]], {"sampling": 0.2}),
        ([tokenizers[0]], {"sampling": 0.2, "seed": 5}),
    ]:
        before = written(folder)
        encode(pairs, folder, *arguments, **options)
        assert written(folder) != before
    write(files[1], "eins\ndrei drei\n")  # the same size
    os.utime(files[1], ns=(1, 1))
    changed = encode(ParallelFiles(*files), folder, *arguments, **options)
    assert tokenizers[0].decode([changed.targets[1]]) == ["drei drei"]
    assert encode(ParallelFiles(files[1], files[0]), folder, *arguments, **options).meta != changed.meta


def test_the_same_texts_have_one_fingerprint_wherever_they_come_from(files, tmp_path):
    texts = [("one", "eins"), ("two two", "zwei zwei")]
    tsv = write(tmp_path / "pairs.tsv.gz", "one\teins\r\ntwo two\tzwei zwei")
    same = [ParallelFiles(*files), ParallelFiles(tsv), texts, tuple(map(list, texts)), dict(texts).items()]
    assert len({*map(corpus.fingerprint, same)}) == 1
    others = [texts[::-1], texts[:1], [(b, a) for a, b in texts], [("onee", "ins"), texts[1]], [*texts, ("", "")], []]
    assert len({*map(corpus.fingerprint, [texts, *others])}) == 1 + len(others)
    assert corpus.fingerprint(iter(texts)) is None and corpus.fingerprint([("\udcff", "")])
    encode(same[0], tmp_path / "tokens")
    before = written(tmp_path / "tokens")
    for pairs in same:
        encode(pairs, tmp_path / "tokens")
        assert written(tmp_path / "tokens") == before


def test_an_iterator_is_always_encoded(tmp_path):
    encode([("a", "b")], tmp_path)
    assert texts_of(encode(iter([("c", "d")]), tmp_path)) == [("c", "d")]
    assert encode(iter([("c", "d")]), tmp_path).meta["fingerprint"] is None


def test_undecodable_bytes_may_be_replaced_and_are_reported(tmp_path, capsys):
    path = write(tmp_path / "lines", b"\xef\xbb\xbfa\nb\xff\n\xef\xbf\xbd\n")
    assert list(data.read_lines(path, errors="replace")) == ["a", "b\ufffd", "\ufffd"]
    assert capsys.readouterr().err == f"{path}, line 2: not UTF-8; invalid bytes are read as \ufffd\n"


def test_an_interruption_leaves_nothing_that_looks_complete(files, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "CHUNK", 2)

    def broken():
        yield from random_texts(9)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(broken(), tmp_path / "new")
    with refused("folder"):
        TokenPairs(tmp_path / "new")
    assert texts_of(encode(random_texts(5), tmp_path / "new")) == random_texts(5)
    with pytest.raises(KeyboardInterrupt):
        encode(broken(), tmp_path / "new")
    assert texts_of(TokenPairs(tmp_path / "new")) == random_texts(
        5
    )  # complete files of an earlier call are still there


@pytest.mark.parametrize("calls", range(5))
def test_an_interruption_while_files_are_replaced_leaves_nothing_that_looks_complete(calls, tmp_path, monkeypatch):
    encode(random_texts(5), tmp_path)
    replace, left = os.replace, iter(range(calls))

    def stopped(*paths):
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        encode(random_texts(6), tmp_path)
    with refused("folder"):
        TokenPairs(tmp_path)


def test_the_metadata_of_token_files_is_checked_against_them(tmp_path):
    """Neither a type of pointers, which NumPy would follow, nor sequences outside of the tokens."""
    encode(random_texts(5), tmp_path)
    meta, ends = read_json(tmp_path / "meta.json"), np.fromfile(tmp_path / "target.ends", "int64")

    def refused(**changes):
        checksums = {name: checksum(tmp_path / name) for name in token_files.FILES}
        write_json(tmp_path / "meta.json", meta | {"files": checksums} | changes)
        with pytest.raises(DamagedFile, match="meta.json: damaged"):
            TokenPairs(tmp_path)

    for dtype in ("O", "object", "float32", "V100000", "int64", None, ["uint16"]):
        refused(dtype=dtype)
    for wrong in ({}, {name: meta["files"][name] for name in token_files.FILES[:3]}, None):
        refused(files=wrong)
    refused(count=6)
    for wrong in (ends[::-1], ends - 10**15, ends + 1, ends[:0], np.r_[ends[:-1], ends[-2]]):
        wrong.tofile(tmp_path / "target.ends")
        refused()
    ends.tofile(tmp_path / "target.ends")
    (tmp_path / "target.tokens").write_bytes(b"123")
    refused()


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    corpus = write(tmp_path / "corpus.tsv", "a\tb\n")
    for max_length in (5, 6):
        encode(ParallelFiles(corpus), tmp_path, max_length=max_length)
    assert corpus.read_text() == "a\tb\n"


def test_samples_are_a_function_of_the_seed_and_decode_to_the_same_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "CHUNK", 10)
    texts = [("the cat sat on the mat", "the cat sat on the mat")] * 25
    tokenizer = train_tokenizer(["the cat sat on the mat"] * 9, vocab_size=290)
    first, same, other = (
        encode(texts, tmp_path / str(n), tokenizer, sampling=0.3, seed=seed) for n, seed in enumerate((1, 1, 2))
    )
    np.testing.assert_array_equal(first.sources.tokens, same.sources.tokens)
    assert first.sources.tokens.tolist() != other.sources.tokens.tolist()
    assert tokenizer.decode(first.targets[n] for n in range(25)) == [target for _, target in texts]
    sampled = [tuple(first.sources[n]) for n in range(25)] + [tuple(first.targets[n]) for n in range(25)]
    assert len(set(sampled)) > 25  # each chunk and each side is sampled separately


@pytest.mark.parametrize("kind", [list, iter])
def test_silence_and_a_progress_bar(kind, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("keras_tfm.common.progress.LOG_SECONDS", 0)
    encode_pairs(kind(random_texts(5)), tmp_path / "silent", BYTES, verbose=0)
    assert capfd.readouterr() == ("", "")
    encode_pairs(kind(random_texts(5)), tmp_path / "shown", BYTES, verbose=1)
    assert "encoding: 5" in capfd.readouterr().err


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: encode([("a", "b")], "x", max_length=0), ["`max_length` must be a positive", "max_length=0"]),
        (lambda: encode([("a", "b")], "x", sampling=2), ["`sampling` must be", "sampling=2"]),
        (lambda: encode(["ab"], "x"), ["`pairs` must be pairs of strings, (source, target)", "'ab' among them"]),
        (lambda: encode([("a", b"b")], "x"), ["`pairs` must be pairs of strings", "('a', b'b')"]),
        (lambda: TokenPairs("no/such"), ["`folder` must be one that `encode_pairs` wrote", "'no/such'"]),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in [*words, "Received: "]), str(error.value)


@pytest.mark.parametrize("texts", [[], [("", "")], [("a" * 300, "b")]])
def test_at_least_one_pair_must_be_kept(texts, tmp_path):
    with refused("pairs"):
        encode(texts, tmp_path)
