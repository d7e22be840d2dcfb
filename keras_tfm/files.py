"""Files that are written whole or not at all, and that say so when they are damaged."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import zipfile

import numpy as np

DATES = pathlib.Path(__file__).parent / "shipped" / "dates"  # a translator of dates that comes with the package
RESTORE = "restore it from a copy, or make it again"


class DamagedFile(ValueError):
    """A file that is not what was written there; the message names the file, the reason and what to do."""

    def __init__(self, path, reason, remedy=RESTORE):
        reason = str(reason).strip().splitlines()[0][:200] if str(reason).strip() else type(reason).__name__
        super().__init__(f"{path}: damaged, or not the right kind of file ({reason}); {remedy}")


@contextlib.contextmanager
def whole(path):
    """A new path to write a file or a folder to; it takes the place of `path` when the block ends without an error.

    The new path lies in a private folder beside `path`, which one writer holds at a time. A process that is killed
    leaves the earlier file or folder where it was, or, between the two renames that replace a folder, a complete new
    one that `settle` puts in place.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "words"
    >>> with whole(path) as new:
    ...     _ = new.write_text("all of them")
    >>> path.read_text()
    'all of them'
    """
    path = pathlib.Path(path)
    settle(path)
    private, new = _private(path), _new(path)
    if private.is_symlink() or not private.is_dir():
        private.unlink(missing_ok=True)  # a link is removed, not followed
    with writing(path), locked(private):
        try:
            for rest in (new, private / ".old"):  # of a process that was killed
                _remove(rest)
            yield new
            for file in (new, *new.rglob("*")) if new.is_dir() else (new,):
                if file.is_file():
                    _sync(file)
            if path.is_dir() and not path.is_symlink():
                os.replace(path, private / ".old")
            os.replace(new, path)
            _sync(path.parent)
        finally:
            if (private / ".old").is_dir() and not path.exists():
                os.replace(private / ".old", path)
            _remove(private)


@contextlib.contextmanager
def writing(path):
    """Whatever a library raises when the disk is full, the error says so and names `path`."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        full = full or os.strerror(errno.ENOSPC) in str(error)  # TensorFlow has errors of its own
        if full or shutil.disk_usage(_existing(pathlib.Path(path).parent)).free < 2**12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def settle(path):
    """Finishes replacing a folder, if the process that wrote it was killed between the two renames."""
    path = pathlib.Path(path)
    private = _private(path)
    if not path.exists() and (private / ".old").is_dir() and _new(path).is_dir():
        os.replace(_new(path), path)
        _remove(private)


def write_json(path, content):
    """Writes a dict as JSON with a checksum, whole or not at all."""
    with whole(path) as new:
        new.write_text(json.dumps({**content, "checksum": _digest(content)}, indent=1) + "\n")


def read_json(path, required=(), remedy=RESTORE):
    """The dict that `write_json` wrote; files without a checksum are taken as they are."""
    path = pathlib.Path(path)
    with reading(path, remedy):
        content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise DamagedFile(path, "must be a JSON object", remedy)
    checksum = content.pop("checksum", None)
    if checksum is not None and checksum != _digest(content):
        raise DamagedFile(path, "its checksum does not match its content", remedy)
    missing = [name for name in required if name not in content]
    if missing:
        raise DamagedFile(path, f"has no {', '.join(missing)}", remedy)
    return content


def write_manifest(folder, name="translator.json", /, **settings):
    """Writes settings and a checksum of every other file of the folder."""
    folder = pathlib.Path(folder)
    files = {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / name, {**settings, "files": files})


def read_manifest(folder, name="translator.json", required=()):
    """The settings that `write_manifest` wrote, after a look at every file's checksum."""
    folder = pathlib.Path(folder)
    settings = read_json(folder / name, required)
    files = settings.pop("files", {})
    for name, expected in files.items() if isinstance(files, dict) else ():
        check(folder / name, expected)
    return settings


def check(path, expected, remedy=RESTORE):
    """Raises an error unless the file's checksum is the expected one."""
    if not path.is_file():
        raise DamagedFile(path, "is missing", remedy)
    if checksum(path) != expected:
        raise DamagedFile(path, "its checksum does not match", remedy)


def checksum(path):
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_arrays(path, arrays):
    """Writes a dict of NumPy arrays as an .npz file, whole or not at all."""
    with whole(path) as new, open(new, "xb") as file:
        np.savez(file, **arrays)


def read_arrays(path, remedy=RESTORE):
    """The dict of arrays that `write_arrays` wrote."""
    check_zip(path, remedy)
    with reading(path, remedy), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check_zip(path, remedy=RESTORE):
    """Raises an error unless every part of a .keras or .npz file has its checksum."""
    with reading(path, remedy), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise DamagedFile(path, f"the checksum of {damaged} in it does not match", remedy)


@contextlib.contextmanager
def reading(path, remedy=RESTORE):
    """Whatever goes wrong inside, but for a file that is not there or not ours to read, is a `DamagedFile`."""
    try:
        yield
    except (PermissionError, DamagedFile):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or path}: is missing; {remedy}") from error
    except Exception as error:  # parsers of damaged files raise nearly everything
        if isinstance(error, ImportError) and "pip install" in str(error):  # nothing is wrong with the file
            raise
        raise DamagedFile(path, error, remedy) from error


@contextlib.contextmanager
def locked(folder):
    """Holds a folder for this process; another one gets an error. A process that dies lets go of it."""
    import fcntl  # not on Windows

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ValueError(f"{folder}: another process is using this folder; wait for it, or choose another") from error
    try:
        yield
    finally:
        os.close(file)


class NewFolder:
    """Context manager: a new folder, which takes the place of `folder` if all goes well.

    Args:
        folder: must be missing, empty, or hold nothing but what an earlier `NewFolder` of these names wrote.
        main: names of which an earlier one has at least one.
        own: all names that it may have.
    """

    def __init__(self, folder, main, own):
        self.folder = pathlib.Path(folder)
        settle(self.folder)
        if self.folder.is_symlink() or self.folder.exists() and not self.folder.is_dir():
            what = "a link" if self.folder.is_symlink() else "a file"
            raise ValueError(f"`folder` must be new, empty or an earlier export. Received: {self.folder}, {what}")
        files = {file.name for file in self.folder.iterdir()} if self.folder.exists() else set()
        others = files - own if files & main else files  # which nobody must lose
        if others:
            raise ValueError(
                "`folder` must be new, empty or an earlier export. "
                f"Received: {self.folder}, with {', '.join(sorted(others))}"
            )

    def __enter__(self):
        self.context = whole(self.folder)
        new = self.context.__enter__()
        new.mkdir()
        return new

    def __exit__(self, *error):
        return self.context.__exit__(*error)


def _private(path):
    path = pathlib.Path(os.path.abspath(path))  # "." has no name
    return path.with_name(f".{path.name}.unfinished")


def _new(path):
    return _private(path) / f"new{path.suffix}"  # what some libraries write depends on it


def _existing(folder):
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
