import pytest
import samples
from conftest import once

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import FORMATS, aligned_pairs, translated_pairs

pytestmark = once


def pairs(suffix, text, language=""):
    raw = text if isinstance(text, bytes) else text.encode()
    return list(translated_pairs(FORMATS[suffix](raw, f"app{suffix}", language)))


def test_translated_texts_are_pairs_and_drafts_are_not():
    assert pairs(".po", samples.PO) == [("Translated", "Przetłumaczony", "pl")]
    assert pairs(".xlf", samples.XLIFF1, "de") == [("Done", "Fertig ä", "de")]
    assert pairs(".xliff", samples.XLIFF2, "de") == [("Bye", "Tschüss", "de")]
    assert pairs(".tmx", samples.TMX) == [("Yes & no", "Oui", "fr"), ("Stop", "Stój", "pl-PL")]
    assert pairs(".tmx", samples.TMX, "pl") == [("Stop", "Stój", "pl-PL")]
    assert pairs(".mo", samples.mo(samples.ENTRIES), "de") == [
        ("file", "Datei", "de"),
        ("files", "Dateien", "de"),
        ("Open", "Öffnen", "de"),
    ]


def test_plural_forms_are_pairs_with_what_they_translate():
    text = 'msgid ""\nmsgstr "Language: {0}\\n"\n\nmsgid "{1}"\nmsgid_plural "%d files"\n'
    russian = text.format("ru", "%d file") + 'msgstr[0] "%d файл"\nmsgstr[1] "%d файла"\nmsgstr[2] "%d файлов"\n'
    assert [pair[:2] for pair in pairs(".po", russian)] == [("%d file", "%d файл"), ("%d files", "%d файлов")]
    russian = russian.replace('%d file"', 'one file"')  # whose first form is also for 21
    assert [pair[:2] for pair in pairs(".po", russian)] == [("%d files", "%d файлов")]
    japanese = text.format("ja", "one file") + 'msgstr[0] "%d ファイル"\n'
    assert [pair[:2] for pair in pairs(".po", japanese)] == [("%d files", "%d ファイル")]


def test_accelerators_are_removed_from_both_sides():
    entries = {b"_File": "ファイル(_F)", b"E_xit": "Been_den", b"file_name": "file_name", b"_Tab stop": "Tabulator"}
    entries = {key: value.encode() for key, value in entries.items()} | {b"": samples.HEADER}
    assert {pair[:2] for pair in pairs(".mo", samples.mo(entries))} == {
        ("File", "ファイル"),
        ("Exit", "Beenden"),
        ("file_name", "file_name"),
        ("Tab stop", "Tabulator"),
    }


def test_lines_are_pairs_if_both_sides_have_as_many():
    assert [pair[:2] for pair in pairs(".po", 'msgid "One\\n\\n Two"\nmsgstr "Eins\\nZwei\\n"\n')] == [
        ("One", "Eins"),
        ("Two", "Zwei"),
    ]
    assert [pair[:2] for pair in pairs(".po", 'msgid "One\\nTwo"\nmsgstr "Eins und zwei"\n')] == [
        ("One Two", "Eins und zwei")
    ]


def test_texts_with_the_same_key_are_pairs():
    english = FORMATS[".ftl"](
        b"a = Hello { $name }\n    .title = &Title\nb = { $n ->\n    [one] One\n   *[other] Many\n }\n"
    )
    german = FORMATS[".ftl"](b"b = { $n ->\n   *[other] Viele\n }\na = Hallo { $name }\n", language="de")
    assert list(aligned_pairs(english, german)) == [
        ("Hello { $name }", "Hallo { $name }", "de"),
        ("Many", "Viele", "de"),
    ]
    english, german = (FORMATS[".properties"](text) for text in (b"a=&Yes\nb=No\n", b"b=Nein\na=&Ja\n"))
    assert list(aligned_pairs(english, german)) == [("Yes", "Ja", ""), ("No", "Nein", "")]


@pytest.mark.parametrize("suffixes", [(".po", ".po"), (".json", ".ftl"), (".md", ".md")])
def test_documents_without_common_keys_are_refused(suffixes):
    documents = [FORMATS[suffix](samples.SAMPLES[suffix], f"app{suffix}") for suffix in suffixes]
    with pytest.raises(UserError, match=rf"app{suffixes[1]}: must be in the format of app{suffixes[0]}"):
        list(aligned_pairs(*documents))
