import pytest
from conftest import BYTES, SIZES, once, several_translator

from keras_tfm.artifacts import describe
from keras_tfm.common.files import DamagedFile
from keras_tfm.models import transformer
from keras_tfm.translator import Translator

pytestmark = once  # runs and exports are described in their own tests


def test_a_saved_translator(tmp_path):
    model = transformer(BYTES.vocab_size, **SIZES)
    Translator(model, BYTES, num_beams=7).save(tmp_path / "one")
    said = dict(describe(tmp_path / "one"))
    assert said["kind"] == "saved translator" and said["parameters"] == f"{model.count_params():,}"
    assert "model_dim 16" in said["model"] and said["tokenizer"] == "ByteTokenizer, 260 tokens"
    for setting in ("num_beams 7", "batch_size 64", "max_length 512", "penalty length", "length_penalty 0.6"):
        assert setting in said["settings"]
    Translator([model, model], BYTES).save(tmp_path / "two")
    assert dict(describe(tmp_path / "two"))["kind"] == "saved translator of 2 models"


def test_languages_and_placeholders_are_described_if_there_are_any(tmp_path):
    several_translator(target_language="de").save(tmp_path / "several")
    said = dict(describe(tmp_path / "several"))
    assert (said["languages"], said["placeholders"]) == ("de, fr", 3) and "target_language de" in said["settings"]
    Translator(transformer(BYTES.vocab_size, **SIZES), BYTES).save(tmp_path / "one")
    assert not {"languages", "placeholders"} & {*dict(describe(tmp_path / "one"))}


def test_a_damaged_one_is_named(tmp_path):
    Translator(transformer(BYTES.vocab_size, **SIZES), BYTES).save(tmp_path)
    (tmp_path / "model.keras").write_bytes((tmp_path / "model.keras").read_bytes()[:5000])
    with pytest.raises(DamagedFile, match=r"model\.keras: damaged"):
        describe(tmp_path)
