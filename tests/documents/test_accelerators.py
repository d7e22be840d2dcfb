import pytest
from conftest import once

from keras_tfm.documents import Accelerators

pytestmark = once

GTK = ["_File", "_Edit", "Save _As…", "E_xit", "Cu_t", "_Paste", "Find Pre_vious", "Create a _backup copy of files"]
GTK += ["Guide co_lor:", "Color", "Y ax_is", "Axis", "Use 'filter_surround' points", "English/Canada (en_CA)", "%s_%s"]
QT = [
    "&File",
    "E&xit",
    "Drag && drop",
    "AT&T",
    "Rate & tag",
    "Con&vert to PDF",
    "Use Open&GL transitions",
    "&Copy &amp;",
]
LIBREOFFICE = ["~File", "E~xit", "~10 minutes", "Save ~As...", "a ~ b"]


@pytest.mark.parametrize(
    "texts, marker",
    [
        (GTK, "_"),
        (QT, "&"),
        (LIBREOFFICE, "~"),
        (["_Help"], "_"),
        (["file_name", "%s_%s", "the option max_length", "R&D", "Drag & drop", "~8.3.0"], ""),
        (["_id", "file_name", "line_number"], ""),  # names of a database
        (["'&M' marks packages", "~a<b>action</b>", "<literal>~M</literal>"], ""),  # patterns of a manual
        ([], ""),
    ],
)
def test_the_marker_of_an_application_is_known_by_its_texts(texts, marker):
    assert Accelerators(texts).marker == marker


@pytest.mark.parametrize(
    "texts, text, plain, key",
    [
        (GTK, "_File", "File", "F"),
        (GTK, "E_xit", "Exit", "x"),
        (GTK, "Guide co_lor:", "Guide color:", "l"),  # "color" is a word of the application
        (GTK, "Find Pre_vious", "Find Previous", "v"),
        (GTK, "English/Canada (en_CA)", "English/Canada (en_CA)", ""),
        (GTK, "Use 'filter_surround' points", "Use 'filter_surround' points", ""),
        (GTK, "FILE_NAME", "FILE_NAME", ""),
        (GTK, "file_name", "file_name", ""),
        (GTK, "%s_%s", "%s_%s", ""),
        (GTK, "_a _b", "_a _b", ""),
        (GTK, "ファイル(_F)", "ファイル", "F"),
        (GTK, "開く(_O)...", "開く...", "O"),
        (GTK, "Rate & tag", "Rate & tag", ""),
        (QT, "E&xit", "Exit", "x"),
        (QT, "Drag && drop", "Drag && drop", ""),
        (QT, "AT&T", "AT&T", ""),
        (QT, "Rate & tag", "Rate & tag", ""),
        (QT, "&Copy &amp; paste", "Copy &amp; paste", "C"),
        (QT, "file_name", "file_name", ""),
        (LIBREOFFICE, "Save ~As...", "Save As...", "A"),
        (["Plain"], "_File", "_File", ""),
    ],
)
def test_only_accelerators_are_removed(texts, text, plain, key):
    assert Accelerators(texts).strip(text) == (plain, key)


@pytest.mark.parametrize(
    "text, key, expected",
    [
        ("Datei", "F", "_Datei"),  # no such letter: the first of a word
        ("Fichier", "f", "_Fichier"),
        ("Datei öffnen", "Ö", "Datei _öffnen"),  # the start of a word rather than its middle
        ("Beenden", "n", "Bee_nden"),
        ("Файл", "F", "_Файл"),
        ("Öffnen", "O", "Ö_ffnen"),  # not every keyboard has letters with accents
        ("Éditer", "O", "É_diter"),
        ("Äö", "x", "_Äö"),
        ("%s: löschen", "s", "%s: lö_schen"),  # not inside a placeholder
        ("<b>Fett</b>", "b", "<b>_Fett</b>"),
        ("ファイル", "f", "ファイル(_F)"),
        ("開く...", "o", "開く(_O)..."),
        ("名前：", "n", "名前(_N)："),
        ("PDF として保存…", "P", "PDF として保存(_P)…"),
        ("100 %", "p", "100 %"),
    ],
)
def test_an_accelerator_is_put_where_users_of_the_language_expect_it(text, key, expected):
    assert Accelerators(GTK).add(text, key) == expected


def test_what_is_added_can_be_removed():
    accelerators = Accelerators(GTK)
    for text in ("Datei", "Ouvrir…", "ファイル", "名前:", "Файл"):
        assert accelerators.strip(accelerators.add(text, "F"), loosely=True)[0] == text
