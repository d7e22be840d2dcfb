"""Each example is run as a user runs it, and its last line compared with that on the page of examples."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from conftest import BACKEND, once

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs/examples.md").read_text()
NUMBER = re.compile(r"\d[\d,.]*%?")


def start(name, *arguments):
    """Runs an example with the programs optimised, unlike those of the other tests."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def printed(name, *arguments):
    """The lines that an example prints."""
    run = start(name, *arguments)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert NUMBER.sub("0", lines[-1]) == NUMBER.sub("0", documented(name).splitlines()[-1])
    return lines


def documented(name):
    """The output of an example on the page of examples."""
    (section,) = (section for section in PAGE.split("\n## ") if f"python examples/{name}.py" in section)
    return re.search(r"```text\n(.*?)\n```", section, re.DOTALL)[1]


def numbers(line):
    return [float(number.rstrip("%,.").replace(",", "")) for number in NUMBER.findall(line)]


@pytest.mark.slow
def test_classify(tmp_path):
    in_tensorflow = BACKEND == "tensorflow"  # which writes the SavedModel
    lines = printed("classify", *(["--export", tmp_path / "model"] if in_tensorflow else []))
    right, _, common = numbers(lines[-1])
    assert right > 80 and common < 20
    if in_tensorflow:
        tf = pytest.importorskip("tensorflow")
        pytest.importorskip("tensorflow_text")
        classify = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
        texts = ["Mittwoch, 3. Mai 2023", "3 de maio de 2023", "", "a " * 500, b"\xff"]
        labels = [label.decode() for label in classify(tf.constant(texts))["label"].numpy()]
        assert labels[:2] == ["de", "pt"] and {*labels} <= {"de", "en", "es", "fr", "it", "nl", "pl", "pt"}


@pytest.mark.slow
@once
def test_classify_refuses_a_text_without_a_label(tmp_path):
    (tmp_path / "bad.tsv").write_text("a text\tits label\nanother text\n")
    run = start("classify", tmp_path / "bad.tsv")
    assert run.returncode == 1 and "bad.tsv: each line must be a text, a tab and a label" in run.stderr


@pytest.mark.slow
def test_language_model():
    lines = printed("language_model")
    bits, table = numbers(lines[-1])
    assert bits < table - 0.1
    assert lines[lines.index("---") + 1].startswith("class ")


@pytest.mark.slow
def test_image_classifier():
    *_, ours, linear, always_0 = (numbers(line)[-2] for line in printed("image_classifier"))
    assert ours > 91 and linear > 88 and always_0 == 10


@pytest.mark.slow
def test_forecast():
    *_, ours, linear, last = (numbers(line)[-2] for line in printed("forecast"))
    assert ours < 0.7 * linear < last


@pytest.mark.slow
def test_number_words():
    *_, ours, word_by_word = (numbers(line)[-2] for line in printed("number_words")[-2:])
    assert ours > 90 and word_by_word < 80


@pytest.mark.slow
def test_finetune(tmp_path):
    lines = [line for line in printed("finetune", "--out", tmp_path / "finnish") if "Finnish " in line]
    (before, old), (alone, forgotten), (mixture, kept), (scratch, _) = map(numbers, lines)
    assert before < 50 and old > 95 and alone > 85 and mixture > 85 and kept > max(90, forgotten) and scratch < 20
    assert (tmp_path / "finnish" / "mixed" / "model.keras").exists()


@pytest.mark.slow
def test_mixed_precision():
    full, mixed = (numbers(line)[1] for line in printed("mixed_precision") if "held-out" in line)
    assert min(full, mixed) > 85 and abs(full - mixed) < 4


@pytest.mark.slow
def test_attention_maps(tmp_path):
    pytest.importorskip("matplotlib")
    lines = printed("attention_maps", "--out", tmp_path)
    assert lines[0] == "Mittwoch, 3. Mai 2023 → 2023-05-03" and (tmp_path / "dates.png").stat().st_size > 5000
    assert all(there > 70 and even < 30 for there, even in map(numbers, lines[-3:]))


@pytest.mark.slow
def test_minimum_risk():
    costs = [numbers(line)[1:3] for line in printed("minimum_risk") if line.startswith("round ")]
    assert len(costs) == 4 and all(after < before for before, after in costs)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="several processes train on JAX")
def test_ray_train(tmp_path):
    pytest.importorskip("ray.train", reason="Ray is not installed: pip install 'keras_tfm[ray]'")
    (line,) = [line for line in printed("ray_train", "--out", tmp_path / "run", "--steps", 20) if "joined" in line]
    assert json.loads(line)["joined"] == 2 and (tmp_path / "run/model.keras").exists()


@once
def test_pictures(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--out", str(tmp_path)])
    runpy.run_path(EXAMPLES / "pictures.py", run_name="__main__")  # in this process, which is quicker
    assert {file.name for file in tmp_path.iterdir()} == {"mask.png", "positions.png", "schedule.png"}
    assert all(file.stat().st_size > 5000 for file in tmp_path.iterdir())


@pytest.mark.slow
@once
def test_lectures_run_once_and_fill_a_page(tmp_path):
    pytest.importorskip("matplotlib")
    program = [sys.executable, EXAMPLES / "lectures" / "run.py", "--out", tmp_path]
    first, again, wrong = (
        subprocess.run([*program, *names], capture_output=True, text=True)
        for names in (["03_scaling"], ["03_scaling"], ["3"])
    )
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout.count("the notes (") == 1
    assert "done before" not in first.stdout and "done before" in again.stdout
    assert wrong.returncode == 2 and "no lecture has the name 3; choose from 01_order, " in wrong.stderr
    page = (tmp_path / "index.html").read_text()
    assert '<img src="03_scaling.png"' in page and (tmp_path / "03_scaling.png").stat().st_size > 5000
    assert page.count("<h2") == 1


@once
@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short_and_documented(file):
    is_lecture = file.parent.name == "lectures"
    assert len(file.read_text().splitlines()) < (120 if is_lecture else 80)
    assert is_lecture or documented(file.stem)
