"""`Translator`: translates strings with a model and its tokenizers."""

import functools
import math
import pathlib
import threading
import warnings

from keras_tfm import artifacts, decoding, ops, text
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, check, one_of, positive, strings
from keras_tfm.common.progress import Progress
from keras_tfm.convert import marian
from keras_tfm.data.batches import padded
from keras_tfm.export import export, runners
from keras_tfm.models import loading
from keras_tfm.runtimes import programs
from keras_tfm.text import END, LINE_END, PAD, SENTENCE_END, longest_translation

WIDTHS = (16, 32, 64, 128, 512)  # sources are padded to these widths; a program is compiled for each that occurs
FEW = 8  # up to this many sentences are translated in a batch of this size
# Options of the search and their defaults. Those of `SEARCH` have no effect on greedy search.
SEARCH = {"penalty": "length", "length_penalty": 0.6, "coverage_penalty": 0.0, "early_stopping": True}
CONSTRAINTS = {"min_length": 0, "no_repeat_ngram_size": 0, "suppress_tokens": ()}


class Translator:
    """Translates strings with a model and its tokenizers. Safe to use from several threads.

    Args:
        model: a model of `keras_tfm.models` with an encoder and a decoder, or a list of models to decode as an
            ensemble.
        source_tokenizer, target_tokenizer: tokenizers of `keras_tfm.text`. By default both sides share one.
        num_beams: beam size; 1 is greedy search.
        batch_size: number of sentences that are translated together.
        max_length: maximum number of tokens of a source and of a translation.
        **options: options of `SEARCH` and `CONSTRAINTS`; see `decoding.beam_search` and `decoding.Constraints`.

    Returns one translation for each text, in the same order. Blank texts stay blank. The lines of a text are translated
    one by one. A line of more than `max_length` tokens is split into sentences, and a sentence that is still too long
    is truncated, with a warning that says by how much.

    >>> from keras_tfm.models import transformer
    >>> tokenizer = text.ByteTokenizer()
    >>> translator = Translator(transformer(tokenizer.vocab_size, size="tiny"), tokenizer, num_beams=2)
    >>> len(translator(["one text", "", "and another"]))
    3
    """

    export = export  # `keras_tfm.export.export` as a method
    stream = runners.Runner.stream
    longest_target = math.inf  # maximum number of tokens of a translation, if it is less than the search allows
    jit_compile = True  # whether XLA compiles the search, or optimizes it on JAX: slow to start, faster afterwards

    def __init__(
        self, model, source_tokenizer, target_tokenizer=None, num_beams=4, batch_size=64, max_length=512, **options
    ):
        self.models = list(model) if isinstance(model, (list, tuple)) else [model]
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer or source_tokenizer
        self.tokenizers = list(dict.fromkeys([self.source_tokenizer, self.target_tokenizer]))  # one if they are shared
        self._fingerprints = [text.fingerprint(tokenizer) for tokenizer in self.tokenizers]
        self.num_beams, self.batch_size = num_beams, batch_size
        self.options, self.origin = SEARCH | CONSTRAINTS | options, ""
        for model in self.models:
            self._check_tokenizers(model)
        limits = [m.arguments.get("max_length", 512) for m in self.models if m.arguments.get("positions") == "learned"]
        self.max_length = min([positive("max_length", max_length), *limits])
        check_settings(num_beams, batch_size, self.max_length, **options)
        coverage = self.options["coverage_penalty"]
        check("coverage_penalty", coverage, len(self.models) == 1 or not coverage, "0 for an ensemble")
        self.widths = [width for width in WIDTHS if width < self.max_length] + [self.max_length]
        self._programs, self._lock = {}, threading.Lock()

    def __call__(self, texts, verbose=0):
        """Translates a list of strings. With `verbose=1`, shows progress on standard error."""
        n = None if self.num_beams == 1 else 1
        return [hypotheses[0][0] for hypotheses in self._translate(texts, n, verbose)]

    def n_best(self, texts, n, verbose=0):
        """Returns the `n` best translations of each string with their scores, best first: [(string, score), …].

        If a text has several lines or sentences, their hypotheses are combined, and their scores added. A text for
        which the constraints leave no translation has one that is empty, with the score `decoding.NEVER`.
        """
        return self._translate(texts, positive("n", n), verbose)

    def warm_up(self):
        """Compiles the search for all widths and batch sizes that `__call__` can meet, so that no call waits for it."""
        n = None if self.num_beams == 1 else 1
        for size in sorted({min(FEW, self.batch_size), self.batch_size}):
            for width in self.widths:
                _, scores = self._program(n)(padded([[]], width, size), width)
                ops.convert_to_numpy(scores)  # waits: JAX returns before it has computed

    @property
    def settings(self):
        """The arguments of this translator except its models and tokenizers, as JSON values."""
        own = {"num_beams": self.num_beams, "batch_size": self.batch_size, "max_length": self.max_length}
        return own | self.options | {"suppress_tokens": sorted(map(int, self.options["suppress_tokens"]))}

    def with_settings(self, **changes):
        """Returns a translator with the same models, tokenizers and settings, except those that are given here."""
        other = type(self)(self.models, *self.tokenizers, **self.settings | changes)
        other.origin = self.origin
        return other

    def save(self, folder):
        """Writes models, tokenizers and settings into a folder, which must be new, empty, or written by `save`."""
        context, names = artifacts.new_translator(folder, len(self.models))
        with context as new:
            for model, name in zip(self.models, names, strict=True):
                model.metadata.setdefault("tokenizers", self._fingerprints)
                model.save(new / name)
            artifacts.write_tokenizers(new, self.tokenizers)
            artifacts.write_manifest(new, format="keras", **self.settings)

    @classmethod
    def load(cls, folder=artifacts.SHIPPED, **options):
        """Returns the translator in a folder that `save` or `keras-tfm train` wrote.

        Args:
            folder: by default that of the translator of dates that comes with the package. If it is a run that is still
                training, its latest state is used, and the attribute `origin` says so.
            **options: arguments of `Translator`, such as `num_beams`, by default those that `save` wrote.
        """
        folder, origin = pathlib.Path(folder), ""
        format = artifacts.format_of(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder")
        if format is not None:
            raise UserError(
                f"`folder` must be a training run or a saved translator. Received: {folder}, an export in the {format} "
                "format, which `keras_tfm.export.load` runs"
            )
        if artifacts.Run(folder).exists():
            models, origin = loading.load_model(folder)
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
    def from_marian(cls, folder, **options):
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

    def _check_tokenizers(self, model):
        """Raises an error if the model was not trained with these tokenizers."""
        if model.metadata.get("tokenizers", self._fingerprints) != self._fingerprints:
            raise UserError(
                "tokenizers must be those that the model was trained with. Received: ones with other fingerprints"
            )
        sizes = [model.arguments["vocab_size"]]
        sizes.append(model.arguments.get("target_vocab_size") or sizes[0])
        received = [self.source_tokenizer.vocab_size, self.target_tokenizer.vocab_size]
        if received[0] > sizes[0] or received[1] > sizes[1]:
            raise UserError(f"tokenizers must have at most {sizes} tokens, like the model. Received: {received}")

    def _only(self, names):
        return {name: self.options[name] for name in names}

    # ── from strings to strings ──

    def _translate(self, texts, n, verbose):
        """Returns the `n` best translations of each string, [(string, score), …]; if `n` is None, the greedy one."""
        divided = list(map(self._pieces, strings(texts)))
        translations = iter(self._find([ids for pieces in divided for ids, _ in pieces], n, verbose))
        return [_joined([(next(translations), separator) for _, separator in pieces]) for pieces in divided]

    def _pieces(self, string):
        """Splits a text into pieces of less than `max_length` tokens: [(ids, separator behind them), …]."""
        pieces = []
        for line, newline in _split(LINE_END, string):
            (ids,) = self.source_tokenizer.encode([line]) if line.strip() else ([],)
            if len(ids) < self.max_length:
                pieces.append((ids, newline))
                continue
            sentences, spaces = zip(*_split(SENTENCE_END, line), strict=True)
            encoded = self.source_tokenizer.encode(sentences)
            for ids, sentence, space in zip(encoded, sentences, spaces, strict=True):
                # minus the end token; the warning names the line that called `__call__` or `n_best`
                pieces.append((text.truncated(ids, self.max_length - 1, sentence, stacklevel=5), space))
            pieces.append(([], newline))
        return pieces

    def _find(self, rows, n, verbose):
        """Returns the `n` best translations of each list of ids: [(string, score), …]."""
        order = sorted((number for number, ids in enumerate(rows) if ids), key=lambda number: len(rows[number]))
        translations = [[("", 0.0)]] * len(rows)
        size = self.batch_size if len(order) > FEW else min(FEW, self.batch_size)
        with Progress(len(order), "translating", "sentence", verbose) as bar:
            for first in range(0, len(order), size):
                batch = order[first : first + size]
                width = next(width for width in self.widths if width > len(rows[batch[-1]]))
                sources = padded([rows[number] for number in batch], width, size)
                ids, scores = (ops.convert_to_numpy(x)[: len(batch)] for x in self._program(n)(sources, width))
                if not _usual(ids[:, 0], scores[:, 0], n):
                    self._check_weights()
                for number, hypotheses, their_scores in zip(batch, ids, scores, strict=True):
                    pairs = zip(self.target_tokenizer.decode(hypotheses), map(float, their_scores), strict=True)
                    possible = [(string, score) for string, score in pairs if score > decoding.NEVER / 2]
                    translations[number] = possible or [("", decoding.NEVER)]
                bar.add(len(batch))
        return translations

    def _program(self, n):
        """Returns `search` for `n`, compiled; each width that occurs is compiled once."""
        with self._lock:
            if n not in self._programs:
                self._check_weights()
                variables = [variable for model in self.models for variable in model.variables]
                search, locks = functools.partial(self.search, n=n), [model.running for model in self.models]
                self._programs[n] = programs.compiled(search, variables, locks, self.jit_compile)
            return self._programs[n]

    def _check_weights(self):
        """Raises an error if a weight is NaN or infinite.

        To read all weights takes longer than a short translation. So this is called before a program is compiled, and,
        since training may change weights at any time, after a search whose result may be that of NaN; see `_usual`.
        """
        for model in self.models:
            model.check_finite()

    # ── from ids to ids; exports use these, too ──

    def search(self, sources, width, n=None, padded=True):
        """Decodes a batch of ids, eagerly or inside a graph.

        Args:
            sources: ids (batch, at most `width`), each row with its end token, padded with zeros.
            width: an integer, which bounds the length of translations.
            n: number of hypotheses that a beam search returns; None for greedy search.
            padded: whether the sources may have padding; without it, no mask is needed.

        Returns:
            ids (batch, n or 1, length) and scores (batch, n or 1). The scores of a greedy search are zero.
        """
        shortest, longest = self.options["min_length"], self.longest(width)
        # each row has its own limit, so that it does not depend on what else is in the batch
        lengths = ops.sum(ops.cast(ops.not_equal(sources, PAD), "int32"), axis=1)
        limits = {"max_length": longest, "limits": ops.maximum(longest_translation(lengths), shortest)}
        length = ops.shape(sources)[1]
        if not isinstance(length, int):  # in a graph: few translations are more than twice as long as their source
            limits["capacity"] = (length + 5) // 2
        with_attention = n is not None and self.options["coverage_penalty"] > 0
        start, step = self.steps(with_attention, padded)
        if n is None:
            ids = decoding.greedy(start, step, sources, **limits, **self._only(CONSTRAINTS))[:, None]
            return ids, ops.zeros(ops.shape(ids)[:2])
        sizes = {"num_beams": max(self.num_beams, n), "n_best": n}
        return decoding.beam_search(start, step, sources, **sizes, **limits, **self.options)

    def longest(self, width):
        """The maximum number of tokens of a translation, for sources of at most `width` tokens."""
        return max(min(longest_translation(width), self.max_length, self.longest_target), self.options["min_length"])

    def steps(self, with_attention=False, padded=True):
        """Returns the functions `start` and `step` of the model or of the ensemble, for `keras_tfm.decoding`.

        Args:
            with_attention: whether `step` returns attention to the source too, for the coverage penalty.
            padded: whether the sources may have padding.
        """
        model = decoding.Ensemble(self.models) if len(self.models) > 1 else self.models[0]
        step = model.step_and_attention if with_attention else model.step
        return functools.partial(model.prefill, padded=padded), step


def check_settings(num_beams=4, batch_size=64, max_length=512, **options):
    """Raises an error for settings that `Translator` does not accept."""
    runners.limited("num_beams", num_beams, runners.MOST_BEAMS)
    positive("batch_size", batch_size), positive("max_length", max_length)
    for name in options:
        one_of("option", name, ["num_beams", "batch_size", "max_length", *sorted(SEARCH | CONSTRAINTS)])
    decoding.Constraints(max_length, **{name: options[name] for name in CONSTRAINTS if name in options})
    decoding.check_search(**{name: options[name] for name in SEARCH if name in options})


def _usual(ids, scores, n):
    """Whether the best ids (batch, length) can be those of a model whose logits are numbers: if not, look for NaN.

    A beam search then finds no hypothesis. Greedy search, where `n` is None, writes the same token again and again: it
    ends at once, or never.
    """
    if n is not None:
        return (scores > decoding.NEVER / 2).all()
    return ((ids[:, 0] > END) & (ids == END).any(axis=1)).all()


def _saved_settings(folder):
    """The settings that `Translator.save` wrote, after checking every file; none in folders of earlier versions."""
    path, names = folder / artifacts.MANIFEST, ("num_beams", "batch_size", "max_length", *SEARCH, *CONSTRAINTS)
    manifest = artifacts.read_manifest(folder) if path.exists() else {}
    saved = {name: manifest[name] for name in names if name in manifest}
    with files.reading(path):
        check_settings(**saved)
    return saved


def _split(pattern, string):
    """Splits a string at the matches of a pattern: [(part, match behind it), …]."""
    ends = [*(match.span() for match in pattern.finditer(string)), (len(string), len(string))]
    starts = [0, *(stop for _, stop in ends)]
    return [(string[start:end], string[end:stop]) for start, (end, stop) in zip(starts, ends, strict=False)]


def _joined(pieces):
    """Combines the hypotheses of pieces, [(hypotheses, separator), …], to as many as the piece with the most has."""
    best = [("", 0.0)]
    for hypotheses, separator in pieces:
        joined = [(before + string + separator, score + more) for before, score in best for string, more in hypotheses]
        best = sorted(joined, key=lambda pair: -pair[1])[: max(len(best), len(hypotheses))]
    return best
