import pytest
from conftest import BYTES, once

from keras_tfm import files, text
from keras_tfm.runner import TokenRunner

pytestmark = once


class Echo(TokenRunner):
    """Says what it is told, in capital letters."""

    form, main = "echo", "model.echo"

    def _search(self, rows):
        assert len(set(map(len, rows))) == 1
        return [[letter - 32 if letter >= ord("a") + 4 else letter for letter in row] for row in rows]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.echo").write_text("echo")
    for side in ("source", "target"):
        text.save_tokenizer(BYTES, tmp_path / f"{side}_tokenizer")
    files.write_manifest(tmp_path, format="echo", max_length=8)
    return tmp_path


def test_texts_come_back_in_their_order_and_empty_ones_stay_empty(folder):
    texts = ["abc", "", "a", "\t ", "xyz", "ab", "abc"]
    assert Echo(folder)(texts) == ["ABC", "", "A", "", "XYZ", "AB", "ABC"]
    assert Echo(folder)(iter(texts)) == Echo(folder)(texts) and Echo(folder)([]) == []
    assert list(Echo(folder).stream(iter(texts), chunk=2)) == Echo(folder)(texts)


def test_what_is_cut_is_said(folder):
    with pytest.warns(UserWarning, match="3 of 10 tokens were cut off: 'abcdefghij'") as said:
        assert Echo(folder)(["abcdefghij", "abcdefg"]) == ["ABCDEFG", "ABCDEFG"]
    assert len(said) == 1 and said[0].filename == __file__  # the caller's line


@pytest.mark.parametrize(
    "texts, received", [("a dog", "a string, 'a dog'"), (["a", 3], "3 in it"), ([b"a"], "b'a' in it")]
)
def test_texts_must_be_a_list_of_strings(texts, received, folder):
    with pytest.raises(ValueError, match=f"`texts` must be a list of strings. Received: {received}"):
        Echo(folder)(texts)


def test_an_export_of_another_kind_is_refused(folder):
    (folder / "translator.json").unlink()
    files.write_manifest(folder, format="saved_classifier", max_length=8)
    with pytest.raises(ValueError, match="`folder` must hold a translator. Received: .*, a saved_classifier"):
        Echo(folder)
    (folder / "model.echo").unlink()
    with pytest.raises(FileNotFoundError, match="must hold a model.echo, as `keras-tfm export` writes it"):
        Echo(folder)


def test_settings_without_checksums_are_taken_if_they_make_sense(folder):
    (folder / "translator.json").write_text('{"max_length": 4}')  # as earlier versions wrote them
    assert Echo(folder)(["abc"]) == ["ABC"]
    for other in ("{}", '{"max_length": "4"}', '{"max_length": -4}', '{"max_length": null}'):
        (folder / "translator.json").write_text(other)
        with pytest.raises(files.DamagedFile, match="translator.json"):
            Echo(folder)
