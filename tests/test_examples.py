import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from conftest import IN_TENSORFLOW, once

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def run(monkeypatch, name, *arguments):
    """Runs an example in this process, as by `python examples/name.py arguments`."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.slow
def test_build_your_own():
    run = subprocess.run([sys.executable, EXAMPLES / "build_your_own.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(re.search(r"new process: accuracy ([\d.]+)%", run.stdout)[1]) > 95


@pytest.mark.slow
@IN_TENSORFLOW
def test_classify(monkeypatch, tmp_path, capsys):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    run(monkeypatch, "classify", "--out", tmp_path / "model", "--epochs", 4)
    assert float(re.search(r"([\d.]+)% of 12 held-out texts", capsys.readouterr().out)[1]) > 90
    classify = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    answers = classify(tf.constant(["play some jazz now", "will it rain here today", "", "a " * 500, b"\xff"]))["label"]
    labels = [label.decode() for label in answers.numpy()]
    assert labels[:2] == ["music", "weather"] and {*labels} <= {"music", "weather", "alarm"}
    (tmp_path / "bad.tsv").write_text("a text\tits label\nanother text\n")
    with pytest.raises(SystemExit, match=r"bad.tsv: each line must be a text, a tab and a label"):
        run(monkeypatch, "classify", tmp_path / "bad.tsv")


@once
def test_language_model(monkeypatch, tmp_path, capsys):
    lines = [f"the {animal} {verb}." for animal in ("cat", "dog", "bird", "cow") for verb in ("sees", "eats", "runs")]
    (tmp_path / "lines.txt").write_text("\n".join(lines * 8))
    prompts = ("--prompt", "the cat", "--prompt", "")
    run(monkeypatch, "language_model", tmp_path / "lines.txt", "--epochs", 15, "--max_length", 12, *prompts)
    continued = dict(re.findall(r"'(.*?)' → '(.*?)'", capsys.readouterr().out))
    assert continued["the cat"].startswith("the cat") and {*continued.values()} <= {*lines}


@once
def test_pictures(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    run(monkeypatch, "pictures", "--out", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"mask.png", "positions.png", "schedule.png"}
    assert all(file.stat().st_size > 5000 for file in tmp_path.iterdir())


@once
def test_lectures_run_once_and_fill_a_page(tmp_path):
    pytest.importorskip("matplotlib")
    program = [sys.executable, EXAMPLES / "lectures" / "run.py", "--out", tmp_path]
    first, again, wrong = (
        subprocess.run([*program, *names], capture_output=True, text=True)
        for names in (["03_scaling"], ["03_scaling", "--markdown"], ["3"])
    )
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout.count("the notes (") == 1
    assert "done before" not in first.stdout and "done before" in again.stdout
    assert wrong.returncode == 2 and "no lecture has the name 3; choose from 01_order, " in wrong.stderr
    page = (tmp_path / "index.html").read_text()
    assert '<img src="03_scaling.png"' in page and (tmp_path / "03_scaling.png").stat().st_size > 5000
    assert page.count("<h2") == 1
    assert "{#03_scaling}\n\n<p><img" in (tmp_path / "index.md").read_text()


@pytest.mark.slow
def test_minimum_risk(monkeypatch, capsys):
    run(monkeypatch, "minimum_risk")
    costs = re.findall(r"expected cost ([\d.]+) → ([\d.]+), chrF", capsys.readouterr().out)
    assert len(costs) == 4 and all(float(last) < float(first) for first, last in costs)


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short(file):
    assert len(file.read_text().splitlines()) < (60 if file.stem == "build_your_own" else 120)
