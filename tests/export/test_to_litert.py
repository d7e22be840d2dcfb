import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import BYTES, IN_TENSORFLOW, SIZES, TEXTS, array, assert_close, normal, small_translator, spread
from test_runners import shared_export, shared_translator

from keras_tfm import decoding, ops
from keras_tfm.models import transformer
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator

pytestmark = pytest.mark.xdist_group("exported")  # where the shared export is


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
from keras_tfm.export.runners import LiteRTTranslator
print(json.dumps(LiteRTTranslator(sys.argv[1])(json.load(sys.stdin))))
"""


@IN_TENSORFLOW
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "kind, num_beams, precision",
    [
        pytest.param("bytes", 1, "float32", marks=pytest.mark.slow),
        pytest.param("bpe", 3, "float16", marks=pytest.mark.slow),
        pytest.param("bpe", 3, "float32", marks=pytest.mark.slow),  # `test_runners` does so in `make test`
        pytest.param("bytes", 2, "int8", marks=pytest.mark.slow),
    ],
)
def test_a_litert_file_equals_the_translator(kind, num_beams, precision, tmp_path):
    ours = small_translator(kind, num_beams=num_beams)
    ours.export(tmp_path / "model", "litert", precision)
    command = [sys.executable, "-c", RUNNER, tmp_path / "model"]
    run = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout.splitlines()[-1])
    assert len(answers) == len(TEXTS) and answers[2] == answers[5] == ""
    if precision == "float32":
        assert answers == ours(TEXTS)
    assert not foreign_operators(tmp_path / "model")


def foreign_operators(folder):
    """Operators that the plain runtime does not have."""
    return {name for name in operators(folder / "model.tflite") if "Flex" in name or "CUSTOM" in name}


@IN_TENSORFLOW
def test_the_plain_runtime_has_every_operator():
    assert not foreign_operators(shared_export("litert"))


@IN_TENSORFLOW
def test_encode_and_decode_step_are_greedy_search():
    from ai_edge_litert.interpreter import Interpreter

    ours = shared_translator(num_beams=1)
    interpreter = Interpreter(str(shared_export("litert") / "model.tflite"))
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


@IN_TENSORFLOW
@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_ids_outside_the_vocabulary_are_an_error(precision, tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    if precision == "float32":
        file, size = shared_export("litert") / "model.tflite", shared_translator().source_tokenizer.vocab_size
    else:
        small_translator("bytes", num_beams=1).export(tmp_path / "model", "litert", precision)
        file, size = tmp_path / "model/model.tflite", BYTES.vocab_size
    for name in ("translate", "encode"):
        for number in (-5, -(2**31), size, 2**31 - 1):
            run = Interpreter(str(file)).get_signature_runner(name)
            with pytest.raises(RuntimeError, match="gather"):
                run(ids=np.array([[70, number, END]], "int32"))
        run(ids=np.array([[70, size - 1, END]], "int32"))


@pytest.mark.slow
@IN_TENSORFLOW
@pytest.mark.parametrize(
    "sizes, options",
    [
        ({"positions": "relative", "norm": "rms"}, {"num_beams": 3}),
        ({"positions": "alibi", "num_kv_heads": 1, "norm_first": True}, {"num_beams": 3}),
        ({"positions": "rotary", "window": 3, "activation": "swiglu"}, {"num_beams": 1}),
        (
            {"positions": "learned", "max_length": 160, "tied_output": False},
            {"num_beams": 3, "no_repeat_ngram_size": 2},
        ),
        ({"heads": "narrow", "score": "cosine"}, {"num_beams": 2, "min_length": 4}),
        (
            {"heads": "wide", "positions_combine": "concat", "num_decoder_layers": 2},
            {"num_beams": 3, "suppress_tokens": (7, 8), "copied_tokens": (260, 278, 283)},
        ),
        ({"score": "additive", "mixing": "hard"}, {"num_beams": 1, "no_repeat_ngram_size": 1}),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_option_of_model_and_search_is_exported(sizes, options, tmp_path):
    ours = small_translator("bpe", sizes, **options)
    verdict = ours.export(tmp_path / "model", "litert", compare_on=TEXTS)
    assert verdict.same == verdict.texts == len(TEXTS)


@pytest.mark.slow
@IN_TENSORFLOW
def test_several_models_are_one_file(tmp_path):
    one, other = small_translator("bpe"), small_translator("bpe")
    both = Translator([*one.models, *other.models], one.source_tokenizer, num_beams=3, max_length=64)
    verdict = both.export(tmp_path / "model", "litert", compare_on=TEXTS)
    assert verdict.same == verdict.texts and both(TEXTS) != one(TEXTS)


@IN_TENSORFLOW
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "num_kv_heads": 1}, {"heads": "narrow"}], ids=str)
def test_kernels_of_litert_compute_the_same(options):
    model = spread(transformer(50, **SIZES, **options), 0.2)
    inputs = {name: np.random.default_rng(0).integers(3, 50, (1, 9)) for name in ("source", "target")}
    expected = array(model(inputs))
    from keras_tfm.runtimes.litert import LITERT

    with ops.using(LITERT):
        assert_close(model(inputs), expected)


@IN_TENSORFLOW
@pytest.mark.parametrize("size", [9, 64, 997, 1003])  # few, in chunks, and some that chunks do not divide
@pytest.mark.parametrize(
    "options", [{}, {"suppress_tokens": (3, 5)}, {"min_length": 3}, {"copied_tokens": (3, 5, 6, 8)}], ids=str
)
def test_the_most_probable_tokens_are_those_of_every_search(options, size):
    logits, constrain = 3 * normal(6, size), decoding.Constraints(8, **options)
    logits[1:, [0, 1, 3, 5]] += 3 * np.arange(5)[:, None]  # what is suppressed is among the highest
    logits, budget = ops.convert_to_tensor(logits), constrain.budget(np.arange(36).reshape(6, 6) % 11)
    expected = constrain.most_probable(logits, 4, 1, None, budget)
    from keras_tfm.runtimes.litert import LITERT

    with ops.using(LITERT):
        actual = constrain.most_probable(logits, 4, 1, None, budget)
    assert_close(actual[0], expected[0])
    assert array(actual[1]).tolist() == array(expected[1]).tolist()
