"""Runs exported translators from their folders alone: `load(folder)` finds the right runner.

    LiteRTTranslator         of `keras_tfm.litert`; needs ai-edge-litert
    CTranslate2Translator    needs ctranslate2
    ONNXTranslator           needs onnxruntime
    SavedModelTranslator     needs tensorflow and tensorflow-text

All take a list of strings and return their translations, as `keras_tfm.runner.Runner` describes. Neither Keras nor
TensorFlow is imported, but for SavedModels.
"""

import pathlib
import warnings

import numpy as np

from keras_tfm import files
from keras_tfm.arguments import positive
from keras_tfm.litert import LiteRTTranslator
from keras_tfm.runner import Runner, TokenRunner
from keras_tfm.text import END, PAD, START, longest_translation

NEVER = -1e9  # the logarithm of no probability at all, as in `keras_tfm.decoding`
# Settings of exports by earlier versions, which did not write these.
DEFAULTS = {"beams": 1, "penalty": "length", "length_penalty": 0.6}
DEFAULTS |= {"min_length": 0, "no_repeat_ngram": 0, "forbidden": ()}


class CTranslate2Translator(TokenRunner):
    """Strings in, strings out, by CTranslate2. Several threads may use one.

    Args:
        folder: what `export.ctranslate2` wrote.
        num_threads: how many threads the runtime uses for a batch.
    """

    form, main = "ctranslate2", "model.bin"

    def __init__(self, folder, num_threads=1):
        super().__init__(folder)
        try:
            import ctranslate2
        except ImportError as error:
            raise ImportError("This runner needs CTranslate2: pip install 'keras_tfm[ctranslate2]'") from error
        settings = DEFAULTS | self.settings
        self._names = vocabulary(self.source_tokenizer)
        targets = vocabulary(self.target_tokenizer)
        self._ids = {name: number for number, name in enumerate(targets)}
        with files.reading(self.folder / "translator.json"):
            self._shortest = settings["min_length"]
            self._options = {
                "beam_size": positive("beams", settings["beams"]),
                "length_penalty": settings["length_penalty"],
                "min_decoding_length": max(self._shortest - 1, 0),  # without the end token
                "no_repeat_ngram_size": settings["no_repeat_ngram"],
                "suppress_sequences": [[targets[number]] for number in settings["forbidden"]] or None,
                "max_batch_size": 32,
            }
        with files.reading(self.folder / self.main):
            self._translator = ctranslate2.Translator(str(self.folder), intra_threads=num_threads)

    def _search(self, rows):
        longest = max(min(longest_translation(len(rows[0])), self.max_length), self._shortest)
        tokens = [[self._names[number] for number in row[:-1]] for row in rows]  # it adds the end token by itself
        found = self._translator.translate_batch(tokens, max_decoding_length=longest, **self._options)
        return [[self._ids[name] for name in result.hypotheses[0]] for result in found]


