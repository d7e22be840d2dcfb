"""Reads hostile files, one after the other; `test_hostile.py` runs it in a process of its own.

python tests/fuzz.py FOLDER FIRST LAST      named cases, then the random cases FIRST … LAST - 1, a line of JSON for each

The folder holds pristine folders by kind: saved, run, tokens, marian, archive, export. An attacker can change checksums
too, so there are none.
"""

import io
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
import zipfile

import numpy as np

from keras_tfm import artifacts, data
from keras_tfm.common import files
from keras_tfm.data import BucketedBatches, token_files
from keras_tfm.export import runners
from keras_tfm.models import loading
from keras_tfm.translator import Translator

SECONDS, BOMB = 300, 2**28  # until a case is given up, bytes of zeros in an archive
NUMBERS = 10**9, 2 * 10**9, 2**31, 2**63, 10**30, -1, 0, 1e308, 3.5, 65_537
OTHERS = None, True, "x", "x" * 10_000, [], {}, [[]] * 1000, {"class_name": "Dense", "module": "keras.layers"}

READERS = {
    "saved": [Translator.load, lambda folder: list(artifacts.describe(folder))],
    "run": [Translator.load, loading.finish, lambda folder: list(artifacts.describe(folder))],
    "tokens": [lambda folder: BucketedBatches(data.TokenPairs(folder), batch_tokens=64, num_shapes=2)[0]],
    "marian": [Translator.from_marian],
    "archive": [Translator.from_marian],
    "export": [lambda folder: runners.load(folder)(["a dog"]), lambda folder: list(artifacts.describe(folder))],
}


# ── ways to change a file ──


def leaves(value, path=()):
    """Paths of all values in JSON that hold no others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    actual = [leaf for key, part in inner for leaf in leaves(part, (*path, key))]
    return actual or [path]


def replaced(value, path, new):
    """Sets the value at a path in JSON."""
    if not path:
        return new
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


def change_json(path, change):
    """Changes JSON: a file, or config.json inside a .keras file."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        parts["config.json"] = json.dumps(change(json.loads(parts["config.json"]))).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
    else:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))


def other_value(path, rng):
    def change(content):
        actual = leaves(content)
        values = NUMBERS if rng.random() < 0.7 else OTHERS
        return replaced(content, actual[rng.integers(len(actual))], values[rng.integers(len(values))])

    if path.suffix in (".json", ".keras"):
        change_json(path, change)
    else:
        flipped(path, rng)


def pipe(path, rng=None):
    path.unlink()
    os.mkfifo(path)


def flipped(path, rng):
    content = bytearray(path.read_bytes())
    for place in rng.integers(max(len(content), 1), size=rng.integers(1, 9)):
        if content:
            content[place] = rng.integers(256)
    path.write_bytes(content)


def cut(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: rng.integers(len(content) + 1)])


def bomb(path, rng=None):
    """Adds a file of zeros to an archive, or makes one."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (BOMB,)})
    add_huge(path, "a", "bomb.npy", header.getvalue(), bytes(BOMB // 16))


def add_huge(path, mode, name, begin, part):
    """Writes a file into an archive that is sixteen times a part of it."""
    with (
        zipfile.ZipFile(path, mode, zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w", force_zip64=True) as file,
    ):
        file.write(begin)
        for _ in range(16):
            file.write(part)


def huge_array(path, rng=None):
    """Declares an array that is not there, in an archive or instead of the file."""
    header = io.BytesIO()
    shape = (10**9, 10**3) if rng is None or rng.random() < 0.5 else (10**9,)
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    if path.suffix in (".npz", ".keras"):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{len(archive.namelist())}.npy", header.getvalue() + bytes(64))
    else:
        path.write_bytes(header.getvalue())


WAYS = {way.__name__: way for way in (other_value, pipe, flipped, cut, bomb, huge_array)}
WEIGHTS = 0.55, 0.08, 0.15, 0.08, 0.04, 0.1


def without_checksums(folder):
    """Removes checksums from a folder, except those of token files, which are checked in any case."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text())
        if not isinstance(content, dict):  # a vocabulary
            continue
        content.pop("checksum", None)
        if path.name in ("translator.json", "tokenizer.json"):
            content["files"] = {}
        path.write_text(json.dumps(content))


def with_right_checksums(folder, name):
    """Writes the checksum of a token file that was changed."""
    if name in token_files.FILES and (folder / name).is_file():
        meta = json.loads((folder / "meta.json").read_text())
        meta["files"][name] = files.checksum(folder / name)
        (folder / "meta.json").write_text(json.dumps(meta))


