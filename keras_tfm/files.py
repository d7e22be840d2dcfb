"""Files that are written completely or not at all, and clear errors when a file is damaged."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import zipfile

import numpy as np

DATES = pathlib.Path(__file__).parent / "shipped" / "dates"  # the translator of dates that comes with the package
RESTORE = "restore it from a copy, or make it again"


class DamagedFile(ValueError):
    """A file whose content is not what was written. The message names the file, the reason and what to do."""

    def __init__(self, path, reason, remedy=RESTORE):
        reason = str(reason).strip().splitlines()[0][:200] if str(reason).strip() else type(reason).__name__
        super().__init__(f"{path}: damaged, or not the right kind of file ({reason}); {remedy}")


# ── writing ──


@contextlib.contextmanager
def whole(path):
    """Yields a new path for a file or a folder, which replaces `path` if the block ends without an error.

    The new path is inside a private folder beside `path`, which only one process at a time can hold. If the process is
    killed, the earlier file or folder is still in place, or, between the two renames that replace a folder, there is
    a complete new one that `settle` moves into place.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "words"
    >>> with whole(path) as new:
    ...     _ = new.write_text("all of them")
    >>> path.read_text()
    'all of them'
    """
    path = pathlib.Path(path)
    settle(path)
    private, new, old = _private(path)
    if private.is_symlink() or not private.is_dir():
        private.unlink(missing_ok=True)  # a link is removed, never followed
    with writing(path), locked(private):
        try:
            _remove(new)  # left behind by a process that was killed
            _remove(old)
            yield new
            for file in (new, *new.rglob("*")) if new.is_dir() else (new,):
                if file.is_file():
                    _sync(file)
            if path.is_dir() and not path.is_symlink():
                os.replace(path, old)
            os.replace(new, path)
            _sync(path.parent)
        finally:
            if old.is_dir() and not path.exists():
                os.replace(old, path)
            _remove(private)


def settle(path):
    """Completes the replacement of a folder if a process was killed between the two renames."""
    path = pathlib.Path(path)
    private, new, old = _private(path)
    if not path.exists() and old.is_dir() and new.is_dir():
        os.replace(new, path)
        _remove(private)


@contextlib.contextmanager
def writing(path):
    """Turns any error caused by a full disk into an `OSError` that says so and names `path`."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        full = full or os.strerror(errno.ENOSPC) in str(error)  # TensorFlow raises errors of its own
        existing = next(folder for folder in pathlib.Path(path).absolute().parents if folder.exists())
        if full or shutil.disk_usage(existing).free < 2**12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


@contextlib.contextmanager
def locked(folder):
    """Holds a folder for this process; another process gets an error. The lock of a process that dies is released."""
    import fcntl  # not on Windows

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "wait for it, or choose another"
            raise ValueError(f"{folder}: another process is using this folder; {advice}") from error
        yield
    finally:
        os.close(file)


class NewFolder(contextlib.ExitStack):
    """Context manager that yields a new folder, which replaces `folder` if the block ends without an error.

    Args:
        folder: must be missing, empty, or written by an earlier `NewFolder` with the same names.
        main: names of which an earlier folder has at least one.
        own: all names that an earlier folder may have.
    """

    def __init__(self, folder, main, own):
        super().__init__()
        self.folder = pathlib.Path(folder)
        settle(self.folder)
        names = {file.name for file in self.folder.iterdir()} if self.folder.is_dir() else set()
        foreign = names - own if names & main else names  # these must not be deleted
        found = f"a folder with {', '.join(sorted(foreign))}" if foreign else ""
        if self.folder.is_symlink() or self.folder.exists() and not self.folder.is_dir():
            found = "a link" if self.folder.is_symlink() else "a file"
        if found:
            raise ValueError(f"`folder` must be new, empty or an earlier export. Received: {self.folder}, {found}")

    def __enter__(self):
        new = self.enter_context(whole(self.folder))
        new.mkdir()
        return new


def _private(path):
    """The private folder beside a path, and the paths in it for the new content and for the old folder."""
    path = pathlib.Path(os.path.abspath(path))  # since "." has no name
    private = path.with_name(f".{path.name}.unfinished")
    return private, private / f"new{path.suffix}", private / ".old"  # some libraries look at the suffix


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


# ── reading and checking ──


@contextlib.contextmanager
def reading(path, remedy=RESTORE):
    """Turns errors into `DamagedFile`, except those of a file that is missing or that must not be read."""
    try:
        yield
    except (PermissionError, DamagedFile):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or path}: is missing; {remedy}") from error
    except Exception as error:  # parsers raise all kinds of errors for damaged files
        if isinstance(error, ImportError) and "pip install" in str(error):  # a missing package, not a damaged file
            raise
        raise DamagedFile(path, error, remedy) from error


def checksum(path):
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path, expected, remedy=RESTORE):
    """Raises an error unless the file has the expected checksum."""
    if not path.is_file():
        raise DamagedFile(path, "is missing", remedy)
    if checksum(path) != expected:
        raise DamagedFile(path, "its checksum does not match", remedy)


def check_zip(path, remedy=RESTORE):
    """Raises an error unless all parts of a .keras or .npz file match their checksums."""
    with reading(path, remedy), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise DamagedFile(path, f"the checksum of {damaged} in it does not match", remedy)


def write_json(path, content, checksum=True):
    """Writes a dict as JSON, with a checksum unless another package reads it, completely or not at all."""
    content = {**content, "checksum": _digest(content)} if checksum else content
    with whole(path) as new:
        new.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path, required=(), remedy=RESTORE):
    """Reads a dict that `write_json` wrote, or one without a checksum."""
    path = pathlib.Path(path)
    with reading(path, remedy):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("must be a JSON object")
        found = content.pop("checksum", None)
        if found is not None and found != _digest(content):
            raise ValueError("its checksum does not match its content")
        missing = [name for name in required if name not in content]
        if missing:
            raise ValueError(f"has no {', '.join(missing)}")
    return content


def _digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder, name="translator.json", /, **settings):
    """Writes settings, and a checksum of every other file in the folder."""
    folder = pathlib.Path(folder)
    files = {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / name, {**settings, "files": files})


def read_manifest(folder, name="translator.json", required=()):
    """Reads the settings that `write_manifest` wrote, after checking every file."""
    folder = pathlib.Path(folder)
    settings = read_json(folder / name, required)
    files = settings.pop("files", {})
    for name, expected in files.items() if isinstance(files, dict) else ():
        check(folder / name, expected)
    return settings


def write_arrays(path, arrays):
    """Writes a dict of NumPy arrays as an .npz file, completely or not at all."""
    with whole(path) as new, open(new, "xb") as file:
        np.savez(file, **arrays)


def read_arrays(path, remedy=RESTORE, names=None):
    """Reads the dict of arrays that `write_arrays` wrote, or only those with some names, which is quicker."""
    if names is None:
        check_zip(path, remedy)
    with reading(path, remedy), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in names or arrays.files}
