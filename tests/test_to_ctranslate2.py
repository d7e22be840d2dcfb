import numpy as np
import pytest
from conftest import BYTES, SIZES, array, spread

from keras_tfm import export
from keras_tfm.models import transformer
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "positions": "learned", "max_length": 32, "activation": "gelu"},
        {"target_vocab_size": BYTES.vocab_size, "num_decoder_layers": 2, "activation": "swish"},
    ],
)
def test_ctranslate2_gives_each_token_the_same_probability(options, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    model = spread(transformer(BYTES.vocab_size, **SIZES, **options), 0.2)
    export.ctranslate2(Translator(model, BYTES), tmp_path / "model")
    source, target = BYTES.encode(["a dog", "ein hund"])
    served = ctranslate2.Translator(str(tmp_path / "model"))
    (scored,) = served.score_batch([[str(i) for i in source]], [[str(i) for i in target]])
    inputs = {"source": np.array([[*source, END]]), "target": np.array([[START, *target]])}
    logits = array(model(inputs))[0]
    logits[:, [PAD, START]] = -1e9  # which are never written
    shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [shares[place, token] for place, token in enumerate([*target, END])]
    np.testing.assert_allclose(scored.log_probs, expected, rtol=0, atol=1e-4)


def test_what_ctranslate2_cannot_compute_is_named(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    for name, value in {"positions": "rotary", "score": "additive", "norm": "rms"}.items():
        model = transformer(BYTES.vocab_size, **SIZES, **{name: value})
        with pytest.raises(ValueError, match=f"`{name}` must be one of .* Received: {name}='{value}'"):
            export.ctranslate2(Translator(model, BYTES), tmp_path / "model")
    assert not (tmp_path / "model").exists()
