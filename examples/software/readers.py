"""Readers of the translations in packages: each takes folders and a language, and yields (file, source, target)."""

import collections
import functools
import html
import re
import struct
import zipfile
import zlib
from xml.etree import ElementTree

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS, read_document

# Language → its names in files. Portuguese is that of Brazil.
LOCALES = {language: {language} for language in ("de", "fr", "es", "it", "pt", "nl", "pl", "sv", "ru", "ja")}
LOCALES |= {"es": {"es", "es-ES"}, "sv": {"sv", "sv-SE"}, "pt": {"pt-BR"}}
OTHER = {"zero", "two", "few", "many"}  # plural forms that English has no text of its own for
NOT_TEXT = re.compile(r"(?:access|command)-?key\b|\.(?:key|keycode|style|shortcut)$", re.IGNORECASE)
ENTITY = re.compile(r"""<!ENTITY\s+([\w.-]+)\s+(?:"([^"]*)"|'([^']*)')\s*>""")
# What a help page says for another system than this one.
HIDDEN = re.compile(
    r"""<span\ hidden="true"\ id="(?!default)[^"]*"[^>]*>
        (?:(?!</?span\b).|<span\b[^>]*>(?:(?!</?span\b).)*</span>)*</span>""",
    re.VERBOSE,
)
EMPHASIS = re.compile(r'<span class="(?:emph|menuitem|widget)">([^<>]*)</span>')
LINK = re.compile(r'<a\b[^<>]*\shref="[^"]*?([^"/]+)"[^<>]*>((?:(?!</?a\b).)*)</a>')
ANCHOR = re.compile(r"<a\s+name=[^<>]*></a>")
OTHER_TAG = re.compile(r'<(?!/?[ab]>|a href="[^"]*">)[^<>]*>')
PLURAL = re.compile(r"\s*\{\s*\w+\s*,\s*plural\s*,(?:\s*offset:\d+)?(.*)\}\s*", re.DOTALL)
FORM = re.compile(r"\s*(=?\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
OOR, XML = "{http://openoffice.org/2001/registry}", "{http://www.w3.org/XML/1998/namespace}"


def gettext(folders, language):
    """Catalogues of gettext: compiled ones, and others where these are missing."""
    names = {name.replace("-", "_") for name in LOCALES[language]} | {f"{language}_{language.upper()}"}
    names -= {"pt_PT"}
    for folder in folders:
        paths = [path for path in sorted(folder.rglob("*.[mp]o")) if names & set(path.parts[-3:-1])]
        paths = [path for path in paths if path.suffix == ".mo" or path.with_suffix(".mo") not in paths]
        for path in paths:
            for unit in _units(read_document, path, language):
                if not unit.fuzzy:
                    for pair in dict.fromkeys(zip(unit.sources, unit.targets, strict=True)):
                        yield str(path.relative_to(folder)), *pair


def _units(read, *arguments):
    """The units of a document; none, and a line about it, if it is damaged."""
    try:
        return read(*arguments).units
    except UserError as error:
        print(f"left out: {error}")
        return []


def mozilla(folders, language, without=()):
    """Fluent, .properties and DTD files in archives, paired by file and key."""
    english, translated = {}, {}
    for path in sorted(path for folder in folders for path in (*folder.rglob("*.ja"), *folder.rglob("*.xpi"))):
        pack = re.match("langpack-(.*)@", path.name)
        if pack and pack[1] in LOCALES[language]:
            translated |= _archive(path, pack[1])
        elif not pack:
            english |= _archive(path, "en-US")
    for name in sorted(english.keys() & translated.keys() - set(without)):
        sources, targets = _texts(name, english[name]), _texts(name, translated[name])
        for key, target in targets.items():
            source = sources.get(key) or sources.get(_english_form(key))
            if source and not NOT_TEXT.search(key):
                yield name, source, target


def thunderbird(folders, language):
    """As `mozilla`, without the files that the last folder, Firefox, has too."""
    *folders, firefox = folders
    names = {name for path in firefox.rglob("*.ja") for name in _archive(path, "en-US")}
    return mozilla(folders, language, names)


def _archive(path, locale):
    """{name without the locale: content} of an archive's files of texts."""
    prefix = re.compile(rf"(?:browser/)?(?:localization/{locale}|chrome/{locale}/locale(?:/{locale})?)/")
    suffixes = ".ftl", ".properties", ".dtd"
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(suffixes) and prefix.match(name)]
        return {prefix.sub("", name): archive.read(name) for name in names}


def _texts(name, raw):
    """{key: text} of a file in one language."""
    if name.endswith(".dtd"):
        entities = ENTITY.finditer(raw.decode("utf-8", "replace"))
        return {entity[1]: html.unescape(entity[2] or entity[3] or "") for entity in entities}
    return {unit.context: unit.source for unit in _units(FORMATS[name[name.rindex(".") :]], raw, name)}


def _english_form(key):
    """The key of the text that English has for a plural form: of message[few], message[other]."""
    return re.sub(r"\[(\w+)\]$", lambda form: "[other]" if form[1] in OTHER else form[0], key)


