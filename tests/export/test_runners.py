"""Runners need only the exported folder, and every format answers like the translator that it was exported from."""

import concurrent.futures
import functools
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import keras
import numpy as np
import pytest
from conftest import BYTES, IN_TENSORFLOW, TEXTS, refused, small_translator
from test_tokenizers import damages

import keras_tfm
from keras_tfm import artifacts, export, text
from keras_tfm.common import extras, files
from keras_tfm.export import runners
from keras_tfm.translator import Translator

pytestmark = [IN_TENSORFLOW, pytest.mark.xdist_group("exported")]  # one export of each format for all

FORMS = ["saved_model", "litert", "ctranslate2", "onnx", "web"]
NEEDS = {"ctranslate2": "ctranslate2", "onnx": "tf2onnx", "litert": "ai_edge_litert", "saved_model": "tensorflow_text"}
NEEDS["web"] = NEEDS["litert"]
EVERY_FORMAT = pytest.mark.parametrize("format", FORMS)


def runner_of(format):
    return getattr(runners, artifacts.FORMATS[format].runner.rpartition(".")[2])


@functools.cache
def parts():
    keras.utils.set_random_seed(0)  # whichever test comes first; this model has an answer of its own for each text
    made = small_translator("bpe")
    return made.models, *made.tokenizers


@functools.cache
def shared_translator(**options):
    """A translator with the shared model; without options, it is the one that is exported."""
    made = Translator(*parts(), max_length=64, **{"num_beams": 3, "length_penalty": 0.8, **options})
    made.widths, made.jit_compile = [64], False  # XLA would compile for longer than these few texts take
    return made


@functools.cache
def root():
    return tempfile.TemporaryDirectory()


def shared_export(format):
    """The folder of the shared translator in a format; exported once for the tests of all files in this group."""
    if not importlib.util.find_spec(NEEDS[format]):
        pytest.skip(f"{NEEDS[format]} is not installed")
    folder = pathlib.Path(root().name, format)
    if not folder.exists():
        options = {"runtime": empty_runtime(pathlib.Path(root().name, "node_modules"))} if format == "web" else {}
        shared_translator().export(folder, format, "float32", **options)
    return folder


def empty_runtime(folder):
    """A folder with the file names of LiteRT.js and D3, which only a browser runs."""
    for name, file in (extras.NPM_FILES | extras.D3_FILES).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text('import {} from "@litertjs/wasm-utils";' if name == "litert.js" else name)
    return folder


@pytest.fixture(scope="module")
def translator():
    return shared_translator()


@pytest.fixture(scope="module")
def folders():
    return shared_export


@pytest.fixture(scope="module")
def expected(translator):
    return translator(TEXTS)


