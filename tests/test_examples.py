"""Each example is run as a user runs it, and its lines compared with those on the page of examples."""

import ast
import importlib
import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import pytest
from conftest import BACKEND, once

from keras_tfm.layers import scores

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
LECTURES = sorted((EXAMPLES / "lectures").glob("[0-9]*.py"))
PAGE = (ROOT / "docs/examples.md").read_text()
NUMBER = re.compile(r"\d[\d,.]*%?")
full_size = pytest.mark.hours  # to see what an example learns
ON_JAX = pytest.mark.skipif(BACKEND != "jax", reason="the lectures run on JAX, and so do several processes")
# Flags for a run of a few seconds; {out} is a folder, {here} that of the repository.
SMALL = {
    "attention_maps": "--dates 40 --out {out}",
    "classify": "{out}/texts.tsv --epochs 1",
    "finetune": "--steps 2 --tests 10 --out {out}",
    "forecast": "--epochs 1 --length 1000",
    "image_classifier": "--epochs 1 --images 100",
    "language_model": "{here}/README.md --epochs 1",
    "minimum_risk": "--epochs 1 --rounds 1",
    "mixed_precision": "--epochs 1 --images 100",
    "number_words": "--epochs 1 --numbers 500",
}
SMALL_LECTURES = {
    "01_bottleneck": "--seeds 2 --steps 4 --tests 200",
    "02_distance": "--seeds 2 --steps 2 --longest 4",
    "03_parallel": "--seeds 2 --repeats 2 --longest 16",
    "04_scores": "--seeds 2 --steps 1",
    "05_order": "--seeds 2 --orders 5 --examples 64",
    "06_scaling": "",
    "07_heads": "--seeds 2 --examples 64 --longer 1",
    "08_positions": "--seeds 2 --examples 64",
    "09_masks": "--seeds 2 --examples 64",
    "10_feed_forward": "--seeds 2 --steps 1",
    "11_norms": "--seeds 2 --sequences 32 --steps 2 --blocks 2",
    "12_switchboard": "--seeds 2 --steps 10",
    "13_training": "--seeds 2 --steps 6 --rows 20",
    "14_beam": "--seeds 2 --steps 6",
    "15_data": "--seeds 2 --steps 2 --smallest 8 --largest 64",
    "16_subwords": "--seeds 2 --sizes 1",
    "17_table": "",
}
TEXTUAL = {"classify", "language_model", "number_words"}  # whose other lines show texts


def start(name, *arguments, optimized=True):
    """Runs an example, by default with its programs optimized, unlike those of the other tests."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS" or not optimized}
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def printed(name, *arguments, **options):
    """The lines that an example prints, without a warning."""
    run = start(name, *arguments, **options)
    assert run.returncode == 0, run.stderr
    assert not re.findall(r"^.*\w*Warning: .*$", run.stderr, re.MULTILINE), run.stderr
    lines = run.stdout.splitlines()
    assert form(lines[-1]) == form(documented(name)[-1])
    return lines


def documented(name):
    """The lines of an example on the page of examples."""
    (section,) = (section for section in PAGE.split("\n## ") if f"python examples/{name}.py" in section)
    return re.search(r"```text\n(.*?)\n```", section, re.DOTALL)[1].splitlines()


def form(line):
    return NUMBER.sub("0", line)


def numbers(line):
    return [float(number.rstrip("%,.").replace(",", "")) for number in NUMBER.findall(line)]


PROGRAMS = {file.stem for file in EXAMPLES.glob("*.py")}

# Imports each file that it reads the path of, without the packages that `make test` does not install.
IMPORT = """
import importlib.util, pathlib, sys
for name in sys.argv[1].split():
    sys.modules[name] = None
for path in map(pathlib.Path, sys.stdin.read().split()):
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        shared = path.stem in ("lecture", "measure", "phrases")
        library = path.parent.name in ("benchmarks", "docs", "software") or shared
        assert library or hasattr(module, "main")
    except BaseException as error:
        print(f"{path}: {type(error).__name__}: {error}")
    sys.path.pop(0)
"""


def programs():
    return [file for folder in ("examples", "benchmarks", "docs") for file in sorted((ROOT / folder).rglob("*.py"))]


@once
def test_every_example_benchmark_and_lecture_can_be_imported():
    absent = "sklearn ray selenium torch transformers sacremoses"
    command, paths = [sys.executable, "-c", IMPORT, absent], "\n".join(map(str, programs()))
    environment = {**os.environ, "KERAS_BACKEND": "jax"}  # it starts sooner
    run = subprocess.run(command, input=paths, capture_output=True, text=True, env=environment)
    assert run.returncode == 0 and run.stdout == "", run.stdout + run.stderr


@once
@pytest.mark.parametrize("file", programs(), ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_program_imports_from_the_package_is_there(file):
    """Also where a function imports it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "keras_tfm":
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), name.name


@once
@pytest.mark.parametrize(
    "name, package", [("image_classifier", "sklearn"), ("mixed_precision", "sklearn"), ("ray_train", "ray")]
)
def test_a_package_that_an_example_needs_is_named_in_one_line(name, package, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=rf"^{package} is required for .*: pip install 'keras_tfm\[(examples|ray)\]'$"):
        runpy.run_path(EXAMPLES / f"{name}.py", run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL if BACKEND == "jax" else ["classify"])  # JAX is quicker, TensorFlow exports
