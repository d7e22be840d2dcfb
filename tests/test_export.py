import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import BACKEND, BYTES, array, spread

from keras_tfm import decoding, export
from keras_tfm.models import decoder_lm, encoder_classifier, transformer
from keras_tfm.text import END, PAD, START, train_tokenizer
from keras_tfm.translator import Translator

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32}
TEXTS = ["a dog", "two cats run over the grass, and then more", "", "b", "über 🙂 你好", "  ", "the end", "a " * 25]
IN_TENSORFLOW = pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs are exported by the TensorFlow backend")

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
        values = tf.constant(values, tf.int32)
    outputs = signatures[name](values)
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
    import base64

    encoded = [
        (name, values if name == "tokens" else [base64.b64encode(text).decode() for text in values])
        for name, values in requests
    ]
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, folder]
    run = subprocess.run(command, input=json.dumps(encoded), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def translator(kind, **options):
    tokenizer = BYTES if kind == "bytes" else train_tokenizer(TEXTS * 20, kind, 300)
    model = spread(transformer(tokenizer.vocab_size, **SIZES), 0.2)
    made = Translator(model, tokenizer, max_length=64, **options)
    made.widths = [16, 64] if kind == "bytes" else [64]  # fewer programs
    return made


@IN_TENSORFLOW
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("kind, beams", [pytest.param("bytes", 1, marks=pytest.mark.slow), ("bpe", 3)])
def test_a_saved_model_says_what_the_translator_says(kind, beams, tmp_path):
    ours = translator(kind, beams=beams, length_penalty=1.0)
    export.saved_model(ours, tmp_path / "model")
    texts = [text.encode() for text in TEXTS]
    strange = [b"a \xff dog", b"", b"x" * 500]
    ids = (
        [[*BYTES.encode(["a dog"])[0], END]]
        if kind == "bytes"
        else [[*ours.source_tokenizer.encode(["a dog"])[0], END]]
    )
    best, several, embeddings, none, odd, tokens = ask(
        tmp_path / "model",
        ("serving_default", texts),
        ("translate", texts),
        ("encode", texts),
        ("translate", []),
        ("translate", strange),
        ("tokens", ids),
    )
    expected = ours(TEXTS)
    assert best["translation"][1] == expected
    shape, translations = several["translations"]
    assert shape == [len(TEXTS), beams] and translations[::beams] == expected
    if beams > 1:
        found = ours.n_best(TEXTS, beams)
        assert [translations[n * beams : n * beams + beams] for n in (0, 1, 3)] == [
            [text for text, _ in found[n]] for n in (0, 1, 3)
        ]
        np.testing.assert_allclose(several["scores"][1][0], [score for _, score in found[0]], rtol=0, atol=1e-4)
    assert embeddings["embeddings"][0][::2] == [len(TEXTS), 16]
    assert none["translations"][0] == [0, beams]
    assert odd["translations"][1][beams] == "" and odd["cut"][1][0] == 0 and odd["cut"][1][2] > 0
    assert odd["translations"][1][0] == ours(["a \ufffd dog"])[0]
    assert ours.target_tokenizer.decode(tokens["ids"][1]) == ours(["a dog"])


@pytest.mark.slow
@IN_TENSORFLOW
def test_a_classifier_is_saved_with_its_labels(tmp_path):
    model = spread(encoder_classifier(BYTES.vocab_size, 3, **SIZES), 0.5)
    export.saved_classifier(model, BYTES, tmp_path / "model", labels=["bad", "fair", "good"], max_length=20)
    texts = ["a dog", "🙂", "", "x" * 50]
    rows = [ids[:20] or [END] for ids in BYTES.encode(texts)]
    answers, none, embeddings = ask(
        tmp_path / "model",
        ("serving_default", [t.encode() for t in texts]),
        ("serving_default", []),
        ("encode", [b"a"]),
    )
    logits = np.concatenate([array(model(np.array([row]))) for row in rows])
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(answers["probabilities"][1], expected, rtol=0, atol=1e-5)
    assert answers["label"][1] == [["bad", "fair", "good"][n] for n in expected.argmax(-1)]
    assert none["probabilities"][0] == [0, 3] and embeddings["embeddings"][0] == [1, 16]
    for other, options, message in (
        (model, {"labels": ["bad"]}, "`labels` must name each of the 3 classes"),
        (decoder_lm(BYTES.vocab_size, **SIZES), {}, "`model` must be a `encoder_classifier`. Received: decoder_lm"),
        (encoder_classifier(10, 3, **SIZES), {}, "`tokenizer` must have no more tokens than the model, 10"),
    ):
        with pytest.raises(ValueError, match=message):
            export.saved_classifier(other, BYTES, tmp_path / "model", **options)


@pytest.mark.slow
@IN_TENSORFLOW
def test_a_language_model_goes_on_with_texts(tmp_path):
    model = spread(decoder_lm(BYTES.vocab_size, **SIZES), 0.5)
    export.saved_language_model(model, BYTES, tmp_path / "model", max_length=12, no_repeat_ngram=2)
    texts = ["a dog", "", "x" * 50]
    (answers, none) = ask(tmp_path / "model", ("serving_default", [t.encode() for t in texts]), ("serving_default", []))
    prefix = np.zeros((3, 12), "int32")
    for row, ids in zip(prefix, BYTES.encode(texts), strict=True):
        row[: len(ids[:11])] = ids[:11]
    expected = decoding.greedy(model.start, model.step, prefix, 12, prefix=prefix, no_repeat_ngram=2)
    assert answers["text"][1] == BYTES.decode(array(expected)) and answers["text"][1][0].startswith("a dog")
    assert none["text"] == [[0], []]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="what the other backends say")
