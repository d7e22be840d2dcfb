"""Scores of translations, and speed of translators."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, one_of
from keras_tfm.decoding import scoring

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
    **options: Any,
) -> dict[str, Any]:
    """Returns the `scores` of a translator and its speed, which includes compilation; see `UNITS`.

    `options` are those of a call, such as `target_language`.
    For a `Translator`, but not for an export, also returns the perplexity of the references and tokens per second.
    `verbose=1` shows progress.
    """
    sources, references = list(sources), list(references)
    _metrics(sources, references, tokenize)  # check the arguments before the long work
    start = time.perf_counter()
    hypotheses = translator(sources, verbose=verbose, **options)
    seconds = time.perf_counter() - start
    result = scores(hypotheses, references, tokenize) | {"sentences/s": len(sources) / seconds}
    if hasattr(translator, "models"):
        result["tokens/s"] = sum(map(len, translator.target_tokenizer.encode(hypotheses))) / seconds
        language = options.get("target_language")
        result["perplexity"] = perplexity(translator, sources, references, verbose, language)
    return result


def perplexity(
    translator: Translator,
    sources: Iterable[str],
    references: Iterable[str],
    verbose: int = 0,
    target_language: Any = None,
) -> float:
    """Perplexity per token of the references, counting end tokens, up to the `max_length` of the translator."""
    sources, references = translator.prepare_pairs(sources, references, target_language)
    sides = (translator.source_tokenizer, sources), (translator.target_tokenizer, references)
    rows = [[ids[: translator.max_length - 1] for ids in tokenizer.encode(texts)] for tokenizer, texts in sides]
    scores = scoring.log_probabilities(translator.models, *rows, translator.batch_size, verbose)
    return float(np.exp(-scores.sum() / sum(len(ids) + 1 for ids in rows[1])))


class TranslationScores(keras.callbacks.Callback):
    """Translates a validation sample after each epoch of `fit` and adds `val_bleu` and `val_chrf` to the logs.

    Callbacks later in the list can use them: `EarlyStopping("val_bleu", mode="max")`, `ModelCheckpoint`.

    Args:
        translator: a `Translator` of the model that is trained.
        sources, references: lists of strings.
        tokenize: as for `scores`.
        **options: of a call of the translator, such as `target_language`.
    """

    def __init__(
        self,
        translator: Translator,
        sources: Iterable[str],
        references: Iterable[str],
        tokenize: str = "13a",
        **options: Any,
    ):
        super().__init__()
        self.translator, self.sources, self.references = translator, list(sources), list(references)
        self.tokenize, self.options = tokenize, options

    def on_epoch_end(self, epoch, logs=None):
        result = scores(self.translator(self.sources, **self.options), self.references, self.tokenize)
        if logs is not None:
            logs |= {"val_bleu": result["bleu"], "val_chrf": result["chrf"]}
