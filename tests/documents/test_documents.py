"""Laws that hold for every format."""

import collections
import random
import re
import subprocess
import sys

import pytest
from conftest import once
from samples import SAMPLES, TEXTS

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS, read_document
from keras_tfm.text import compare_protected, find_protected

pytestmark = once
BILINGUAL = {".po", ".mo", ".xlf", ".xliff", ".tmx", ".tsv"}
SOURCES = {
    ".po": ["Open %s", 'First line\nsecond "line"\twith a tab\\\n', "New", "one file", "Translated"],
    ".mo": ["file", "Open"],
    ".xlf": ['Save <g id="1">the file</g> & <b>exit</b>', "Empty<x id='2' />", "Done", "a < b"],
    ".xliff": ['Hello <pc id="1">world</pc>', "Bye"],
    ".tmx": ["Yes & no", "Stop"],
    ".ftl": ["Hello, { $name }!", "A title", "One file", "{ $count } files", "First line\n  indented { -brand }"],
    ".properties": ["Value", "two lines\u00e9", "C:\\path"],
    ".json": ["One\n\u00e9", "Two", 'Three "x"', "Four"],
    ".md": [
        "A *heading*",
        'Some **bold** text with `code` and a [link](http://x.y "t") that goes on.',
        "After a break.",
    ]
    + ["item [ref] more", "Head", "Cell \\| one", "two"],
    ".html": ["A title", "Some <b>bold</b> text &amp; more&nbsp;words.", "Link", "<code>x &lt; y</code> is code"]
    + ["Unclosed <i>tag"],
    ".txt": ["One", "Two", "x"],
    ".tsv": ["One", "Two", "Three"],
}


def shout(unit):
    """A translation that keeps what must be kept."""
    texts = []
    for text in unit.sources:
        position, parts = 0, []
        for span in find_protected(text, unit.markup):
            parts += [text[position : span.start].upper(), span.text]
            position = span.end
        texts.append("".join([*parts, text[position:].upper()]))
    return tuple(texts)


def read(suffix, raw=None):
    return FORMATS[suffix](SAMPLES[suffix] if raw is None else raw, f"app{suffix}", language="pl")


@pytest.mark.parametrize("suffix", SAMPLES)
def test_the_texts_are_found(suffix):
    assert [unit.source for unit in read(suffix).units] == SOURCES[suffix]


def variants(suffix):
    """The sample with other line ends, a byte order mark, and without its last line end."""
    text = TEXTS[suffix].replace("\r\n", "\n")
    yield from (text.encode(), text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + text.encode())
    yield from (text.rstrip("\n").encode(), text.rstrip("\n").encode("utf-16"))


@pytest.mark.parametrize("suffix", TEXTS)
def test_only_the_bytes_of_a_changed_unit_change(suffix):
    for raw in variants(suffix):
        document = read(suffix, raw)
        assert [unit.source for unit in document.units] == SOURCES[suffix]
        assert document.render({}) == raw
        for unit in document.units:
            new = document.render({unit: shout(unit)})
            again = read(suffix, new)
            texts = [(other.sources, other.targets) for other in again.units]
            expected = [(other.sources, other.targets) for other in document.units]
            place = document.units.index(unit)
            expected[place] = (unit.sources, shout(unit)) if suffix in BILINGUAL else (shout(unit), ("",))
            assert texts == expected
            old, new = (collections.Counter(text.splitlines(keepends=True)) for text in (document.text, again.text))
            assert (old - new).total() <= 4 and again.newline == document.newline


