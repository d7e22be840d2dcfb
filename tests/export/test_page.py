"""The page's tokenizers in JavaScript, against those in Python."""

import functools
import io
import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import sentencepiece
from conftest import once
from test_tokenizers import HARD

from keras_tfm.data import tasks
from keras_tfm.text import PAD, ByteTokenizer, MarianTokenizer, save_tokenizer, train_tokenizer

PAGE = pathlib.Path(__file__).parents[2] / "keras_tfm/export/page"
NODE = pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed: tokenizer.js cannot run")
pytestmark = [once, NODE]

# Reads the folder of a tokenizer, texts to encode and ids to decode.
PROGRAM = """
import { readFileSync } from "node:fs";
import { loadTokenizer } from "TOKENIZER";
const { folder, texts, rows } = JSON.parse(readFileSync(0, "utf-8"));
const tokenizer = await loadTokenizer(async (name) => new Uint8Array(readFileSync(`${folder}/${name}`)));
const encoded = texts.map((text) => tokenizer.encode(text));
const labels = rows.map((row) => row.map((id) => tokenizer.label(id)));
console.log(JSON.stringify({ encoded, decoded: rows.map((row) => tokenizer.decode(row)), labels }));
"""
# Kind, options of SentencePiece.
MODELS = {
    "bpe": ("bpe", {}),
    "unigram": ("unigram", {}),
    "char": ("char", {}),
    "word": ("word", {}),
    "SentencePiece's defaults": ("unigram", {"normalization_rule_name": "nmt_nfkc", "byte_fallback": False}),
    "case folding": ("bpe", {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": True}),
    "languages and slots": ("bpe", {"user_defined_symbols": [">>fra<<", "⟦1⟧", "⟦10⟧"]}),
    "own symbols, bpe": ("bpe", {"user_defined_symbols": ["<br>", "der", "derart", "ä"]}),
    "own symbols, unigram": ("unigram", {"user_defined_symbols": ["<br>", "ber ", "▁ende▁"]}),
    "own symbols, char": ("char", {"user_defined_symbols": ["<br>", "über"], "normalization_rule_name": "nfkc"}),
    "spaces at the end": ("bpe", {"treat_whitespace_as_suffix": True, "add_dummy_prefix": True}),
    "words with spaces at the end": ("word", {"treat_whitespace_as_suffix": True}),
    "without bytes": ("char", {"byte_fallback": False, "remove_extra_whitespaces": True}),
}

QUICK = {"languages and slots", "bpe", "unigram", "char", "word", "SentencePiece's defaults"}


@functools.cache
def texts():
    """Dates, hard texts, and random ones with letters of many scripts, also unseen ones."""
    rng = np.random.default_rng(0)
    letters = list("aaabcdeeeghilmnorstuäößéñ 1234567890.,-/年月日мая<br>▁\t\u00a0\u3000ﬁ①Åǆ가힣😀\u0301\u200bQ")
    some = ["".join(rng.choice(letters, rng.integers(1, 40))) for _ in range(300)]
    some += ["".join(rng.choice(list("12é "), 20)) for _ in range(100)]  # many ways to split that score the same
    own = ["a<br>b", "der derart derartig<br><br>", "über und über", "im ende ", "Ärger ber ber", "? \ufffd ?", "▁▁ ▁"]
    own += [
        ">>fra<< 3 mai 2023",
        ">>fra<<3 mai",
        ">>xyz<< a",
        ">><<",
        ">>a",
        " >>fra<< a",
        ">>fra<<⟦1⟧3⟦10⟧ ⟦2⟧>>fra<<⟦1",
    ]
    long = " ".join(source for source, _ in tasks.dates(2000, "test"))
    return [source for source, _ in tasks.dates(300, "test")] + HARD + some + own + [long, "Q" * 9000 + long]


def rows_of(tokenizer):
    """Ids as models write them, also where they make no sense."""
    rng = np.random.default_rng(1)
    random = [rng.integers(0, tokenizer.vocab_size, rng.integers(1, 20)).tolist() for _ in range(300)]
    bytes_only = [rng.integers(4, min(260, tokenizer.vocab_size), rng.integers(1, 9)).tolist() for _ in range(300)]
    return tokenizer.encode(texts()) + random + bytes_only


def marian_tokenizer(corpus, byte_fallback):
    """One whose SentencePiece model has other ids, as those of OPUS-MT; every seventh of its pieces is unknown."""
    model = io.BytesIO()
    options = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "byte_fallback": byte_fallback}
    lines = iter(line for line in corpus if line.isascii())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=500, hard_vocab_limit=False, minloglevel=2, **options
    )
    names = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [names.id_to_piece(n) for n in range(3, names.get_piece_size()) if n % 7]
    return MarianTokenizer(model.getvalue(), [">>fra<<", *reversed(pieces)])


def run_javascript(folder, texts, rows):
    program = PROGRAM.replace("TOKENIZER", (PAGE / "tokenizer.js").as_uri())
    command = ["node", "--input-type=module", "--eval", program]
    request = json.dumps({"folder": str(folder), "texts": texts, "rows": rows})
    run = subprocess.run(command, input=request, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
    + ["bytes", "Marian", "Marian with bytes"],
)
def test_javascript_tokenizes_as_python_does(name, tmp_path):
    corpus = [source for source, _ in tasks.dates(2000)]
    if name == "bytes":
        tokenizer = ByteTokenizer()
    elif "Marian" in name:
        tokenizer = marian_tokenizer(corpus, byte_fallback=name == "Marian with bytes")
    else:
        kind, options = MODELS[name]
        tokenizer = train_tokenizer(corpus, kind, 700, **options)
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    strings, rows = [*texts(), "lone \ud800 \udc00\ud83d"], rows_of(tokenizer)
    actual = run_javascript(tmp_path / "tokenizer", strings, rows)
    assert_same(strings, tokenizer.encode(strings), actual["encoded"])
    assert_same(rows, tokenizer.decode(rows), actual["decoded"])
    labels = zip(sum(rows, []), sum(actual["labels"], []), strict=True)
    assert {number for number, label in labels if not label} <= {PAD}


def assert_same(inputs, expected, actual):
    wrong = [each for each in zip(inputs, expected, actual, strict=True) if each[1] != each[2]]
    assert not wrong, (len(wrong), wrong[:3])
