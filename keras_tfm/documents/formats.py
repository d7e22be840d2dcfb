"""The formats by suffix, and reading a file by its suffix."""

import os
import pathlib

from keras_tfm.common.arguments import one_of
from keras_tfm.documents.document import MAX_DOCUMENT_BYTES, Document
from keras_tfm.documents.fluent import Fluent
from keras_tfm.documents.html import HTML
from keras_tfm.documents.json import JSON
from keras_tfm.documents.lines import TSV, Lines
from keras_tfm.documents.markdown import Markdown
from keras_tfm.documents.mo import MO
from keras_tfm.documents.po import PO
from keras_tfm.documents.properties import Properties
from keras_tfm.documents.tmx import TMX
from keras_tfm.documents.xliff import XLIFF

# Suffix → class of the document.
FORMATS: dict[str, type[Document]] = {
    ".po": PO,
    ".pot": PO,
    ".mo": MO,
    ".tmx": TMX,
    ".xlf": XLIFF,
    ".xliff": XLIFF,
    ".ftl": Fluent,
}
FORMATS |= {".properties": Properties, ".json": JSON, ".arb": JSON, ".tsv": TSV, ".txt": Lines}
FORMATS |= {".md": Markdown, ".markdown": Markdown, ".html": HTML, ".htm": HTML, ".xhtml": HTML}


def read_document(path: str | os.PathLike[str], language: str = "", format: str | None = None) -> Document:
    """Reads a file whose suffix is one of `FORMATS`.

    Args:
        path: the file.
        language: of the translations, such as "de"; by default the one that the file declares.
        format: a suffix such as ".po", for a file that has another.

    >>> import tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "app.po").write_text('msgid "Open"\\nmsgstr ""\\n')
    >>> document = read_document(folder / "app.po", language="de")
    >>> document.write({unit: "Öffnen" for unit in document.untranslated}, folder / "de.po")
    >>> print((folder / "de.po").read_text())
    #, fuzzy
    msgid "Open"
    msgstr "Öffnen"
    <BLANKLINE>
    """
    from keras_tfm.common import files  # imports NumPy

    suffix = one_of("format" if format else "path", format or pathlib.Path(path).suffix.lower(), FORMATS)
    return FORMATS[suffix](files.read_bytes(path, MAX_DOCUMENT_BYTES), path, language)
