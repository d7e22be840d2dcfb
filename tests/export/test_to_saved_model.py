import base64
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import IN_TENSORFLOW, TEXTS, small_translator
from test_runners import shared_export, shared_translator

from keras_tfm.text import END

# Runs a SavedModel where this package cannot be imported: texts in, what its signatures say out.
PROGRAM = """
import sys
sys.modules["keras_tfm"] = None
import base64, json
import tensorflow as tf, tensorflow_text
signatures = tf.saved_model.load(sys.argv[1]).signatures
requests = json.load(sys.stdin)
answers = []
for name, values in requests:
    if name != "tokens":
        values = tf.constant([base64.b64decode(value) for value in values], tf.string, shape=[len(values)])
    else:
        values = tf.constant(values, tf.int64)
    try:
        outputs = signatures[name](values)
    except tf.errors.InvalidArgumentError as error:
        answers.append({"error": str(error)})
        continue
    readable = {}
    for key, value in outputs.items():
        value = value.numpy()
        readable[key] = [list(value.shape), value.tolist() if value.dtype != object else [
            text.decode() for text in value.ravel()]]
    answers.append(readable)
print(json.dumps(answers))
"""


def ask(folder, *requests):
    """What the signatures of a SavedModel answer in a fresh process: {output: (shape, values)} for each request."""
    encoded = [
        (name, values if name == "tokens" else [base64.b64encode(text).decode() for text in values])
        for name, values in requests
    ]
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, folder]
    run = subprocess.run(command, input=json.dumps(encoded), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def unknown_ids(tokenizer):
    """Requests with ids that no token has, the last of which would be padding in 32 bits."""
    return [("tokens", [[4, number, END]]) for number in (-5, tokenizer.vocab_size, 2**31 - 1, 2**40)]


def assert_refused(answers):
    assert len(answers) == 4
    for answer in answers:
        assert "`ids` must be numbers from 0 to" in answer["error"], answer


@IN_TENSORFLOW
@pytest.mark.xdist_group("exported")  # where the shared export is
@pytest.mark.usefixtures("one_width")
@pytest.mark.slow
@pytest.mark.parametrize("kind, num_beams", [("bytes", 1), ("bpe", 3)])
def test_a_saved_model_equals_the_translator(kind, num_beams, tmp_path):
    if kind == "bpe":
        ours, folder = shared_translator(), shared_export("saved_model")
    else:
        ours, folder = small_translator(kind, num_beams=num_beams, length_penalty=1.0), tmp_path / "model"
        ours.export(folder, "saved_model")
    texts = [text.encode() for text in TEXTS]
    strange = [b"a \xff dog", b"", b"x" * 500]
    ids = [[*ours.source_tokenizer.encode(["a dog"])[0], END]]
    best, several, embeddings, none, odd, tokens, *unknown = ask(
        folder,
        ("serving_default", texts),
        ("translate", texts),
        ("encode", texts),
        ("translate", []),
        ("translate", strange),
        ("tokens", ids),
        *unknown_ids(ours.source_tokenizer),
    )
    expected = ours(TEXTS)
    assert_refused(unknown)
    assert best["translation"][1] == expected
    shape, translations = several["translations"]
    assert shape == [len(TEXTS), num_beams] and translations[::num_beams] == expected
    if num_beams > 1:
        actual = ours.n_best(TEXTS, num_beams)
        assert [translations[n * num_beams : n * num_beams + num_beams] for n in (0, 1, 3)] == [
            [text for text, _ in actual[n]] for n in (0, 1, 3)
        ]
        np.testing.assert_allclose(several["scores"][1][0], [score for _, score in actual[0]], rtol=0, atol=1e-4)
    assert embeddings["embeddings"][0][::2] == [len(TEXTS), 16]
    assert none["translations"][0] == [0, num_beams]
    assert odd["translations"][1][num_beams] == "" and odd["cut"][1][0] == 0 and odd["cut"][1][2] > 0
    assert odd["translations"][1][0] == ours(["a \ufffd dog"])[0]
    assert ours.target_tokenizer.decode(tokens["ids"][1]) == ours(["a dog"])


@IN_TENSORFLOW
@pytest.mark.slow
def test_searches_compiled_by_xla_equal_the_translator(tmp_path):
    ours = small_translator("bytes", num_beams=2)
    ours.export(tmp_path / "model", "saved_model", jit_compile=True)
    texts = ["a dog", "", "über 🙂", "a text of more than thirty-two bytes, for the second width", "x" * 90]
    rows = [text.encode() for text in texts]
    together, *single = ask(tmp_path / "model", ("translate", rows), *[("translate", [row]) for row in rows])
    expected = together["translations"][1][::2]
    assert [answer["translations"][1][0] for answer in single] == expected
    assert expected[:4] == ours(texts[:4]) and len(set(expected)) > 2
    np.testing.assert_allclose([answer["scores"][1][0] for answer in single], together["scores"][1], atol=1e-4)
