import pytest
from conftest import BACKEND, IN_TENSORFLOW, refused, small_translator

from keras_tfm.export import compare
from keras_tfm.export.common import in_float32


def test_a_comparison_counts_and_measures(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    verdict = compare(
        tmp_path, lambda texts: list(map(str.upper, texts)), lambda texts: ["A", "b", "C"], ["a", "b", "c"]
    )
    assert verdict[:2] == (2, 3) and verdict.similarity == pytest.approx(2 / 3)
    beginning = "2 of 3 sentences translated exactly as by the model, similarity 0.67, 1.0 MB"
    assert str(verdict).startswith(beginning)
    nothing = compare(tmp_path, lambda texts: ["", " "][: len(texts)], lambda texts: ["", " "], ["a", "b"])
    assert nothing.same == 2 and str(nothing) == "all 2 translations are blank, 1.0 MB"


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tests the error message of the other backends")
def test_other_backends_say_where_to_export(tmp_path):
    with pytest.raises(RuntimeError, match="This export needs the TensorFlow backend.*Received: the jax backend"):
        small_translator("bytes").export(tmp_path / "model", "saved_model")


@pytest.mark.slow
@IN_TENSORFLOW
@pytest.mark.usefixtures("little_garbage")
def test_a_quantized_model_is_refused_where_its_weights_would_be_misread(tmp_path):
    translator = small_translator("bytes")
    translator.models[0].quantize("int8")
    for format in ("litert", "ctranslate2", "web"):
        with refused("translator"):
            translator.export(tmp_path / "export", format)


def test_models_in_mixed_precision_are_exported_in_float32():
    translator = small_translator("bytes", {"dtype": "mixed_bfloat16"}, num_beams=3, min_length=2)
    translator.longest_target = 9
    plain = in_float32(translator)
    assert {layer.compute_dtype for layer in plain.models[0]._flatten_layers()} == {"float32"}
    assert plain.settings == translator.settings and plain.longest(64) == 9 and in_float32(plain) is plain
    for actual, expected in zip(plain.models[0].get_weights(), translator.models[0].get_weights(), strict=True):
        assert (actual == expected).all()


@pytest.mark.slow
@IN_TENSORFLOW
@pytest.mark.parametrize("format", ["litert", "onnx", "saved_model"])
def test_an_export_of_a_model_in_mixed_precision_translates_as_in_float32(format, tmp_path, one_width):
    translator = small_translator("bytes", {"dtype": "mixed_bfloat16"}, num_beams=2)
    assert translator.export(tmp_path / "export", format, max_length=24, compare_on=["a dog", "b"]).same == 2


@pytest.mark.parametrize(
    "format, options, message",
    [
        ("pickle", {}, "`format` must be one of .*saved_model.* Received: format='pickle'"),
        ("onnx", {"precision": "int8"}, "`precision` must be one of float32 for format='onnx'. Received: .*int8"),
        ("litert", {"precision": "int4"}, "`precision` must be one of float32, float16, int8 for format='litert'. Rec"),
        (
            "litert",
            {"jit_compile": True},
            "`jit_compile` must be False for format='litert'. Rec",
        ),
        ("litert", {"n_best": 2}, "`n_best` must be None for format='litert'.* Received: n_best=2"),
        (
            "litert",
            {"title": "Dates"},
            "`title` must be None for format='litert', which has no page. Received: .*Dates",
        ),
        ("web", {"examples": "a text"}, "`examples` must be a list of strings"),
        (
            "web",
            {"runtime": "no/such"},
            "`runtime` must be a folder that contains LiteRT.js.* Received: no/such, without",
        ),
        ("saved_model", {"max_length": 0}, "`max_length` must be a positive integer"),
    ],
)
def test_unsupported_options_are_refused_by_name(format, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        small_translator("bytes").export(tmp_path / "model", format, **options)
    assert not (tmp_path / "model").exists()
