import re

import pytest
from conftest import once

import keras_tfm
from keras_tfm.cli import commands, flags
from keras_tfm.training import resolve

pytestmark = once


def test_every_option_has_a_flag():
    given = {"num_layers": 3, "norm_first": False, "dropout": 0.25, "score": "additive", "packed": True, "verbose": 2}
    line = "train --source x.tsv --num_layers 3 --no-norm-first --dropout=0.25 --score additive --packed --verbose 2"
    arguments = flags.parse([*line.split(), "--steps", "7"])
    assert arguments["recipe"] == resolve("default", steps=7, **given) and arguments["source"][0].name == "x.tsv"
    assert flags.parse(["train", "--recipe", "quick"])["recipe"].num_layers == 2


def test_tasks_have_characters_for_tokens_unless_others_are_given():
    assert flags.parse(["train", "--task", "reverse"])["recipe"].tokenizer == "char"
    assert flags.parse(["train", "--task", "reverse", "--tokenizer", "bytes"])["recipe"].tokenizer == "bytes"
    assert flags.parse(["train", "--source", "x"])["recipe"].tokenizer == "bpe"


@pytest.mark.parametrize(
    "line, message",
    [
        ("", "the following arguments are required: command; see `keras-tfm --help`"),
        ("sing", "argument command: invalid choice: 'sing' .*; see `keras-tfm --help`"),
        ("train --backend abacus", "argument --backend: invalid choice: 'abacus' .*; see `keras-tfm train --help`"),
        ("train --steps 0", "--steps must be a positive integer. Received: steps=0; see `keras-tfm train --help`"),
        ("train --steps few", "argument --steps: invalid int value: 'few'; see `keras-tfm train --help`"),
        ("train --task chess", "argument --task: invalid choice: 'chess' .*; see `keras-tfm train --help`"),
        (
            "translate --num_beams 0",
            "argument --num_beams: must be a positive integer. Received: 0; see `keras-tfm translate --help`",
        ),
        ("train --sourc x", r"unknown arguments: --sourc x \(did you mean --source.\); see `keras-tfm train --help`"),
        ("info --steps=2", "unknown arguments: --steps=2; see `keras-tfm info --help`"),
    ],
)
def test_a_wrong_command_line_is_answered_by_one_line(line, message, capsys):
    with pytest.raises(SystemExit) as stop:
        commands.run(line.split())
    (said,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and re.fullmatch(f"keras-tfm: error: {message}", said), said


@pytest.mark.parametrize("command", ["train", "translate", "evaluate", "plot", "export", "serve", "finish", "info"])
def test_help_says_what_each_option_does(command, capsys):
    with pytest.raises(SystemExit):
        commands.run([command, "--help"])
    said = capsys.readouterr().out
    assert "None" not in said and "SUPPRESS" not in said and "options:" in said


def test_version(capsys):
    with pytest.raises(SystemExit):
        commands.run(["--version"])
    assert capsys.readouterr().out == f"keras-tfm {keras_tfm.__version__}\n"
