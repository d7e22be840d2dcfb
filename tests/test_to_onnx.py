import pytest
from conftest import IN_TENSORFLOW, TEXTS, small_translator

from keras_tfm import export


@IN_TENSORFLOW
@pytest.mark.slow
def test_onnx_says_what_the_model_says(tmp_path):
    """Greedily; the files of a trained model are run without this package in `test_saved_models.py`."""
    pytest.importorskip("tf2onnx", reason="ONNX's packages are not installed")
    ours = small_translator("bpe", beams=1)
    verdict = export.onnx(ours, tmp_path / "model", compare_on=TEXTS)
    assert verdict.same == verdict.texts == len(TEXTS)
    run = export.run_onnx(tmp_path / "model", ours)
    assert [run(text) for text in TEXTS] == ours(TEXTS)
