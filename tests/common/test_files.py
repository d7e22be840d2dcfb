import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from conftest import once

from keras_tfm.common import files

pytestmark = once


def test_an_error_or_a_kill_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("first")
    with pytest.raises(KeyError), files.atomic_write(path) as new:
        new.write_text("second")
        raise KeyError
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]
    program = f"import os; from keras_tfm.common import files\nwith files.atomic_write({str(path)!r}) as new:\n"
    program += "    new.write_text('third'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    assert path.read_text() == "first"
    files.write_json(path, {"a": 1})  # what the killed process left behind does not matter
    assert files.read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_renames_loses_neither_folder(renames, tmp_path):
    """Killed before, between and after the two renames that replace a folder: the old or the new one is there."""
    path = tmp_path / "folder"
    path.mkdir()
    (path / "content").write_text("old")
    program = f"""
import os
from keras_tfm.common import files
replace, left = os.replace, [{renames}]
def killed(*paths):
    if not left[0]:
        os._exit(9)
    left[0] -= 1
    replace(*paths)
os.replace = killed
files._sync = lambda path: None
with files.atomic_write({str(path)!r}) as new:
    new.mkdir()
    (new / "content").write_text("new")
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    files.recover_replace(path)
    assert (path / "content").read_text() == ("old" if renames == 0 else "new")


def test_a_rename_that_fails_puts_the_old_folder_back(tmp_path, monkeypatch):
    path, replace = tmp_path / "folder", os.replace
    path.mkdir()
    (path / "content").write_text("old")

    def fails(source, target):
        if target == path and source.name == "new":
            raise OSError(5, "input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError), files.atomic_write(path) as new:
        new.mkdir()
    assert (path / "content").read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_may_be_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.recover_replace(".")
    files.NewFolder(".", {"main"}, {"main"})


def test_links_are_not_followed(tmp_path):
    foreign = tmp_path / "foreign"
    for name in ("state.npz", ".state.npz.unfinished"):
        foreign.write_text("of someone else")
        run = tmp_path / name.strip(".")
        run.mkdir()
        (run / name).symlink_to(foreign)
        files.write_arrays(run / "state.npz", {"a": np.ones(3)})
        assert foreign.read_text() == "of someone else"
        assert not (run / "state.npz").is_symlink() and files.read_arrays(run / "state.npz")["a"].sum() == 3
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(foreign)
    with pytest.raises(OSError), files.locked(tmp_path / "run"):
        pass


def test_a_folder_is_locked_by_one_process_until_it_ends(tmp_path):
    program = f"""
import os
from keras_tfm.common import files
with files.locked({str(tmp_path)!r}):
    print("held", flush=True)
    input()
