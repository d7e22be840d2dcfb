"""What users write, for mypy: `make check` reads it, nobody runs it. An ignored error is one that must be found."""

from typing import Any, assert_type

import numpy as np

import keras_tfm
from keras_tfm import Recipe, Translator, data, export, layers, models, text, training
from keras_tfm.decoding import Beam, Sample


def trains() -> None:
    pairs = data.tasks.dates(1000, split="train")
    assert_type(pairs, list[tuple[str, str]])
    tokenizer = text.train_tokenizer((source for source, _ in pairs), kind="bpe", vocab_size=1000)
    assert_type(tokenizer, text.Tokenizer)
    assert_type(tokenizer.encode(["a"]), list[list[int]])
    assert_type(tokenizer.decode([[4, 5]]), list[str])
    translator = keras_tfm.train(pairs, "runs/dates", Recipe(steps=10), valid=pairs, tokenizer=tokenizer)
    assert_type(translator, Translator)
    assert_type(training.evaluate(translator, ["a"], ["b"]), dict[str, Any])
    keras_tfm.train(pairs)  # type: ignore[call-arg]  # without a folder
    keras_tfm.train(["a", "b"], "runs/dates")  # type: ignore[list-item]
    Recipe(steps="many")  # type: ignore[arg-type]
    keras_tfm.trane(pairs, "runs/dates")  # type: ignore[attr-defined]


def translates(translator: Translator) -> None:
    assert_type(translator.n_best(["a"], 3), list[list[tuple[str, float]]])
    assert_type(Translator.load("runs/dates", num_beams=4), Translator)
    assert_type(export.export(translator, "litert", "litert", compare_on=["a"]), export.Verdict | None)
    assert_type(keras_tfm.load("litert"), Translator | export.Runner)
    assert_type(translator("a", num_beams=2), str)
    assert_type(translator(["a"], prefix="b"), list[str])
    assert_type(translator.score(["a"], ["b"]), list[float])
    translator.save(3)  # type: ignore[arg-type]


def builds(ids: np.ndarray) -> None:
    layers.TransformerEncoderBlock(num_heads=4, ff_dim=64, positions="rotary")
    layers.TransformerEncoderBlock(4, 64)  # type: ignore[call-arg]  # keywords only
    layers.MultiHeadAttention(8, head_dim="64")  # type: ignore[arg-type]
    model = models.decoder_lm(vocab_size=100, size="tiny")
    assert_type(model.generate(ids, max_length=8, sampler=Sample(top_p=0.9, seed=1)), np.ndarray)
    model.generate(ids, sampler=Beam(num_beams=3, early_stopping=True))
    Beam(num_beam=3)  # type: ignore[call-arg]
