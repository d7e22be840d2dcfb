"""Files that are written completely or not at all, and clear errors when a file is damaged."""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import pathlib
import shutil
import stat
import zipfile

import numpy as np

from keras_tfm.common.arguments import UserError

RESTORE = "restore it from a copy, or make it again"
# What is read is bounded, so that a hostile file of a few bytes cannot take all memory.
MAX_JSON_BYTES = 2**24  # bytes; a vocabulary of 256,000 pieces takes 5 MB
EXPANSION, SLACK = 20, 2**16  # an archive may expand to at most EXPANSION times its size plus SLACK bytes


class DamagedFile(UserError):
    """A file whose content is not what was written. The message names the file, the reason and what to do."""

    def __init__(self, path, reason, remedy=RESTORE):
        reason = str(reason).strip().splitlines()[0][:200] if str(reason).strip() else type(reason).__name__
        super().__init__(f"{path}: damaged, or not the right kind of file ({reason}); {remedy}")


# ── writing ──


@contextlib.contextmanager
def atomic_write(path):
    """Yields a new path for a file or a folder, which replaces `path` if the block ends without an error.

    The new path is inside a private folder beside `path`, which only one process at a time can hold. If the process is
    killed, the earlier file or folder is still in place, or, between the two renames that replace a folder, there is
    a complete new one that `recover_replace` moves into place.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "words"
    >>> with atomic_write(path) as new:
    ...     _ = new.write_text("all of them")
    >>> path.read_text()
    'all of them'
    """
    path = pathlib.Path(path)
    recover_replace(path)
    private, new, old = _private(path)
    if private.is_symlink() or private.exists() and not private.is_dir():
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


def recover_replace(path):
    """Completes the replacement of a folder if a process was killed between the two renames."""
    path = pathlib.Path(path)
    private, new, old = _private(path)
    if not path.exists() and old.is_dir() and new.is_dir():
        os.replace(new, path)
        _remove(private)


FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
REFUSED = errno.EROFS, errno.EACCES, errno.EPERM


@contextlib.contextmanager
def writing(path):
    """Turns an error caused by a disk that is full, or must not be written, into an `OSError` that names `path`."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number is None:  # TensorFlow raises errors of its own
            named = (code for code in (errno.ENOSPC, *REFUSED) if os.strerror(code) in str(error))
            existing = next(folder for folder in pathlib.Path(path).absolute().parents if folder.exists())
            number = next(named, errno.ENOSPC if shutil.disk_usage(existing).free < 2**12 else None)
        number = errno.ENOSPC if number in FULL else number
        elsewhere = getattr(error, "filename", None) and _private(path)[0].name not in str(error.filename)
        if number == errno.ENOSPC or number in REFUSED and not elsewhere:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextlib.contextmanager
def locked(folder):
    """Holds a folder for this process; another process gets an error. A crash releases the lock.

    If the folder is new and stays empty, it is removed in the end.
    """
    import fcntl  # not on Windows

    folder = pathlib.Path(folder)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "wait for it, or choose another"
            raise UserError(f"{folder}: another process is using this folder; {advice}") from error
        yield
    finally:
        os.close(file)
        with contextlib.suppress(OSError):  # those of `rmdir` for a folder that is not empty
            if new and [*folder.iterdir()] == [lock]:
                lock.unlink()
                for path in new:
                    path.rmdir()


class NewFolder(contextlib.ExitStack):
    """Context manager that yields a new folder, which replaces `folder` if the block ends without an error.

    Args:
        folder: must be missing, empty, or written by an earlier `NewFolder` with the same names.
        main: names of which an earlier folder has at least one.
        own: all names that an earlier folder may have.
        what: what such a folder is called in the error.
    """

    def __init__(self, folder, main, own, what="export"):
        super().__init__()
        self.folder = pathlib.Path(folder)
        recover_replace(self.folder)
        names = {file.name for file in self.folder.iterdir()} if self.folder.is_dir() else set()
        foreign = names - own if names & main else names  # these must not be deleted
        content = f"a folder with {', '.join(sorted(foreign))}" if foreign else ""
        if self.folder.is_symlink() or self.folder.exists() and not self.folder.is_dir():
            content = "a link" if self.folder.is_symlink() else "a file"
        if content:
            raise UserError(f"`folder` must be new, empty or an earlier {what}. Received: {self.folder}, {content}")

    def __enter__(self):
        new = self.enter_context(atomic_write(self.folder))
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


def open_regular_file(path):
    """Opens a regular file for reading. A pipe or a device is refused: it may have no end, or never begin."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFile(path, "is not a regular file")
    return open(descriptor, "rb")


