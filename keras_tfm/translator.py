"""`Translator`: translates strings with a model and its tokenizers."""

import copy
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, overload

import keras
import numpy as np

from keras_tfm import artifacts, decoding, ops, text
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, check, one_of, positive
from keras_tfm.common.progress import Progress
from keras_tfm.convert import marian
from keras_tfm.decoding import scoring
from keras_tfm.export import export
from keras_tfm.models import loading
from keras_tfm.runtimes import programs
from keras_tfm.text import PAD, pieces
from keras_tfm.text.arrays import padded
from keras_tfm.text.base import longest_translation
from keras_tfm.text.translating import NUM_CANDIDATES, TextTranslator

WIDTHS = (16, 32, 64, 128, 512)  # sources are padded to these widths; a program is compiled for each that occurs
SMALL_BATCH = 8  # up to this many sentences are translated in a batch of this size
MULTIPLE = 16  # widths of prefixes are multiples of this, so that there are few shapes to compile
OWN_SETTINGS = ("batch_size", "max_length", "target_language")


class Translator(TextTranslator):
    """Translates strings with a model and its tokenizers. Safe to use from several threads.

    Args:
        model: a model of `keras_tfm.models` with an encoder and a decoder, or a list of them for an ensemble.
        source_tokenizer, target_tokenizer: tokenizers of `keras_tfm.text`. By default both sides share one.
        sampler: `Greedy()`, `Sample()` or `Beam()` of `keras_tfm.decoding`; by default `Beam()`.
        batch_size: number of sentences that are translated together.
        max_length: maximum number of tokens of a source and of a translation.
        target_language: for a multilingual model, the code of the language to translate into unless a call names
            another, such as "de".
        **options: options of the sampler, such as `num_beams` or `temperature`; see `decoding.with_options`.

    Returns one translation for each text, in the same order; for a single string, its translation. Blank texts stay
    blank. The lines of a text are translated one by one. A line of more than `max_length` tokens is split into
    sentences, and a sentence that is still too long is truncated, with a warning that says by how much.

    If the model was trained with placeholders, what `keras_tfm.text.find_protected` finds in a text comes out unchanged
    and exactly once; if that is impossible, the text itself is returned, with a warning.

    Attributes:
        languages: codes of the languages that a multilingual model translates into; empty for a bilingual one.
        placeholders: number of placeholders, tags and addresses in a text that the model keeps; 0 for none.
        sampler: what the next calls use, unless they are given another.
        longest_target: maximum number of tokens of a translation, if it is less than the search allows.
        jit_compile: whether XLA compiles the search, or optimizes it on JAX: slow to start, faster afterwards.

    >>> from keras_tfm.models import transformer
    >>> tokenizer = text.ByteTokenizer()
    >>> translator = Translator(transformer(tokenizer.vocab_size, size="tiny"), tokenizer, num_beams=2)
    >>> len(translator(["one text", "", "and another"]))
    3
    """

    export = export  # `keras_tfm.export.export` as a method
    longest_target = math.inf
    jit_compile = True

    def __init__(
        self,
        model: keras.Model | Sequence[keras.Model],
        source_tokenizer: text.Tokenizer,
        target_tokenizer: text.Tokenizer | None = None,
        *,
        sampler: decoding.Greedy | None = None,
        batch_size: int = 64,
        max_length: int = 512,
        target_language: str | None = None,
        **options: Any,
    ):
        self.models = list(model) if isinstance(model, (list, tuple)) else [model]
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer or source_tokenizer
        self.tokenizers = list(dict.fromkeys([self.source_tokenizer, self.target_tokenizer]))  # one if they are shared
        slots, self.languages = self.source_tokenizer.slots, self.source_tokenizer.languages
        self.unseen_characters = self.source_tokenizer.unseen_characters
        self.slots = slots if slots == self.target_tokenizer.slots else []
        self.placeholders, self.target_language = len(self.slots), target_language
        self._fingerprints = [text.saving.fingerprint(tokenizer) for tokenizer in self.tokenizers]
        self.batch_size, self.origin = positive("batch_size", batch_size), ""
        for model in self.models:
            loading.check_tokenizers(model, self.source_tokenizer, self.target_tokenizer, self._fingerprints)
        limits = [m.arguments.get("max_length", 512) for m in self.models if m.arguments.get("positions") == "learned"]
        self._max_length = min([positive("max_length", max_length), *limits])
        self.widths = [width for width in WIDTHS if width < self.max_length] + [self.max_length]
        self._programs, self._lock = {}, threading.Lock()
        self.sampler = decoding.with_options(sampler or decoding.Beam(), **options)

    @overload
    def __call__(self, texts: str, verbose: int = 0, prefix: str | None = None, **options: Any) -> str: ...
    @overload
    def __call__(self, texts: Iterable[str], verbose: int = 0, prefix: Any = None, **options: Any) -> list[str]: ...
    def __call__(self, texts, verbose=0, prefix=None, target_language=None, glossary=None, **options):
        """Translates a list of strings, or one string.

        Args:
            texts: a list of strings → a list of strings, or a string → a string.
            verbose: 1 shows progress on standard error.
            prefix: what each translation begins with, a string or one for each text. For a text of several lines or
                sentences, the translation of the first does.
            target_language: one of `languages`, or one for each text. A text may also begin with its tag, ">>de<<".
            glossary: a dict, source term → target term, for a model with `placeholders`.
            **options: `sampler`, or options of the sampler such as `num_beams`, for this call only. What has not been
                used before takes a while to compile.
        """
        return self._call(texts, verbose, target_language, glossary, prefix=prefix, **options)

    def n_best(
        self, texts: Iterable[str], n: int, verbose: int = 0, prefix: Any = None, **options: Any
    ) -> list[list[tuple[str, float]]]:
        """Returns the `n` best translations of each string with their scores, best first: [(string, score), …].

        If a text has several lines or sentences, their hypotheses are combined, and their scores added. A text for
        which the constraints leave no translation has one that is empty, with the score `decoding.NEVER`. The other
        arguments are those of a call.
        """
        return self._n_best(texts, positive("n", n), verbose, prefix=prefix, **options)

    def score(
        self, sources: Iterable[str], targets: Iterable[str], verbose: int = 0, target_language: Any = None
    ) -> list[float]:
        """Returns the natural logarithm of the probability of each target, given its source: a list of floats.

        The end token counts. Texts are not split; what is longer than `max_length` is truncated, with a warning.

        Args:
            sources, targets: lists of strings, one target for each source.
            verbose: 1 shows progress on standard error.
            target_language: as for a call.
        """
        sources, targets = self.prepare_pairs(sources, targets, target_language)
        sides = pieces.encode_pairs(self.source_tokenizer, sources, self.target_tokenizer, targets, self.max_length)
        return scoring.log_probabilities(self.models, *sides, self.batch_size, verbose).tolist()

    def warm_up(self) -> None:
        """Compiles the search for all widths and batch sizes that calls can have, so that no call waits for it."""
        counts = (None, self._num_candidates()) if self.placeholders else (None,)  # of hypotheses
        sizes = sorted({min(SMALL_BATCH, self.batch_size), self.batch_size})
        for size, width, n in itertools.product(sizes, self.widths, counts):
            _, scores = self._search([[]], width, size, self.sampler, n)
            ops.convert_to_numpy(scores)  # waits: JAX returns before it has computed

    @property
    def sampler(self) -> decoding.Greedy:
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: decoding.Greedy) -> None:
        self._sampler = self._checked(decoding.with_options(sampler))

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a source and of a translation; `with_settings` changes it."""
        return self._max_length

    @property
    def num_beams(self) -> int:
        """The beam size; 1 unless the sampler is a `Beam`."""
        return getattr(self.sampler, "num_beams", 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of this translator except its models and tokenizers, as JSON values."""
        return {name: getattr(self, name) for name in OWN_SETTINGS} | self.sampler.settings

    def with_settings(self, **changes: Any) -> Self:
        """Returns a translator with the same models, tokenizers and settings, except those that are given here."""
        own = {"model": self.models} | {name: getattr(self, name) for name in ("sampler", *OWN_SETTINGS)} | changes
        other = type(self)(own.pop("model"), *self.tokenizers, **own)
        for name in ("origin", "longest_target", "jit_compile"):
            setattr(other, name, getattr(self, name))
        return other

    def __repr__(self):
        models = ", ".join(f"{type(model).__name__} of {model.count_params():,} parameters" for model in self.models)
        sizes = " → ".join(f"{type(each).__name__}({each.vocab_size})" for each in self.tokenizers)
        return f"<Translator: {models}; {sizes}; {self.sampler}; max_length={self.max_length}>"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes models, tokenizers and settings into a folder, which must be new, empty, or written by `save`."""
        context, names = artifacts.new_translator(folder, len(self.models))
        with context as new:
            for model, name in zip(self.models, names, strict=True):
                model.metadata.setdefault("tokenizers", self._fingerprints)
                model.save(new / name)
            artifacts.write_tokenizers(new, self.tokenizers)
            artifacts.write_manifest(new, format="keras", **self.settings)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], **options: Any) -> Self:
        """Returns the translator in a folder that `save` or `keras-tfm train` wrote.

        Args:
            folder: if it is a run that is still training, its latest state is used, and the attribute `origin` says so.
            **options: arguments of `Translator`, such as `num_beams`, by default those that `save` wrote.
        """
        folder, origin = pathlib.Path(folder), ""
        format = artifacts.format_of(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder")
        if format is not None:
            raise UserError(
                f"`folder` must be a training run or a saved translator. Received: {folder}, an export in the {format} "
                "format, which `keras_tfm.load` runs"
            )
        if artifacts.Run(folder).exists():
            models, origin = loading.load_run(folder)
        else:
            options = _saved_settings(folder) | options
            models = [loading.load_keras(path) for path in artifacts.models_of(folder)]
            if not models:
                raise FileNotFoundError(f"{folder}: must contain {artifacts.MODEL}, as written by `keras-tfm train`")
        translator = cls(models, *artifacts.load_tokenizers(folder), **options)
        if not all("tokenizers" in model.metadata for model in translator.models):
            message = "does not name the tokenizers it was trained with, so others in its folder would not be noticed"
            remedy = "`Translator.load(folder).save(new_folder)` writes one that does"
            warnings.warn(f"{folder / artifacts.MODEL} {message}; {remedy}", stacklevel=2)
        translator.origin = origin
        return translator

    @classmethod
    def from_preset(cls, preset: str, **options: Any) -> Self:
        """Returns a trained translator that comes with the package, by its name: "dates"; the options are as above."""
        return cls.load(artifacts.PRESETS[one_of("preset", preset, artifacts.PRESETS)], **options)

    @classmethod
    def from_marian(cls, folder: str | os.PathLike[str], **options: Any) -> Self:
        """Returns the translator in a folder with a Marian model, such as one of OPUS-MT.

        Args:
            folder: contains config.json, model.safetensors (or pytorch_model.bin, which requires PyTorch), source.spm,
                target.spm and vocab.json, and perhaps target_vocab.json and generation_config.json; or, in Marian's own
                format, one .npz file, one *vocab.yml, source.spm and target.spm.
            **options: arguments of `Translator`. By default, generation_config.json or config.json determine
                `num_beams`, `max_length`, which bounds sources too, `length_penalty`, `min_length`,
                `no_repeat_ngram_size` and, by `bad_words_ids` of one token, `suppress_tokens`. A warning says how many
                longer ones are ignored.
        """
        model, tokenizers, settings = marian.read(folder)
        return cls(model, *tokenizers, **settings | options)

    def _checked(self, sampler):
        """Returns a sampler that this translator can use."""
        sampler = dataclasses.replace(sampler, copied_tokens=(*sampler.copied_tokens, *self.slots))
        sampler.check(self.max_length)
        coverage = getattr(sampler, "coverage_penalty", 0)
        check("coverage_penalty", coverage, len(self.models) == 1 or not coverage, "0 for an ensemble")
        return sampler

    # ── from strings to strings ──

    def _num_candidates(self, sampler=None, prefix=None, **options):
        sampler = decoding.with_options(sampler or self.sampler, **options)
        return NUM_CANDIDATES if sampler.has_scores(NUM_CANDIDATES) else 1  # drawn tokens have no second-best ones

    def _hypotheses(self, texts, tags, n, verbose, prefix=None, sampler=None, **options):
        sampler = self._checked(decoding.with_options(sampler or self.sampler, **options))
        by_text = pieces.split(self.source_tokenizer, texts, tags, self.max_length, stacklevel=6)
        prefixes = pieces.prefixes(self.target_tokenizer, prefix, list(map(len, by_text)), self.max_length)
        rows = [ids for each in by_text for ids, _ in each]
        translations = iter(self._translate_ids(rows, n, verbose, sampler, prefixes))
        return [pieces.join([(next(translations), separator) for _, separator in each]) for each in by_text]

    def _translate_ids(self, rows, n, verbose, sampler, prefixes):
        """Returns the `n` best translations of each list of ids: [(string, score), …]."""
        order = sorted((number for number, ids in enumerate(rows) if ids), key=lambda number: len(rows[number]))
        translations = [[("", 0.0)]] * len(rows)
        size = self.batch_size if len(order) > SMALL_BATCH else min(SMALL_BATCH, self.batch_size)
        with Progress(len(order), "translating", "sentence", verbose) as bar:
            for first in range(0, len(order), size):
                batch = order[first : first + size]
                width = next(width for width in self.widths if width > len(rows[batch[-1]]))
                beginnings = None if prefixes is None else [prefixes[number] for number in batch]
                results = self._search([rows[number] for number in batch], width, size, sampler, n, beginnings)
                ids, scores = (ops.convert_to_numpy(x)[: len(batch)] for x in results)
                if not sampler.looks_finite(ids[:, 0], scores[:, 0], n):
                    self._check_weights()
                for number, hypotheses, their_scores in zip(batch, ids, scores, strict=True):
                    pairs = zip(self.target_tokenizer.decode(hypotheses), map(float, their_scores), strict=True)
                    possible = [(string, score) for string, score in pairs if score > decoding.NEVER / 2]
                    translations[number] = possible or [("", decoding.NEVER)]
                bar.add(len(batch))
        return translations

    def _search(self, rows, width, size, sampler, n=None, prefixes=None):
        """Runs the compiled `search` on lists of ids, in a batch of this size; each shape is compiled once."""
        inputs, prefix_length = {"sources": padded(rows, width, size)}, 0
        if prefixes is not None:
            prefix_length = min((max(map(len, prefixes)) // MULTIPLE + 1) * MULTIPLE, self.max_length)
            rows = prefixes + [[]] * (size - len(prefixes))
            inputs["prefix"] = np.array([ids + [PAD] * (prefix_length - len(ids)) for ids in rows])
        uniforms = sampler.uniforms(size, self.longest(width, sampler, prefix_length))
        inputs |= {} if uniforms is None else {"uniforms": uniforms}
        key = sampler, n, self.jit_compile, self.longest_target
        with self._lock:
            if key not in self._programs:
                self._check_weights()
                self._programs[key] = self._program(*key)
            program = self._programs[key]
        return program(inputs, width)

    def _program(self, sampler, n, *settings):
        """The compiled `search`; translators of the same models with the same settings share it."""
        variables = [variable for model in self.models for variable in model.variables]
        key = type(self), self.max_length, sampler, n, settings, *map(id, variables)  # which `quantize` replaces
        fixed = copy.copy(self)  # later changes of this translator do not change the program

        def search(inputs, width):
            return fixed.search(width=width, sampler=sampler, n=n, **inputs)

        program = programs.compiled(search, variables, [model.running for model in self.models], self.jit_compile)
        return self.models[0].programs.setdefault(key, program)

    def _check_weights(self):
        """Raises an error if a weight is NaN or infinite. Slower than a short translation, so called when in doubt."""
        for model in self.models:
            model.check_finite()

    # ── from ids to ids; exports use these, too ──

    def search(
        self,
        sources: Any,
        width: int,
        n: int | None = None,
        padded: bool = True,
        sampler: decoding.Greedy | None = None,
        prefix: Any = None,
        uniforms: Any = None,
    ) -> tuple[Any, Any]:
        """Decodes a batch of ids, eagerly or inside a graph.

        Args:
            sources: ids (batch, at most `width`), each row with its end token, padded with zeros.
            width: an integer, which bounds the length of translations.
            n: number of hypotheses to return; by default the best one.
            padded: whether the sources may have padding; without it, no mask is needed.
            sampler: by default that of the translator.
            prefix: ids (batch, k) that translations begin with, where they are not 0.
            uniforms: random numbers (batch, longest(width)) of a `Sample`.

        Returns:
            ids (batch, n or 1, length) and scores (batch, n or 1), which are zero unless a beam search computes them.
        """
        sampler = sampler or self.sampler
        # each row has its own limit, so that it does not depend on what else is in the batch
        lengths = ops.sum(ops.cast(ops.not_equal(sources, PAD), "int32"), axis=1)
        limits = ops.maximum(longest_translation(lengths), sampler.min_length)
        prefix_length = 0 if prefix is None else prefix.shape[1]
        options = {"max_length": self.longest(width, sampler, prefix_length), "n_best": n, "uniforms": uniforms}
        if prefix is not None:
            limits = limits + ops.sum(ops.cast(ops.not_equal(prefix, PAD), "int32"), axis=1)
            options["prefix"] = prefix
        length = ops.shape(sources)[1]
        if not isinstance(length, int):  # in a graph: few translations are more than twice as long as their source
            options["capacity"] = (length + 5) // 2
        prefill, step = self.steps(sampler.needs_attention(n), padded)
        return sampler.decode(prefill, step, sources, limits=limits, **options)

    def longest(self, width: int, sampler: decoding.Greedy | None = None, prefix_length: int = 0) -> int:
        """The maximum number of tokens of a translation, its prefix included, for sources of up to `width` tokens."""
        longest = min(longest_translation(width), self.longest_target) + prefix_length
        return max(min(longest, self.max_length), (sampler or self.sampler).min_length)

    def steps(self, with_attention: bool = False, padded: bool = True) -> tuple[Callable, Callable]:
        """Returns the functions `prefill` and `step` of the model or of the ensemble, for `keras_tfm.decoding`.

        Args:
            with_attention: whether `step` returns attention to the source too, for the coverage penalty.
            padded: whether the sources may have padding.
        """
        model = decoding.Ensemble(self.models) if len(self.models) > 1 else self.models[0]
        step = model.step_and_attention if with_attention else model.step
        return functools.partial(model.prefill, padded=padded), step


def _saved_settings(folder):
    """The settings that `Translator.save` wrote, after checking every file; none in folders of earlier versions."""
    path = folder / artifacts.MANIFEST
    manifest = artifacts.read_manifest(folder) if path.exists() else {}
    settings = {name: value for name, value in manifest.items() if name not in ("format", "files")}
    with files.reading(path):
        own = {name: settings.pop(name) for name in OWN_SETTINGS if name in settings}
        return own | {"sampler": decoding.with_options(decoding.Beam(), **settings)}
