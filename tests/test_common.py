import pytest
from conftest import BACKEND, small_translator

from keras_tfm import export
from keras_tfm.export.common import NewFolder, replaced


def test_a_folder_appears_when_all_is_well(tmp_path):
    place = tmp_path / "model"
    for content in ("first", "second"):  # which takes the place of the first
        with NewFolder(place) as new:
            (new / "model.bin").write_text(content)
            assert new != place
        assert (place / "model.bin").read_text() == content
    with pytest.raises(KeyError), NewFolder(place) as new:
        (new / "model.bin").write_text("third")
        raise KeyError
    assert (place / "model.bin").read_text() == "second" and list(tmp_path.iterdir()) == [place]


def test_nobody_loses_a_folder_of_other_files(tmp_path):
    (tmp_path / "diary").write_text("dear diary")
    (tmp_path / "export").mkdir()
    for name in ("model.bin", "notes"):  # of an earlier export, and beside it
        (tmp_path / "export" / name).write_text("of mine")
    for folder, what in (
        (tmp_path, "with diary, export$"),
        (tmp_path / "diary", "a file"),
        (tmp_path / "export", "with notes$"),
    ):
        with pytest.raises(ValueError, match=f"`folder` must be new, empty or an earlier export. Received: .*{what}"):
            NewFolder(folder)


def test_what_was_replaced_comes_back():
    class Thing:
        own = 1

    class Heir(Thing):
        pass

    for thing in (Thing, Heir):
        with pytest.raises(KeyError), replaced(thing, "own", 2):
            assert thing.own == 2
            raise KeyError
        assert thing.own == 1
    assert "own" not in vars(Heir)


def test_a_comparison_counts_and_measures(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    verdict = export.compare(tmp_path, str.upper, lambda texts: ["A", "b", "C"], ["a", "b", "c"])
    assert verdict[:3] == (2, 3, 1.0) and str(verdict).startswith(
        "2 of 3 sentences as the model translates them, 1.0 MB"
    )


@pytest.mark.skipif(BACKEND == "tensorflow", reason="what the other backends say")
def test_other_backends_say_where_to_export(tmp_path):
    with pytest.raises(RuntimeError, match="Export needs Keras' TensorFlow backend.*Received: the jax backend"):
        export.saved_model(small_translator("bytes"), tmp_path / "model")