# ── cases ──


def set_json(**changes):
    return lambda path: change_json(path, lambda content: content | changes)


def set_model(**changes):
    """Changes arguments of a model in a .keras file, or in config.json of a run."""

    def change(content):
        key = "config" if "config" in content else "model"
        return content | {key: content[key] | changes}

    return lambda path: change_json(path, change)


def huge_config(path):
    add_huge(path, "w", "config.json", b"[", b"0," * (BOMB // 32))


def add_line(text):
    return lambda path: path.write_text(path.read_text() + text)


# Name → kind, file and how it is changed.
NAMED = {
    "dtype of pointers": ("tokens", "meta.json", set_json(dtype="O")),
    "huge config": ("saved", "model.keras", huge_config),
    "huge archive": ("run", "state.npz", bomb),
    "huge checkpoint": ("run", "checkpoints/00000004.npz", bomb),
    "layers of a model": ("saved", "model.keras", set_model(num_layers=10**9)),
    "layers of a run": ("run", "config.json", set_model(num_layers=10**9)),
    "width of a model": ("saved", "model.keras", set_model(model_dim=2**20, ff_dim=2**20)),
    "layers of Marian": ("marian", "config.json", set_json(encoder_layers=10**9)),
    "id": ("archive", "opus.vocab.yml", add_line("more: 2000000000\n")),
    "size of a vocabulary": ("marian", "config.json", set_json(vocab_size=2 * 10**9, decoder_vocab_size=2 * 10**9)),
    "num_beams": ("export", "translator.json", set_json(num_beams=10**9)),
    "shortest": ("export", "translator.json", set_json(min_length=10**9)),
    "beams of Marian": ("marian", "generation_config.json", set_json(num_beams=10**9)),
    "pipe as settings": ("export", "translator.json", pipe),
    "pipe as a model": ("saved", "model.keras", pipe),
    "pipe as weights": ("marian", "model.safetensors", pipe),
    "pipe as a vocabulary": ("archive", "opus.vocab.yml", pipe),
}


def random_case(number, base):
    """Kind, file and way of a random case; the number decides."""
    rng = np.random.default_rng(number)
    kind = sorted(READERS)[rng.integers(len(READERS))]
    # what CTranslate2 reads by itself is left out: the checksums protect it from damage, not from an attack
    paths = sorted(path for path in (base / kind).rglob("*") if path.is_file() and path.name != "model.bin")
    path = paths[rng.integers(len(paths))].relative_to(base / kind)
    way = rng.choice([*WAYS], p=WEIGHTS)
    if way == "bomb" and path.suffix not in (".npz", ".keras"):
        way = "other_value"
    return kind, str(path), way, rng


def peak():
    """The most memory that this process has taken, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(folder, readers):
    """Time in seconds and memory in MB that it takes to read a folder, and the errors."""
    memory, start, errors = peak(), time.process_time(), []
    for read in readers:
        signal.alarm(SECONDS)
        try:
            read(folder)
        except Exception as error:
            errors.append([isinstance(error, (ValueError, OSError)), type(error).__name__, str(error)])
        finally:
            signal.alarm(0)
    return {"seconds": time.process_time() - start, "megabytes": peak() - memory, "errors": errors}


def fresh(base, kind):
    """A copy of a pristine folder, always at the same place."""
    shutil.rmtree(base / "work", ignore_errors=True)
    return shutil.copytree(base / kind, base / "work")


def give_up(number, frame):
    raise RuntimeError("gave up")


def main(folder, first, last):
    signal.signal(signal.SIGALRM, give_up)
    base = pathlib.Path(folder)
    for kind, readers in READERS.items():
        without_checksums(base / kind)
        actual = measured(fresh(base, kind), readers)  # which imports and warms up whatever there is
        assert not actual["errors"], (kind, actual)
    cases = [(name, kind, file, change) for name, (kind, file, change) in NAMED.items()]
    for number in range(int(first), int(last)):
        kind, file, way, rng = random_case(number, base)
        cases.append((f"{number}: {way}", kind, file, lambda path, way=way, rng=rng: WAYS[way](path, rng)))
    for name, kind, file, change in cases:
        work = fresh(base, kind)
        change(work / file)
        with_right_checksums(work, file)
        print(json.dumps({"case": name, "file": f"{kind}/{file}", **measured(work, READERS[kind])}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
