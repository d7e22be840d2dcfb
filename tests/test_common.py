import pytest
from conftest import BACKEND, IN_TENSORFLOW, small_translator

from keras_tfm import export


def test_a_comparison_counts_and_measures(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    verdict = export.compare(
        tmp_path, lambda texts: list(map(str.upper, texts)), lambda texts: ["A", "b", "C"], ["a", "b", "c"]
    )
    assert verdict[:3] == (2, 3, 1.0) and str(verdict).startswith(
        "2 of 3 sentences as the model translates them, 1.0 MB"
    )


@pytest.mark.skipif(BACKEND == "tensorflow", reason="what the other backends say")
def test_other_backends_say_where_to_export(tmp_path):
    with pytest.raises(RuntimeError, match="Export needs Keras' TensorFlow backend.*Received: the jax backend"):
        export.saved_model(small_translator("bytes"), tmp_path / "model")


@IN_TENSORFLOW
@pytest.mark.parametrize("form", ["litert", "ctranslate2"])
def test_a_quantized_model_is_refused_where_its_weights_would_be_misread(form, tmp_path):
    translator = small_translator("bytes")
    translator.models[0].quantize("int8")
    with pytest.raises(ValueError, match="`translator` must have models that are not quantized.*Int8"):
        getattr(export, form)(translator, tmp_path / "export")