@pytest.mark.parametrize("suffix", SAMPLES)
def test_a_written_file_is_as_rendered_and_the_original_stays(suffix, tmp_path):
    source = tmp_path / f"app{suffix}"
    source.write_bytes(SAMPLES[suffix])
    document = read_document(source, language="pl")
    document.write({unit: shout(unit) for unit in document.units}, tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == document.render({unit: shout(unit) for unit in document.units})
    assert source.read_bytes() == SAMPLES[suffix]


STRANGE = [
    "\\",
    '"',
    "'",
    "\n",
    "\t",
    " ",
    "  ",
    "<",
    ">",
    "&",
    "&amp;",
    "{",
    "}",
    "[",
    "]",
    "*",
    "_",
    "#",
    "=",
    ":",
    "%",
]
STRANGE += [
    "é",
    "日本",
    "🙂",
    "\u00a0",
    "\\n",
    "\\u0041",
    "]]>",
    "<!--",
    "</x>",
    "`",
    "|",
    "-",
    "1. ",
    "+",
    "~",
    "$",
    "a",
    "B",
]


@pytest.mark.parametrize("suffix", SAMPLES)
def test_any_text_can_be_written_and_read(suffix):
    generator = random.Random(35)
    document = read(suffix)
    plain = [unit for unit in document.units if not find_protected(unit.source, unit.markup)]
    for _ in range(60):
        unit = generator.choice(plain)
        texts = ["".join(["x", *generator.choices(STRANGE, k=generator.randrange(12)), "y"]) for _ in unit.sources]
        generator.shuffle(texts)
        if suffix in (".md", ".txt", ".tsv"):  # that have one line for a text
            texts = [re.sub(r"\s", " ", text) for text in texts]
        again = read(suffix, document.render({unit: texts})).units[document.units.index(unit)]
        if suffix == ".md":
            assert len(re.sub(r"\\", "", again.source)) >= len(re.sub(r"\\|\s+$", "", texts[0]))
        elif suffix in (".html", ".ftl"):  # the same text, with escapes
            plain_text = again.source.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
            plain_text = re.sub(r'\{"(.)"\}', r"\1", plain_text)
            expected = re.sub(r"\s+", " ", texts[0]) if suffix == ".html" else texts[0]
            assert re.sub(r"\s+", " ", plain_text) == re.sub(r"\s+", " ", expected.replace("&amp;", "&"))
        else:
            outer = re.match(r"\s*", unit.source)[0], re.search(r"\s*\Z", unit.source)[0]
            expected = tuple(outer[0] + text + outer[1] for text in texts)
            assert (again.targets if suffix in BILINGUAL else again.sources) == expected


@pytest.mark.parametrize("suffix", SAMPLES)
def test_a_blank_translation_changes_nothing(suffix):
    document = read(suffix)
    blanks = {
        unit: [blank] * len(unit.sources)
        for unit, blank in zip(document.units, ["", " \n", "\0", "…", "\ud800"], strict=False)
    }
    assert document.render(blanks) == SAMPLES[suffix]


@pytest.mark.parametrize("suffix", SAMPLES)
def test_damaged_files_are_read_or_refused_with_the_name_of_the_file(suffix):
    generator = random.Random(36)
    for _ in range(150):
        raw = bytearray(SAMPLES[suffix])
        for _ in range(generator.randrange(1, 6)):
            start = generator.randrange(len(raw))
            raw[start : start + generator.randrange(3)] = generator.choice(
                [b"", b"\xff", b"<", b'"', b"\\", b"\0", b"{", b"]"]
            )
        try:
            document = read(suffix, bytes(raw))
        except UserError as error:
            assert str(error).startswith(f"app{suffix}: ") and "Received: " in str(error)
        else:
            assert document.render({}) == raw


HOSTILE = {
    ".po": ["msgid", '"', "#\n", 'msgid "a"\nmsgstr "b"\n'],
    ".html": ["<!--", "<a ", "<b>", "</", "<script>", "<![", "<a '\""],
    ".json": ["[", '{"a":', '"'],
    ".xlf": ["<g>", "<g a='"],
    ".ftl": ["a = {", "{", "a =\n"],
    ".properties": ["\\\n", "= "],
}


@pytest.mark.parametrize("suffix", HOSTILE)
def test_hostile_files_take_little_time(suffix):
    for part in HOSTILE[suffix]:
        try:
            assert read(suffix, part.encode() * 8000).units is not None
        except UserError as error:
            assert "Received: " in str(error)


@pytest.mark.parametrize("suffix", [".po", ".xlf", ".html", ".txt", ".json"])
def test_a_wrong_encoding_is_refused(suffix):
    with pytest.raises(
        UserError, match=rf"^app{suffix}: the text must be (?i:utf-8). Received: byte 0xe4 in line \d+$"
    ):
        read(suffix, SAMPLES[suffix] + b"<!-- # \xe4 -->")


def test_nothing_is_written_after_an_error(tmp_path):
    document = read(".po", b'msgid ""\nmsgstr "Content-Type: text/plain; charset=latin-1\\n"\nmsgid "a"\nmsgstr ""\n')
    with pytest.raises(UserError, match="app.po: translations must be text that latin-1 has. Received: '日'"):
        document.write({document.units[0]: "日"}, tmp_path / "new.po")
    with pytest.raises(UserError, match="one text for each of the 1 `sources` of a unit. Received: 2 for 'a'"):
        document.write({document.units[0]: ["a", "b"]}, tmp_path / "new.po")
    assert list(tmp_path.iterdir()) == []


def test_the_suffix_and_the_language_are_checked(tmp_path):
    with pytest.raises(UserError, match="`path` must be one of .*'.po'.* Received: path='.docx'"):
        read_document(tmp_path / "a.docx")
    with pytest.raises(UserError, match="`language` must be a code such as"):
        FORMATS[".tmx"](SAMPLES[".tmx"], language='de"><x')


def test_importing_takes_no_other_package():
    program = "import sys; from keras_tfm.documents import FORMATS, split_sentences; print({*sys.modules}"
    program += " & {'numpy', 'keras', 'tensorflow', 'babel', 'fluent', 'markdown_it', 'sentencex', 'javaproperties'})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


def test_translations_that_keep_everything_are_without_difference():
    for suffix in SAMPLES:
        for unit in read(suffix).units:
            for source, text in zip(unit.sources, shout(unit), strict=True):
                assert not compare_protected(source, text, unit.markup)
