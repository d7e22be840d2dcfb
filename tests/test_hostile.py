"""Nothing in a file is ever executed, no foreign file is touched, and a full disk or a second run does no harm."""

import base64
import contextlib
import json
import marshal
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import fuzz
import numpy as np
import pytest
import test_marian
import test_marian_archive
from conftest import BACKEND, BYTES, IN_TENSORFLOW, SIZES, array, eagerly, once, spread

from keras_tfm import artifacts, text
from keras_tfm.cli import commands
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError
from keras_tfm.export import runners
from keras_tfm.models import loading, transformer
from keras_tfm.translator import Translator

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.fixture
def sentinel(tmp_path, monkeypatch):
    """A file that appears if hostile code is executed: importing or calling anything of the module `evil` makes it."""
    path = tmp_path / "sentinel"
    (tmp_path / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(path)!r}).touch()\n"
        f"def touch(*_, **__):\n    pathlib.Path({str(path)!r}).touch()\n"
        "class Evil:\n    from_config = __init__ = touch\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    assert not path.exists()
    sys.modules.pop("evil", None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "translator"
    Translator(spread(transformer(BYTES.vocab_size, **SIZES), 0.2), BYTES).save(folder)
    (folder / "translator.json").unlink()  # an attacker can change checksums, too
    return folder


def rewritten(path, change, more=()):
    """Changes the configuration inside a .keras file, and adds files."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    parts["config.json"] = json.dumps(change(config)).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, **dict(more)}.items():
            archive.writestr(name, content)


def hostile_objects(sentinel):
    """Configurations that would run code if they were trusted."""
    code = compile(f"open({str(sentinel)!r}, 'w')", "", "eval")
    function = {"code": base64.b64encode(marshal.dumps(code)).decode(), "defaults": None, "closure": None}
    yield {"class_name": "__lambda__", "config": function}
    yield {"module": "evil", "class_name": "function", "config": "touch", "registered_name": "touch"}
    yield {"module": "evil", "class_name": "Evil", "config": {}, "registered_name": None}
    yield {"module": "os", "class_name": "system", "config": {"command": f"touch {sentinel}"}, "registered_name": None}
    yield {"module": "os", "class_name": "function", "config": "system", "registered_name": "system"}


@once
def test_a_model_of_foreign_classes_is_refused(saved, sentinel, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    path, whole = folder / "model.keras", (saved / "model.keras").read_bytes()
    for hostile in hostile_objects(sentinel):
        layer = {"class_name": "Lambda", "module": "keras.layers", "registered_name": None}
        layer["config"] = {"function": hostile, "name": "f"}
        stack = {"class_name": "Sequential", "module": "keras", "registered_name": None}
        stack["config"] = {"name": "s", "layers": [layer]}
        changes = [
            lambda config, hostile=hostile: hostile,
            lambda config, stack=stack: stack,
            lambda config, hostile=hostile: {**config, "config": config["config"] | {"activation": hostile}},
            lambda config, hostile=hostile: {**config, "config": config["config"] | {"kernel_initializer": hostile}},
            lambda config, hostile=hostile: {**config, "config": config["config"] | {"builder": hostile}},
            lambda config, layer=layer: {**config, "config": config["config"] | {"source_embedding": layer}},
            lambda config, hostile=hostile: {**config, "config": config["config"] | {"name": hostile}},
        ]
        for change in changes:
            path.write_bytes(whole)
            rewritten(path, change)
            with pytest.raises(files.DamagedFile, match="model.keras: damaged, or not the right kind of file"):
                Translator.load(folder)
            with contextlib.suppress(ValueError):
                list(artifacts.describe(folder))
            assert not sentinel.exists()


@once
@pytest.mark.filterwarnings("ignore:Skipping invalid path during archive extraction")
def test_how_a_model_was_compiled_does_not_matter(saved, sentinel, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    expected = Translator.load(saved).models[0].get_weights()
    for hostile in hostile_objects(sentinel):
        compiled = {"optimizer": hostile, "loss": hostile, "metrics": [hostile]}
        slip = {"../../sentinel": b"", str(sentinel): b"", "assets/../../../sentinel": b""}
        change = lambda config, compiled=compiled: {**config, "compile_config": compiled}  # noqa: E731
        rewritten(folder / "model.keras", change, slip)
        actual = Translator.load(folder).models[0].get_weights()
        assert all(map(np.array_equal, actual, expected)) and not sentinel.exists()


@once
def test_the_configuration_of_a_run_is_plain(saved, sentinel, tmp_path):
    config = {"model": transformer(BYTES.vocab_size, **SIZES).get_config(), "options": {}, "texts": None, "steps": 1}
    config |= {"tokenizers": [], "steps_per_epoch": 1, "average": 1}
    run = shutil.copytree(saved, tmp_path / "run")
    (run / "model.keras").unlink()
    (run / "checkpoints").mkdir()
    np.savez(run / "checkpoints/1.npz", np.zeros(10**6))
    for hostile in hostile_objects(sentinel):
        for name in ("activation", "kernel_initializer", "source_embedding", "builder", "name"):
            files.write_json(run / "config.json", config | {"model": config["model"] | {name: hostile}})
            for read in (Translator.load, loading.finish):
                with pytest.raises(ValueError, match="config.json"):
                    read(run)
                assert not sentinel.exists()


@once
def test_nothing_is_unpickled(saved, sentinel, tmp_path):
    run, evil = shutil.copytree(saved, tmp_path / "run"), np.array([Payload(sentinel)], dtype=object)
    files.write_json(run / "config.json", {"options": {}, "model": transformer(260, **SIZES).get_config(), "steps": 1})
    np.savez(run / "in.npz", **{"state": evil, "weights/0": evil})
    np.save(run / "plain.npy", evil, allow_pickle=True)
    for name in ("in.npz", "plain.npy"):
        shutil.copy(run / name, run / "state.npz")
        model = transformer(260, **SIZES)
        for read in (loading.saved_step, Translator.load, lambda folder: list(artifacts.describe(folder))):
            with pytest.raises(files.DamagedFile, match="state.npz"):
                read(run)
        with pytest.raises(files.DamagedFile, match=name):
            loading.average_checkpoints(model, [run / name])
        assert not sentinel.exists()


@once
@pytest.mark.parametrize("name", ["evil.Evil", "os.system", "Payload", "../../sentinel", "Path", "fingerprint"])
def test_a_tokenizer_of_a_foreign_class_is_refused(name, sentinel, tmp_path):
    files.write_json(tmp_path / "tokenizer.json", {"class": name, "files": {}})
    with pytest.raises(UserError, match="tokenizer.json.*`class` must be"):
        text.load_tokenizer(tmp_path)


# ── sizes ──


@pytest.mark.slow
@once
def test_a_hostile_file_takes_neither_much_time_nor_memory(saved, texts, tmp_path):
    """Files that ask for more than any machine has: those of `fuzz.NAMED`, and 300 random ones."""
    shutil.copytree(saved, tmp_path / "saved")
    with eagerly():
        commands.run(command(texts, tmp_path / "run"))
    (tmp_path / "run/model.keras").unlink()
    shutil.move(tmp_path / "run/data/train-0", tmp_path / "tokens")
    for name in ("data", "tensorboard"):
        shutil.rmtree(tmp_path / "run" / name)
    test_marian.write(tmp_path / "marian")
    test_marian_archive.write_archive(tmp_path / "archive")
    Translator.load(saved, num_beams=2, max_length=24).export(tmp_path / "export", "ctranslate2")
    program = [sys.executable, pathlib.Path(__file__).with_name("fuzz.py"), tmp_path, "0", "300"]
    run = subprocess.run(program, capture_output=True, text=True)
    actual = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0 and len(actual) == len(fuzz.NAMED) + 300, run.stderr
    slow = [case for case in actual if case["seconds"] > 10 or case["megabytes"] > 200]
    odd = [case for case in actual for expected, _, said in case["errors"] if not expected or "\n" in said]
    assert not slow and not odd, (slow, odd)
    assert all(case["errors"] for case in actual[: len(fuzz.NAMED)]), actual


# ── foreign files ──


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "pairs.tsv"
    path.write_text("".join(f"ein {chr(97 + n % 26)} hund\ta {chr(97 + n % 26)} dog\n" for n in range(60)))
    return path


def command(texts, out):
    options = "--tokenizer char --vocab_size 300 --steps 4 --steps_per_epoch 2 --average 2 --max_length 40 --verbose 0"
    options += " --batch_tokens 512 --num_shapes 1"
    options += " --jit_compile" if BACKEND == "jax" else " --no-jit_compile"
    sizes = [f"--{name}={value}" for name, value in SIZES.items()]
    return ["train", f"--source={texts}", f"--out={out}", *options.split(), *sizes]


@once
def test_links_planted_in_a_run_are_not_followed(texts, tmp_path):
    """The files of a run, and their temporary folders, are links to files and folders of someone else."""
    run, foreign = tmp_path / "run", tmp_path / "foreign"
    foreign.mkdir()
    names = "config.json state.npz metrics.csv model.keras learning_curve.png checkpoints/00000002.npz"
    names += " data/tokenizers.json data/train-0/meta.json data/train-0/source.tokens"
    for number, name in enumerate(names.split()):
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (foreign / f"{number}").write_text("of someone else")
        (foreign / f"{number}.d").mkdir()
        (foreign / f"{number}.d/new{path.suffix}").write_text("of someone else")
        if "json" not in name and "state" not in name:  # those are read
            path.symlink_to(foreign / f"{number}")
        path.with_name(f".{path.name}.unfinished").symlink_to(foreign / f"{number}.d")
    before = {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()}
    with eagerly():
        commands.run(command(texts, run))
    assert {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()} == before
    assert not [path for path in run.rglob("*") if path.is_symlink()]


@once
def test_links_planted_for_a_lock_or_translations_are_not_followed(saved, texts, tmp_path, one_width, monkeypatch):
    foreign, run = tmp_path / "foreign", tmp_path / "run"
    foreign.write_text("of someone else")
    run.mkdir()
    (run / ".lock").symlink_to(foreign)
    with pytest.raises(SystemExit, match=r"\.lock"):
        commands.run(command(texts, run))
    (tmp_path / "in").write_text("a\n")
    argv = ["translate", str(saved), str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--max_length", "16"]
    with monkeypatch.context() as patch:  # leaves the files from which the same command resumes
        patch.setattr(Translator, "stream", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            commands.run(argv)
    (partial,) = tmp_path.glob(".out.*.partial")
    for path in (partial, tmp_path / "out"):
        path.unlink(missing_ok=True)
        path.symlink_to(foreign)
    commands.run([*argv, "--overwrite"])
    assert foreign.read_text() == "of someone else" and not (tmp_path / "out").is_symlink()


@once
def test_the_second_run_in_a_folder_is_refused(texts, tmp_path):
    with files.locked(tmp_path / "run"):
        before = sorted((tmp_path / "run").iterdir())
        with pytest.raises(SystemExit, match="error: .*run: another process is using this folder; wait for it, or"):
            commands.run(command(texts, tmp_path / "run"))
        assert sorted((tmp_path / "run").iterdir()) == before


# ── full disks ──


@pytest.fixture
def disk(tmp_path):
    """A disk of 2 MB, and a function that fills it up to some free bytes."""
    if os.geteuid():
        pytest.skip("mounting a small disk takes root")
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")

    def leave(free):
        (place / "filler").unlink(missing_ok=True)
        size = shutil.disk_usage(place).free - free
        (place / "filler").write_bytes(bytes(max(size, 0)))

    yield place, leave
    subprocess.run(["umount", "-l", place], check=True)  # TensorBoard may still hold a file


def weights(folder):
    return [array(weight) for weight in loading.load_keras(folder / "model.keras").weights]


@pytest.mark.skipif(BACKEND != "jax", reason="the same files are written on each backend; JAX starts quicker")
def test_training_on_a_full_disk_resumes_once_there_is_space(texts, disk, tmp_path):
    """The error names the file that does not fit, and nothing that was there before is lost."""
    place, leave = disk
    run, named = place / "run", []

    def full(kilobytes):
        leave(kilobytes * 1024)
        before = loading.saved_step(run)
        message = (
            r"keras-tfm: error: ([^\n]*): No space left on device; what was written before is intact: free some space"
        )
        with pytest.raises(SystemExit, match=message) as error:
            commands.run(command(texts, run))
        assert loading.saved_step(run) >= before
        named.append(re.match(message, error.value.code)[1].removeprefix(f"{run}/"))

    for kilobytes in (0, 16, 24, 32, 100, 160):
        full(kilobytes)
    leave(2**21)
    commands.run(command(texts, run))
    expected = weights(run)
    for kilobytes in (0, 20):  # a finished run writes its configuration and model again
        full(kilobytes)
        assert all(map(np.array_equal, weights(run), expected))
    assert {"tokenizer", "checkpoints/00000002.npz", "state.npz", "config.json", "model.keras"} <= set(named), named
    commands.run(command(texts, tmp_path / "whole"))
    assert all(map(np.array_equal, weights(tmp_path / "whole"), expected))


@once
def test_training_on_a_read_only_disk_is_an_error_of_one_line(texts, disk):
    (disk[0] / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", disk[0]], check=True)
    with pytest.raises(SystemExit, match=r"^keras-tfm: error: [^\n]*run/.lock: Read-only file system$"):
        commands.run(command(texts, disk[0] / "run"))


SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ("litert", "onnx")]


@IN_TENSORFLOW
@pytest.mark.parametrize("format", ["ctranslate2", "saved_model", *SLOW])
def test_an_export_to_a_full_disk_leaves_the_earlier_one(format, saved, disk):
    place, leave = disk
    translator = Translator.load(saved, num_beams=1, max_length=24)
    translator.export(place / "out", "ctranslate2")
    before = runners.load(place / "out")(["a dog"])
    leave(40_000)
    with pytest.raises(OSError, match=f"No space left on device: '{place / 'out'}'"):
        translator.export(place / "out", format)
    assert runners.load(place / "out")(["a dog"]) == before
    assert sorted(path.name for path in place.iterdir()) == ["filler", "out"]


@once
def test_translating_to_a_full_disk_resumes_once_there_is_space(saved, disk, tmp_path, one_width, monkeypatch, capsys):
    place, leave = disk
    monkeypatch.setattr("keras_tfm.cli.translate.CHUNK", 64)
    (tmp_path / "in").write_text("".join(f"{number} dogs\n" for number in range(400)))
    argv = ["translate", str(saved), str(tmp_path / "in"), "--max_length", "32", "--num_beams", "1", "--out"]
    commands.run([*argv, str(tmp_path / "whole")])
    leave(8192)
    with pytest.raises(SystemExit, match=f"error: {place / 'out'}: No space left on device; what was written"):
        commands.run([*argv, str(place / "out")])
    assert not (place / "out").exists()
    leave(2**21)
    commands.run([*argv, str(place / "out")])
    assert re.search(r"resuming after line [1-9]", capsys.readouterr().err)
    assert (place / "out").read_bytes() == (tmp_path / "whole").read_bytes()
