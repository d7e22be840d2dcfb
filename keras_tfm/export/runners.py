"""Runs exported translators: `load(folder)` returns the runner for a folder that `Translator.export` wrote.

    SavedModelTranslator     needs tensorflow and tensorflow-text
    LiteRTTranslator         needs ai-edge-litert
    WebTranslator            needs ai-edge-litert
    CTranslate2Translator    needs ctranslate2
    ONNXTranslator           needs onnxruntime

All are called with a string or a list of strings and return the translations, as a `Translator` does. Only
`SavedModelTranslator` imports TensorFlow and Keras.
"""

import importlib
import itertools
import os
import pathlib
import threading
import warnings
from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from keras_tfm import artifacts
from keras_tfm.common import extras, files
from keras_tfm.common.arguments import MAX_BEAMS, UserError, check, positive, strings
from keras_tfm.common.progress import Progress
from keras_tfm.text import END, PAD, START, pieces
from keras_tfm.text.base import encode_truncated, longest_translation
from keras_tfm.text.masking import MAX_SLOTS, characters_except
from keras_tfm.text.translating import TextTranslator

BATCH_SIZE = 32  # texts that are translated together, where the runtime can
NEVER = -1e9  # log-probability of a suppressed token, as in `keras_tfm.ops`


class Runner(TextTranslator):
    """Translates strings with an exported translator. Safe to use from several threads.

    Args:
        folder: a folder that `Translator.export` wrote. The checksums of its files are verified first.

    Unlike `Translator`, a runner does not split texts into lines and sentences: each text is translated as one
    sentence. Blank texts become empty strings. Texts longer than the exported `max_length` are truncated, with a
    warning that says by how much.
    """

    # Subclasses set the name of their format, a key of `artifacts.FORMATS`, and define `_translate(texts, n, bar)`. It
    # returns the `n` best translations of strings that are not blank, [(string, score), …], and counts with `bar.add`.
    format = None

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = pathlib.Path(folder)
        files.recover_replace(self.folder)
        self.main = self.folder / artifacts.FORMATS[self.format].main
        if not self.main.exists():
            raise FileNotFoundError(f"{self.folder}: must contain {self.main.name}, as written by `keras-tfm export`")
        self.settings = artifacts.read_manifest(self.folder, required=("format", "max_length"))
        if self.settings["format"] != self.format:
            received = f"{self.folder}, with format {self.settings['format']!r}"
            raise UserError(f"`folder` must contain a translator in the {self.format} format. Received: {received}")
        with files.reading(self.folder / artifacts.MANIFEST):
            self.max_hypotheses = limited("n_best", self.settings.get("n_best", 1), MAX_BEAMS)
            self.languages = strings(self.settings.get("languages", []), "languages")
            self.placeholders = limited("placeholders", self.settings.get("placeholders", 0) + 1, MAX_SLOTS + 1) - 1
            self.target_language = self.settings.get("target_language")
            self.max_length = limited("max_length", self.settings["max_length"])

    def __repr__(self):
        shown = ("precision", "num_beams", "max_length")
        return f"<{type(self).__name__}: {', '.join(f'{name}={self.settings.get(name)}' for name in shown)}>"

    @overload
    def __call__(self, texts: str, verbose: int = 0, **options: Any) -> str: ...
    @overload
    def __call__(self, texts: Iterable[str], verbose: int = 0, **options: Any) -> list[str]: ...
    def __call__(self, texts, verbose=0, target_language=None, glossary=None, **options):
        """Translates a list of strings, or one string. With `verbose=1`, shows progress.

        `target_language` and `glossary` are those of a `Translator`; an export has fixed all other options.
        """
        return self._call(texts, verbose, target_language, glossary, **options)

    def n_best(
        self, texts: Iterable[str], n: int, verbose: int = 0, target_language: Any = None, glossary: Any = None
    ) -> list[list[tuple[str, float]]]:
        """Returns the `n` best translations of each string with their scores, best first: [(string, score), …].

        The formats "litert" and "onnx" return one. "saved_model" and "web" return at most the `n_best` of the export.
        In the scores of CTranslate2, padding and the start token have no share of the probability.
        """
        limited("n", n, self.max_hypotheses)
        return self._n_best(texts, n, verbose, target_language, glossary)

    def score(self, sources: Iterable[str], targets: Iterable[str], target_language: Any = None) -> list[float]:
        """Returns the log probability of each target given its source, if the format can; see `Translator.score`."""
        raise UserError(f"`score` needs a run, a saved translator or a CTranslate2 export. Received: {self.folder}")

    def _hypotheses(self, texts, tags, n, verbose, **options):
        check_no_options(self.format, options)
        sentences = [tag + string for tag, string in zip(tags, texts, strict=True) if string.strip()]
        with Progress(len(sentences), "translating", "sentence", verbose) as bar:
            translations = iter(self._translate(sentences, n or 1, bar))
        return [next(translations) if string.strip() else [("", 0.0)] for string in texts]

    def warm_up(self) -> None:
        """Translates a text, so that the first call does not wait for what the runtime prepares."""
        self(["a"], target_language=self.languages[0] if self.languages else None)


