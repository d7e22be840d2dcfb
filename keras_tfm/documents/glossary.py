"""Glossaries: how terms are to be translated."""

import os

from keras_tfm.common.arguments import UserError
from keras_tfm.documents.document import MAX_DOCUMENT_BYTES


def read_glossary(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads a file with a term, a tab and its translation on each line: {term: translation}.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "terms.tsv"
    >>> _ = path.write_text("layer\\tEbene\\nbrush\\tPinsel\\n")
    >>> read_glossary(path)
    {'layer': 'Ebene', 'brush': 'Pinsel'}
    """
    from keras_tfm.common import files  # imports NumPy

    try:
        text = files.read_bytes(path, MAX_DOCUMENT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a glossary must be UTF-8. Received: byte {error.start}") from error
    terms: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        columns = [column.strip() for column in line.split("\t")]
        if not line.strip():
            continue
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {number}: must be `term, tab, translation`. Received: {line[:80]!r}")
        if terms.setdefault(columns[0], columns[1]) != columns[1]:
            raise UserError(f"{path}, line {number}: a term must have one translation. Received: {line[:80]!r}")
    if not terms:
        raise UserError(f"{path}: a glossary must have at least one term. Received: none")
    return terms