class Renumbered(Translator):
    """Just before it translates, its model gets other numbers for its tokens: then no export is like it."""

    by = 0

    def __call__(self, texts, verbose=0):
        embeddings = self.models[0].source_embedding.embeddings
        embeddings.assign(np.roll(embeddings, self.by, axis=0))
        return super().__call__(texts, verbose)


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.usefixtures("one_width")
def test_an_export_that_disagrees_with_the_model_is_refused_and_the_earlier_one_stays(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    right, texts = small_translator("bpe"), ["a dog", "two cats run over the grass", "the end"]
    translator = Renumbered(right.models, *right.tokenizers, num_beams=1, max_length=64)
    verdict = translator.export(tmp_path / "out", "ctranslate2", compare_on=texts)
    assert (verdict.same, verdict.texts, verdict.similarity) == (3, 3, 1.0)
    before, translator.by = contents(tmp_path), 7
    message = r"must agree .* 0 of 3 sentences .*, similarity 0\.\d\d, .*; at least 0.95 is required. .* is left as it"
    with pytest.raises(export.Disagreement, match=message) as refused:
        translator.export(tmp_path / "out", "ctranslate2", compare_on=texts)
    assert refused.value.verdict.similarity < 0.95 and contents(tmp_path) == before
    verdict = translator.export(tmp_path / "out", "ctranslate2", compare_on=texts, min_agreement=0)
    assert verdict.same == 0 and contents(tmp_path) != before


def test_what_an_export_cannot_be_compared_on_is_refused(tmp_path):
    translator = shared_translator()
    for options, message in (
        (
            {"compare_on": ["", " "]},
            "`compare_on` must contain texts of one line and at most 63 tokens. Received: none",
        ),
        ({"compare_on": ["a b c d " * 100]}, "`compare_on` must contain texts of one line and at most 63 tokens"),
        ({"compare_on": ["a"], "min_agreement": 2}, "`min_agreement` must be a number from 0 to 1. Received: "),
        ({"min_agreement": 0.5}, "`min_agreement` must be None without `compare_on`"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.export(tmp_path / "out", "ctranslate2", **options)


# Runs an export where neither Keras nor TensorFlow can be imported.
PROGRAM = """
import json, sys
format, folder = sys.argv[1:]
for name in ("keras", "tensorflow", "tensorflow_text", "tf2onnx"):
    sys.modules[name] = None
from keras_tfm import artifacts
from keras_tfm.export import runners
translate = runners.load(folder)
assert translate.format == artifacts.format_of(folder) == format
print(json.dumps(translate(json.load(sys.stdin))))
"""


def test_a_saved_model_equals_the_translator(folders, expected):
    """`test_to_saved_model` does so in a process without this package."""
    translate = runners.load(folders("saved_model"))
    assert translate.format == artifacts.format_of(folders("saved_model")) == "saved_model"
    assert translate(TEXTS) == expected


@pytest.mark.parametrize("format", [format for format in FORMS if format != "saved_model"])  # which needs TensorFlow
def test_a_folder_alone_equals_the_translator(format, folders, expected):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, format, folders(format)]
    run = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == expected


@pytest.mark.slow
@EVERY_FORMAT
def test_threads_get_the_same_translations_as_one(format, folders, expected):
    translate, texts = runners.load(folders(format)), TEXTS[:8]
    alone = translate(texts)
    assert len(set(alone)) > 4
    orders = [np.random.default_rng(seed).permutation(len(texts)) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for _ in range(2):
            answers = threads.map(lambda order: translate([texts[n] for n in order]), orders)
            assert [list(actual) for actual in answers] == [[alone[n] for n in order] for order in orders]


@EVERY_FORMAT
def test_strange_and_long_texts(format, folders, translator):
    translate = runners.load(folders(format))
    strange = ["🙂🙃", "Привет", "\ud800 lone", "\x00\x07", "a\nb"]
    answers = translate([*strange, "? lone"])
    assert answers[:-1] == [translate([string])[0] for string in strange] and answers[2] == answers[-1]
    long = "a b c d e " * 40
    (ids,) = translator.source_tokenizer.encode([long])
    with pytest.warns(UserWarning, match=rf"^{len(ids) - 63} .*tokens were cut off: 'a b c"):
        (cut,) = translate([long])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [cut] == translate(translator.source_tokenizer.decode([ids[:63]]))


@EVERY_FORMAT
def test_a_manifest_has_all_settings_and_a_checksum_of_each_file(format, folders):
    folder = folders(format)
    settings = json.loads((folder / "translator.json").read_text())
    assert {"format": format, "max_length": 64, "num_beams": 3, "length_penalty": 0.8}.items() <= settings.items()
    assert {*settings["files"], "translator.json"} == {
        str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()
    }
    artifacts.new_export(folder)  # an export may be replaced


@EVERY_FORMAT
def test_a_damaged_file_is_named_and_nothing_crashes(format, folders, tmp_path):
    folder = shutil.copytree(folders(format), tmp_path / "export")
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        for damaged in damages(content):
            file.write_bytes(damaged)
            with pytest.raises(files.DamagedFile, match=rf"{file.name}: damaged, or not the right kind of file \("):
                runners.load(folder)
        file.unlink()
        with pytest.raises((files.DamagedFile, FileNotFoundError), match=file.name):
            runner_of(format)(folder)
        file.write_bytes(content)
    runners.load(folder)


def test_a_text_without_a_possible_translation_becomes_empty(folders, translator, tmp_path):
    folder = shutil.copytree(folders("onnx"), tmp_path / "onnx")  # whose runner searches as its settings say
    settings = artifacts.read_manifest(folder)
    (folder / "translator.json").unlink()
    suppress_tokens = list(range(3, translator.target_tokenizer.vocab_size))
    artifacts.write_manifest(folder, **settings | {"min_length": 3, "suppress_tokens": suppress_tokens})
    assert runners.load(folder)(["a dog", "b"]) == ["", ""]


@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "format", ["litert", *(pytest.param(format, marks=pytest.mark.slow) for format in ("saved_model", "web"))]
)
def test_an_export_copies_tokens_as_the_translator_does(format, tmp_path):
    letters, options = "adot", {"runtime": empty_runtime(tmp_path / "node_modules")} if format == "web" else {}
    translator = small_translator("bytes", num_beams=2, copied_tokens=BYTES.encode([letters])[0])
    verdict = translator.export(tmp_path / "export", format, "float32", compare_on=TEXTS, **options)
    assert verdict.same == len(TEXTS)
    for source, translation in zip(TEXTS, runners.load(tmp_path / "export")(TEXTS), strict=True):
        assert [*map(translation.count, letters)] == [*map(source.strip().count, letters)]


@pytest.mark.parametrize("format", ["saved_model", "ctranslate2", "web"])
def test_an_export_has_the_n_best_of_the_translator(format, folders, translator):
    actual, expected = keras_tfm.load(folders(format)).n_best([*TEXTS[:4], " "], 3), translator.n_best(TEXTS[:4], 3)
    for pairs, their in zip(actual[:4], expected, strict=True):
        assert [text for text, _ in pairs] == [text for text, _ in their]
        tolerance = {"rel": 0.02 if format == "ctranslate2" else 1e-4}  # which never considers padding
        assert [score for _, score in pairs] == pytest.approx([score for _, score in their], **tolerance)
    assert actual[4] == [("", 0.0)]
    with refused("num_beams"):
        keras_tfm.load(folders(format), num_beams=2)


def test_ctranslate2_scores_the_n_best_of_a_greedy_translator(tmp_path):
    pytest.importorskip("ctranslate2")
    translator = shared_translator(num_beams=1)
    translator.export(tmp_path / "export", "ctranslate2")
    actual, expected = keras_tfm.load(tmp_path / "export").n_best(TEXTS[:1], 2)[0], translator.n_best(TEXTS[:1], 2)[0]
    assert [score for _, score in actual] == pytest.approx([score for _, score in expected], rel=0.02)


def test_ctranslate2_scores_as_the_translator_does(folders, translator):
    sources, targets = TEXTS[:3], ["x", "some words", ""]
    actual = keras_tfm.load(folders("ctranslate2")).score(sources, targets)
    assert actual == pytest.approx(translator.score(sources, targets), rel=0.02)  # padding is never considered


@pytest.mark.slow
@pytest.mark.parametrize("format", ["saved_model", "litert", "web"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_an_export_without_a_possible_translation_returns_empty_texts(format, num_beams, tmp_path):
    translator = Translator(*parts(), max_length=24, num_beams=num_beams, min_length=3, suppress_tokens=range(3, 400))
    options = {"runtime": empty_runtime(tmp_path / "node_modules")} if format == "web" else {}
    translator.export(tmp_path / "export", format, "float32", **options)
    assert runners.load(tmp_path / "export")(["a dog", "b"]) == ["", ""]


def test_a_new_export_takes_the_place_of_an_earlier_one_alone(tmp_path):
    place = tmp_path / "model"
    for content in ("first", "second"):
        with artifacts.new_export(place) as new:
            (new / "model.bin").write_text(content)
        assert (place / "model.bin").read_text() == content
    with pytest.raises(KeyError), artifacts.new_export(place) as new:
        (new / "model.bin").write_text("third")
        raise KeyError
    assert (place / "model.bin").read_text() == "second" and list(tmp_path.iterdir()) == [place]
    (place / "notes").write_text("of mine")
    (tmp_path / "link").symlink_to(place)
    for folder in (place, tmp_path, tmp_path / "link"):
        with refused("folder"):
            artifacts.new_export(folder)


def test_a_kill_between_renames_loses_nothing(tmp_path):
    """The earlier folder was moved away and the new one is not yet in its place."""
    program = f"""
import os
from keras_tfm import artifacts
replace = os.replace
for content in ("old", "new"):
    with artifacts.new_export({str(tmp_path / "model")!r}) as new:
        (new / "model.bin").write_text(content)
        if content == "new":
            os.replace = lambda *paths: (replace(*paths), os._exit(9))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    assert not (tmp_path / "model").exists()
    assert artifacts.format_of(tmp_path / "model") == "ctranslate2"
    assert (tmp_path / "model/model.bin").read_text() == "new"


def test_a_folder_of_something_else(tmp_path):
    assert artifacts.format_of(tmp_path) is None and artifacts.format_of(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError, match="must contain one of model.bin, model.t"):
        runners.load(tmp_path)


# ── what all runners share, with a model that is a few lines of Python ──


class Echo(runners.TokenRunner):
    """Returns the source in capital letters."""

    format = "echo"

    def _load(self, num_threads):
        self.num_threads = num_threads

    def _search(self, rows, n):
        assert len(set(map(len, rows))) == 1
        return [[([letter - 32 if letter >= ord("a") + 4 else letter for letter in row], 0.0)] for row in rows]


def write(translator, folder, settings):
    """Writes that format: this module is its writer, as `FORMATS` says."""
    (folder / "model.echo").write_text("echo")


def test_a_format_from_outside_is_exported_and_loaded_like_the_others(tmp_path, monkeypatch):
    monkeypatch.setitem(artifacts.FORMATS, "echo", artifacts.Format("model.echo", __name__, f"{__name__}.Echo"))
    small_translator("bytes").export(tmp_path / "out", "echo", max_length=8)
    assert keras_tfm.load(tmp_path / "out")(["abc", ""]) == ["ABC", ""]
    assert artifacts.describe(tmp_path / "out")[0] == ("kind", "export, echo")
    with refused("n_best"):
        small_translator("bytes").export(tmp_path / "out", "echo", n_best=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(artifacts.FORMATS, "echo", artifacts.Format("model.echo", __name__, f"{__name__}.Echo"))
    (tmp_path / "model.echo").write_text("echo")
    for side in ("source", "target"):
        text.save_tokenizer(BYTES, tmp_path / f"{side}_tokenizer")
    artifacts.write_manifest(tmp_path, format="echo", max_length=8)
    return tmp_path


def test_translations_keep_the_order_of_texts_and_blank_ones_become_empty(folder):
    texts = ["abc", "", "a", "\t ", "xyz", "ab", "abc"]
    assert Echo(folder)(texts) == ["ABC", "", "A", "", "XYZ", "AB", "ABC"]
    assert Echo(folder)(iter(texts)) == Echo(folder)(texts) and Echo(folder)([]) == []
    assert list(Echo(folder).stream(iter(texts), chunk=2)) == Echo(folder)(texts)
    assert Echo(folder, num_threads=2).num_threads == 2
    assert Echo(folder)("abc") == "ABC" and Echo(folder)("") == "" and Echo(folder).n_best(["ab"], 1) == [[("AB", 0.0)]]
    with refused("n"):
        Echo(folder).n_best(["ab"], 2)
    with refused("score"):
        Echo(folder).score(["ab"], ["AB"])


def test_truncation_is_reported_at_the_callers_line(folder):
    with pytest.warns(UserWarning, match="3 of 10 tokens were cut off: 'abcdefghij'") as said:
        assert Echo(folder)(["abcdefghij", "abcdefg"]) == ["ABCDEFG", "ABCDEFG"]
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("texts, received", [(["a", 3], "3 in it"), ([b"a"], "b'a' in it")])
def test_texts_must_be_a_list_of_strings(texts, received, folder):
    with refused("texts"):
        Echo(folder)(texts)


def test_an_export_in_another_format_is_refused(folder):
    (folder / "translator.json").unlink()
    artifacts.write_manifest(folder, format="other", max_length=8)
    with refused("folder"):
        Echo(folder)
    (folder / "model.echo").unlink()
    with pytest.raises(FileNotFoundError, match="must contain model.echo, as written by `keras-tfm export`"):
        Echo(folder)


@pytest.mark.parametrize("length", [None, "4", -4, 10**9])
def test_settings_that_make_no_sense_are_damage(length, folder):
    (folder / "translator.json").unlink()
    artifacts.write_manifest(folder, format="echo", **({"max_length": length} if length else {}))
    with pytest.raises(files.DamagedFile, match="translator.json.*max_length"):
        Echo(folder)