def help_pages(folders, language):
    """HTML pages, the English ones in the last folder, paired by path, the last id before a text, and its order.

    Texts are without tags; of every third that has some, a second version keeps those of emphasis and links.
    """
    *folders, english = folders
    for folder in folders:
        root = next(folder.rglob("text")).parent
        for path in sorted(root.rglob("text/**/*.html")):
            for original in english.rglob(f"help/en-US/{path.relative_to(root)}"):
                sources, targets = _page(original), _page(path)
                for key in sources:
                    if len(sources[key]) == len(targets.get(key, [])):
                        for source, target in zip(sources[key], targets[key], strict=True):
                            yield str(path.relative_to(folder)), _without_tags(source), _without_tags(target)
                            if "<" in source and zlib.crc32(source.encode()) % 3 == 0:
                                yield str(path.relative_to(folder)), source, target


@functools.lru_cache(maxsize=10_000)
def _page(path):
    """{id: texts after it} with the tags <b> and <a>."""
    text = HIDDEN.sub("", path.read_text(encoding="utf-8"))
    text = text[: text.find('<div id="SearchFrame">')]
    ids = [(match.start(), match[1]) for match in re.finditer(r'\sid="((?:par|hd|tit|bm)[^"]*)"', text)]
    texts = collections.defaultdict(list)
    for unit in _units(FORMATS[".html"], text.encode(), path):
        while len(ids) > 1 and ids[1][0] < unit.span[0]:
            ids.pop(0)
        if ids and ids[0][0] < unit.span[0]:
            marked = LINK.sub(r'<a href="\1">\2</a>', EMPHASIS.sub(r"<b>\1</b>", ANCHOR.sub("", unit.source)))
            marked = html.unescape(OTHER_TAG.sub("", marked))
            texts[ids[0][1]].append(re.sub(r"\s+", " ", marked).strip())
    return texts


def _without_tags(text):
    return re.sub(r'</?(?:b|a href="[^"]*"|a)>', "", text)


def registry(folders, language):
    """LibreOffice's commands and settings (.xcd), paired by the names around them."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.xcd"))
    english = {key: text for path in paths for key, text in _values(path, {"en-US"}).items()}
    for path in paths:
        for key, text in _values(path, LOCALES[language]).items():
            if key in english:
                yield path.name, english[key], text


def _values(path, locales):
    """{names of the nodes around a value: its text} of a language."""
    texts, names = {}, []
    for event, element in ElementTree.iterparse(path, ["start", "end"]):
        if event == "start":
            names.append(element.get(f"{OOR}name", element.tag))
            continue
        names.pop()
        if element.tag == "value" and element.get(f"{XML}lang") in locales and element.text:
            texts[tuple(names)] = element.text
        element.clear()
    return texts


def pak(folders, language):
    """Chromium's resources, paired by number."""
    paths = {path.stem: path for folder in folders for path in sorted(folder.rglob("locales/*.pak"))}
    (translated,) = (path for name, path in paths.items() if name in LOCALES[language])
    sources, targets = _resources(paths["en-US"]), _resources(translated)
    for number in sources.keys() & targets.keys():
        for pair in _plural_forms(sources[number], targets[number]):
            yield translated.name, *pair


def _resources(path):
    """{number: text} of a .pak file."""
    raw = path.read_bytes()
    version, encoding, count = struct.unpack_from("<IBxxxH", raw)
    if version != 5 or encoding != 1:
        raise UserError(f"{path}: a .pak file must have version 5 and UTF-8. Received: {version} and {encoding}")
    places = list(struct.iter_unpack("<HI", raw[12 : 12 + 6 * (count + 1)]))
    parts = zip(places, places[1:], strict=False)
    return {number: raw[start:end].decode("utf-8", "replace") for (number, start), (_, end) in parts}


def _plural_forms(source, target):
    """Pairs of the forms of two ICU messages that are plurals as a whole, or the texts as they are."""
    messages = [PLURAL.fullmatch(text) for text in (source, target)]
    if not all(messages):
        return [(source, target)]
    sources, targets = (dict(FORM.findall(message[1])) for message in messages)
    pairs = [(sources.get(form, sources.get("other")), text) for form, text in targets.items() if form != "one"]
    singular = sources.get("=1", sources.get("one"))
    return [pair for pair in [*pairs, (singular, targets.get("one"))] if all(pair)]


def bundles(folders, language):
    """Java's resource bundles: NAME_de.properties and NAME.properties, in any archive of the packages."""
    raws, locale = {}, "pt_BR" if language == "pt" else rf"{language}(?:_[A-Z]{{2}})?"
    for path in sorted(path for folder in folders for path in folder.rglob("*.jar")):
        with zipfile.ZipFile(path) as archive:
            raws |= {name: archive.read(name) for name in archive.namelist() if name.endswith(".properties")}
    for name in sorted(raws):
        original = re.sub(rf"_{locale}\.properties$", "", name)
        english = raws.get(f"{original}.properties") or raws.get(f"{original}_en.properties")
        if original != name and english:
            sources, targets = _texts(".properties", english), _texts(".properties", raws[name])
            for key in sources.keys() & targets.keys():
                yield name, *(text.replace("''", "'") for text in (sources[key], targets[key]))


READERS = {"gettext": gettext, "mozilla": mozilla, "thunderbird": thunderbird, "help": help_pages}
READERS |= {"registry": registry, "pak": pak, "bundles": bundles}
