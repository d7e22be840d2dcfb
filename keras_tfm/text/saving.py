"""Tokenizers on disk."""

import hashlib
import os
import pathlib
import tempfile

from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, check, one_of
from keras_tfm.text import byte, hub, marian, subwords  # noqa: F401, which register their classes
from keras_tfm.text.base import TOKENIZERS, Tokenizer

MANIFEST = "tokenizer.json"


def save_tokenizer(tokenizer: Tokenizer, folder: str | os.PathLike[str]) -> None:
    """Writes a tokenizer into a folder of its own, completely or not at all. An earlier tokenizer is replaced.

    >>> import tempfile
    >>> from keras_tfm.text import ByteTokenizer
    >>> folder = tempfile.mkdtemp()
    >>> save_tokenizer(ByteTokenizer(), folder)
    >>> load_tokenizer(folder).vocab_size
    260
    """
    name = one_of("tokenizer", type(tokenizer).__name__, TOKENIZERS)
    own = {MANIFEST, *(file for cls in TOKENIZERS.values() for file in cls.files)}
    with files.NewFolder(folder, {MANIFEST}, own, "tokenizer") as new:
        tokenizer.save(new)
        files.write_manifest(new, MANIFEST, **{"class": name})


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Reads a tokenizer that `save_tokenizer` wrote."""
    folder = pathlib.Path(folder)
    if not is_tokenizer(folder):
        raise UserError(f"`folder` must be one that `save_tokenizer` wrote. Received: folder={str(folder)!r}")
    name = files.read_manifest(folder, MANIFEST, required=("class",))["class"]
    with files.reading(folder / MANIFEST):
        check("class", name, isinstance(name, str) and name.isidentifier(), "the name of a class")
    if name not in TOKENIZERS:
        rule = (
            f"`class` must be one of {[*TOKENIZERS]}, or of a module with `@register_tokenizer` that is imported first"
        )
        raise UserError(f"{folder / MANIFEST}: {rule}. Received: class={name!r}")
    return TOKENIZERS[name].load(folder)


def is_tokenizer(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder contains a tokenizer that `save_tokenizer` wrote."""
    files.recover_replace(folder)
    return (pathlib.Path(folder) / MANIFEST).exists()


def fingerprint(tokenizer: Tokenizer) -> str:
    """Returns a hash of the tokenizer's class and files, by which tokenizers are told apart."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(pathlib.Path(folder))
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.name} {files.checksum(path)}".encode())
    return digest.hexdigest()