"""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **options) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process is using this folder"), files.locked(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with files.locked(tmp_path):
            pass


def test_of_two_writers_the_second_is_refused(tmp_path):
    folder = tmp_path / "folder"
    with files.atomic_write(folder) as new:
        new.mkdir()
        (new / "file").write_text("of the first")
        with pytest.raises(ValueError, match="another process is using this folder"), files.atomic_write(folder):
            pass
    assert (folder / "file").read_text() == "of the first" and [*tmp_path.iterdir()] == [folder]


def test_any_byte_of_a_json_file_matters(tmp_path):
    path = tmp_path / "settings.json"
    content = {"max_length": 64, "name": "é", "files": {"a": "b"}}
    files.write_json(path, content)
    written = path.read_bytes()
    assert files.read_json(path) == content
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 2]) + written[place + 1 :])
        try:
            actual = files.read_json(path)
        except files.DamagedFile as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # the change was in white space, or in the name of the checksum
            actual.pop("ahecksum", None), [actual.pop(name) for name in [*actual] if name not in content]
            assert actual == content


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"null", b"{", b"\xff", b"[" * 100_000, b'{"checksum": 3}'])
def test_what_is_no_json_object_is_damaged(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(files.DamagedFile, match="damaged, or not the right kind"):
        files.read_json(tmp_path / "file")
    (tmp_path / "file").write_text(json.dumps({"other": 1}))
    with pytest.raises(files.DamagedFile, match="has no name"):
        files.read_json(tmp_path / "file", ["name"])


def test_any_bit_of_an_array_matters(tmp_path):
    path, rng = tmp_path / "arrays.npz", np.random.default_rng(0)
    arrays = {"a": rng.normal(size=50).astype("float32"), "b": np.array("text")}
    files.write_arrays(path, arrays)
    written = path.read_bytes()
    seen = set()
    for place in [*rng.choice(len(written) * 8, 300, replace=False)]:
        damaged = bytearray(written)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            actual = files.read_arrays(path)
        except files.DamagedFile:
            seen.add("damaged")
        else:  # the change was in a date or another unused field of the archive
            assert actual.keys() <= arrays.keys() and all((actual[name] == arrays[name]).all() for name in actual)
    assert seen
    for length in range(0, len(written), 97):
        path.write_bytes(written[:length])
        with pytest.raises(files.DamagedFile):
            files.read_arrays(path)


def test_a_missing_package_is_no_damage(tmp_path):
    for error, expected in ((ImportError("pip install x"), ImportError), (ImportError("x"), files.DamagedFile)):
        with pytest.raises(expected), files.reading(tmp_path):
            raise error


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    os.replace(tmp_path / "evil.npy", tmp_path / "evil.npz")
    np.savez(tmp_path / "inside.npz", a=np.array([{"a": 1}], dtype=object))
    for name in ("evil.npz", "inside.npz"):
        with pytest.raises(files.DamagedFile):
            files.read_arrays(tmp_path / name)


def test_a_manifest_notices_every_file(tmp_path):
    for name in ("model.bin", "tokenizer/words"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    files.write_manifest(tmp_path, "manifest.json", max_length=64)
    assert files.read_manifest(tmp_path, "manifest.json") == {"max_length": 64}
    (tmp_path / "tokenizer/words").write_bytes(b"kontent")
    with pytest.raises(files.DamagedFile, match="tokenizer/words.*checksum"):
        files.read_manifest(tmp_path, "manifest.json")
    (tmp_path / "tokenizer/words").unlink()
    with pytest.raises(files.DamagedFile, match="tokenizer/words.*is missing"):
        files.read_manifest(tmp_path, "manifest.json")


def test_an_archive_holds_no_more_than_suits_its_size(tmp_path):
    path = tmp_path / "bomb.npz"

    def refused(reason):
        for read in (files.read_arrays, files.check_zip, files.size_of_arrays):
            with pytest.raises(files.DamagedFile, match=f"bomb.npz: damaged.*{reason}"):
                read(path)

    np.savez_compressed(path, a=np.zeros(2**22))  # 32 MB
    assert path.stat().st_size < 2**16
    refused("bytes would become 33,554,")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", b"a")
    refused("compressed in a way that is not supported")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", bytes(2**17))
        archive.filelist.extend(archive.filelist * 9)  # ten names for the same bytes
    refused("bytes would become")
    np.savez_compressed(path, a=np.random.default_rng(0).integers(0, 9, 2**20))  # which hardly holds more than it takes
    assert files.read_arrays(path)["a"].shape == (2**20,)


@pytest.mark.parametrize("shape, dtype", [((10**12,), "<f4"), ((2**32, 2**32), "<f4"), ((-1,), "<f4"), ((3,), "|O")])
def test_an_array_has_the_size_that_it_declares(shape, dtype, tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "arrays.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(24))
    with pytest.raises(files.DamagedFile, match="a.npy in it is not the array that it declares"):
        files.read_arrays(tmp_path / "arrays.npz")


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "translator.json"
    os.mkfifo(path)
    for read in (files.read_json, files.read_arrays, files.check_zip, files.checksum, files.read_bytes):
        with pytest.raises(files.DamagedFile, match="translator.json: .*is not a regular file"):
            read(path)
    files.write_json(tmp_path / "settings.json", {"files": {}})
    with pytest.raises(files.DamagedFile, match="translator.json: .*is not a regular file"):
        files.read_manifest(tmp_path, "settings.json")


def test_a_json_file_may_not_be_huge(tmp_path):
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(files.MAX_JSON_BYTES + 1)
    with pytest.raises(files.DamagedFile, match="has 16,777,217 bytes, and may have 16,777,216"):
        files.read_json(tmp_path / "huge.json")
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(files.MAX_JSON_BYTES + 1))
        archive.writestr("other", os.urandom(2**20), zipfile.ZIP_STORED)
    with pytest.raises(files.DamagedFile, match="a .json file in it has more than 16,777,216 bytes"):
        files.check_zip(tmp_path / "model.keras")


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/full"), reason="mounting a small disk takes root")
def test_a_read_only_disk_is_not_reported_as_full(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        files.write_json(tmp_path / "state.json", {"a": 1})
        with pytest.raises(OSError), open(tmp_path / "filler", "wb") as file:
            file.write(bytes(2**17))
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        for write in (files.write_json, files.write_arrays):
            with pytest.raises(OSError, match=r"Read-only file system: '.*state.json'"):
                write(tmp_path / "state.json", {"a": 2})
        assert files.read_json(tmp_path / "state.json") == {"a": 1}
    finally:
        subprocess.run(["umount", tmp_path])


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/full"), reason="mounting a small disk takes root")
def test_a_full_disk_is_named_and_the_earlier_file_stays(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        files.write_arrays(tmp_path / "state.npz", {"a": np.zeros(1000)})
        with pytest.raises(OSError, match=r"No space left on device: '.*state.npz'"):
            files.write_arrays(tmp_path / "state.npz", {"a": np.zeros(10**6)})
        assert files.read_arrays(tmp_path / "state.npz")["a"].shape == (1000,)
        assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]
    finally:
        subprocess.run(["umount", tmp_path])