def read_bytes(path, max_bytes=math.inf):
    """The content of a regular file."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise DamagedFile(path, f"has {size:,} bytes, and may have {max_bytes:,}")
        return file.read()


def checksum(path):
    """SHA-256 of a file, in hexadecimal."""
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path, expected, remedy=RESTORE):
    """Raises an error unless the file has the expected checksum."""
    if not path.is_file():
        raise DamagedFile(path, "is missing", remedy)
    if checksum(path) != expected:
        raise DamagedFile(path, "its checksum does not match", remedy)


@contextlib.contextmanager
def open_archive(path, remedy=RESTORE):
    """Opens a .keras or .npz file, after a check that what it holds is not out of proportion to its size."""
    with reading(path, remedy), open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
        members, size = archive.infolist(), os.fstat(file.fileno()).st_size
        unpacked = sum(member.file_size for member in members)
        if unpacked > EXPANSION * size + SLACK or sum(member.compress_size for member in members) > size:
            raise UserError(f"its {size:,} bytes would become {unpacked:,}")
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise UserError("it is compressed in a way that is not supported")
        if any(member.filename.endswith(".json") and member.file_size > MAX_JSON_BYTES for member in members):
            raise UserError(f"a .json file in it has more than {MAX_JSON_BYTES:,} bytes")
        yield archive


def check_zip(path, remedy=RESTORE):
    """Raises an error unless all parts of a .keras or .npz file match their checksums."""
    with open_archive(path, remedy) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise DamagedFile(path, f"the checksum of {damaged} in it does not match", remedy)


def write_json(path, content, checksum=True):
    """Writes a dict as JSON, with a checksum unless another package reads it, completely or not at all."""
    content = {**content, "checksum": _digest(content)} if checksum else content
    with atomic_write(path) as new:
        new.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path, required=(), remedy=RESTORE):
    """Reads a dict that `write_json` wrote, or one without a checksum."""
    path = pathlib.Path(path)
    with reading(path, remedy):
        content = json.loads(read_bytes(path, MAX_JSON_BYTES))
        if not isinstance(content, dict):
            raise UserError("must be a JSON object")
        checksum = content.pop("checksum", None)
        if checksum is not None and checksum != _digest(content):
            raise UserError("its checksum does not match its content")
        missing = [name for name in required if name not in content]
        if missing:
            raise UserError(f"has no {', '.join(missing)}")
    return content


def _digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_manifest(folder, name, /, **settings):
    """Writes settings, and a checksum of every other file in the folder."""
    folder = pathlib.Path(folder)
    files = {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    write_json(folder / name, {**settings, "files": files})


def read_manifest(folder, name, required=()):
    """Reads the settings that `write_manifest` wrote, after checking every file."""
    folder = pathlib.Path(folder)
    for path in folder.rglob("*"):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DamagedFile(path, "is not a regular file")
    settings = read_json(folder / name, required)
    files = settings.pop("files", {})
    for name, expected in files.items() if isinstance(files, dict) else ():
        check(folder / name, expected)
    return settings


def write_arrays(path, arrays):
    """Writes a dict of NumPy arrays as an .npz file, completely or not at all."""
    with atomic_write(path) as new, open(new, "xb") as file:
        np.savez(file, **arrays)


def read_arrays(path, remedy=RESTORE, names=None):
    """Reads the dict of arrays that `write_arrays` wrote, or only those with some names, which is quicker."""
    if names is None:
        check_zip(path, remedy)
    with open_archive(path, remedy) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()] if names is None else names
        return {name: _read_array(archive, archive.getinfo(f"{name}.npy")) for name in names}


def _read_array(archive, member):
    """An array of an .npz file, after a check that it has the size that it declares."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read_header[version](file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise UserError(f"{member.filename} in it is not the array that it declares")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def size_of_arrays(path):
    """How many arrays an .npz file or the weights of a .keras file hold, and how many bytes they take."""
    with open_archive(path) as archive:
        if "model.weights.h5" not in archive.namelist():
            return len(archive.namelist()), sum(member.file_size for member in archive.infolist())
        import h5py

        sizes = []

        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                # it can declare an array of any size without holding it
                if item.external or item.is_virtual or item.id.get_storage_size() < item.nbytes:
                    raise UserError(f"{name} in it declares {item.nbytes:,} bytes that it does not hold")
                sizes.append(item.nbytes)

        # in memory: from the archive, each step back would read it from its beginning again
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
            weights.visititems(visit)
        return len(sizes), sum(sizes)