def test_other_backends_say_where_to_export(tmp_path):
    with pytest.raises(RuntimeError, match="Export needs Keras' TensorFlow backend.*Received: the jax backend"):
        export.saved_model(translator("bytes"), tmp_path / "model")


# ── LiteRT ──


def operators(file):
    """Names of the operators of a LiteRT file, as its runtime lists them."""
    from ai_edge_litert.interpreter import Interpreter

    return {details["op_name"] for details in Interpreter(str(file))._get_ops_details()}


# Runs a LiteRT file where neither Keras nor TensorFlow can be imported.
RUNNER = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = sys.modules["tensorflow_text"] = None
import json, warnings
warnings.simplefilter("ignore")
from keras_tfm.litert import LiteRTTranslator
print(json.dumps(LiteRTTranslator(sys.argv[1])(json.load(sys.stdin))))
"""


@IN_TENSORFLOW
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "kind, beams, precision",
    [
        pytest.param("bytes", 1, "float32", marks=pytest.mark.slow),
        pytest.param("bpe", 3, "float16", marks=pytest.mark.slow),
        ("bpe", 3, "float32"),
        pytest.param("bytes", 2, "int8", marks=pytest.mark.slow),
    ],
)
def test_a_litert_file_says_what_the_translator_says(kind, beams, precision, tmp_path):
    ours = translator(kind, beams=beams)
    export.litert(ours, tmp_path / "model", precision)
    command = [sys.executable, "-c", RUNNER, tmp_path / "model"]
    run = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout.splitlines()[-1])
    assert len(answers) == len(TEXTS) and answers[2] == answers[5] == ""
    if precision == "float32":
        assert answers == ours(TEXTS)
    assert not {name for name in operators(tmp_path / "model/model.tflite") if "Flex" in name or "CUSTOM" in name}


@IN_TENSORFLOW
def test_encode_and_decode_step_are_greedy_search(tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    ours = translator("bpe", beams=1)
    export.litert(ours, tmp_path / "model")
    interpreter = Interpreter(str(tmp_path / "model/model.tflite"))
    encode, step = (interpreter.get_signature_runner(name) for name in ("encode", "decode_step"))
    ids = np.array([[*ours.source_tokenizer.encode(["two cats"])[0], END]], "int32")
    cache, token, written = encode(ids=ids), START, []
    while token != END and len(written) < 12:
        outputs = step(tokens=np.array([[token]], "int32"), position=np.array([len(written)], "int32"), **cache)
        logits = outputs.pop("logits")[0]
        logits[[PAD, START]] = -1e9
        cache, token = outputs, int(logits.argmax())
        written.append(token)
    expected = np.array(ours.search(ids, 64)[0])[0, 0]
    assert written == expected[: len(written)].tolist()
    behind = np.array([max(max(x.shape) for x in cache.values())], "int32")  # the room of the cache
    assert np.isnan(step(tokens=np.array([[END]], "int32"), position=behind, **cache)["logits"]).all()


# ── CTranslate2 ──


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "positions": "learned", "max_length": 32, "activation": "gelu"},
        {"target_vocab_size": BYTES.vocab_size, "num_decoder_layers": 2, "activation": "swish"},
    ],
)
def test_ctranslate2_gives_each_token_the_same_probability(options, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    model = spread(transformer(BYTES.vocab_size, **SIZES, **options), 0.2)
    export.ctranslate2(Translator(model, BYTES), tmp_path / "model")
    source, target = BYTES.encode(["a dog", "ein hund"])
    served = ctranslate2.Translator(str(tmp_path / "model"))
    (scored,) = served.score_batch([[str(i) for i in source]], [[str(i) for i in target]])
    inputs = {"source": np.array([[*source, END]]), "target": np.array([[START, *target]])}
    logits = array(model(inputs))[0]
    logits[:, [PAD, START]] = -1e9  # which are never written
    shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [shares[place, token] for place, token in enumerate([*target, END])]
    np.testing.assert_allclose(scored.log_probs, expected, rtol=0, atol=1e-4)


def test_what_ctranslate2_cannot_compute_is_named(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    for name, value in {"positions": "rotary", "score": "additive", "norm": "rms"}.items():
        model = transformer(BYTES.vocab_size, **SIZES, **{name: value})
        with pytest.raises(ValueError, match=f"`{name}` must be one of .* Received: {name}='{value}'"):
            export.ctranslate2(Translator(model, BYTES), tmp_path / "model")
    assert not (tmp_path / "model").exists()
