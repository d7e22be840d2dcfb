"""Training pairs from documents. Accelerators are removed, as they are before a text is translated."""

from collections.abc import Iterator

from keras_tfm.common.arguments import UserError
from keras_tfm.documents.accelerators import Accelerators
from keras_tfm.documents.document import Document


def translated_pairs(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yields (source, target, language) for the texts of a document that have a translation, unless it is a draft.

    The lines of a text are pairs of their own if its translation has as many.

    >>> from keras_tfm.documents import FORMATS
    >>> text = 'msgid "_Open"\\nmsgstr "Ö_ffnen"\\n\\n#, fuzzy\\nmsgid "Close"\\nmsgstr "Zu"\\n'
    >>> list(translated_pairs(FORMATS[".po"](text.encode(), language="de")))
    [('Open', 'Öffnen', 'de')]
    """
    accelerators = _accelerators(document)
    for unit in document.units:
        if unit.translated and not unit.fuzzy:
            forms = list(zip(unit.sources, unit.targets, strict=True))
            singular = forms[:1] if len(forms) > 1 and forms[0][0] != forms[-1][0] else []
            for source, target in [*singular, forms[-1]]:
                yield from _pairs(source, target, unit.language, accelerators)


def aligned_pairs(document: Document, other: Document) -> Iterator[tuple[str, str, str]]:
    """Yields (source, target, language) for texts that have the same key in two documents, one for each language.

    >>> from keras_tfm.documents import FORMATS
    >>> english, german = (FORMATS[".json"](text) for text in (b'{"a": "Yes", "b": "No"}', b'{"b": "Nein"}'))
    >>> list(aligned_pairs(english, german))
    [('No', 'Nein', '')]
    """
    if type(document) is not type(other) or document.bilingual or not all(unit.context for unit in document.units):
        rule = f"{other.path}: must be in the format of {document.path}, which must be one with keys, such as JSON"
        raise UserError(f"{rule}. Received: {type(document).__name__} and {type(other).__name__}")
    accelerators = _accelerators(document)
    targets = {unit.context: unit.source for unit in reversed(other.units)}
    for unit in document.units:
        if unit.context in targets:
            yield from _pairs(unit.source, targets[unit.context], other.language, accelerators)


def _accelerators(document):
    texts = (text for unit in document.units for text in unit.sources)
    return Accelerators(texts) if document.accelerators else None


def _pairs(source, target, language, accelerators):
    if accelerators and any(accelerators.strip(text)[1] for text in (source, target)):
        source, target = (accelerators.strip(text, loosely=True)[0] for text in (source, target))
    lines = [[line.strip() for line in text.split("\n") if line.strip()] for text in (source, target)]
    if len(lines[0]) != len(lines[1]):
        lines = [[" ".join(each)] for each in lines]
    yield from ((*pair, language) for pair in zip(*lines, strict=True) if all(pair))
