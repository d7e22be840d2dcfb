"""Strings in, strings out."""

import functools
import inspect
import itertools
import pathlib
import re
import threading
import warnings

from keras import ops

from keras_tfm import decoding, exported, files, kernels, runs, text
from keras_tfm.arguments import one_of, positive, strings
from keras_tfm.batches import padded
from keras_tfm.progress import Progress
from keras_tfm.text import PAD, longest_translation

SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*")
LINE_END = re.compile(r"\r?\n")
WIDTHS = (16, 32, 64, 128, 512)  # of sources; one program is compiled for each that occurs
FEW = 8  # rows that are not worth a whole batch
CONSTRAINTS = set(inspect.signature(decoding.Constraints).parameters) - {"max_length", "limits", "prefix"}
SEARCH = {"penalty", "length_penalty", "coverage_penalty"}  # which a greedy translator has no use for


class Translator:
    """A model with its tokenizers: translates strings, in batches of like length and of few shapes.

    It may be used from several threads at once.

    Args:
        model: one of `keras_tfm.models` with encoder and decoder, or a list of them, which then decide together.
        source_tokenizer, target_tokenizer: of `keras_tfm.text`; one for both by default.
        beams: how many hypotheses are kept; 1 is greedy.
        batch_size: how many texts are translated together.
        max_length: tokens of the longest source, and of the longest translation.
        **options: words of `SEARCH` and `CONSTRAINTS`, such as `length_penalty` of `decoding.beam_search` and
            `no_repeat_ngram` of `decoding.Constraints`.

    What comes back is as long as what went in, and in its order. An empty text stays empty. Lines of a text are
    translated one by one; of a line that is longer than `max_length`, its sentences; and of a sentence that is longer,
    the end is cut off, with a warning that says how much.

    >>> from keras_tfm.models import PRESETS, transformer
    >>> tokenizer = text.ByteTokenizer()
    >>> translator = Translator(transformer(tokenizer.vocab_size, **PRESETS["tiny"]), tokenizer, beams=2)
    >>> len(translator(["one text", "", "and another"]))
    3
    """

    jit_compile = True  # whether XLA compiles the search on TensorFlow: slow to start, faster afterwards

    def __init__(
        self, model, source_tokenizer, target_tokenizer=None, beams=4, batch_size=64, max_length=512, **options
    ):
        self.models = list(model) if isinstance(model, (list, tuple)) else [model]
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer or source_tokenizer
        self.beams, self.batch_size = positive("beams", beams), positive("batch_size", batch_size)
        for name in options:
            one_of("option", name, sorted(SEARCH | CONSTRAINTS))
        self.options, self.origin = options, ""
        self._check_tokenizers()
        limits = [m.arguments.get("max_length", 512) for m in self.models if m.arguments.get("positions") == "learned"]
        self.max_length = min([positive("max_length", max_length), *limits])
        decoding.Constraints(self.max_length, **self._constraints())
        decoding.check_penalties(**{name: value for name, value in options.items() if name in SEARCH})
        if len(self.models) > 1 and options.get("coverage_penalty"):
            raise ValueError(f"`coverage_penalty` must be 0 for several models. Received: {len(self.models)} models")
        self.widths = [width for width in WIDTHS if width < self.max_length] + [self.max_length]
        self._programs, self._lock = {}, threading.Lock()

    def __call__(self, texts, verbose=0):
        """Strings → strings; with `verbose=1`, a progress bar."""
        n = None if self.beams == 1 else 1
        return [hypotheses[0][0] for hypotheses in self._translate(texts, n, verbose)]

    def n_best(self, texts, n, verbose=0):
        """Strings → for each, the `n` best translations with their scores, best first: [(string, score), …].

        The hypotheses of a text of several sentences or lines are those of each of them, joined; their scores add up.
        """
        return self._translate(texts, positive("n", n), verbose)

    def stream(self, lines, chunk=2048):
        """An iterable of strings of any length → their translations, as soon as a chunk of them is done."""
        lines = iter(lines)
        while texts := list(itertools.islice(lines, chunk)):
            yield from self(texts)

    def search(self, sources, width, n=None):
        """What decodes a batch of ids, eagerly or inside a graph.

        Args:
            sources: ids (batch, at most `width`), each row with its end token, and zeros behind it.
            width: an integer, from which the length of the longest translation follows.
            n: how many hypotheses of a beam; None is greedy.

        Returns:
            ids (batch, n or 1, length) and scores (batch, n or 1), those of a greedy search being zero.
        """
        lengths = ops.sum(ops.cast(ops.not_equal(sources, PAD), "int32"), axis=1)
        shortest = self.options.get("min_length", 0)
        longest = max(min(longest_translation(width), self.max_length), shortest)
        # each row's own limit, so that it does not depend on what else is in the batch
        limits = {"max_length": longest, "limits": ops.maximum(longest_translation(lengths), shortest)}
        start, step = self.steps(n is not None and self.options.get("coverage_penalty"))

        length = ops.shape(sources)[1]
        if not isinstance(length, int):  # in a graph: most translations have less than twice as much, none much more
            limits["room"] = (length + 5) // 2
        if n is None:
            ids = decoding.greedy(start, step, sources, **limits, **self._constraints())[:, None]
            return ids, ops.zeros(ops.shape(ids)[:2])
        beams = {"beams": max(self.beams, n), "n_best": n}
        return decoding.beam_search(start, step, sources, **beams, **limits, **self.options)

    def save(self, folder):
        """Writes model and tokenizers into a folder, which must be new, empty, or one that `save` wrote before."""
        place = files.NewFolder(folder, *_names(folder))
        with place as new:
            for number, model in enumerate(self.models):
                model.metadata.setdefault("tokenizers", self._fingerprints())
                model.save(new / (f"model-{number}.keras" if len(self.models) > 1 else "model.keras"))
            for name, tokenizer in zip(runs.TOKENIZERS[len(self.tokenizers) - 1], self.tokenizers, strict=True):
                text.save_tokenizer(tokenizer, new / name)
            files.write_manifest(new, format="keras")

    @classmethod
    def load(cls, folder=files.DATES, **options):
        """The translator of a folder that `save` or `keras-tfm train` wrote; options as of the class.

        Without a folder, the translator of dates that comes with the package.

        A run may still be training: then its latest state is taken, and `origin` says so.
        """
        folder, origin = pathlib.Path(folder), ""
        form = exported.form(folder)
        if form is not None:
            raise ValueError(
                f"`folder` must be that of a run or of a saved translator. Received: {folder}, an export ({form}), "
                "which `keras_tfm.exported.load` runs"
            )
        if runs.is_run(folder):
            model, origin = runs.load_model(folder)
            models = [model]
        else:
            if (folder / "translator.json").exists():
                files.read_manifest(folder)
            paths = sorted(folder.glob("model*.keras"))
            if not paths:
                raise FileNotFoundError(f"{folder}: must hold a model.keras, as `keras-tfm train` writes it")
            models = [runs.load_keras(path) for path in paths]
        translator = cls(models, *runs.load_tokenizers(folder), **options)
        translator.origin = origin
        return translator

    @property
    def tokenizers(self):
        """The tokenizer of both sides, or that of the source and that of the target."""
        one = self.source_tokenizer is self.target_tokenizer
        return [self.source_tokenizer] if one else [self.source_tokenizer, self.target_tokenizer]

    def _fingerprints(self):
        return [text.fingerprint(tokenizer) for tokenizer in self.tokenizers]

    def _check_tokenizers(self):
        """Refuses tokenizers that a model was not trained with."""
        for model in self.models:
            expected = model.metadata.get("tokenizers")
            if expected is not None and expected != self._fingerprints():
                raise ValueError(
                    "tokenizers must be those that the model was trained with. Received: others, by their fingerprints"
                )
            sizes = [model.arguments["vocab_size"]]
            sizes.append(model.arguments.get("target_vocab_size") or sizes[0])
            found = [self.source_tokenizer.vocab_size, self.target_tokenizer.vocab_size]
            if any(size < tokens for size, tokens in zip(sizes, found, strict=True)):
                raise ValueError(f"tokenizers must have at most {sizes} tokens, as the model. Received: {found}")

    def _translate(self, texts, n, verbose):
        """Strings → for each, the `n` best, [(string, score), …]; None is greedy, without scores."""
        divided = list(map(self._divide, strings(texts)))
        found = iter(self._find([ids for pieces in divided for ids, _ in pieces], n, verbose))
        return [_joined([(next(found), behind) for _, behind in pieces]) for pieces in divided]

    def _divide(self, text):
        """A text as pieces that are short enough: [(ids, what stands behind the piece)]."""
        pieces = []
        for line, newline in _split(LINE_END, text):
            if not line.strip():
                pieces.append(([], newline))
                continue
            (ids,) = self.source_tokenizer.encode([line])
            if len(ids) < self.max_length:
                pieces.append((ids, newline))
            else:
                sentences, spaces = zip(*_split(SENTENCE_END, line), strict=True)
                cut = map(self._cut, self.source_tokenizer.encode(sentences), sentences)
                pieces += [*zip(cut, spaces, strict=True), ([], newline)]
        return pieces

    def _cut(self, ids, sentence):
        room = self.max_length - 1  # for the end token
        if len(ids) > room:
            message = f"{len(ids) - room} of {len(ids)} tokens of a sentence were cut off: {sentence[:40]!r} …"
            warnings.warn(message, stacklevel=5)  # the caller of `__call__`: `map` has no frame, comprehensions may
        return ids[:room]

    def _find(self, rows, n, verbose):
        """Lists of ids → for each, the `n` best: [(string, score), …]."""
        order = sorted((number for number, ids in enumerate(rows) if ids), key=lambda number: len(rows[number]))
        found = [[("", 0.0)]] * len(rows)
        size = self.batch_size if len(order) > FEW else min(FEW, self.batch_size)
        with Progress(len(order), "translating", "sentence", verbose) as bar:
            for first in range(0, len(order), size):
                members = order[first : first + size]
                width = next(width for width in self.widths if width > len(rows[members[-1]]))
                sources = padded([rows[number] for number in members], width, size)
                ids, scores = (ops.convert_to_numpy(x)[: len(members)] for x in self._compiled(n)(sources, width))
                for number, hypotheses, their_scores in zip(members, ids, scores, strict=True):
                    texts = self.target_tokenizer.decode(hypotheses)
                    pairs = zip(texts, map(float, their_scores), strict=True)
                    found[number] = [(text, score) for text, score in pairs if score > decoding.NEVER / 2]
                bar.add(len(members))
        return found

    def _compiled(self, n):
        """`search` for `n`, with a program for each width."""
        with self._lock:
            if n not in self._programs:
                variables = [variable for model in self.models for variable in model.variables]
                locks = [model.running for model in self.models]
                self._programs[n] = kernels.compiled(
                    functools.partial(self.search, n=n), variables, locks, self.jit_compile
                )
            return self._programs[n]

    def _constraints(self):
        return {name: value for name, value in self.options.items() if name in CONSTRAINTS}

    def steps(self, with_attention=False):
        """`start` and `step` of the model, or of all of them."""
        if len(self.models) > 1:
            return decoding.ensemble(*self.models)
        (model,) = self.models
        return model.start, model.step_and_attention if with_attention else model.step


def _names(folder):
    """Of what `Translator.save` writes: names that only it uses, and all of them."""
    models = {path.name for path in pathlib.Path(folder).glob("model*.keras")} | {"model.keras"}
    return models, models | {"translator.json", *itertools.chain(*runs.TOKENIZERS)}


def _split(pattern, text):
    """What stands between the matches of a pattern, each with the match behind it."""
    ends = [*(match.span() for match in pattern.finditer(text)), (len(text), len(text))]
    starts = [0, *(stop for _, stop in ends)]
    return [(text[start:end], text[end:stop]) for start, (end, stop) in zip(starts, ends, strict=False)]


def _joined(pieces):
    """Hypotheses of pieces and what stands behind each → as many of the whole as the piece with the most has."""
    best = [("", 0.0)]
    for hypotheses, behind in pieces:
        joined = [(before + text + behind, score + more) for before, score in best for text, more in hypotheses]
        best = sorted(joined, key=lambda pair: -pair[1])[: max(len(best), len(hypotheses))]
    return best
