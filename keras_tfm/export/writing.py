"""Exports a trained translator: `export(translator, folder, format)`, or `translator.export(folder, format)`.

    "saved_model"    strings → strings, for `tf.saved_model.load` and TensorFlow Serving
    "litert"         ids → ids by builtin operators, for phones and browsers
    "ctranslate2"    weights for CTranslate2, for servers without an accelerator
    "onnx"           encoder and decoder step, for ONNX Runtime
    "web"            a page that translates in the visitor's browser, for any static web server
    "huggingface"    a Marian model for `transformers`

`keras_tfm.load(folder)` runs each of them from its folder alone.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from keras_tfm import artifacts, decoding
from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, check, positive, strings
from keras_tfm.export import common, runners
from keras_tfm.runtimes import programs
from keras_tfm.text.masking import split_tag

if TYPE_CHECKING:
    import keras_tfm


def export(
    translator: keras_tfm.Translator,
    folder: str | os.PathLike[str],
    format: str = "saved_model",
    precision: str | None = None,
    max_length: int | None = None,
    n_best: int | None = None,
    jit_compile: bool = False,
    compare_on: Iterable[str] | None = None,
    min_agreement: float | None = None,
    title: str | None = None,
    examples: Iterable[str] | None = None,
    runtime: str | os.PathLike[str] | None = None,
    explain: bool | None = None,
) -> Verdict | None:
    """Writes a translator in a format to ship, with its tokenizers and the settings of its search.

    Needs the TensorFlow backend, but for "ctranslate2" and "huggingface"; it loads what other backends have saved.

    Args:
        translator: a `Translator`.
        folder: where to write. It must be new, empty or an earlier export, which is replaced when all is written.
        format: a key of `FORMATS`; their modules describe the files and signatures.
        precision: of the weights, one of the format's `precisions`; by default the first of them.
        max_length: maximum number of source tokens, by default that of the translator, up to the format's limit.
        n_best: number of hypotheses that a SavedModel returns or a page shows, by default all of the beam.
        jit_compile: whether XLA, which its runtime must have, compiles the search of a SavedModel for single texts.
        compare_on: sentences to translate by the export and by the translator, before the folder is replaced; those of
            several lines, or longer than `max_length`, are left out. Without a tag, each language has its turn.
        min_agreement: lowest mean similarity to accept, 0 to 1; `runners.MIN_AGREEMENT` by default. See `Disagreement`.
        title, examples, runtime: of a page: its title, texts to click on, and the folder of LiteRT.js (node_modules).
        explain: of a page: whether to add a second one, which shows how a Transformer translates, step by step.

    Returns a `Verdict` on the comparison, or None without `compare_on`.
    """
    page = {"title": title, "examples": examples, "runtime": runtime, "explain": explain}
    precision, kind = artifacts.check_precision(format, precision), artifacts.FORMATS[format]
    _check(translator, format, kind, n_best, jit_compile, page)
    translator = common.in_float32(translator)
    longest = min(kind.max_length if max_length is None else positive("max_length", max_length), translator.max_length)
    settings = {"format": format, "precision": precision, "max_length": runners.limited("max_length", longest)}
    settings["longest"], num_beams = translator.longest(longest), translator.num_beams
    settings |= decoding.with_options(translator.sampler, num_beams=num_beams).settings
    settings |= _languages(translator, kind) | ({"jit_compile": jit_compile} if kind.jit_compile else {})
    if kind.n_best:
        settings["n_best"] = min(positive("n_best", n_best, optional=True) or num_beams, num_beams)
    settings |= _page(translator, **page) if kind.page else {}
    compare_on = comparable(translator, compare_on, longest)
    min_agreement = runners.check_agreement(precision, min_agreement, compare_on)
    return _write(translator, folder, kind, settings, compare_on, min_agreement)


def _languages(translator, kind):
    """What a runner has to know about languages and placeholders."""
    settings = {name: getattr(translator, name) for name in ("languages", "placeholders", "target_language")}
    if not kind.tokenizers and translator.placeholders:
        settings["characters"] = translator.source_tokenizer.characters  # which a runner cannot ask a tokenizer
    return settings


def _page(translator, title, examples, runtime, explain):
    """The settings of a page; its examples have no tags, since it has a menu of languages."""
    examples = [split_tag(text, translator.languages)[1] for text in strings(examples or (), "examples")]
    runtime = extras.npm_files(runtime, explain)  # {name: path}, which the writer takes out
    return {"title": title or "Translator", "examples": examples, "runtime": runtime, "explain": bool(explain)}


def _check(translator, format, kind, n_best, jit_compile, page):
    """Raises an error for arguments that a format does not have, and for models that it does not support."""
    if isinstance(translator.sampler, decoding.Sample):
        raise UserError(f"`sampler` must be a `Greedy` or a `Beam` for an export. Received: {translator.sampler}")
    check("n_best", n_best, n_best is None or kind.n_best, f"None for {format=}, which returns one translation")
    check("jit_compile", jit_compile, kind.jit_compile or not jit_compile, f"False for {format=}")
    for name, value in page.items():
        check(name, value, value is None or kind.page, f"None for {format=}, which has no page")
    for model in translator.models:
        if model.quantization and len(kind.precisions) > 1:
            raise UserError(
                "`translator` must have models that are not quantized: export the model as it was before `quantize`, "
                f"with a `precision`. Received: a model with {model.quantization['class_name']}"
            )


def _write(translator, folder, kind, settings, compare_on, min_agreement):
    """Writes an export and compares it with the translator; returns the `Verdict`, or None without `compare_on`."""
    if kind.needs_tensorflow:
        programs.require_tensorflow()
    with artifacts.new_export(folder) as new:
        importlib.import_module(kind.writer).write(translator, new, settings)
        if kind.tokenizers:
            artifacts.write_tokenizers(new, [translator.source_tokenizer, translator.target_tokenizer])
        artifacts.write_manifest(new, **settings)
        if compare_on is None:
            return None
        run = runners.load(new) if kind.runner else translator.from_marian(new, max_length=settings["max_length"])
        verdict = compare(new, run, translator, compare_on)
        if verdict.similarity < min_agreement:
            raise Disagreement(folder, verdict, min_agreement)
        return verdict


class Verdict(NamedTuple):
    """How an exported translator compares with the original; `similarity` is the mean over the texts, from 0 to 1."""

    same: int
    texts: int
    similarity: float
    megabytes: float
    milliseconds: float
    blank: int = 0  # empty translations

    def __str__(self):
        if self.texts and self.blank == self.texts:
            return f"all {self.texts} translations are blank, {self.megabytes:.1f} MB"
        return (
            f"{self.same} of {self.texts} sentences translated exactly as by the model, "
            f"similarity {self.similarity:.2f}, {self.megabytes:.1f} MB, {self.milliseconds:.1f} ms per sentence"
        )


class Disagreement(UserError):
    """An export translates so differently from the model that it was not put in place; `verdict` says how much."""

    def __init__(self, folder: str | os.PathLike[str], verdict: Verdict, required: float):
        super().__init__(
            f"the export must agree with the model. Received: {verdict}; at least {required:g} is required. "
            f"{folder} is left as it was. Compare on texts like those that the model was trained on (`compare_on`), "
            "choose a finer `precision`, or lower `min_agreement`; 0 accepts any export"
        )
        self.verdict = verdict


def comparable(translator, texts, max_length):
    """The texts that an export translates as the translator does: those of one line that are not cut off.

    Texts without a tag get those of all languages in turn.
    """
    if texts is None:
        return None
    tags = itertools.cycle([f">>{language}<<" for language in translator.languages] or [""])
    texts = strings(texts, "compare_on")
    texts = [line if split_tag(line, translator.languages)[0] else next(tags) + line for line in texts]
    lengths = map(len, translator.source_tokenizer.encode(texts))
    kept = [line for line, length in zip(texts, lengths, strict=True) if length < max_length and "\n" not in line]
    if not any(map(str.strip, kept)):
        rule = f"must contain texts of one line and at most {max_length - 1} tokens"
        raise UserError(f"`compare_on` {rule}. Received: none among {len(texts)} texts")
    return kept


def compare(
    folder: str | os.PathLike[str],
    run: Callable[[list[str]], list[str]],
    translator: keras_tfm.Translator,
    texts: list[str],
) -> Verdict:
    """The `Verdict` on an exported folder, where `run(texts)` translates with it."""
    times = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not translated")  # which concerns the model, not the export
        translations = run(texts)  # which also warms it up
        for string in texts:
            start = time.perf_counter()
            run([string])
            times.append(time.perf_counter() - start)
        pairs = list(zip(translations, translator(texts), strict=True))
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    written = [pair for pair, line in zip(pairs, texts, strict=True) if line.strip()]  # blank texts are always alike
    similarity = statistics.mean(difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() for a, b in written)
    same, blank = sum(a == b for a, b in pairs), sum(not translation.strip() for translation in translations)
    return Verdict(same, len(texts), similarity, size / 2**20, 1000 * statistics.median(times), blank)
