"""What all runners of exported translators share: strings in, strings out, from the folder alone.

Imports neither Keras nor TensorFlow.
"""

import itertools
import pathlib
import warnings

from keras_tfm import files, text
from keras_tfm.arguments import positive, strings
from keras_tfm.progress import Progress
from keras_tfm.text import END


class Runner:
    """Strings in, strings out, by a folder that `keras_tfm.export` wrote. Several threads may use one runner.

    Args:
        folder: what the export wrote; its files are compared with their checksums first.

    Every text is one sentence: unlike `Translator`, a runner does not divide texts into lines and sentences. An empty
    text stays empty; of a text that is too long, the end is cut off, with a warning that says how much.
    """

    form = main = None  # the word for the form in translator.json, and a file that only this form has

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        files.settle(self.folder)
        if not (self.folder / self.main).exists():
            raise FileNotFoundError(f"{self.folder}: must hold a {self.main}, as `keras-tfm export` writes it")
        self.settings = self._settings()
        form = self.settings.get("format", self.form)  # earlier versions wrote none
        if form != self.form:
            raise ValueError(f"`folder` must hold a translator. Received: {self.folder}, a {form}")

    def _settings(self):
        return files.read_manifest(self.folder)

    def __call__(self, texts, verbose=0):
        """Strings → strings, in the same order; with `verbose=1`, shows progress on standard error."""
        texts = strings(texts)
        sentences = [string for string in texts if string.strip()]
        with Progress(len(sentences), "translating", "sentence", verbose) as bar:
            found = iter(self._translate(sentences, bar))
        return [next(found) if string.strip() else "" for string in texts]

    def stream(self, lines, chunk=2048):
        """An iterable of strings of any length → their translations, as soon as a chunk of them is done."""
        lines = iter(lines)
        while texts := list(itertools.islice(lines, chunk)):
            yield from self(texts)

    def _translate(self, texts, bar):
        """Strings that are not blank → strings; `bar.add` counts them."""
        raise NotImplementedError


class TokenRunner(Runner):
    """A runner of a form that takes and returns token ids; the tokenizers lie beside it."""

    def __init__(self, folder):
        super().__init__(folder)
        with files.reading(self.folder / "translator.json"):
            self.max_length = positive("max_length", self.settings["max_length"])
        names = ("source_tokenizer", "target_tokenizer")
        self.source_tokenizer, self.target_tokenizer = (text.load_tokenizer(self.folder / name) for name in names)

    def _translate(self, texts, bar):
        rows = list(map(self._cut, self.source_tokenizer.encode(texts), texts))
        found, lengths = [""] * len(texts), list(map(len, rows))
        order = sorted((place for place, ids in enumerate(rows) if ids), key=lengths.__getitem__)
        # those of a length together: no padding, and a runtime gets ready for each length once
        for _, places in itertools.groupby(order, key=lengths.__getitem__):
            places = list(places)
            answers = self.target_tokenizer.decode(self._search([[*rows[place], END] for place in places]))
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
            bar.add(len(places))
        return found

    def _cut(self, ids, string):
        room = self.max_length - 1  # for the end token
        if len(ids) > room:
            warnings.warn(f"{len(ids) - room} of {len(ids)} tokens were cut off: {string[:40]!r} …", stacklevel=4)
        return ids[:room]

    def _search(self, rows):
        """Lists of ids, all of a length and each with its end token → lists of ids."""
        raise NotImplementedError
