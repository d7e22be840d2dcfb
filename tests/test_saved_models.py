"""The translator of dates that comes with the package, and every form that it can be exported to."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import IN_TENSORFLOW, once
from test_runners import empty_runtime
from test_to_saved_model import ask

from keras_tfm import artifacts, export, text
from keras_tfm.cli import commands
from keras_tfm.data import tasks
from keras_tfm.export import runners
from keras_tfm.text import END
from keras_tfm.translator import Translator

DATES, KERAS = pathlib.Path(__file__).parent.parent / "saved_models/dates", artifacts.SHIPPED
SOURCES, TARGETS = zip(*tasks.dates(1000, "test"), strict=True)

# Runs a LiteRT file with NumPy and the runtime alone: lists of ids in, lists of ids out.
RUN_LITERT = """
import json, sys
for name in ("keras_tfm", "keras", "tensorflow"):
    sys.modules[name] = None
import numpy as np
from ai_edge_litert.interpreter import Interpreter
translate = Interpreter(sys.argv[1] + "/model.tflite", num_threads=1).get_signature_runner("translate")
print(json.dumps([translate(ids=np.array([ids], "int32"))["ids"][0].tolist() for ids in json.load(sys.stdin)]))
"""
RUN_CTRANSLATE2 = """
import json, sys
for name in ("keras_tfm", "keras", "tensorflow"):
    sys.modules[name] = None
import ctranslate2
translator = ctranslate2.Translator(sys.argv[1])
found = translator.translate_batch(json.load(sys.stdin), beam_size=int(sys.argv[2]), length_penalty=0.6)
print(json.dumps([result.hypotheses[0] for result in found]))
"""
# The search is up to the caller there: a plain beam, of which each hypothesis has a cache of its own.
RUN_ONNX = """
import json, sys
for name in ("keras_tfm", "keras", "tensorflow"):
    sys.modules[name] = None
import numpy as np, onnxruntime
encoder, step = (onnxruntime.InferenceSession(f"{sys.argv[1]}/{name}.onnx") for name in ("encoder", "step"))
names = [x.name for x in step.get_inputs() if x.name.startswith("cache_")]
PAD, START, END, num_beams = 0, 1, 2, int(sys.argv[2])

def translate(ids):
    alive, ended, limit = [(0.0, [], encoder.run(names, {"ids": np.array([ids], "int32")}))], [], 2 * len(ids) + 16
    for position in range(limit):
        following = []
        for score, tokens, cache in alive:
            inputs = {"tokens": [[(tokens or [START])[-1]]], "position": [position]}
            inputs = {name: np.array(x, "int32") for name, x in inputs.items()} | dict(zip(names, cache))
            logits, *cache = step.run(["logits", *("next_" + name for name in names)], inputs)
            shares = logits[0] - np.log(np.exp(logits[0] - logits.max()).sum()) - logits.max()
            shares[[PAD, START]] = -1e9
            following += [(score + shares[n], [*tokens, int(n)], cache) for n in np.argsort(-shares)[:num_beams]]
        best = sorted(following, key=lambda hypothesis: -hypothesis[0])[:num_beams]
        stop = position == limit - 1
        ended += [(h[0] / len(h[1]) ** 0.6, h[1]) for h in best if h[1][-1] == END or stop]
        alive = [hypothesis for hypothesis in best if hypothesis[1][-1] != END]
        if not alive or ended and max(ended)[0] > alive[0][0] / limit ** 0.6 or num_beams == len(ended) == 1:
            break
    return max(ended)[1]

print(json.dumps([translate(ids) for ids in json.load(sys.stdin)]))
"""


def fresh(program, request, *arguments):
    """What a program answers in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    run = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def by_ids(program, translator, texts, *arguments):
    ids = [[*row, END] for row in translator.source_tokenizer.encode(list(texts))]
    return translator.target_tokenizer.decode(fresh(program, ids, *arguments))


def by_saved_model(folder, texts):
    ((_, found),) = ask(folder, ("serving_default", [text.encode() for text in texts]))[0].values()
    return found


def right(answers):
    """Percentage of dates that are exactly right."""
    return 100 * sum(map(str.__eq__, answers, TARGETS)) / len(answers)


