import gettext
import io
import shutil
import subprocess

import pytest
import samples
from conftest import once

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS
from keras_tfm.documents.plurals import Plurals, plural_header

pytestmark = once
PO, MO = FORMATS[".po"], FORMATS[".mo"]
TEMPLATE = """msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=CHARSET\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
"""


def test_what_is_filled_in_is_fuzzy_and_nothing_else_changes():
    document = PO(samples.PO.encode())
    texts = {unit: [f"{form} {text}" for form, text in enumerate(unit.sources)] for unit in document.untranslated}
    old, new = (raw.decode().splitlines() for raw in (document.raw, document.render(texts)))
    assert [line for line in old if line not in new] == ["#, c-format", *(f'msgstr[{form}] ""' for form in range(3))]
    assert [line for line in new if line not in old] == [
        "#, fuzzy, c-format",
        'msgstr "0 Open %s"',
        '"0 First line\\n"',
        'msgstr[0] "0 one file"',
        'msgstr[1] "1 %d files"',
        'msgstr[2] "2 %d files"',
    ]
    again = PO(document.render(texts))
    assert [unit.fuzzy for unit in again.units] == [True, True, True, True, False]
    assert again.untranslated == []


def test_a_unit_has_its_context_comments_and_language():
    first, _, fuzzy, plural, last = PO(samples.PO.encode()).units
    assert (first.context, first.comments, first.language) == ("menu", "For the menu", "pl")
    assert fuzzy.fuzzy and fuzzy.translated and not last.fuzzy  # the flag before an obsolete entry is not for the next
    assert plural.plural == "%d files" and plural.sources == ("one file", "%d files", "%d files")
    assert plural.targets == ("", "", "")


def test_a_template_becomes_a_file_of_its_language():
    for language, count in (("pl", 3), ("ja", 1), ("de", 2), ("pt-BR", 2)):
        document = PO(TEMPLATE.encode(), language=language)
        (unit,) = document.units
        text = document.render({unit: ["x %d é"] * count}).decode()
        assert f'"Language: {language}\\n"' in text and "charset=UTF-8" in text and f"nplurals={count};" in text
        assert text.count("msgstr[") == count
        assert PO(text.encode()).units[0].targets == ("x %d é",) * count


@pytest.mark.parametrize("line", ['"Language: \\n"', '"Language:\\n"', ""])
def test_a_translated_file_says_its_language(line):
    text = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n{line}\nmsgid "a"\nmsgstr ""\n'
    document = PO(text.encode(), language="fr")
    assert document.render({}) == text.encode()
    again = PO(document.render({document.units[0]: ["b"]}))
    assert again.language == "fr" and again.text.count("Language:") == 1


def test_a_missing_plural_rule_is_added():
    text = 'msgid ""\nmsgstr "Language: ru\\n"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""'
    document = PO(text.encode())
    assert f'\n"Plural-Forms: {plural_header("ru")}\\n"\n' in document.render({document.units[0]: ["x"] * 3}).decode()
    translated = text.replace('""', '"x"').replace('msgid "x"', 'msgid ""')
    assert PO(translated.encode()).units[0].targets == ("x", "x")  # which gettext reads by its default rule


ENGLISH, RARE = "nplurals=2; plural=(n != 1);", "nplurals=2; plural=(n>1);"


@pytest.mark.parametrize(
    "language, declared, translated, expected",
    [
        ("pl", ENGLISH, "", plural_header("pl")),  # copied from an English template
        ("ja", ENGLISH, "", plural_header("ja")),
        ("pl", ENGLISH, "x", ENGLISH),  # there are translations by this rule
        ("pl", RARE, "", RARE),  # nobody copied that
        ("de", "nplurals=2; plural=n != 1;", "", "nplurals=2; plural=n != 1;"),
        ("", ENGLISH, "", ENGLISH),
    ],
)
def test_the_plural_rule_of_an_english_template_is_replaced(language, declared, translated, expected):
    split = declared.replace("; ", ';"\n" ', 1)  # long headers are in several strings
    header = f'msgid ""\nmsgstr ""\n"Language: {language}\\n"\n"Plural-Forms: {split}\\n"\n"X-Generator: me\\n"\n'
    entries = f'''
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "{translated}"
msgstr[1] "{translated}"

msgid "%d word"
msgid_plural "%d words"
msgstr[0] ""
msgstr[1] ""
'''
    document = PO((header + entries).encode())
    again = PO(document.render({document.units[1]: [f"{n} %d" for n in range(Plurals(expected).count)]}))
    assert again.plurals.header == expected and again.declared["X-Generator"] == "me"
    assert again.units[1].targets == tuple(f"{n} %d" for n in range(Plurals(expected).count))