class TokenRunner(Runner):
    """Base of runners whose model maps token ids to token ids; the runtime uses `num_threads` threads."""

    # Subclasses define `_load(num_threads)`, and `_best(row)` or `_search(rows, n)`.

    def __init__(self, folder, num_threads=1):
        super().__init__(folder)
        self.source_tokenizer, self.target_tokenizer = artifacts.load_tokenizers(self.folder)
        self.unseen_characters = self.source_tokenizer.unseen_characters
        self._load(num_threads)

    def _translate(self, texts, n, bar):
        rows = encode_truncated(self.source_tokenizer, texts, self.max_length - 1, stacklevel=7)
        translations, lengths = [[("", 0.0)]] * len(texts), list(map(len, rows))
        order = sorted((place for place, ids in enumerate(rows) if ids), key=lengths.__getitem__)
        # one length at a time: no padding, and the runtime prepares for each length only once
        for _, places in itertools.groupby(order, key=lengths.__getitem__):
            places = list(places)
            results = self._search([[*rows[place], END] for place in places], n)
            for place, hypotheses in zip(places, results, strict=True):
                strings = self.target_tokenizer.decode(ids for ids, _ in hypotheses)
                translations[place] = [(text, score) for text, (_, score) in zip(strings, hypotheses, strict=True)]
            bar.add(len(places))
        return translations

    def _search(self, rows, n):
        """Lists of ids → their translations, [(ids, score), …]. All rows have the same length and an end token."""
        return [[(self._best(row), 0.0)] for row in rows]


class SavedModelTranslator(Runner):
    """Runs the SavedModel format."""

    format = "saved_model"

    def __init__(self, folder):
        super().__init__(folder)
        tf, _ = extras.load("tensorflow"), extras.load("tensorflow_text")  # which registers the tokenizers' operators
        with files.reading(self.main):
            self._model = tf.saved_model.load(str(self.folder))  # must live as long as its signature
            self._signature = self._model.signatures["translate"]
        self._constant = tf.constant
        known = self.settings.get("characters")
        with files.reading(self.folder / artifacts.MANIFEST):
            check("characters", known, known is None or isinstance(known, str), "a string")
            self.unseen_characters = None if known is None else characters_except(known)

    def _translate(self, texts, n, bar):
        translations, order = [[]] * len(texts), sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for first in range(0, len(order), BATCH_SIZE):
            places = order[first : first + BATCH_SIZE]
            sources = [texts[place].encode("utf-8", "replace") for place in places]
            outputs = self._signature(texts=self._constant(sources))
            arrays = (outputs[name].numpy() for name in ("translations", "scores", "cut"))
            for place, hypotheses, scores, cut in zip(places, *arrays, strict=True):
                strings = [string.decode("utf-8", "replace") for string in hypotheses[:n]]
                translations[place] = list(zip(strings, map(float, scores), strict=False))
                if cut:
                    warnings.warn(f"{cut} tokens were cut off: {texts[place][:40]!r} …", stacklevel=6)
            bar.add(len(places))
        return translations


class LiteRTTranslator(TokenRunner):
    """Runs the LiteRT format. Threads take turns, sentence by sentence."""

    format = "litert"

    def _load(self, num_threads):
        path, runtime = self.main, extras.load("ai_edge_litert.interpreter")
        with files.reading(path):
            self.interpreter = runtime.Interpreter(str(path), num_threads=num_threads)
            self.signature = self.interpreter.get_signature_runner("translate")
        self._turn = threading.Lock()

    def _best(self, row):
        return self._outputs(row)["ids"][0]

    def _outputs(self, row):
        with self._turn:
            return self.signature(ids=np.array([row], "int32"))


class WebTranslator(LiteRTTranslator):
    """Runs the model of the web format, as the page does in a browser."""

    format = "web"

    def _search(self, rows, n):
        outputs = [self._outputs(row + [PAD] * (self.max_length - len(row))) for row in rows]
        return [list(zip(x["ids"][0][:n], map(float, x["scores"][0]), strict=False)) for x in outputs]


