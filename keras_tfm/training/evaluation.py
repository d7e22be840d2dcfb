"""Scores of translations, and speed of translators."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, one_of
from keras_tfm.common.progress import Progress
from keras_tfm.data.batches import model_inputs, padded

if TYPE_CHECKING:
    from keras_tfm.export.runners import Runner
    from keras_tfm.translator import Translator

# Units of the numbers that `evaluate` returns.
UNITS = {
    "bleu": "of 100",
    "chrf": "of 100",
    "exact": "% of the sentences",
    "blank": "% of the translations",
    "perplexity": "per token",
    "sentences/s": "sentences per second",
    "tokens/s": "tokens of the translations per second",
}


def scores(hypotheses: Iterable[str], references: Iterable[str], tokenize: str = "13a") -> dict[str, Any]:
    """BLEU and chrF by sacreBLEU, and percentages of translations that equal their reference or are blank.

    Args:
        hypotheses, references: lists of strings, one reference for each hypothesis.
        tokenize: sacreBLEU's tokenizer, such as "13a", "zh", "ja-mecab"; "none" if the texts are already tokenized.

    Returns:
        `{"bleu": 0 … 100, "chrf": 0 … 100, "exact": 0 … 100, "blank": 0 … 100, "signatures": {…}}`.

    >>> result = scores(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> round(result["bleu"]), round(result["chrf"]), result["exact"]
    (100, 100, 100.0)
    """
    hypotheses, references = list(hypotheses), list(references)
    metrics = _metrics(hypotheses, references, tokenize)
    result = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    result["exact"] = 100 * sum(map(operator.eq, hypotheses, references)) / len(references)
    result["blank"] = 100 * sum(not text.strip() for text in hypotheses) / len(hypotheses)
    result["signatures"] = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    return result


def _metrics(hypotheses, references, tokenize):
    """sacreBLEU's metrics, after a check of the arguments of `scores`."""
    if len(hypotheses) != len(references) or not references:
        received = f"{len(hypotheses)} translations, {len(references)} references"
        raise UserError(f"`references` must hold one text for each translation, at least one. Received: {received}")
    sacrebleu = extras.load("sacrebleu")
    one_of("tokenize", tokenize, sacrebleu.BLEU.TOKENIZERS)
    return {"bleu": sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none"), "chrf": sacrebleu.CHRF()}


def evaluate(
    translator: Translator | Runner,
    sources: Iterable[str],
    references: Iterable[str],
    tokenize: str = "13a",
    verbose: int = 0,
) -> dict[str, Any]:
    """Returns the `scores` of a translator and its speed, which includes compilation; see `UNITS`.

    For a `Translator`, also returns the perplexity of the references and tokens per second, which the runners of
    `keras_tfm.export.runners` cannot measure. `verbose=1` shows progress.
    """
    sources, references = list(sources), list(references)
    _metrics(sources, references, tokenize)  # check the arguments before the long work
    start = time.perf_counter()
    hypotheses = translator(sources, verbose=verbose)
    seconds = time.perf_counter() - start
    result = scores(hypotheses, references, tokenize) | {"sentences/s": len(sources) / seconds}
    if hasattr(translator, "models"):
        result["tokens/s"] = sum(map(len, translator.target_tokenizer.encode(hypotheses))) / seconds
        result["perplexity"] = perplexity(translator, sources, references, verbose=verbose)
    return result


def perplexity(
    translator: Translator, sources: Iterable[str], references: Iterable[str], batch_size: int = 64, verbose: int = 0
) -> float:
    """Perplexity per token of the references, counting end tokens, under the translator's first model."""
    model, limit, total, count = translator.models[0], translator.max_length - 1, 0.0, 0
    sides = translator.source_tokenizer.encode(sources), translator.target_tokenizer.encode(references)
    pairs = [(source[:limit], target[:limit]) for source, target in zip(*sides, strict=True)]
    pairs.sort(key=lambda pair: max(map(len, pair)))
    with Progress(len(pairs), "measuring perplexity", "pair", verbose) as bar:
        for first in range(0, len(pairs), batch_size):
            members = pairs[first : first + batch_size]
            # widths are multiples of 16, so that there are few shapes to compile
            source, labels = (
                padded(side, (max(map(len, side)) // 16 + 1) * 16, batch_size) for side in zip(*members, strict=True)
            )
            logits = model.predict_on_batch(model_inputs(source, labels, model.arguments.get("packed")))
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits.astype("float32"), from_logits=True)
            total, count = total + float(ops.sum(losses * (labels > 0))), count + int((labels > 0).sum())
            bar.add(len(members))
    return float(np.exp(total / count))


class TranslationScores(keras.callbacks.Callback):
    """Translates a validation sample after each epoch of `fit` and adds `val_bleu` and `val_chrf` to the logs.

    Callbacks later in the list can use them: `EarlyStopping("val_bleu", mode="max")`, `ModelCheckpoint`, `TrainingRun`.

    Args:
        translator: a `Translator` of the model that is trained.
        sources, references: lists of strings.
        tokenize: as for `scores`.
    """

    def __init__(
        self, translator: Translator, sources: Iterable[str], references: Iterable[str], tokenize: str = "13a"
    ):
        super().__init__()
        self.translator, self.sources, self.references = translator, list(sources), list(references)
        self.tokenize = tokenize

    def on_epoch_end(self, epoch, logs=None):
        result = scores(self.translator(self.sources), self.references, self.tokenize)
        if logs is not None:
            logs |= {"val_bleu": result["bleu"], "val_chrf": result["chrf"]}