def test_forms_are_translated_from_the_singular_where_it_says_the_number():
    russian = Plurals(plural_header("ru"))  # whose first form is for 1, 21, 31, …
    assert russian.sources("one file", "%d files") == ("%d files",) * 3
    assert russian.sources("%d file", "%d files") == ("%d file", "%d files", "%d files")
    assert Plurals(plural_header("ja")).sources("%d file", "%d files") == ("%d files",)


def test_drafts_with_another_number_of_forms_are_untranslated():
    draft = samples.PO.replace('[0] ""\nmsgstr[1] ""\nmsgstr[2] ""', '[0] "x"\nmsgstr[1] "y"')
    draft = draft.replace('msgid "one', '#, fuzzy\nmsgid "one')
    document = PO(draft.encode())
    assert document.units[3].targets == ("", "", "")
    new = document.render({document.units[3]: list("abc")}).decode()
    assert new == draft.replace('[0] "x"\nmsgstr[1] "y"', '[0] "a"\nmsgstr[1] "b"\nmsgstr[2] "c"')


@pytest.mark.parametrize("field", ["Content-Type: text/plain; ", "Content-type: text/plain; ", 'Content-Type: x;"\n"'])
def test_other_encodings_stay(field):
    text = f'msgid ""\nmsgstr "{field}charset=ISO-8859-1\\n"\n# é\nmsgid "a"\nmsgstr ""\n'
    document = PO(text.encode("latin-1"))
    assert document.render({document.units[0]: "ü"}) == text.replace(
        'msgid "a"\nmsgstr ""', '#, fuzzy\nmsgid "a"\nmsgstr "ü"'
    ).encode("latin-1")


@pytest.mark.parametrize(
    "old, new, rule",
    [
        ("nplurals=3", "nplurals=x", "Plural-Forms must be of the form"),
        ("nplurals=3", "nplurals=2", "Plural-Forms must be of the form"),  # the rule gives a third
        ('msgstr[2] ""', 'msgstr[3] ""', "an entry must have msgid and msgstr, .* Received: msgid .*, line 26$"),
        (
            '[0] ""\nmsgstr[1] ""\nmsgstr[2] ""',
            '[0] "x"\nmsgstr[1] "x"',
            r"plural entries must have 3 forms, .* Received: 2, line 28$",
        ),
        ('msgstr ""', "msgstr", "an entry must have msgid and msgstr"),
        ('msgid "New"', 'msgid "New"\nmsgid "x"', "an entry must have each keyword once. Received: msgid"),
        ("# Trans", "Trans", "must be comments, keywords and strings in quotes. Received: .*, line 1$"),
        ("UTF-8", "utf-7", "encoding must be one that extends ASCII. Received: utf-7"),
        ("UTF-8", "none", "encoding must be one that Python knows. Received: none"),
    ],
)
def test_bad_files_are_refused(old, new, rule):
    assert old in samples.PO
    with pytest.raises(UserError, match=f"^app.po: .*{rule}"):
        PO(samples.PO.replace(old, new).encode(), "app.po")


@pytest.mark.parametrize("order", "<>")
def test_gettext_reads_what_is_written_as_mo(order):
    raw = samples.mo(samples.ENTRIES, order)
    document = MO(raw, "app.mo")
    assert [(unit.context, unit.source, unit.targets) for unit in document.units] == [
        ("", "file", ("Datei", "Dateien")),
        ("menu", "Open", ("Öffnen",)),
    ]
    new = gettext.GNUTranslations(io.BytesIO(document.render({document.units[0]: ("Akte", "Akten")})))
    assert new.ngettext("file", "files", 2) == "Akten" and new.pgettext("menu", "Open") == "Öffnen"
    with pytest.raises(UserError, match="app.mo: an MO file must be one that msgfmt wrote. Received: texts beyond"):
        MO(raw[:-30], "app.mo")


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="gettext is not installed")
def test_msgfmt_accepts_what_is_written(tmp_path):
    for text, language in ((samples.PO, ""), (TEMPLATE, "pl"), (TEMPLATE, "ja")):
        document = PO(text.encode(), language=language)
        document.write({unit: unit.sources for unit in document.untranslated}, tmp_path / "new.po")
        command = ["msgfmt", "--check-format", "--check-domain", "--use-fuzzy", "-o", "/dev/null", tmp_path / "new.po"]
        assert subprocess.run(command, capture_output=True, text=True).returncode == 0
