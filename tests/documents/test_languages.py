import pytest
from conftest import once

from keras_tfm.common.arguments import UserError
from keras_tfm.documents import language_of_name, read_glossary
from keras_tfm.documents.languages import closest_language, same_language

pytestmark = once


@pytest.mark.parametrize(
    "name, language",
    [
        ("app.de.po", "de"),
        ("de.po", "de"),
        ("pt_BR.po", "pt_BR"),
        ("train.de.tsv", "de"),
        ("train.de.tsv.gz", "de"),
        ("messages_zh_Hans.properties", "zh_Hans"),
        ("app-sr@latin.po", "sr@latin"),
        ("/usr/share/locale/fr/LC_MESSAGES/app.mo", "fr"),
        ("_locales/de/messages.json", "de"),
        ("app.po", ""),
        ("new.tsv", ""),
        ("pairs.tsv", ""),
        ("fra.po", ""),
    ],
)
def test_the_language_is_read_from_the_name_of_a_file(name, language):
    assert language_of_name(name) == language


def test_only_known_languages_are_read_from_the_name_of_a_file():
    assert language_of_name("app.fra.po", ["deu", "fra"]) == "fra"
    assert language_of_name("app.pt_BR.po", ["pt"]) == "pt_BR"
    assert language_of_name("it/app.de.po", ["it", "fr"]) == "it"
    assert language_of_name("app.de.po", ["fr"]) == ""


def test_varieties_are_the_same_language_unless_two_of_them_are_meant():
    assert same_language("de_DE", "de") and same_language("PT", "pt-br") and same_language("sr@latin", "sr")
    assert not same_language("de", "den") and not same_language("pt_BR", "pt_PT") and not same_language("", "")
    assert closest_language("pt_BR", ["pt", "pt-BR"]) == "pt-BR" and closest_language("pt", ["pt", "pt-BR"]) == "pt"
    assert closest_language("de", ["fr"]) is None


def test_a_glossary_is_read(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"\xef\xbb\xbflayer\tEbene\r\n\r\nraster layer \t Rasterebene\r\nlayer\tEbene\r\n")
    assert read_glossary(path) == {"layer": "Ebene", "raster layer": "Rasterebene"}


@pytest.mark.parametrize(
    "content, place",
    [
        (b"layer\n", "line 1: "),
        (b"a\tb\nlayer\tEbene\tn.\n", "line 2: "),
        (b"layer\t \n", "line 1: "),
        (b"layer\tEbene\nlayer\tSchicht\n", "line 2: "),
        (b"", ""),
        (b"l\xff\tx", ""),
    ],
)
def test_a_bad_glossary_is_refused_with_file_and_line(content, place, tmp_path):
    (tmp_path / "terms.tsv").write_bytes(content)
    with pytest.raises(UserError) as error:
        read_glossary(tmp_path / "terms.tsv")
    assert str(error.value).startswith(f"{tmp_path / 'terms.tsv'}") and place in str(error.value)