class CTranslate2Translator(TokenRunner):
    """Runs the CTranslate2 format."""

    format = "ctranslate2"

    def _load(self, num_threads):
        runtime = extras.load("ctranslate2")
        self._names = vocabulary(self.source_tokenizer)
        targets = vocabulary(self.target_tokenizer)
        self._ids = {name: number for number, name in enumerate(targets)}
        with files.reading(self.folder / artifacts.MANIFEST):
            self._beams = limited("num_beams", self.settings["num_beams"], MAX_BEAMS)
            self._shortest, ngram = (
                limited(name, self.settings[name] + 1) - 1 for name in ("min_length", "no_repeat_ngram_size")
            )
            self._options = {
                "length_penalty": float(self.settings["length_penalty"]),
                "min_decoding_length": max(self._shortest - 1, 0),  # CTranslate2 does not count the end token
                "no_repeat_ngram_size": ngram,
                "suppress_sequences": [[targets[number]] for number in self.settings["suppress_tokens"]] or None,
                "max_batch_size": BATCH_SIZE,
            }
        with files.reading(self.main):
            self._translator = runtime.Translator(str(self.folder), intra_threads=num_threads)
        self.max_hypotheses = MAX_BEAMS

    def _search(self, rows, n):
        longest = max(min(longest_translation(len(rows[0])), self.max_length), self._shortest)
        tokens = [[self._names[number] for number in row[:-1]] for row in rows]  # CTranslate2 adds the end token
        sizes = {"beam_size": max(self._beams, n), "num_hypotheses": n, "max_decoding_length": longest}
        sizes["return_scores"] = sizes["beam_size"] > 1
        results = self._translator.translate_batch(tokens, **sizes, **self._options)
        return [
            [
                ([self._ids[name] for name in names], score)
                for names, score in zip(result.hypotheses, result.scores or [0.0] * n, strict=True)
            ]
            for result in results
        ]

    def score(self, sources: Iterable[str], targets: Iterable[str], target_language: Any = None) -> list[float]:
        sources, targets = self.prepare_pairs(sources, targets, target_language)
        sides = pieces.encode_pairs(self.source_tokenizer, sources, self.target_tokenizer, targets, self.max_length)
        names = self._names, [*self._ids]
        tokens = [[[each[i] for i in ids] for ids in side] for each, side in zip(names, sides, strict=True)]
        scores = self._translator.score_batch(*tokens, max_batch_size=BATCH_SIZE) if tokens[0] else []
        return [sum(each.log_probs) for each in scores]


