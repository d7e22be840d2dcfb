"""Language codes: comparing them, and finding them in the names of files."""

import os
import pathlib
import re
from collections.abc import Iterable, Sequence

ENDING = re.compile(r"(?:\A|[._-])(?P<code>[a-z]{2,3}(?:[_-](?:[A-Z]{2}|[A-Z][a-z]{3}))?(?:@\w+)?)\Z")
CODE = re.compile(r"[a-z]{2}(?![a-z])")  # longer ones look like other words


def same_language(code: str, other: str) -> bool:
    """Whether two codes mean the same language, or one is a variety of the other.

    >>> same_language("pt_BR", "pt"), same_language("pt-BR", "pt-PT"), same_language("de", "")
    (True, False, False)
    """
    code, other = (re.sub("[_@.]", "-", each.lower()) for each in (code, other))
    return bool(code and other) and (code == other or code.startswith(f"{other}-") or other.startswith(f"{code}-"))


def closest_language(code: str, languages: Iterable[str]) -> str | None:
    """The one of `languages` that a code means; None if there is none, or more than one.

    >>> closest_language("pt_BR", ["de", "pt"]), closest_language("pt", ["pt-BR", "pt-PT"])
    ('pt', None)
    """
    languages = list(languages)
    exact = [language for language in languages if same_language(code, language) and len(code) == len(language)]
    matches = exact or [language for language in languages if same_language(code, language)]
    return matches[0] if len(matches) == 1 else None


def language_of_name(path: str | os.PathLike[str], languages: Sequence[str] = ()) -> str:
    """The language code that the name of a file or of its folder ends with, or "".

    Args:
        path: the file.
        languages: those to look for; by default, whatever looks like the code of one.

    >>> [language_of_name(name) for name in ("app.de.po", "pt_BR.po", "messages_fr.properties", "it/app.ftl", "app.po")]
    ['de', 'pt_BR', 'fr', 'it', '']
    """
    path = pathlib.Path(path)
    stem = pathlib.Path(path.name.removesuffix(".gz")).stem
    folder = path.parent.parent if path.parent.name == "LC_MESSAGES" else path.parent
    codes = [match["code"] for match in (ENDING.search(stem), ENDING.fullmatch(folder.name)) if match]
    return next((code for code in codes if (closest_language(code, languages) if languages else CODE.match(code))), "")
