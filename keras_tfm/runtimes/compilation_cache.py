"""JAX's cache of compiled programs, on disk: what one process has compiled, later ones load."""

import os
import pathlib
import platform
import stat
import sys
import zlib

from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, positive

MAX_BYTES = 2**30
FOLDER, SWITCH = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"  # environment variables of JAX
SUFFIX, TIME_SUFFIX, LOCK = "-cache", "-atime", ".lockfile"  # of the files in JAX's cache
# Seconds. What compiles faster is not worth a file: each new entry makes JAX look at all the others.
MIN_SECONDS = 0.05


def cache_compilations(folder: str | os.PathLike[str] | None = None, max_bytes: int = MAX_BYTES) -> pathlib.Path | None:
    """Makes JAX keep compiled programs on disk, for this process, the processes that it starts, and later ones.

    Call it before anything is compiled; the command `keras-tfm` does. Several processes may use a folder at once. It
    sets environment variables of JAX. If the user has set JAX_COMPILATION_CACHE_DIR, that folder and its settings stay;
    JAX_ENABLE_COMPILATION_CACHE=0 turns the cache off. Other backends are not affected.

    Args:
        folder: where to keep programs, by default a folder for this kind of processor in the user's cache folder,
            `$XDG_CACHE_HOME/keras_tfm`. Only the user may be able to write to it, since programs in it are executed.
        max_bytes: size of the cache. Programs that have not been used for longest are deleted.

    Returns the folder, or None if the user has turned the cache off.

    >>> cache_compilations()  # doctest: +ELLIPSIS
    PosixPath('/...')
    """
    if os.environ.get(SWITCH, "").lower() in ("0", "false", "no", "n", "off", "f"):
        return None
    if folder is None and os.environ.get(FOLDER):
        return pathlib.Path(os.environ[FOLDER])
    positive("max_bytes", max_bytes)
    extras.require("filelock")  # by which JAX keeps to the size
    folder = _own_folder(pathlib.Path(folder) if folder else default_folder())
    _delete_incomplete(folder)
    settings = {
        FOLDER: str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": max_bytes,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": MIN_SECONDS,
    }
    for name, value in settings.items():
        os.environ[name] = str(value)
        if jax := sys.modules.get("jax"):  # which has read the environment
            jax.config.update(name.lower(), value)
    return folder


def default_folder():
    """A folder in the user's cache folder; programs for a processor may crash on one that lacks its instructions."""
    system = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or system).expanduser()
    return base / "keras_tfm" / "jax" / f"{platform.machine()}-{zlib.crc32(_instructions()):08x}"


def _instructions():
    """Names of the instruction sets of the processor, where Linux lists them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _own_folder(folder):
    """Makes a folder for this user alone; raises an error if others can write to it."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(f"`folder` must be one that only you can write to. Received: {folder}")
    return folder


def _delete_incomplete(folder):
    """Deletes entries that a process was writing when it was killed: JAX could neither read nor replace them."""
    import fcntl  # not on Windows

    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as JAX does while it writes an entry, and then its time
        for entry in folder.glob(f"*{SUFFIX}"):
            if not entry.with_name(f"{entry.name.removesuffix(SUFFIX)}{TIME_SUFFIX}").exists():
                entry.unlink()