def test_an_example_runs_at_a_small_size(name, tmp_path):
    arguments = shlex.split(SMALL[name].format(out=tmp_path, here=ROOT))
    if name == "classify":
        (tmp_path / "texts.tsv").write_text("".join(f"{n}. {'Mai' if n % 2 else 'May'}\t{n % 2}\n" for n in range(200)))
        arguments += ["--export", tmp_path / "model"] * (BACKEND == "tensorflow")
    lines = printed(name, *arguments, optimized=False)
    if name not in TEXTUAL:
        expected = [line for line in documented(name) if not re.match("round [2-9]", line)]
        assert {*map(form, expected)} <= {*map(form, lines)}
    if "--export" in arguments:
        assert (tmp_path / "model/saved_model.pb").exists()


@pytest.fixture
def same_mixings(monkeypatch):
    """Takes back what lectures add to the table of mixings, and forgets the module that they share."""
    before = dict(scores.MIXINGS)
    monkeypatch.syspath_prepend(EXAMPLES / "lectures")
    yield
    scores.MIXINGS.clear()
    scores.MIXINGS.update(before)
    sys.modules.pop("lecture", None)


@ON_JAX
@pytest.mark.slow
@pytest.mark.usefixtures("same_mixings")
@pytest.mark.parametrize("name", SMALL_LECTURES)
def test_a_lecture_runs_at_a_small_size(name, tmp_path, monkeypatch, capsys):
    """In this process, which is quicker and in which a warning is an error."""
    monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path), *SMALL_LECTURES[name].split()])
    runpy.run_path(str(EXAMPLES / "lectures" / f"{name}.py"), run_name="__main__")
    assert re.match(r"(holds|not on|the notes are wrong).* \(.*\): “.*”$", capsys.readouterr().out.splitlines()[-1])
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["rows"] and (tmp_path / f"{name}.png").stat().st_size > 5000
    assert (result["code"] == "of other sizes") == bool(SMALL_LECTURES[name])


@once
def test_every_example_and_lecture_has_a_small_size():
    assert {*SMALL, "pictures", "ray_train"} == PROGRAMS  # which have tests of their own
    assert [*SMALL_LECTURES] == [file.stem for file in LECTURES]


@full_size
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


@pytest.mark.hours
def test_language_model():
    lines = printed("language_model")
    bits, table = numbers(lines[-1])
    assert bits < table - 0.1
    assert lines[lines.index("---") + 1].startswith("class ")


@full_size
def test_image_classifier():
    *_, ours, linear, always_0 = (numbers(line)[-2] for line in printed("image_classifier"))
    assert ours > 91 and linear > 88 and always_0 == 10


@full_size
def test_forecast():
    *_, ours, linear, last = (numbers(line)[-2] for line in printed("forecast"))
    assert ours < 0.7 * linear < last


@full_size
def test_number_words():
    *_, ours, word_by_word = (numbers(line)[-2] for line in printed("number_words")[-2:])
    assert ours > 90 and word_by_word < 80


@pytest.mark.hours
def test_finetune(tmp_path):
    lines = [line for line in printed("finetune", "--out", tmp_path / "finnish") if "Finnish " in line]
    (before, old), (alone, forgotten), (mixture, kept), (scratch, _) = map(numbers, lines)
    assert before < 50 and old > 95 and alone > 85 and mixture > 85 and kept > max(90, forgotten) and scratch < 20
    assert (tmp_path / "finnish" / "mixed" / "model.keras").exists()


@pytest.mark.hours
def test_mixed_precision():
    full, mixed = (numbers(line)[1] for line in printed("mixed_precision") if "held-out" in line)
    assert min(full, mixed) > 85 and abs(full - mixed) < 4


@full_size
def test_attention_maps(tmp_path):
    pytest.importorskip("matplotlib")
    lines = printed("attention_maps", "--out", tmp_path)
    assert lines[0] == "Mittwoch, 3. Mai 2023 → 2023-05-03" and (tmp_path / "dates.png").stat().st_size > 5000
    assert all(there > 70 and even < 30 for there, even in map(numbers, lines[-3:]))


@full_size
def test_minimum_risk():
    costs = [numbers(line)[1:3] for line in printed("minimum_risk") if line.startswith("round ")]
    assert len(costs) == 4 and all(after < before for before, after in costs)


@pytest.mark.slow
@ON_JAX
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
        for names in (["17_table"], ["17_table"], ["3"])
    )
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout.count("holds here (") == 1
    assert "done before" not in first.stdout and "done before" in again.stdout
    assert wrong.returncode == 2 and "no lecture has the name 3; choose from 01_bottleneck, " in wrong.stderr
    page = (tmp_path / "index.html").read_text()
    assert '<img src="17_table.png"' in page and (tmp_path / "17_table.png").stat().st_size > 5000
    assert page.count("<h2") == 1


@once
@pytest.mark.parametrize("file", sorted({*EXAMPLES.glob("*.py"), *LECTURES}), ids=lambda file: file.stem)
def test_an_example_is_short_and_documented(file):
    is_lecture = file.parent.name == "lectures"
    assert len(file.read_text().splitlines()) < (140 if is_lecture else 80)
    assert is_lecture or documented(file.stem)
