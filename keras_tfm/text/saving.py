"""Tokenizers on disk."""

import hashlib
import pathlib
import tempfile

from keras_tfm.common import files
from keras_tfm.common.arguments import one_of
from keras_tfm.text.byte import ByteTokenizer
from keras_tfm.text.hub import KerasHubTokenizer
from keras_tfm.text.marian import MarianTokenizer
from keras_tfm.text.subwords import SentencePieceTokenizer

TOKENIZERS = {cls.__name__: cls for cls in (SentencePieceTokenizer, MarianTokenizer, ByteTokenizer, KerasHubTokenizer)}
# All files that tokenizers write, the vocabularies by keras-hub.
OWN = {"tokenizer.json", "sentencepiece.model", "keras_hub.json", "merges.txt"}
OWN |= {f"vocabulary.{kind}" for kind in ("txt", "json", "spm")}


def save_tokenizer(tokenizer, folder):
    """Writes a tokenizer into a folder of its own, completely or not at all. An earlier tokenizer is replaced.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_tokenizer(ByteTokenizer(), folder)
    >>> load_tokenizer(folder).vocab_size
    260
    """
    name = one_of("tokenizer", type(tokenizer).__name__, TOKENIZERS)
    with files.NewFolder(folder, {"tokenizer.json"}, OWN) as new:
        tokenizer.save(new)
        files.write_manifest(new, "tokenizer.json", **{"class": name})


def load_tokenizer(folder):
    """Reads a tokenizer that `save_tokenizer` wrote."""
    folder = pathlib.Path(folder)
    if not is_tokenizer(folder):
        raise ValueError(f"`folder` must be one that `save_tokenizer` wrote. Received: folder={str(folder)!r}")
    name = files.read_manifest(folder, "tokenizer.json", required=("class",))["class"]
    with files.reading(folder / "tokenizer.json"):
        tokenizer = TOKENIZERS[one_of("class", name, TOKENIZERS)]
    return tokenizer.load(folder)


def is_tokenizer(folder):
    """Whether a folder contains a tokenizer that `save_tokenizer` wrote."""
    files.recover_replace(folder)
    return (pathlib.Path(folder) / "tokenizer.json").exists()


def fingerprint(tokenizer):
    """Returns a hash of the tokenizer's class and files, by which tokenizers are told apart."""
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(pathlib.Path(folder))
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.name} {files.checksum(path)}".encode())
    return digest.hexdigest()
