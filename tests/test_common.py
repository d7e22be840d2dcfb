import pytest
from conftest import BACKEND, IN_TENSORFLOW, small_translator

from keras_tfm import exported
from keras_tfm.export import FORMATS, compare


def test_a_comparison_counts_and_measures(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    verdict = compare(
        tmp_path, lambda texts: list(map(str.upper, texts)), lambda texts: ["A", "b", "C"], ["a", "b", "c"]
    )
    assert verdict[:3] == (2, 3, 1.0) and str(verdict).startswith(
        "2 of 3 sentences translated exactly as by the model, 1.0 MB"
    )


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tests the error message of the other backends")
def test_other_backends_say_where_to_export(tmp_path):
    with pytest.raises(RuntimeError, match="This export needs the TensorFlow backend.*Received: the jax backend"):
        small_translator("bytes").export(tmp_path / "model", "saved_model")


@IN_TENSORFLOW
def test_a_quantized_model_is_refused_where_its_weights_would_be_misread(tmp_path):
    translator = small_translator("bytes")
    translator.models[0].quantize("int8")
    for form in ("litert", "ctranslate2", "web"):
        with pytest.raises(ValueError, match="`translator` must have models that are not quantized.*Int8"):
            translator.export(tmp_path / "export", form)


@pytest.mark.parametrize(
    "format, options, message",
    [
        ("pickle", {}, "`format` must be one of .*saved_model.* Received: format='pickle'"),
        ("onnx", {"precision": "int8"}, "`precision` must be one of float32 for format='onnx'. Received: .*int8"),
        ("litert", {"precision": "int4"}, "`precision` must be one of float32, float16, int8 for format='litert'. Rec"),
        ("litert", {"n_best": 2}, "`n_best` must be None for format='litert'.* Received: n_best=2"),
        (
            "litert",
            {"title": "Dates"},
            "`title` must be None for format='litert', which has no page. Received: .*Dates",
        ),
        ("web", {"examples": "a text"}, "`examples` must be a list of strings. Received: examples='a text'"),
        (
            "web",
            {"runtime": "no/such"},
            "`runtime` must be a folder that contains LiteRT.js.* Received: no/such, without",
        ),
        ("saved_model", {"max_length": 0}, "`max_length` must be a positive integer"),
    ],
)
def test_unsupported_options_are_refused_by_name(format, options, message, tmp_path):
    assert FORMATS.keys() == exported.RUNNERS.keys()
    with pytest.raises(ValueError, match=message):
        small_translator("bytes").export(tmp_path / "model", format, **options)
    assert not (tmp_path / "model").exists()
