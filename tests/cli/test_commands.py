import gzip
import json
import operator
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import BACKEND, BYTES, array, eagerly, encode, once

from keras_tfm import artifacts
from keras_tfm.cli import commands, inputs
from keras_tfm.common.arguments import UserError
from keras_tfm.data.tasks import reverse
from keras_tfm.text import save_tokenizer
from keras_tfm.translator import Translator

SMALL = "--num_layers 1 --model-dim 16 --num_heads 2 --ff_dim 32 --steps 4 --batch-tokens 512 --num_shapes 1"
SMALL += " --jit-compile" if BACKEND == "jax" else " --no-jit-compile"  # the quicker start


def keras_tfm(*arguments, **environment):
    command = [pathlib.Path(sys.executable).with_name("keras-tfm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@once
@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
def test_training_from_two_files(tmp_path, capsys):
    for name, line in (("source", "ein {} hund"), ("target", "a {} dog")):
        (tmp_path / name).write_text("".join(line.format(chr(97 + n % 26)) + "\n" for n in range(80)))
    flags = ["--source", tmp_path / "source", "--target", tmp_path / "target", "--tokenizer", "bpe", "--separate"]
    flags += ["--valid-source", tmp_path / "source", "--valid-target", tmp_path / "target", "--vocab_size", 320]
    flags += ["--out", tmp_path / "run", "--precision", "mixed_float16", "--bleu", 2, *SMALL.split()]
    flags += ["--max_length", 32]
    command = ["train", *map(str, flags)]
    with eagerly():
        commands.run(command)
    said = capsys.readouterr().out
    assert f"{BACKEND}, " in said and "val_perplexity" in said and said.count("  ein ") == 5  # texts with translations
    assert "\b" not in said and "\r" not in said and said.count("loss: ") == 8  # four epochs, training and validation
    assert "val_bleu" in (tmp_path / "run/metrics.csv").read_text().splitlines()[0]
    files = {file.name for file in (tmp_path / "run").iterdir()}
    assert files >= {
        "config.json",
        "model.keras",
        "metrics.csv",
        "learning_curve.png",
        "state.npz",
        "checkpoints",
        "tensorboard",
    }
    assert json.loads((tmp_path / "run/config.json").read_text())["options"]["model_dim"] == 16
    with pytest.raises(SystemExit, match="with other ff_dim"):
        commands.run([*command, "--ff_dim", "64"])


@once
@pytest.mark.parametrize(
    "arguments, word",
    [
        ((), "--task or --source must be given"),
        (("--source", "missing.txt", "--target", "missing.txt"), "missing.txt: there is no such file"),
        (
            ("--task", "reverse", "--num_examples", "50", "--num_heads", "5"),
            "--num_heads must be a number that divides width=128",
        ),
    ],
)
def test_errors_are_one_line(arguments, word, tmp_path):
    with pytest.raises(SystemExit, match=f"^keras-tfm: error: {word}"):
        commands.run(["train", "--out", str(tmp_path / "run"), *arguments])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="TensorFlow's command learns the task from a file, below")
def test_training_learns_the_built_in_task(tmp_path):
    line = "train --task reverse --num_examples 30000 --tokenizer word --max_length 16 --batch_tokens 1024"
    line += " --num_shapes 1 --num_layers 1 --model_dim 64 --num_heads 4 --ff_dim 128 --dropout 0 --label_smoothing 0"
    line += " --learning_rate 0.005 --steps 600 --steps_per_epoch 600 --verbose 0 --out"
    run = keras_tfm(*line.split(), tmp_path, XLA_FLAGS="")  # compiled for speed, unlike other tests
    right = re.search(r"([\d.]+)% of 1,000 unseen texts exactly right", run.stdout)
    assert right and float(right[1]) > 95, run.stdout + run.stderr


@pytest.mark.slow
@once
@pytest.mark.usefixtures("one_width")
def test_training_learns(tmp_path):
    """On JAX, `test_trainer` does so by the function."""
    task = {"max_length": 5, "symbols": "abcdefgh"}
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in reverse(20_000, **task)))
    line = "--tokenizer word --max_length 16 --batch_tokens 1024 --num_shapes 1 --dropout 0 --label_smoothing 0"
    line += " --verbose 0 --num_layers 1 --model_dim 32 --num_heads 2 --ff_dim 64 --no-jit_compile"
    line += " --learning_rate 0.01 --steps 300 --steps_per_epoch 300"
    commands.run(["train", "--source", str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "run"), *line.split()])
    sources, targets = zip(*reverse(500, "test", **task), strict=True)
    (tmp_path / "in").write_text("\n".join(sources) + "\n")
    files = [str(tmp_path / "run"), str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    commands.run(["translate", *files, "--num_beams", "1", "--max_length", "16", "--batch_size", "128"])
    answers = (tmp_path / "out").read_text().splitlines()
    assert sum(map(operator.eq, answers, targets)) > 0.95 * len(targets)


@once
def test_a_backend_that_is_not_there_is_named():
    program = "import sys; sys.modules['jax'] = None; from keras_tfm.cli import commands; commands.main()"
    arguments = ["train", "--task", "reverse", "--backend", "jax"]
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith(
        "keras-tfm: error: jax is required for the JAX backend: pip install"
    )


@once
def test_without_tensorflow_an_installed_backend_is_offered(tmp_path):
    program = "import sys; sys.modules['tensorflow'] = None; from keras_tfm.cli import commands; commands.main()"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["KERAS_HOME"] = str(tmp_path)  # without a keras.json that names a backend

    def said(*arguments):
        command = [sys.executable, "-c", program, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert run.returncode == 1 and run.stderr.count("\n") == 1
        return run.stderr

    error = said("train", "--task", "reverse", "--out", str(tmp_path / "run"))
    assert "tensorflow is required for the TensorFlow backend" in error
    assert "or use jax, which is installed: --backend jax, or KERAS_BACKEND=jax" in error
    assert "--backend" not in said(
        "export", str(artifacts.SHIPPED), "--format", "litert", "--out", str(tmp_path / "out")
    )


@once
def test_an_unknown_backend_is_one_line():
    run = keras_tfm("translate", "--text", "3. Mai", KERAS_BACKEND="jxa")
    assert run.returncode == 1
    assert run.stderr == "keras-tfm: error: KERAS_BACKEND must be one of tensorflow, jax, torch. Received: jxa\n"


@once
def test_help_needs_no_backend():
    run = keras_tfm("train", "--help", KERAS_BACKEND="none")
    assert run.returncode == 0 and "--model_dim" in run.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A translator that says something, if nothing sensible."""
    import keras
    from conftest import spread

    from keras_tfm.models import transformer
    from keras_tfm.translator import Translator

    keras.utils.set_random_seed(2)
    model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32)
    folder = tmp_path_factory.mktemp("translator")
    Translator(spread(model, 0.2), BYTES).save(folder)
    return folder


TEXT = b"a dog\n\ntwo cats \xff run\r\nover there"
OPTIONS = ["--num_beams", "2", "--max-length", "24", "--batch-size", "4"]


def answers_of(folder, texts, num_beams=2):
    from keras_tfm.translator import Translator

    return Translator.load(folder, num_beams=num_beams, max_length=24, batch_size=4)(texts)


def lines_of(folder, texts, num_beams=2):
    return [" ".join(answer.splitlines()) for answer in answers_of(folder, texts, num_beams)]


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@once
def test_standard_input_is_translated_line_by_line(folder):
    command = [pathlib.Path(sys.executable).with_name("keras-tfm"), "translate", folder, *OPTIONS]
    run = subprocess.run([*command, "--num_beams", "1"], input=TEXT, capture_output=True)
    assert run.returncode == 0, run.stderr
    expected = lines_of(folder, ["a dog", "", "two cats \ufffd run", "over there"], num_beams=1)
    assert run.stdout.decode().split("\n")[:-1] == expected
    assert b"line 3: not UTF-8" in run.stderr


MEMORY = """
import resource, sys
from keras_tfm.cli import commands
commands.run(["translate", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


@once
@pytest.mark.slow
def test_a_million_lines_through_standard_input_need_no_more_memory_than_a_few(folder, tmp_path):
    def translated(count):
        """Peak memory in MB, and what comes out of so many lines, of which most are empty to save time."""
        with open(tmp_path / "in", "w") as file:
            file.writelines(f"number {n}\n" if n % 1000 == 0 else "\n" for n in range(count))
        with open(tmp_path / "in") as lines, open(tmp_path / "out", "w") as out:
            command = [sys.executable, "-c", MEMORY, folder, *OPTIONS]
            run = subprocess.run(command, stdin=lines, stdout=out, stderr=subprocess.PIPE, text=True)
        assert run.returncode == 0, run.stderr
        return float(run.stderr.split()[-1]), (tmp_path / "out").read_text().split("\n")[:-1]

    few, _ = translated(10_000)
    many, lines = translated(1_000_000)
    assert many - few < 30, (few, many)  # as strings alone, the lines would take 50 MB
    assert len(lines) == 1_000_000
    assert lines[:1001:1000] == lines_of(folder, ["number 0", "number 1000"]) and set(lines[1:1000]) == {""}


@pytest.mark.usefixtures("one_width")
def test_translating_files_resumes(folder, tmp_path, capsys):
    texts = [f"number {number}" for number in range(6)]
    (tmp_path / "one").write_text("\n".join(texts[:3]) + "\n")
    (tmp_path / "two.gz").write_bytes(gzip.compress(("\n".join(texts[3:]) + "\n").encode()))
    files = [str(tmp_path / name) for name in ("one", "two.gz")]
    commands.run(["translate", str(folder), *files, *OPTIONS])
    expected = lines_of(folder, texts)
    assert capsys.readouterr().out.split("\n")[:-1] == expected


@pytest.mark.slow
@once
@pytest.mark.usefixtures("one_width")
def test_translating_a_file_resumes_its_own_partial_output_only(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("keras_tfm.cli.translate.CHUNK", 2)
    (tmp_path / "texts").write_text("".join(f"number {number}\n" for number in range(6)))
    out, command = tmp_path / "out", ["translate", str(folder), str(tmp_path / "texts"), *OPTIONS, "--overwrite"]
    out.write_text("of another model\n")

    def stopped(self, lines, chunk):
        for number, line in enumerate(stream(self, lines, chunk)):
            if number == 4:
                raise KeyboardInterrupt
            yield line

    from keras_tfm.translator import Translator

    stream = Translator.stream
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "stream", stopped)
        with pytest.raises(SystemExit) as stop:
            commands.run([*command, "--out", str(out)])
    assert stop.value.code == 130 and "the same command resumes where it stopped" in capsys.readouterr().err
    assert out.read_text() == "of another model\n"
    (partial,) = tmp_path.glob(".out.*.partial")
    with open(partial, "a") as file:
        file.write("half a li")
    commands.run([*command, "--out", str(out)])
    expected = "\n".join(lines_of(folder, [f"number {number}" for number in range(6)])) + "\n"
    assert "resuming after line 4" in capsys.readouterr().err and out.read_text() == expected
    commands.run([*command, "--num_beams", "1", "--out", str(out)])  # other options: all lines anew
    assert "resuming" not in capsys.readouterr().err and out.read_text() != expected
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "out"}


@once
@pytest.mark.usefixtures("one_width")
def test_no_file_is_overwritten_unless_asked_for(folder, tmp_path, monkeypatch, capsys):
    """Neither references nor earlier translations, nor what appears while a command runs."""
    (tmp_path / "texts").write_text("a dog\na cat\n")
    out = tmp_path / "test.hyp"
    command = ["translate", str(folder), str(tmp_path / "texts"), "--out", str(out), *OPTIONS]
    out.touch()  # there is nothing to lose in an empty file
    commands.run(command)
    written = out.read_text()
    for content in ("ein Hund\neine Katze\n", written):
        out.write_text(content)
        with pytest.raises(SystemExit, match="--out must be a new file, unless --overwrite is given. Received: .*hyp"):
            commands.run(command)
        assert out.read_text() == content and not [*tmp_path.glob(".*")]
    out.unlink()
    from keras_tfm.translator import Translator

    def while_another_writes(self, lines, chunk):
        out.write_text("of another program\n")
        return stream(self, lines, chunk)

    stream = Translator.stream
    monkeypatch.setattr(Translator, "stream", while_another_writes)
    with pytest.raises(SystemExit, match="--out must be a new file, unless --overwrite is given"):
        commands.run(command)
    assert out.read_text() == "of another program\n"
    commands.run([*command, "--overwrite"])
    assert out.read_text() == written and "resuming after line 2" in capsys.readouterr().err


@pytest.mark.slow
@once
def test_a_reader_may_stop_reading(folder, tmp_path):
    (tmp_path / "texts").write_text("\n" * 50_000)
    command = (
        f"'{pathlib.Path(sys.executable).with_name('keras-tfm')}' translate '{folder}' '{tmp_path}/texts' | head -1"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}  # it starts sooner
    run = subprocess.run(command, shell=True, capture_output=True, env=environment)
    assert run.stdout == b"\n" and b"Traceback" not in run.stderr and b"rror" not in run.stderr


@once
def test_a_missing_file_is_named(folder):
    with pytest.raises(
        SystemExit, match=r"no/such: must be a text file; pass text with --text. Received: no such file"
    ):
        commands.run(["translate", str(folder), "no/such"])
    with pytest.raises(SystemExit, match=r"`model` must be a folder, given before the files"):
        commands.run(["translate", __file__])


# Runs each command line, with a package missing or none, in one process.
BEFORE_KERAS = """
import json, sys
from keras_tfm.cli import commands
for missing, line in json.load(sys.stdin):
    if missing:
        sys.modules[missing] = None  # as if it were not installed
    try:
        commands.run(line)
        error = "no error"
    except SystemExit as found:
        error = found.code
    sys.modules.pop(missing, None)
    print(json.dumps([error, [name for name in ("keras", "tensorflow") if name in sys.modules]]))
"""


def before_keras(folder, here, lines):
    """The error of each (missing package, command line), none of which imports Keras or TensorFlow."""
    requests = []
    for missing, line in lines:
        words = [str(folder) if word == "MODEL" else word.format(here=here) for word in line.split()]
        requests.append((missing, words))
    command = [sys.executable, "-c", BEFORE_KERAS]
    run = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, cwd=here)
    answers = [json.loads(answer) for answer in run.stdout.splitlines()]
    assert len(answers) == len(lines), run.stderr
    assert not any(imported for _, imported in answers), answers
    return [error for error, _ in answers]


@once
def test_errors_in_arguments_are_reported_before_keras_is_imported(folder, tmp_path):
    (tmp_path / "x").write_text("one text\n")
    (tmp_path / "taken").write_text("a reference\n")
    os.mkfifo(tmp_path / "pipe")
    expected = [
        ("translate no/such", "no such folder; a text to translate comes after --text"),
        ("translate MODEL no/such", "no/such: must be a text file; pass text with --text. Received: no such file"),
        ("translate x .", "`model` must be a folder, given before the files"),
        ("translate MODEL x --out x", "--out must not be one of the files to translate. Received: x"),
        ("translate MODEL .", ".: must be a text file; pass text with --text. Received: a folder"),
        ("train --source x", "x, line 1: must be `text, tab, text`, since there is no file of targets, or on"),
        ("train --source x --target x x", "--target must be one file for each of the 1 of --source"),
        ("train --source x x --target_language de fr it", "--target_language must be one language, or one for each"),
        ("evaluate MODEL x", "x, line 1: must be `text, tab, text`"),
        ("evaluate MODEL --source x", "--reference must be given with --source"),
        ("translate MODEL x --num_beams 2 --temperature 2", "--temperature must be left out with --num_beams, of beam"),
        ("translate MODEL x --glossary x", "x, line 1: must be `term, tab, translation`"),
        ("translate MODEL --format json", "--format needs a file. Received: standard input"),
        ("translate MODEL x --all", "--all needs a document. Received: lines of text"),
        ("translate MODEL x --report y", "--report needs a document"),
        ("translate MODEL x --format json", "x: a JSON file must be well-formed"),
        ("translate .", "must contain a run, a model.keras or an export"),
        ("translate MODEL x --out taken", "--out must be a new file, unless --overwrite is given. Received: taken"),
        ("translate MODEL x --out {here}/pipe", "--out must be a file. Received: {here}/pipe, which is not a regular"),
        ("translate MODEL x --out no/such", "--out must be in a folder that exists. Received: no/such"),
        ("evaluate MODEL --source x --reference ./x", "--reference must not be the source. Received: x"),
        ("evaluate . --source no/such --reference x", "no/such: there is no such file"),
        ("plot no/such text", "no/such: there is no such folder"),
        ("export no/such --format onnx --out x", "no/such: there is no such folder"),
        ("export MODEL --format litert --out {here}", "--out must be new, empty or an earlier export"),
        ("export MODEL --format onnx --out x --precision int8", "--precision must be one of float32 for format='onnx'"),
        (
            "export MODEL --format web --out y",
            "npm install --no-package-lock @litertjs/core@2.5.3 @litertjs/wasm-utils@",
        ),
        ("export MODEL --format web --explain --out y", "@litertjs/wasm-utils@2.5.3 d3@7.9.0"),
        ("export MODEL --format web --out y --runtime x", "--runtime must be a folder that contains LiteRT.js"),
        ("export MODEL --format onnx --out x --texts no/such", "no/such: there is no such file"),
        ("serve no/such", "no/such: there is no such folder"),
        ("serve MODEL --max_queue 9", "--max_queue must be at least --max_texts, here 256. Received: max_queue=9"),
        ("finish .", "must be the folder of a run"),
        ("info .", "contains no run, no saved translator and no export"),
        ("train --source no/such --target x", "no/such: there is no such file"),
        ("train --source x --target x --out x", "--out must be a folder. Received: x, a file"),
        ("train --out y", "--task or --source must be given"),
    ]
    errors = before_keras(folder, tmp_path, [("", line) for line, _ in expected])
    for error, (line, words) in zip(errors, expected, strict=True):
        assert words.format(here=tmp_path) in error, line
    assert (tmp_path / "taken").read_text() == "a reference\n"


@once
def test_messages_name_the_argument_that_is_wrong(tmp_path):
    with pytest.raises(SystemExit, match=f"error: {tmp_path}: must be a folder with config.json of Hugging Face or an"):
        commands.run(["import", str(tmp_path), "--out", str(tmp_path / "y")])
    with pytest.raises(SystemExit, match="no/such: must be a folder that was downloaded before.*no such folder"):
        commands.run(["import", "no/such", "--out", str(tmp_path / "y")])
    export, translate = map(commands.flags.names, ("export", "translate"))
    assert UserError("`norm_first` must be").naming(export) == "`norm_first` must be"  # which has no such flag
    assert UserError("`folder` must be; `num_beams`").naming(translate) == "`model` must be; --num_beams"


@once
def test_missing_extras_are_named_before_keras_is_imported(folder, tmp_path):
    (tmp_path / "x").write_text("x\n")
    lines = [
        ("sentencepiece", "train --task reverse"),
        ("babel", "train --task dates"),
        ("sacrebleu", "evaluate MODEL --source x --reference x"),
        ("matplotlib", "plot MODEL text"),
        ("tensorflow_text", "export MODEL --format saved_model --out y"),
        ("ctranslate2", "export MODEL --format ctranslate2 --out y"),
        ("h11", "serve MODEL"),
        ("sentencex", "translate MODEL x --format po"),
        ("markdown_it", "translate MODEL x --format md"),
    ]
    for error, (missing, line) in zip(before_keras(folder, tmp_path, lines), lines, strict=True):
        assert missing in error and "pip install 'keras_tfm[" in error, line


@once
@pytest.mark.usefixtures("one_width")
def test_a_text_may_be_an_option(folder, capsys):
    commands.run(["translate", str(folder), *OPTIONS, "--text", "a dog", "--text", "a cat"])
    assert capsys.readouterr().out.split("\n")[:-1] == lines_of(folder, ["a dog", "a cat"])


@once
def test_information_about_a_saved_translator(folder, capsys):
    commands.run(["info", str(folder)])
    said = capsys.readouterr().out
    assert "saved translator" in said and "num_layers 1" in said and "ByteTokenizer, 260 tokens" in said
    from keras_tfm.translator import Translator

    assert f"{Translator.load(folder).models[0].count_params():,}" in said


@once
def test_a_file_that_is_cut_off_is_named(folder, tmp_path):
    for content in (gzip.compress(b"a dog\n" * 99)[:-9], b"no archive"):
        (tmp_path / "texts.gz").write_bytes(content)
        with pytest.raises(SystemExit, match=r"texts.gz, after line \d+: must be a complete .gz file. Received: "):
            commands.run(["translate", str(folder), str(tmp_path / "texts.gz"), *OPTIONS, "--num_beams", "1"])


@once
def test_a_model_whose_weights_are_not_finite_is_named_in_one_line(folder, tmp_path):
    from keras_tfm.translator import Translator

    translator = Translator.load(folder)
    translator.models[0].weights[0].assign(translator.models[0].weights[0] * float("nan"))
    translator.save(tmp_path)
    with pytest.raises(SystemExit, match=r"^keras-tfm: error: .*model.keras must have finite weights: [^\n]*$"):
        commands.run(["translate", str(tmp_path), "--text", "a dog"])


@once
def test_an_empty_file_gives_an_empty_output(folder, tmp_path, capsys):
    (tmp_path / "empty").write_text("")
    commands.run(["translate", str(folder), str(tmp_path / "empty"), *OPTIONS])
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@once
@pytest.mark.usefixtures("one_width")
def test_scores_are_printed(folder, tmp_path, capsys):
    (tmp_path / "source").write_text("a dog\na cat\n")
    answers = answers_of(folder, ["a dog", "a cat"])
    (tmp_path / "reference").write_text("".join(f"{answer}\n" for answer in answers))
    files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    assert commands.run(["evaluate", str(folder), *files, *OPTIONS])["exact"] == 100
    printed, noted = capsys.readouterr()
    assert "chrf" in printed and "tok:13a" in printed and "perplexity" in printed and "\b" not in printed
    assert "note: all 2 translations equal their references" in noted and "blank" not in noted
    (tmp_path / "copy").write_text("a dog\na cat\n")
    files[-1] = str(tmp_path / "copy")
    commands.run(["evaluate", str(folder), *files, *OPTIONS])
    assert "note: the references equal the sources" in capsys.readouterr().err


@pytest.mark.slow
@once
@pytest.mark.usefixtures("one_width")
def test_blank_translations_are_reported(folder, tmp_path, capsys):
    from keras_tfm.translator import Translator

    translator = Translator.load(folder)
    embedding = translator.models[0].target_embedding.embeddings
    embedding.assign(embedding * 0)  # of equal logits the first wins: the end, since padding and start are not allowed
    translator.save(tmp_path / "blank")
    for name in ("source", "reference"):
        (tmp_path / name).write_text(f"a {name}\nanother\n")
    files = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    assert commands.run(["evaluate", str(tmp_path / "blank"), *files, *OPTIONS])["blank"] == 100
    assert "note: all 2 translations are blank" in capsys.readouterr().err
    commands.print_samples(translator, [("a", "b"), ("c", "d")], 0)
    assert "note: all 2 translations are blank" in capsys.readouterr().err


@pytest.mark.slow
@once
@pytest.mark.usefixtures("one_width")
def test_plot_writes_a_picture(folder, tmp_path, capsys):
    commands.run(["plot", str(folder), "a dog", "--out", str(tmp_path / "map.png"), "--layer", "0"])
    assert (tmp_path / "map.png").stat().st_size > 5000 and "a dog → " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--layer must be one of -1 … 0"):
        commands.run(["plot", str(folder), "a dog", "--layer", "3"])


@once
def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(SystemExit, match=r"must contain a run, a model.keras or an export"):
        commands.run(["translate", str(tmp_path)])


@once
@pytest.mark.usefixtures("one_width")
def test_commands_use_the_settings_that_are_saved(folder, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    from keras_tfm.translator import Translator

    saved, out, texts = tmp_path / "saved", tmp_path / "out", tmp_path / "texts"
    texts.write_text("a dog\n")
    Translator.load(folder, num_beams=1, max_length=24, length_penalty=1.5).save(saved)
    commands.run(["export", str(saved), "--format", "ctranslate2", "--out", str(out), "--texts", str(texts)])
    actual = artifacts.read_manifest(out)
    assert (actual["num_beams"], actual["max_length"], actual["length_penalty"]) == (1, 24, 1.5)
    given = inputs.load_translator(saved, num_beams=2)
    assert (given.num_beams, given.max_length, given.sampler.length_penalty) == (2, 24, 1.5)


@pytest.mark.slow
@once
def test_what_is_exported_is_compared(folder, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["export", str(folder), "--num_beams", "2", "--max-length", "160", "--batch-size", "4", "--out", str(out)]
    commands.run([*command, "--format", "litert"])
    assert (
        "wrote" in (said := capsys.readouterr().out) and "5 of 5 sentences translated exactly as by the model" in said
    )
    assert {path.name for path in out.iterdir()} >= {"model.tflite", "translator.json"}
    assert artifacts.read_manifest(out)["max_length"] == 160
    with pytest.raises(SystemExit, match="--precision must be one of float32 for format='saved_model'"):
        commands.run([*command, "--format", "saved_model", "--precision", "int8"])


@once
@pytest.mark.usefixtures("one_width")
def test_an_export_that_disagrees_with_the_model_ends_with_an_error(folder, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    translator = Translator.load(folder)
    decoder = {weight.path.partition("/decoder_0/")[2]: weight for weight in translator.models[0].weights}
    bias, outer = decoder["feed_forward/inner/bias"], decoder["feed_forward/outer/kernel"]
    # The first unit is never active, so its weights change nothing, but because of them int8 rounds all others to 0.
    bias.assign(np.insert(array(bias)[1:], 0, -1e6))
    outer.assign(np.insert(8 * array(outer)[1:], 0, 1e5, axis=0))
    translator.save(tmp_path / "model")
    line = "--format ctranslate2 --precision int8 --num_beams 1 --max_length 64"
    command = ["export", str(tmp_path / "model"), *line.split(), "--out", str(tmp_path / "out"), "--min_agreement"]
    with pytest.raises(SystemExit, match=r"^keras-tfm: error: the export must agree .* of 5 .* --min_agreement"):
        commands.run([*command, "1"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as wrong:
        commands.run([*command, "1.5"])
    assert wrong.value.code == 2


@once
def test_an_export_replaces_nothing_but_an_export(folder, tmp_path):
    (tmp_path / "diary").write_text("dear")
    with pytest.raises(SystemExit, match="--out must be new, empty or an earlier export.*diary"):
        commands.run(["export", str(folder), "--format", "litert", "--out", str(tmp_path)])
    assert (tmp_path / "diary").read_text() == "dear"


@once
def test_a_bug_shows_its_traceback_and_asks_for_a_report():
    program = "import sys; from keras_tfm.cli import commands; commands.COMMANDS['info'] = lambda model: [].index(3); "
    program += "sys.argv = ['keras-tfm', 'info']; commands.main()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1 and "Traceback" in run.stderr and "ValueError" in run.stderr
    assert run.stderr.splitlines()[-1].endswith("please report it with the lines above")


def test_sources_of_a_run_are_sampled_as_strings(tmp_path):
    assert commands.sample_sources(tmp_path) == []
    save_tokenizer(BYTES, tmp_path / "tokenizer")
    encode([(f"über {n}", "b") for n in range(50)], tmp_path / "data" / "train-0")
    assert commands.sample_sources(tmp_path, 3) == ["über 0", "über 24", "über 49"]
    encode([("a", "b")], tmp_path / "data" / "valid")
    assert commands.sample_sources(tmp_path) == ["a"]
    (tmp_path / "data" / "valid" / "source.tokens").write_bytes(b"x")
    assert len(commands.sample_sources(tmp_path)) == 20
