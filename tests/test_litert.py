import pytest
from conftest import BACKEND, BYTES, spread

from keras_tfm.litert import LiteRTTranslator

pytestmark = pytest.mark.xdist_group("litert")  # one export for all


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if BACKEND != "tensorflow":
        pytest.skip("LiteRT files are exported by the TensorFlow backend")
    from keras_tfm import export
    from keras_tfm.models import transformer
    from keras_tfm.translator import Translator

    model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32)
    folder = tmp_path_factory.mktemp("exported")
    export.litert(Translator(spread(model, 0.2), BYTES, beams=1, max_length=24), folder)
    return folder


def test_what_is_cut_is_said(folder):
    translate = LiteRTTranslator(folder)
    with pytest.warns(UserWarning, match="7 of 30 tokens were cut off: 'xxxxx"):
        (cut,) = translate(["x" * 30])
    assert [cut] == translate(["x" * 23])


def test_strange_texts_do_no_harm(folder):
    translate = LiteRTTranslator(folder, num_threads=2)
    texts = ["", "🙂🙃", "Привет", "\ud800 lone", "\x00\x07", "a\nb"]
    answers = translate(texts)
    assert len(answers) == len(texts) and answers[0] == ""
    assert answers[1:] == [translate([text])[0] for text in texts[1:]]
    assert translate([]) == []
    with pytest.raises(ValueError, match="`texts` must be a list of strings. Received: a string, 'a dog'"):
        translate("a dog")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold a model.tflite"):
        LiteRTTranslator(tmp_path)