@pytest.mark.slow
def test_it_reads_dates_that_it_has_never_seen():
    assert right(Translator.load(KERAS, num_beams=1, batch_size=128, max_length=64)(SOURCES)) > 99.5


@once
def test_what_is_shipped_is_small_and_right():
    """LiteRT in a process that cannot import this package; test_server.py does so for the SavedModel."""
    for form in ("saved_model", "litert"):
        size = sum(file.stat().st_size for file in (DATES / form).rglob("*") if file.is_file())
        assert size < 2e6, (form, size)
        assert runners.load(DATES / form)(SOURCES[:10]) == list(TARGETS[:10])  # the checksums are right, too
    assert right(by_ids(RUN_LITERT, Translator.load(KERAS), SOURCES, DATES / "litert")) > 99.5


def test_the_keras_model_is_part_of_the_package():
    assert artifacts.SHIPPED.is_relative_to(pathlib.Path(artifacts.__file__).parent)
    assert (artifacts.SHIPPED / "model.keras").exists() and (artifacts.SHIPPED / "tokenizer/tokenizer.json").exists()


def test_a_foreign_tokenizer_beside_the_shipped_model_is_refused(tmp_path):
    foreign = text.train_tokenizer([chr(number) for number in range(0x400, 0x400 + 500)], "char", 367)
    shutil.copy(KERAS / "model.keras", tmp_path)
    text.save_tokenizer(foreign, tmp_path / "tokenizer")
    translator = Translator.load(KERAS)
    assert foreign.vocab_size == translator.source_tokenizer.vocab_size
    assert translator.models[0].metadata["tokenizers"] == [text.saving.fingerprint(translator.source_tokenizer)]
    with pytest.raises(ValueError, match="tokenizers must be those that the model was trained with"):
        Translator.load(tmp_path)


@pytest.mark.usefixtures("one_width")
def test_no_model_is_that_of_dates(tmp_path, monkeypatch, capsys):
    (tmp_path / "dates").write_text("Mittwoch, 3. Mai 2023\n4 juillet 1999\n")
    with open(tmp_path / "dates") as file:
        monkeypatch.setattr(sys, "stdin", file)
        commands.run(["translate", "--num_beams", "1", "--max_length", "64"])
    said = capsys.readouterr()
    assert said.out == "2023-05-03\n1999-07-04\n" and "no MODEL given: using the package's date translator" in said.err


@pytest.mark.slow
@IN_TENSORFLOW
def test_every_form_says_what_the_model_says(tmp_path):
    num_beams = 4
    translator, texts = Translator.load(KERAS, num_beams=num_beams, max_length=64), list(SOURCES[:100])
    expected = translator(texts)
    translator.export(tmp_path / "saved_model", "saved_model")
    assert by_saved_model(tmp_path / "saved_model", texts) == expected
    found = {}
    for precision in export.FORMATS["litert"].precisions:
        translator.export(tmp_path / precision, "litert", precision)
        several = SOURCES if precision == "int8" else texts
        found[precision] = by_ids(RUN_LITERT, translator, several, tmp_path / precision)
    assert found["float32"] == expected
    assert sum(map(str.__eq__, found["float16"], expected)) >= 99
    assert abs(right(found["int8"]) - right(translator(SOURCES))) <= 0.3
    translator.export(tmp_path / "ctranslate2", "ctranslate2")
    names = runners.vocabulary(translator.source_tokenizer)
    rows = [[names[number] for number in row] for row in translator.source_tokenizer.encode(texts)]
    ids = {name: number for number, name in enumerate(runners.vocabulary(translator.target_tokenizer))}
    answers = fresh(RUN_CTRANSLATE2, rows, tmp_path / "ctranslate2", num_beams)
    assert translator.target_tokenizer.decode([[ids[name] for name in row] for row in answers]) == expected
    translator.export(tmp_path / "onnx", "onnx")
    assert by_ids(RUN_ONNX, translator, texts, tmp_path / "onnx", num_beams) == expected
    translator.export(tmp_path / "web", "web", "float32", runtime=empty_runtime(tmp_path / "node_modules"))
    for form in [name for name, format in export.FORMATS.items() if format.runner]:
        assert runners.load(tmp_path / ("float32" if form == "litert" else form))([*texts, " "]) == [*expected, ""]
