"""What the exported forms share: settings and tokenizers beside the model, and a comparison with the translator."""

import pathlib
import statistics
import time
import typing

import keras

from keras_tfm import files, text


class Verdict(typing.NamedTuple):
    """How an exported translator compares with the one that it came from."""

    same: int
    texts: int
    megabytes: float
    milliseconds: float

    def __str__(self):
        return (
            f"{self.same} of {self.texts} sentences as the model translates them, {self.megabytes:.1f} MB, "
            f"{self.milliseconds:.1f} ms for a sentence"
        )


def compare(folder, run, translator, texts):
    """The `Verdict` about a folder and what `run(texts)` translates, beside the translator that it came from."""
    found = run(texts)  # and warms up
    times = []
    for string in texts:
        start = time.perf_counter()
        run([string])
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
    return Verdict(same, len(texts), size / 2**20, 1000 * statistics.median(times))


def save_tokenizers(translator, folder):
    """Writes the tokenizers of a translator for a form that takes ids."""
    text.save_tokenizer(translator.source_tokenizer, folder / "source_tokenizer")
    text.save_tokenizer(translator.target_tokenizer, folder / "target_tokenizer")


def save_settings(translator, folder, **settings):
    """Writes translator.json: how the translator searches, other settings, and a checksum of each file."""
    options = {"beams": translator.beams, **translator.options}
    options["forbidden"] = sorted(map(int, options["forbidden"]))
    files.write_manifest(folder, **settings, **options)


def longest_of(translator, max_length):
    """How many tokens the longest translation of a source of at most `max_length` tokens has."""
    longest = min(text.longest_translation(max_length), translator.max_length)
    return max(longest, translator.options.get("min_length", 0))


def check_not_quantized(translator):
    """Raises an error for models after `model.quantize`, whose weights these forms cannot take over."""
    for model in translator.models:
        if model.quantization:
            mode = model.quantization["class_name"]
            raise ValueError(
                "`translator` must have models that are not quantized: export the model as it was before `quantize`, "
                f"and let the export quantize it. Received: a model with {mode}"
            )


def graph_of(function, *specs):
    """`function` of tensors as a function of a TensorFlow graph; specs are shape, type and name of each."""
    tf = tensorflow()
    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def tensorflow():
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Export needs Keras' TensorFlow backend: save the translator, and load it where KERAS_BACKEND=tensorflow. "
            f"Received: the {keras.backend.backend()} backend"
        )
    import tensorflow as tf

    return tf
