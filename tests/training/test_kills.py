"""Processes killed at chosen and at random moments, each followed by the same command: nothing is lost or changed."""

import csv
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import BACKEND, IN_TENSORFLOW, SIZES

from keras_tfm import artifacts
from keras_tfm.common import files
from keras_tfm.export import runners
from keras_tfm.models import loading
from keras_tfm.translator import Translator

QUICK = pytest.mark.skipif(BACKEND != "jax", reason="files are written alike on all backends; JAX starts faster")
pytestmark = pytest.mark.xdist_group("kills")

# Imports everything once and forks for each task. A child is killed at the first event of a kind whose path, with "$"
# appended, contains a name.
PROGRAM = """
import json, os, signal, sys, time
import matplotlib.pyplot, sentencepiece, tensorboard.summary.writer.event_file_writer, tensorflow  # slow to import
from keras_tfm.cli import commands
from keras_tfm.training import trainer
from keras_tfm.translator import Translator

def killed_at(event, name):
    def hook(found, arguments):
        if found == event and name in f"{arguments[0]}$" and (event != "open" or arguments[2] & os.O_CREAT):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for line in sys.stdin:
    code, event, name, seconds = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            if event:
                killed_at(event, name)
            exec(code)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if seconds:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Children:
    """Runs programs in processes that have imported everything, and that can be killed."""

    def __init__(self):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], **streams)

    def __call__(self, code, event="", name="", seconds=0.0):
        """The exit status of a program that is killed at an event, after some seconds, or not at all."""
        print(json.dumps([code, event, name, seconds]), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def close(self):
        self.process.communicate()


@pytest.fixture(scope="module")
def children():
    children = Children()
    yield children
    children.close()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "pairs.tsv"
    path.write_text("".join(f"ein {chr(97 + n % 26)} hund\ta {chr(97 + n % 26)} dog\n" for n in range(60)))
    return path


def command(texts, out, *more):
    options = "--tokenizer char --vocab_size 300 --steps 6 --steps_per_epoch 3 --average 2 --max_length 40 --verbose 0"
    options += " --batch_tokens 512 --num_shapes 1 --dropout 0.2 --save_minutes 0.00001"
    options += " --jit_compile" if BACKEND == "jax" else " --no-jit_compile"
    sizes = [f"--{name}={value}" for name, value in SIZES.items()]
    return ["train", f"--source={texts}", f"--out={out}", *options.split(), *sizes, *more]


@pytest.fixture(scope="module")
def uninterrupted(children, texts, tmp_path_factory):
    """A run without interruption."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert children(f"commands.run({command(texts, out)})") == 0
    return out


def metrics(run):
    """The rows of metrics.csv, without their speed."""
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    return [{name: float(value) for name, value in row.items() if name != "tokens/s"} for row in rows]


def assert_same(run, expected):
    ours, theirs = (loading.load_keras(folder / "model.keras").get_weights() for folder in (run, expected))
    for weight, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(weight, other)
    for row, other in zip(metrics(run), metrics(expected), strict=True):
        assert row == pytest.approx(other, rel=1e-5)  # an interrupted epoch adds up in another order
    assert {path.name for path in run.rglob(".*")} == {".lock"}


# A private folder is made beside the file, the file is written in it and moved into place, the folder is removed.
MKDIR, OPEN, RENAME, REMOVE = "os.mkdir", "open", "os.rename", "shutil.rmtree"
MOMENTS = [(MKDIR, "tokenizer"), (RENAME, "tokenizer"), (RENAME, "tokenizers.json"), (OPEN, "source.tokens")]
MOMENTS += [(RENAME, "source.tokens"), (RENAME, "target.ends"), (MKDIR, "meta.json"), (RENAME, "meta.json")]
MOMENTS += [(OPEN, "config.json"), (RENAME, "config.json")]
MOMENTS += [(OPEN, "state.npz"), (RENAME, "state.npz"), (REMOVE, "state.npz"), (OPEN, "00000003.npz")]
MOMENTS += [(RENAME, "00000003.npz"), (REMOVE, "00000003.npz"), (RENAME, "metrics.csv"), (REMOVE, "metrics.csv")]
MOMENTS += [(RENAME, "00000006.npz"), (MKDIR, "model.keras"), (RENAME, "model.keras"), (REMOVE, "model.keras")]


@QUICK
@pytest.mark.slow
def test_kills_at_chosen_moments_change_nothing(children, uninterrupted, texts, tmp_path):
    out = tmp_path / "run"
    code = f"commands.run({command(texts, out)})"
    for event, name in MOMENTS:
        assert children(code, event, f"/.{name}.unfinished") == -signal.SIGKILL, (event, name)
        if artifacts.Run(out).exists():
            assert dict(artifacts.describe(out))["kind"] == "run"
    assert children(code) == 0
    assert_same(out, uninterrupted)


@pytest.mark.slow
@QUICK
def test_kills_at_random_moments_change_nothing(children, uninterrupted, texts, tmp_path):
    out, rng, killed = tmp_path / "run", np.random.default_rng(), 0
    code = f"commands.run({command(texts, out)})"
    while killed < 4 and not (out / "model.keras").exists():
        killed += children(code, seconds=rng.uniform(0.03, 2.5)) == -signal.SIGKILL
    assert children(code) == 0
    assert_same(out, uninterrupted)


# Each time, another translator replaces the one before: where the process is killed, and whether the new one is there.
REPLACING = [
    ("", "", True),
    (MKDIR, "/.out.unfinished$", False),
    (OPEN, "_tokenizer.unfinished/", False),
    (RENAME, "_tokenizer.unfinished/new$", False),
    (RENAME, "/.translator.json.unfinished/new.json$", False),
    (RENAME, "/out$", False),
    ("", "", True),
    (REMOVE, "/.out.unfinished$", True),
    (RENAME, "/.out.unfinished/new$", True),  # between the two renames
    ("", "", True),
]
NEW = f"""
from keras_tfm.models import transformer
from keras_tfm.text import ByteTokenizer
translator = Translator(transformer(260, **{SIZES}), ByteTokenizer(), ByteTokenizer(), max_length=24)
"""


@pytest.mark.parametrize(
    "save, load",
    [
        pytest.param("translator.save({})", Translator.load, marks=QUICK),
        pytest.param("translator.export({}, 'ctranslate2')", runners.load, marks=[IN_TENSORFLOW, pytest.mark.slow]),
    ],
)
def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new_one(save, load, children, tmp_path):
    out, before = tmp_path / "out", None
    for event, name, new in REPLACING:
        assert children(NEW + save.format(repr(str(out))), event, name) == (-signal.SIGKILL if event else 0), (
            event,
            name,
        )
        load(out)  # this checks all files against their checksums
        actual = files.checksum(out / "translator.json")
        assert (actual != before) == new, (event, name)
        before = actual
    assert list(tmp_path.iterdir()) == [out]


@QUICK
def test_an_interrupted_command_saves_and_the_same_command_resumes(children, texts, tmp_path):
    long = ["--steps=90", "--steps_per_epoch=30", "--save_minutes=0.0005"]
    out, whole = tmp_path / "run", tmp_path / "whole"
    argv = [sys.executable, "-m", "keras_tfm", *command(texts, out, *long)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        while not loading.saved_step(out):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    step = loading.saved_step(out)
    assert 0 < step < 90
    assert f"interrupted; step {step:,} is saved in {out}. Now" in said and "Traceback" not in said
    assert children(f"commands.run({command(texts, out, *long)})") == 0
    assert children(f"commands.run({command(texts, whole, *long)})") == 0
    assert_same(out, whole)
