"""The translators that come along: of software texts, and of dates in every format that it can be exported to."""

import json
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pytest
from conftest import IN_TENSORFLOW, once
from test_runners import empty_runtime
from test_to_saved_model import ask

import keras_tfm
from keras_tfm import artifacts, export, text
from keras_tfm.cli import commands
from keras_tfm.data import tasks
from keras_tfm.export import runners
from keras_tfm.text import END
from keras_tfm.translator import Translator

SAVED = pathlib.Path(__file__).parent.parent / "saved_models"
DATES, SOFTWARE, KERAS = SAVED / "dates", SAVED / "software", artifacts.SHIPPED
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
    ((_, actual),) = ask(folder, ("serving_default", [text.encode() for text in texts]))[0].values()
    return actual


def right(answers):
    """Percentage of dates that are exactly right."""
    return 100 * sum(map(str.__eq__, answers, TARGETS)) / len(answers)


@pytest.mark.slow
def test_it_reads_dates_that_it_has_never_seen():
    assert right(Translator.load(KERAS, num_beams=1, batch_size=128, max_length=64)(SOURCES)) > 99.5


@once
def test_shipped_models_are_small_and_correct():
    """LiteRT in a process that cannot import this package; test_server.py does so for the SavedModel."""
    for format in ("saved_model", "litert"):
        size = sum(file.stat().st_size for file in (DATES / format).rglob("*") if file.is_file())
        assert size < 2e6, (format, size)
        assert runners.load(DATES / format)(SOURCES[:10]) == list(TARGETS[:10])  # the checksums are right, too
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
def test_without_a_model_the_date_translator_is_used(tmp_path, monkeypatch, capsys):
    (tmp_path / "dates").write_text("Mittwoch, 3. Mai 2023\n4 juillet 1999\n")
    with open(tmp_path / "dates") as file:
        monkeypatch.setattr(sys, "stdin", file)
        commands.run(["translate", "--num_beams", "1", "--max_length", "64"])
    said = capsys.readouterr()
    assert said.out == "2023-05-03\n1999-07-04\n" and "no MODEL given: using the package's date translator" in said.err


@pytest.mark.slow
@IN_TENSORFLOW
def test_every_shipped_format_equals_the_model(tmp_path):
    num_beams = 4
    translator, texts = Translator.load(KERAS, num_beams=num_beams, max_length=64), list(SOURCES[:100])
    translator.widths, translator.jit_compile = [64], False  # XLA would compile three programs for two calls
    expected = translator(texts)
    translator.export(tmp_path / "saved_model", "saved_model")
    assert by_saved_model(tmp_path / "saved_model", texts) == expected
    actual = {}
    for precision in export.FORMATS["litert"].precisions:
        translator.export(tmp_path / precision, "litert", precision)
        several = SOURCES if precision == "int8" else texts
        actual[precision] = by_ids(RUN_LITERT, translator, several, tmp_path / precision)
    assert actual["float32"] == expected
    assert sum(map(str.__eq__, actual["float16"], expected)) >= 99
    assert abs(right(actual["int8"]) - right(translator(SOURCES))) <= 0.3
    translator.export(tmp_path / "ctranslate2", "ctranslate2")
    names = runners.vocabulary(translator.source_tokenizer)
    rows = [[names[number] for number in row] for row in translator.source_tokenizer.encode(texts)]
    ids = {name: number for number, name in enumerate(runners.vocabulary(translator.target_tokenizer))}
    answers = fresh(RUN_CTRANSLATE2, rows, tmp_path / "ctranslate2", num_beams)
    assert translator.target_tokenizer.decode([[ids[name] for name in row] for row in answers]) == expected
    translator.export(tmp_path / "onnx", "onnx")
    assert by_ids(RUN_ONNX, translator, texts, tmp_path / "onnx", num_beams) == expected
    translator.export(tmp_path / "web", "web", "float32", runtime=empty_runtime(tmp_path / "node_modules"))
    for format in [name for name, format in export.FORMATS.items() if format.runner]:
        assert runners.load(tmp_path / ("float32" if format == "litert" else format))([*texts, " "]) == [*expected, ""]


