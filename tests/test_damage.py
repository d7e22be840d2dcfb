"""Hundreds of damaged files: an error that names the file and says what to do, or the same answer as before."""

import pathlib
import shutil

import keras
import numpy as np
import pytest
from conftest import SIZES, array, eagerly, once

from keras_tfm import artifacts, data, text
from keras_tfm.cli import commands
from keras_tfm.common import files
from keras_tfm.export import runners
from keras_tfm.models import loading
from keras_tfm.runtimes import machine
from keras_tfm.training import Recipe, runs, trainer
from keras_tfm.translator import Translator

pytestmark = [
    once,
    pytest.mark.slow,
    pytest.mark.xdist_group("damage"),
]  # one run and one export of each format for all

TEXTS = ["ein b hund", "x", ""]
ADVICE = "restore it", "writes it again", "delete it", "delete /", "must be", "must hold", "must contain", "contains no"


def damages(content, rng):
    """Ways to damage a file: (description, new content; None if it is missing, `pathlib.Path` for a folder)."""
    yield "missing", None
    yield "a folder", pathlib.Path
    yield "empty", b""
    for length in sorted({1, len(content) // 4, len(content) // 2, len(content) - 1}):
        yield f"cut to {length}", content[:length]
    for place in rng.choice(len(content) * 8, min(8, len(content) * 8), replace=False):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield f"bit {place} flipped", bytes(flipped)
    yield "random", rng.bytes(len(content))
    yield "zeros", bytes(len(content))
    for other in (b"[]", b"3", b'"x"', b"null", b"{}", b"[" * 10_000):
        yield f"JSON: {other[:3]!r}", other


def put(path, content):
    """Writes, removes, or makes a folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if content is pathlib.Path:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)


def fuzz(path, read, same=None, every=1):
    """Damages a file in each way; `read()` must complain about it or return what it did before. Returns how often.

    `same(before, found)` tells whether the two are as good as each other, if being equal is too much to ask. With
    `every`, one way in so many is tried; which ones depends on the length of the file.
    """
    before, content, wrong = read(), path.read_bytes(), []
    ways = list(damages(content, np.random.default_rng(len(content))))[len(content) % every :: every]
    for damage, other in ways:
        put(path, other)
        try:
            actual = read()
        except BaseException as error:
            wrong += complaints(error, path, damage)
        else:
            if actual != before and not (same and same(before, actual)):
                wrong.append(f"{damage}: another answer")
        finally:
            put(path, content)
    assert not wrong, f"{path}\n" + "\n".join(wrong)
    return len(ways)


def complaints(error, path, damage):
    """What is wrong with an error: it must be one line that names the file, or its folder, and says what to do."""
    names = [path.name, str(path.parent)] if damage == "missing" else [str(path)]
    said = str(error)
    checks = {
        "another kind of error": isinstance(error, (ValueError, OSError, SystemExit)),
        "several lines": "\n" not in said,
        "no name": any(name in said for name in names),
        "no advice": any(word in said for word in ADVICE),
    }
    return [f"{damage}: {name}: {error!r}" for name, passed in checks.items() if not passed]


def inside(folder, *names):
    """All files of a folder that the package reads; not locks, which are hidden, nor pictures."""
    actual = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    return [file for file in actual if file.suffix != ".png" and "tfevents" not in file.name]


def answer(translator):
    """Everything that a translation depends on."""
    weights = [array(weight).tobytes() for model in translator.models for weight in model.weights]
    return weights, [text.saving.fingerprint(tokenizer) for tokenizer in translator.tokenizers]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


@pytest.fixture(scope="module")
def command(root):
    """The command that trains the run."""
    for name, line in (("source", "ein {} hund"), ("target", "a {} dog")):
        (root / name).write_text("".join(line.format(chr(97 + n % 26)) + "\n" for n in range(60)))
    texts = [f"--{part}{side}={root / side}" for part in ("", "valid_") for side in ("source", "target")]
    options = "--tokenizer char --separate --vocab_size 300 --steps 4 --steps_per_epoch 2 --average 2 --max_length 40"
    options += " --batch_tokens 512 --num_shapes 1 --no-jit_compile --verbose 0"
    sizes = [f"--{name}={value}" for name, value in SIZES.items()]
    return ["train", *texts, *options.split(), *sizes, f"--out={root / 'run'}"]


@pytest.fixture(scope="module")
def run(root, command):
    """A finished run."""
    with eagerly():
        commands.run(command)
    return root / "run"


@pytest.fixture(scope="module")
def unfinished(root, run):
    """A run that was interrupted after its last state."""
    folder = shutil.copytree(run, root / "unfinished")
    (folder / "model.keras").unlink()
    return folder


@pytest.fixture(scope="module")
def saved(root, run):
    Translator.load(run, num_beams=1, max_length=24).save(root / "saved")
    return root / "saved"


@pytest.mark.slow
def test_a_saved_translator(saved):
    assert sum(fuzz(file, lambda: answer(Translator.load(saved))) for file in inside(saved)) > 100


def test_the_result_of_a_run(run):
    def same(before, actual):  # without model.keras, the latest state is taken, and `origin` says so
        return actual[2] and actual[1] == before[1]

    def read():
        translator = Translator.load(run)
        return *answer(translator), translator.origin

    assert fuzz(run / "model.keras", read, same) + fuzz(run / "state.npz", read, same, every=3) > 20


def test_a_run_that_is_not_finished(unfinished):
    names = "state.npz", "config.json", "source_tokenizer/tokenizer.json", "target_tokenizer/sentencepiece.model"

    def same(before, actual):  # without state.npz there is still a checkpoint, and `origin` says so
        return "checkpoint" in actual[2] or "00000004.npz" in actual[2]

    def read():
        translator = Translator.load(unfinished)
        return *answer(translator), translator.origin

    assert sum(fuzz(unfinished / name, read, same) for name in names) > 70


def test_checkpoints(unfinished):
    def read():
        model, what = loading.finish(unfinished, 2)
        weights = [array(weight).tobytes() for weight in model.weights]
        (unfinished / "model.keras").unlink()
        return weights, what

    def same(before, actual):  # the sentence says if a checkpoint is missing
        return "2 were requested" in actual[1]

    names = "checkpoints/00000002.npz", "checkpoints/00000004.npz", "state.npz", "config.json"
    assert sum(fuzz(unfinished / name, read, same) for name in names) > 75


def test_a_result_is_of_the_epoch_that_it_declares(run, root, command):
    """Checkpoints that are missing, or newer than the state, are not mixed up with the others."""
    newest = files.read_arrays(run / "checkpoints/00000004.npz")

    def copy(name, *without):
        folder = shutil.copytree(run, root / name)
        for file in ("model.keras", *without):
            (folder / file).unlink()
        return folder

    model, what = loading.finish(copy("no checkpoint", "checkpoints/00000004.npz"))
    assert what == "state.npz, after step 4 of 4"
    for weight, value in zip(model.weights, newest.values(), strict=True):
        np.testing.assert_array_equal(array(weight), value)
    folder = copy("no state", "state.npz")
    assert loading.load_run(folder)[1].startswith(f"{folder / 'checkpoints/00000004.npz'}, step 4 of 4")
    assert loading.finish(folder)[1] == "00000004.npz, after step 4 of 4"
    folder = copy("begun again", "state.npz")
    shorter = [*command, "--steps=2", "--average=1", f"--out={folder}"]
    with eagerly():
        commands.run(shorter)
    assert [path.name for path in loading.checkpoints(folder)] == ["00000002.npz"]
    expected = files.read_arrays(folder / "checkpoints/00000002.npz")
    for weight, value in zip(loading.load_keras(folder / "model.keras").weights, expected.values(), strict=True):
        np.testing.assert_array_equal(array(weight), value)


def test_states(run, command):
    keras.utils.set_random_seed(3)
    model = loading.load_run(run)[0]
    trainer.compile_model(model, Recipe(learning_rate=0.1, warmup_steps=1, steps=4), machine.current())

    def read():
        for variable in model.weights:
            variable.assign(np.zeros(variable.shape))
        step = runs.TrainingRun(run).restore(model)
        return step, [array(v).tobytes() for v in [*model.weights, *model.optimizer.variables]]

    nothing = lambda before, actual: actual[0] == 0  # noqa: E731, if there is no state
    assert fuzz(run / "state.npz", read, nothing) > 20


def test_token_files(run):
    def read():
        pairs = data.TokenPairs(run / "data/train-0")
        return [x.tobytes() for side in (pairs.sources, pairs.targets) for x in (side.tokens, side.ends)]

    assert sum(fuzz(file, read) for file in inside(run / "data/train-0")) > 100


@pytest.mark.parametrize("name", ["run", "unfinished", "saved"])
def test_info(name, request):
    folder = request.getfixturevalue(name)
    files_of = [file for file in inside(folder) if "data" not in file.parts and file.suffix != ".csv"]
    different = lambda before, actual: True  # noqa: E731, it describes what is there
    assert sum(fuzz(file, lambda: list(artifacts.describe(folder)), different, every=4) for file in files_of) > 25


SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ("saved_model", "onnx")]


@pytest.mark.parametrize("format", ["litert", "ctranslate2", *SLOW])  # `test_runners` damages files of all formats, too
def test_exports(format, saved, root):
    Translator.load(saved, num_beams=1, max_length=24).export(root / format, format)
    assert sum(fuzz(file, lambda: runners.load(root / format)(TEXTS)) for file in inside(root / format)) > 90
    different = lambda before, actual: True  # noqa: E731
    for file in inside(root / format):
        fuzz(file, lambda: list(artifacts.describe(root / format)), different, every=4)


def test_commands_report_damage_in_one_line(run, command):
    """Each file of a run, or one in three, each damaged in another way."""
    pristine = shutil.copytree(run, run.with_name("pristine"))
    before, table = answer(Translator.load(run)), (run / "metrics.csv").read_text()
    rng, said, wrong = np.random.default_rng(0), 0, []
    for number, file in enumerate(inside(run)):
        for argv in (command, [("finish", "info")[number % 2], str(run)]):
            shutil.rmtree(run)
            shutil.copytree(pristine, run)
            kinds = list(damages(file.read_bytes(), rng))
            damage, other = kinds[2 + number % (len(kinds) - 2)]
            put(file, other)
            try:
                with eagerly():
                    commands.run(argv)
            except SystemExit as error:
                wrong += complaints(error, file, f"{argv[0]}, {damage}")
                said += str(error.code).startswith("keras-tfm: error: ")
            else:
                if argv is command and (answer(Translator.load(run)), (run / "metrics.csv").read_text()) != (
                    before,
                    table,
                ):
                    wrong.append(f"{file}, {damage}: another result")
    assert not wrong, "\n".join(wrong)
    assert said > 12