class ONNXTranslator(TokenRunner):
    """Strings in, strings out, by ONNX Runtime and a beam search in NumPy. Several threads may use one.

    Args:
        folder: what `export.onnx` wrote.
        num_threads: how many threads the runtime uses.
    """

    form, main = "onnx", "step.onnx"

    def __init__(self, folder, num_threads=1):
        super().__init__(folder)
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError("This runner needs ONNX Runtime: pip install 'keras_tfm[onnx]'") from error
        with files.reading(self.folder / "translator.json"):
            settings = DEFAULTS | {"longest": self.max_length} | self.settings
            self._longest, self._beams = (positive(name, settings[name]) for name in ("longest", "beams"))
            lengths = np.arange(1, self._longest + 1, dtype="float32")
            base = {"length": lengths, "gnmt": (5 + lengths) / 6}[settings["penalty"]]
            self._divisors = base ** np.float32(settings["length_penalty"])
            self._shortest, self._ngram = int(settings["min_length"]), int(settings["no_repeat_ngram"])
            self._forbidden = [PAD, START, *map(int, settings["forbidden"])]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads

        def session(name):
            path = self.folder / name
            with files.reading(path):
                return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        self._encoder, self._step = session("encoder.onnx"), session("step.onnx")
        self._names = [x.name for x in self._step.get_inputs() if x.name.startswith("cache_")]
        self._outputs = ["logits", *(f"next_{name}" for name in self._names)]

    def _search(self, rows):
        return [self._best(row) for row in rows]

    def _best(self, source):
        """The ids of the best translation by `keras_tfm.decoding.beam_search`, written in NumPy for one sentence."""
        limit = min(max(longest_translation(len(source)), self._shortest), self._longest)
        cache = self._encoder.run(self._names, {"ids": np.array([source], "int32")})
        parents = np.zeros(self._beams, "int64")  # a row for each hypothesis
        tokens, written = np.full((self._beams, 1), START, "int32"), np.zeros((self._beams, 0), "int32")
        scores = np.array([0.0] + [NEVER] * (self._beams - 1), "float32")
        best, best_score = [], 2 * NEVER
        for position in range(limit):
            # no hypothesis can get a higher score than this one, here or at its last place
            hope = scores.max() / max(self._divisors[position], self._divisors[limit - 1])
            if hope <= best_score or scores.max() <= NEVER / 2:
                break
            inputs = dict(zip(self._names, (x[parents] for x in cache), strict=True))
            inputs |= {"tokens": tokens, "position": np.array([position], "int32")}
            logits, *cache = self._step.run(self._outputs, inputs)
            values, chosen = self._most_probable(logits.astype("float32"), written)
            values = (values + scores[:, None]).ravel()
            places = np.argsort(-values, kind="stable")[: self._beams]
            scores, parents = values[places], places // chosen.shape[1]
            tokens = chosen.ravel()[places][:, None]
            written = np.concatenate([written[parents], tokens], axis=1)
            ends = (tokens[:, 0] == END) | (position == limit - 1)
            for row in np.flatnonzero(ends & (scores > NEVER / 2)):
                if scores[row] / self._divisors[position] > best_score:
                    best, best_score = written[row], scores[row] / self._divisors[position]
            scores = np.where(ends, np.float32(2 * NEVER), scores)
        return best

    def _most_probable(self, logits, written):
        """Logarithms and ids, (k, k) each, of the most probable tokens that may follow what is written (k, length)."""
        highest = logits.max(axis=1, keepdims=True)
        normaliser = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        logits[:, self._forbidden] = NEVER
        if written.shape[1] < self._shortest - 1:
            logits[:, END] = NEVER
        n, length = self._ngram, written.shape[1]
        for row, first in np.ndindex(len(written), max(length - n + 1, 0) if n else 0):
            if np.array_equal(written[row, first : first + n - 1], written[row, length - n + 1 :]):
                logits[row, written[row, first + n - 1]] = NEVER
        count = min(self._beams, logits.shape[1])
        ids = np.argpartition(-logits, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(logits, ids, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        values, ids = (np.take_along_axis(x, order, axis=1) for x in (values, ids))
        return np.maximum(values - normaliser, NEVER), ids.astype("int32")


class SavedModelTranslator(Runner):
    """Strings in, strings out, by a SavedModel. Several threads may use one. Needs tensorflow and tensorflow-text.

    Args:
        folder: what `export.saved_model` wrote.
        batch_size: how many texts are translated together.
    """

    form, main = "saved_model", "saved_model.pb"

    def __init__(self, folder, batch_size=32):
        super().__init__(folder)
        self.batch_size = positive("batch_size", batch_size)
        try:
            import tensorflow as tf
            import tensorflow_text  # noqa: F401, operators of the tokenizers
        except ImportError as error:
            message = "This runner needs TensorFlow and its text operators: pip install 'keras_tfm[tensorflow,text]'"
            raise ImportError(message) from error
        with files.reading(self.folder / self.main):
            self._model = tf.saved_model.load(str(self.folder))  # it must live as long as its signature
            self._signature = self._model.signatures["translate"]
        self._constant = tf.constant

    def _settings(self):
        # earlier versions wrote no settings, and all that a SavedModel needs is inside
        if not (self.folder / "translator.json").exists():
            return {}
        return files.read_manifest(self.folder, required=("format", "max_length"))

    def _translate(self, texts, bar):
        found, order = [""] * len(texts), sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for first in range(0, len(order), self.batch_size):
            places = order[first : first + self.batch_size]
            strings = [texts[place].encode("utf-8", "replace") for place in places]
            outputs = self._signature(texts=self._constant(strings))
            for place, answers, cut in zip(places, *(outputs[k].numpy() for k in ("translations", "cut")), strict=True):
                found[place] = answers[0].decode("utf-8", "replace")
                if cut:
                    warnings.warn(f"{cut} tokens were cut off: {texts[place][:40]!r} …", stacklevel=3)
            bar.add(len(places))
        return found


RUNNERS = {
    runner.form: runner for runner in (SavedModelTranslator, LiteRTTranslator, CTranslate2Translator, ONNXTranslator)
}
# What exports write: a file of each form that only it has, and all of them.
MAIN = {runner.main for runner in RUNNERS.values()}
OWN = MAIN | {"variables", "assets", "fingerprint.pb", "encoder.onnx", "config.json", "translator.json"}
OWN |= {f"{side}_vocabulary.json" for side in ("source", "target", "shared")} | {"source_tokenizer", "target_tokenizer"}


class NewFolder(files.NewFolder):
    """A new folder for an export, which takes the place of `folder` if all goes well; others are refused."""

    def __init__(self, folder):
        super().__init__(folder, MAIN, OWN)


def form(folder):
    """The form of the export in a folder, a word of `RUNNERS`; None if there is none."""
    folder = pathlib.Path(folder)
    files.settle(folder)
    return next((form for form, runner in RUNNERS.items() if (folder / runner.main).exists()), None)


def load(folder):
    """The runner of a folder that `keras_tfm.export` wrote: a function of a list of strings."""
    found = form(folder)
    if found is None:
        raise FileNotFoundError(
            f"{folder}: must hold one of {', '.join(sorted(MAIN))}, as `keras-tfm export` writes it"
        )
    return RUNNERS[found](folder)


def vocabulary(tokenizer):
    """Names of all tokens for CTranslate2: the pieces of SentencePiece, and numbers where it has none."""
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    processor = getattr(tokenizer, "processor", None)
    name = processor.id_to_piece if processor else str
    return specials + [name(number) for number in range(len(specials), tokenizer.vocab_size)]
