import importlib
import json
import math
import pathlib
import subprocess
import sys

import pytest
from conftest import once

from keras_tfm.models import transformer

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"

# Doubles numbers; `--child bad_start`, `bad_turn` and `bad_end` fail where their names say.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import turns

def work(number):
    if "bad_turn" in sys.argv and number == 2:
        raise ValueError("no even numbers")
    return number and 2 * number

def last():
    return {{"bad_end": 1 // 0 if "bad_end" in sys.argv else None}}

print("a package says hello")
if "bad_start" in sys.argv:
    sys.exit("no such model")
turns.serve(sys.argv[2:], work, last)
"""


@pytest.fixture
def load(monkeypatch):
    """A function that imports a file of `benchmarks/`."""
    monkeypatch.syspath_prepend(FOLDER)
    before = {*sys.modules}
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if (FOLDER / f"{name}.py").exists():  # other tests may have modules of these names
            del sys.modules[name]


@pytest.fixture
def child(load, tmp_path):
    """A function that makes a child of a name, which is also its argument."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return lambda name, **options: load("turns").Child(file, name, name, **options)


@once
def test_children_answer_in_turns(load, child, capsys):
    children = [child("first"), child("second")]
    assert load("turns").take_turns(children, [1, None, 3]) == children
    for one, name in zip(children, ("first", "second"), strict=True):
        assert (one.first, one.answers, one.last) == ([name], [2, None, 6], {"bad_end": None})
        assert one.process.poll() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["first: ready", "second: ready", *(f"round {n} of 3" for n in (1, 2, 3))]


@once
def test_a_new_process_answers_one_request(child):
    assert child("one").ask(21) == 42
    assert child("bad_start").ask(21) is None


@once
def test_a_missing_package_is_named_and_skipped(load, child, capsys):
    children = [child("peer", needs=["json", "no_such_package"]), child("ours", needs=["json"])]
    assert load("turns").take_turns(children, [1]) == children[1:]
    assert "peer: skipped, no_such_package is not installed\n" in capsys.readouterr().out


@once
def test_a_child_that_does_not_start_is_skipped_with_the_reason(load, child, capsys):
    children = [child("bad_start"), child("ours")]
    assert load("turns").take_turns(children, [1]) == children[1:]
    assert "bad_start: failed to start, no such model\n" in capsys.readouterr().out


@once
@pytest.mark.parametrize(
    "name, message",
    [("bad_turn", "bad_turn stopped at 2: ValueError: no even numbers"), ("bad_end", "bad_end failed .*by zero")],
)
def test_a_child_that_crashes_is_an_error_and_the_others_end(load, child, name, message):
    children = [child("before"), child(name), child("after")]
    with pytest.raises(RuntimeError, match=message):
        load("turns").take_turns(children, [1, 2])
    assert [one.process.poll() for one in children] == [0, 1, 0]


def test_operations_count_every_matrix_of_the_model(load):
    training = load("training")
    layers, width, heads, inner, vocabulary, rows, length, _ = training.SIZES["tiny"]
    model = transformer(vocabulary, num_layers=layers, model_dim=width, num_heads=heads, ff_dim=inner)
    matrices = [weight for weight in model.trainable_weights if weight.path.endswith(("kernel", "embeddings"))]
    weights = sum(math.prod(weight.shape) for weight in matrices)
    # Forward, and twice as much backward: scores and values of three attentions, two operations for each product.
    attention = 3 * layers * 3 * 2 * 2 * rows * length**2 * width
    assert training.operations("tiny") == 6 * rows * length * weights + attention


@once
def test_every_command_of_make_bench_is_understood(load, tmp_path):
    run = load("run")
    for name in run.BENCHMARKS:
        command = run.command(name, dict.fromkeys(("DATA", "MODEL", "OUT", "EXPORTS"), tmp_path))
        parsed = subprocess.run([*command, "--help"], capture_output=True, text=True)  # an error before that is shown
        assert not parsed.returncode, parsed.stderr
        assert str(tmp_path / f"{name}.json") in command


@once
def test_make_bench_skips_what_it_has_no_data_for(load, tmp_path, monkeypatch, capsys):
    run = load("run")
    arguments = ["--model", str(tmp_path / "absent"), "--only", "batching", "export", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    run.main()
    printed = capsys.readouterr().out
    assert "batching: skipped, it needs DATA" in printed and "export: skipped, it needs DATA" in printed
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
@once
def test_a_server_under_load_answers_all_clients_rightly(tmp_path):
    model, figures = FOLDER.parent / "saved_models/dates/litert", tmp_path / "figures.json"
    flags = "--only speed crowd memory --clients 2 --crowd 8 --seconds 0.3 --minute 0.3 --requests 100 --json"
    run = subprocess.run(
        [sys.executable, FOLDER / "serving.py", model, *flags.split(), figures], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(figures.read_text())
    assert [row["what"] for row in rows] == ["speed", "crowd", "memory"]
    assert all(row["wrong"] == 0 and [*row["answers"]] == ["200"] for row in rows)


@once
def test_more_devices_train_faster_on_paper_but_never_more_than_in_proportion(load):
    scaling = load("scaling")
    for milliseconds, millions in scaling.MODELS.values():
        alone, *_ = scaling.estimate(milliseconds, millions, 1)
        before = 0
        for gpus in (2, 8, 16, 1024):
            slow, fast, equal = scaling.estimate(milliseconds, millions, gpus)
            assert slow < fast <= alone and before < gpus * slow and 0 < equal < scaling.TOKENS
            before = gpus * slow