class ONNXTranslator(TokenRunner):
    """Runs the ONNX format, with a beam search in NumPy."""

    format = "onnx"

    def _load(self, num_threads):
        runtime, settings = extras.load("onnxruntime"), self.settings
        with files.reading(self.folder / artifacts.MANIFEST):
            self._longest = limited("longest", settings["longest"])
            self._beams = limited("num_beams", settings["num_beams"], MAX_BEAMS)
            lengths = np.arange(1, self._longest + 1, dtype="float32")
            base = {"length": lengths, "gnmt": (5 + lengths) / 6}[settings["penalty"]]
            self._divisors = base ** np.float32(settings["length_penalty"])
            self._early_stopping = settings["early_stopping"]
            self._shortest, self._ngram = int(settings["min_length"]), int(settings["no_repeat_ngram_size"])
            self._suppressed = [PAD, START, *map(int, settings["suppress_tokens"])]
            self._copied = np.array(settings.get("copied_tokens", ()), "int32")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = num_threads
        sessions = []
        for path in (self.folder / artifacts.ENCODER, self.main):
            with files.reading(path):
                sessions.append(runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
        self._encoder, self._step = sessions
        self._names = [x.name for x in self._step.get_inputs() if x.name.startswith("cache_")]
        self._outputs = ["logits", *(f"next_{name}" for name in self._names)]

    def _best(self, source):
        """Ids of the best translation of one sentence: `keras_tfm.decoding.beam_search` written in NumPy."""
        limit = min(max(longest_translation(len(source)), self._shortest), self._longest)
        cache = self._encoder.run(self._names, {"ids": np.array([source], "int32")})
        parents = np.zeros(self._beams, "int64")  # one row per hypothesis
        tokens, written = np.full((self._beams, 1), START, "int32"), np.zeros((self._beams, 0), "int32")
        scores = np.array([0.0] + [NEVER] * (self._beams - 1), "float32")
        best, best_score = [], 2 * NEVER
        for position in range(limit):
            divisor = self._divisors[position]
            if not self._early_stopping:  # scores are negative and divisors are monotonic
                divisor = max(divisor, self._divisors[limit - 1])
            if scores.max() / divisor <= best_score or scores.max() <= NEVER / 2:
                break
            inputs = dict(zip(self._names, (x[parents] for x in cache), strict=True))
            inputs |= {"tokens": tokens, "position": np.array([position], "int32")}
            logits, *cache = self._step.run(self._outputs, inputs)
            missing = self._copies(source) - self._copies(written)
            values = scores[:, None] + self._log_probabilities(logits.astype("float32"), written, missing, limit)
            places = np.argpartition(values, -self._beams, axis=None)[-self._beams :]
            places = places[np.argsort(-values.flat[places], kind="stable")]
            scores, parents, tokens = values.flat[places], places // values.shape[1], places % values.shape[1]
            tokens = tokens.astype("int32")[:, None]
            written = np.concatenate([written[parents], tokens], axis=1)
            ends = (tokens[:, 0] == END) | (position == limit - 1)
            for row in np.flatnonzero(ends & (scores > NEVER / 2)):
                if scores[row] / self._divisors[position] > best_score:
                    best, best_score = written[row], scores[row] / self._divisors[position]
            scores = np.where(ends, np.float32(2 * NEVER), scores)
        return best

    def _log_probabilities(self, logits, written, missing, limit):
        """Log-probabilities (k, vocabulary) of what may follow `written` (k, length), `NEVER` for the other tokens.

        Of a translation of up to `limit` tokens, some copied tokens are `missing`, (k, copied tokens).
        """
        result = logits - logits.max(axis=1, keepdims=True)
        result -= np.log(np.exp(result).sum(axis=1, keepdims=True))
        n, length, total = self._ngram, written.shape[1], missing.sum(axis=1)
        copied = np.where(missing > 0, result[:, self._copied], NEVER)
        result[:, self._suppressed] = NEVER
        if length < self._shortest - 1:
            result[:, END] = NEVER
        for row, first in np.ndindex(len(written), max(length - n + 1, 0) if n else 0):
            if np.array_equal(written[row, first : first + n - 1], written[row, length - n + 1 :]):
                result[row, written[row, first + n - 1]] = NEVER
        result[total > 0, END] = NEVER
        result[total >= limit - length] = NEVER  # only what is missing fits
        result[:, self._copied] = copied
        return result

    def _copies(self, ids):
        """How often each copied token occurs, (…, length) → (…, copied tokens)."""
        return (np.asarray(ids)[..., None] == self._copied).sum(axis=-2)


# The lowest mean similarity of an export's translations to the model's that is accepted; "float32" stands for all
# precisions but int8. Measured with the date translator, on dates, other sentences and nonsense: every format with
# float or int16 weights 1.00, int8 0.93 to 1.00; with noise of a fifth of their size on the weights, so that no date is
# right, 0.76 to 0.82. A beam search may choose another of two equally good translations, so 1.00 would be too strict.
MIN_AGREEMENT = {"float32": 0.95, "int8": 0.85}


def limited(name, value, maximum=artifacts.MAX_TOKENS):
    """Returns `value` if it is a positive integer up to a maximum."""
    return check(name, value, positive(name, value) <= maximum, f"at most {maximum:,}")


def check_agreement(precision, min_agreement, texts):
    """Returns `min_agreement`, by default that of the precision; raises an error if it cannot be one."""
    if min_agreement is None:
        return MIN_AGREEMENT["int8" if precision.startswith("int8") else "float32"]
    check("min_agreement", min_agreement, texts is not None, "None without `compare_on`")
    return check("min_agreement", min_agreement, 0 <= min_agreement <= 1, "a number from 0 to 1")


def load(folder: str | os.PathLike[str], num_threads: int = 1, **options: Any) -> Runner:
    """Returns the runner for a folder that `Translator.export` wrote; there are no options, which it has fixed."""
    if not artifacts.is_runnable(folder):
        names = ", ".join(sorted(format.main for format in artifacts.FORMATS.values() if format.runner))
        raise FileNotFoundError(f"{folder}: must contain one of {names}, as written by `keras-tfm export`")
    format = artifacts.format_of(folder)
    check_no_options(format, options)
    module, _, name = artifacts.FORMATS[format].runner.rpartition(".")
    runner = getattr(importlib.import_module(module), name)
    return runner(folder, num_threads) if issubclass(runner, TokenRunner) else runner(folder)


def check_no_options(format, options):
    """Raises an error if there are options of the search, which an export has fixed."""
    for name, value in options.items():
        raise UserError(f"`{name}` is fixed in an export, here {format}. Received: {value}")


def vocabulary(tokenizer):
    """Names of all tokens for CTranslate2: SentencePiece's pieces, or the ids of tokenizers without pieces."""
    return ["<pad>", "<s>", "</s>", "<unk>", *tokenizer.names()]
