import shutil

import pytest
from conftest import BYTES, IN_TENSORFLOW, TEXTS, refused, small_translator, spread
from test_runners import shared_export, shared_translator

from keras_tfm import artifacts
from keras_tfm.export import runners
from keras_tfm.models import transformer
from keras_tfm.translator import Translator

pytestmark = [IN_TENSORFLOW, pytest.mark.xdist_group("exported")]  # where the shared export is


@pytest.fixture(autouse=True)
def installed():
    pytest.importorskip("tf2onnx", reason="ONNX's packages are not installed")


@pytest.mark.slow
def test_onnx_equals_the_model(tmp_path):
    """The files of a trained model are run without this package in `test_saved_models.py`."""
    ours = small_translator("bpe", num_beams=1)
    verdict = ours.export(tmp_path / "model", "onnx", compare_on=TEXTS)
    assert verdict.same == verdict.texts == len(TEXTS)
    assert runners.load(tmp_path / "model")(TEXTS) == ours(TEXTS)


OPTIONS = [
    {"num_beams": 4, "length_penalty": 1.5, "penalty": "gnmt", "min_length": 6},
    {"num_beams": 3, "length_penalty": -1.0, "no_repeat_ngram_size": 2},
    {"num_beams": 1, "no_repeat_ngram_size": 1, "suppress_tokens": (7, 9)},
    {"num_beams": 300, "length_penalty": 0.0},  # more than there are tokens
]
COPYING = {"num_beams": 3, "no_repeat_ngram_size": 1, "min_length": 3}


@pytest.mark.parametrize(
    "options",
    [*OPTIONS[:3], COPYING | {"copied_tokens": (260, 264, 278, 289)}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_folder_with_other_settings_searches_by_them(options, tmp_path):
    folder = shutil.copytree(shared_export("onnx"), tmp_path / "model")
    settings = artifacts.read_manifest(folder)
    (folder / "translator.json").unlink()
    artifacts.write_manifest(folder, **settings | options)
    assert runners.load(folder)(TEXTS[:4]) == shared_translator(**options)(TEXTS[:4])


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "options",
    [*OPTIONS, COPYING | {"copied_tokens": BYTES.encode(["aot"])[0]}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_search_in_numpy_is_that_of_the_translator(options, tmp_path):
    ours, texts = small_translator("bytes", **options), ["a dog", "two cats", "", "b", "über"]
    ours.export(tmp_path / "model", "onnx")
    assert runners.load(tmp_path / "model")(texts) == ours(texts)


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("sizes", [{"model_dim": 9, "num_heads": 3}, {"model_dim": 3, "num_heads": 1}], ids=str)
def test_dimensions_of_size_three_are_not_taken_for_lengths(sizes, tmp_path):
    """Batch and lengths are open, and nothing else is: 3 was once taken for the length of a source."""
    import onnxruntime

    sizes = {"num_layers": 1, "ff_dim": 3, **sizes}
    ours = Translator(spread(transformer(BYTES.vocab_size, **sizes), 0.2), BYTES, num_beams=2, max_length=3)
    ours.export(tmp_path / "model", "onnx")
    assert runners.load(tmp_path / "model")(["a", "bc"]) == ours(["a", "bc"])
    step = onnxruntime.InferenceSession(str(tmp_path / "model/step.onnx"), providers=["CPUExecutionProvider"])
    shapes = [x.shape for x in step.get_inputs() if x.name.startswith("cache_")]
    heads, features = sizes["num_heads"], sizes["model_dim"] // sizes["num_heads"]
    rooms = set()
    for batch, *rest in shapes:  # heads, length, features; or of a mask only the length
        assert isinstance(batch, str) and (len(rest) == 1 or rest[::2] == [heads, features]), shapes
        rooms.add(rest[len(rest) // 2] if isinstance(rest[len(rest) // 2], int) else "any")
    assert rooms == {3, "any"}  # of the translation, and of the source


def test_a_coverage_penalty_is_refused(tmp_path):
    with refused("coverage_penalty"):
        small_translator("bytes", coverage_penalty=0.2).export(tmp_path / "model", "onnx")
    assert not (tmp_path / "model").exists()