# A word of each answer to "The file could not be saved."; machines may round int8 weights to other words around it.
WORDS = {"de": "datei", "es": "archivo", "fr": "fichier", "it": "file", "ja": "ファイル", "nl": "bestand", "pl": "plik"}
WORDS |= {"pt": "arquivo", "ru": "файл", "sv": "fil"}


@pytest.fixture(scope="module")
def software():
    return keras_tfm.load(SOFTWARE)


@once
def test_software_texts_are_translated_into_ten_languages(software):
    assert software.languages == sorted(WORDS)
    answers = software(["The file could not be saved."] * 10, target_language=list(WORDS))
    assert all(word in answer.lower() for word, answer in zip(WORDS.values(), answers, strict=True)), answers


@once
def test_software_texts_keep_what_must_not_be_translated(software):
    rng = random.Random(1)
    parts = ["%s", "%1$d", "{name}", "${x}", "$object$", "%PRODUCTNAME", "<b>", "https://example.org/a?b=c", "&amp;"]
    texts = [f"Copy {rng.choice(parts)} to {rng.choice(parts)}: {rng.choice(parts)}?" for _ in range(60)]
    languages = [rng.choice(software.languages) for _ in texts]
    translations = software.translate_protected(texts, target_language=languages)
    assert sum(not translation.problem for translation in translations) >= 55
    for source, translation in zip(texts, translations, strict=True):
        assert not text.compare_protected(source, translation.text)
        assert not translation.problem or translation.text == source


@once
def test_software_texts_keep_white_space_signs_and_lines(software):
    (alone,) = software(["Open file"], target_language="de")
    texts = ["Open file\n", "\t Open file  ", "Open file\r\n\n\tOpen file", " "]
    assert software(texts, target_language="de_DE") == [text.replace("Open file", alone) for text in texts]
    assert all(sign in software(f"{sign} results", target_language="fr") for sign in ("μ", "∞", "🎉", "→"))
    long = "The file could not be saved. " * 30  # more tokens than the model reads
    assert software(long, target_language="sv").count("Filen") == 30
    assert software([">>fr<<Open file"], target_language="de") != software([">>fr<<Open file"])  # the call decides


@once
def test_the_software_translator_fits_and_names_its_sources():
    assert (SOFTWARE / "model.tflite").stat().st_size <= 16e6
    _, *lines = (SOFTWARE / "sources.tsv").read_text().splitlines()
    assert len(lines) > 400
    for line in lines:
        package, version, licences = line.split("\t")
        assert (
            package
            and version
            and re.search("MPL|LGPL|Apache|BSD|MIT|Expat|ISC|PostgreSQL|Zlib|CC0|public|wxWindows", licences, re.I)
        ), line


@once
def test_a_catalogue_is_translated_and_gettext_accepts_it(tmp_path):
    (tmp_path / "app.po").write_text(CATALOGUE)
    arguments = ["translate", SOFTWARE, tmp_path / "app.po", "--target_language", "pl", "--out", tmp_path / "app.pl.po"]
    subprocess.run([sys.executable, "-m", "keras_tfm", *map(str, arguments)], check=True, capture_output=True)
    written = (tmp_path / "app.pl.po").read_text()
    assert written.count("#, fuzzy") == 3 and "apisz" in written and "msgstr[2]" in written
    if shutil.which("msgfmt") is None:
        pytest.skip("msgfmt is not installed; the rest of this test ran")
    check = ["msgfmt", "--check", "--use-fuzzy", "-o", str(tmp_path / "app.mo"), str(tmp_path / "app.pl.po")]
    subprocess.run(check, check=True, capture_output=True)


CATALOGUE = r"""
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: pl\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\n"

msgid "Save _As…"
msgstr ""

#, c-format
msgid "%d file was copied to “%s”"
msgid_plural "%d files were copied to “%s”"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

#, c-format
msgid "The file “%s” could not be opened."
msgstr ""
"""
