import pathlib
import re

import numpy as np
import pytest
from conftest import BACKEND, BYTES, SIZES, array, once, quick, small_translator, spread

from keras_tfm import artifacts
from keras_tfm.cli import flags
from keras_tfm.export import runners
from keras_tfm.models import transformer
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "positions": "learned", "max_length": 32, "activation": "gelu"},
        {"target_vocab_size": BYTES.vocab_size, "num_decoder_layers": 2, "activation": "swish"},
    ][: None if BACKEND == "tensorflow" else 1],
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def test_ctranslate2_gives_each_token_the_same_probability(options, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    model = spread(transformer(BYTES.vocab_size, **SIZES, **options), 0.2)
    Translator(model, BYTES).export(tmp_path / "model", "ctranslate2")
    source, target = BYTES.encode(["a dog", "ein hund"])
    served = ctranslate2.Translator(str(tmp_path / "model"))
    (scored,) = served.score_batch([[str(i) for i in source]], [[str(i) for i in target]])
    inputs = {"source": np.array([[*source, END]]), "target": np.array([[START, *target]])}
    logits = array(quick(model)(inputs))[0].copy()
    logits[:, [PAD, START]] = -1e9  # which are never written
    shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [shares[place, token] for place, token in enumerate([*target, END])]
    np.testing.assert_allclose(scored.log_probs, expected, rtol=0, atol=1e-4)


@once
def test_each_precision_of_the_command_can_be_written_and_run(tmp_path, monkeypatch):
    specs = pytest.importorskip("ctranslate2.specs.model_spec", reason="CTranslate2 is not installed")
    monkeypatch.setattr(specs, "torch_is_available", False)  # which bfloat16 would need
    ours = small_translator("bytes", num_beams=1)
    (named,) = re.findall(r"Precisions (.*)\.", (ROOT / "docs/guides/ctranslate2.md").read_text())
    assert re.findall(r"`(\w+)`", named) == [*artifacts.FORMATS["ctranslate2"].precisions]
    for precision in artifacts.FORMATS["ctranslate2"].precisions:
        assert flags.parse(["export", "x", "--format=ctranslate2", "--out=y", f"--precision={precision}"])
        ours.export(tmp_path / precision, "ctranslate2", precision)
        assert runners.load(tmp_path / precision)(["a dog"])[0]


@once
def test_what_ctranslate2_cannot_compute_is_named(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    for name, value in {"positions": "rotary", "score": "additive", "norm": "rms"}.items():
        model = transformer(BYTES.vocab_size, **SIZES, **{name: value})
        with pytest.raises(ValueError, match=f"`{name}` must be one of .* Received: {name}='{value}'"):
            Translator(model, BYTES).export(tmp_path / "model", "ctranslate2")
    assert not (tmp_path / "model").exists()


@once
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 9},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": (7, 259, 30)},
        # no translation is possible
        pytest.param({"min_length": 3, "suppress_tokens": range(3, 260)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_search_of_the_folder_is_that_of_the_translator(options, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    ours, texts = small_translator("bytes", num_beams=1, **options), ["a dog", "", "b", "two cats", "e", "über"]
    ours.export(tmp_path / "model", "ctranslate2")
    assert runners.load(tmp_path / "model")(texts) == ours(texts)


@once
def test_tokens_that_ctranslate2_cannot_copy_are_left_out_with_a_warning(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    translator = small_translator("bytes", num_beams=1, copied_tokens=(101,))
    with pytest.warns(UserWarning, match="CTranslate2 does not support `copied_tokens`") as said:
        translator.export(tmp_path / "model", "ctranslate2")
    assert __file__ in {warning.filename for warning in said}
    translate = runners.load(tmp_path / "model")
    assert translate.settings["copied_tokens"] == [] and translate("a dog")


@once
def test_penalties_that_ctranslate2_does_not_know_are_refused(tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    for name, value in {"penalty": "gnmt", "coverage_penalty": 0.2}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be .* Received: .*{value}"):
            small_translator("bytes", **{name: value}).export(tmp_path / "model", "ctranslate2")
