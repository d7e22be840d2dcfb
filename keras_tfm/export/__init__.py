"""Exports a trained translator: `export(translator, folder, format)`, or `translator.export(folder, format)`.

    "saved_model"    strings → strings, for `tf.saved_model.load` and TensorFlow Serving
    "litert"         ids → ids by builtin operators, for phones and browsers
    "ctranslate2"    weights for CTranslate2, for servers without an accelerator
    "onnx"           encoder and decoder step, for ONNX Runtime
    "web"            a page that translates in the visitor's browser, for any static web server
    "huggingface"    a Marian model for `transformers`

`keras_tfm.exported.load(folder)` runs each of them from its folder alone, except the last.
"""

import pathlib
import statistics
import time
from typing import NamedTuple

from keras_tfm import exported, files, text
from keras_tfm.arguments import check, positive
from keras_tfm.export import to_ctranslate2, to_huggingface, to_litert, to_onnx, to_saved_model, to_web

# Format → module that writes it; each has the function `write(translator, folder, settings)`.
FORMATS = {
    "saved_model": to_saved_model,
    "litert": to_litert,
    "ctranslate2": to_ctranslate2,
    "onnx": to_onnx,
    "web": to_web,
    "huggingface": to_huggingface,
}


def export(
    translator,
    folder,
    format="saved_model",
    precision=None,
    max_length=None,
    n_best=None,
    compare_on=None,
    title=None,
    examples=None,
    runtime=None,
):
    """Writes a translator in a format to ship, with its tokenizers and the settings of its search.

    All formats but "ctranslate2" and "huggingface" need the TensorFlow backend. Models trained on other backends can be
    exported too: save the translator there, and load it where KERAS_BACKEND=tensorflow.

    Args:
        translator: a `Translator`.
        folder: where to write. It must be new, empty or an earlier export, which is replaced when all is written.
        format: a key of `FORMATS`; their modules describe the files and signatures.
        precision: of the weights: "float32", for "litert" and "web" also "float16" or "int8", and others for
            "ctranslate2". By default "int8" for "web" and "float32" for all others.
        max_length: maximum number of source tokens; longer texts are truncated. By default that of the translator,
            limited to 128 unless the format is "ctranslate2".
        n_best: number of hypotheses that a SavedModel returns or a page shows, by default all of the beam; None for
            other formats.
        compare_on: sentences to translate by the export and by the translator, before the folder is replaced.
        title: title of a page, by default "Translator".
        examples: texts to click on in a page.
        runtime: folder with LiteRT.js for a page, by default node_modules in the current folder.

    Returns:
        a `Verdict` on the comparison, or None without `compare_on`.
    """
    precision = exported.check_precision(format, precision)
    if n_best is not None and format not in ("saved_model", "web"):
        raise ValueError(f"`n_best` must be None for {format=}, which returns one translation. Received: {n_best=}")
    for name, value in (("title", title), ("examples", examples), ("runtime", runtime)):
        check(name, value, value is None or format == "web", f"None for {format=}, which has no page")
    for model in translator.models:
        if model.quantization and format in ("litert", "ctranslate2", "web"):
            raise ValueError(
                "`translator` must have models that are not quantized: export the model as it was before `quantize`, "
                f"with a `precision`. Received: a model with {model.quantization['class_name']}"
            )
    if max_length is None:
        max_length = translator.max_length if format == "ctranslate2" else 128
    max_length = min(positive("max_length", max_length), translator.max_length)
    settings = {"format": format, "precision": precision, "max_length": max_length}
    settings |= {"longest": translator.longest(max_length), "beams": translator.beams, **translator.options}
    settings["forbidden"] = sorted(map(int, settings["forbidden"]))
    if format in ("saved_model", "web"):
        settings["n_best"] = min(positive("n_best", n_best or translator.beams), translator.beams)
    if format == "web":
        check("examples", examples, not isinstance(examples, str), "a list of strings")
        settings |= {"title": title or "Translator", "examples": list(examples or ()), "runtime": runtime}
    with exported.NewFolder(folder) as new:
        FORMATS[format].write(translator, new, settings)
        if format not in ("saved_model", "huggingface"):  # which contain them
            text.save_tokenizer(translator.source_tokenizer, new / "source_tokenizer")
            text.save_tokenizer(translator.target_tokenizer, new / "target_tokenizer")
        files.write_manifest(new, **settings)
        if compare_on is None:
            return None
        run = exported.load(new) if format != "huggingface" else translator.from_marian(new, max_length=max_length)
        return compare(new, run, translator, compare_on)


class Verdict(NamedTuple):
    """How an exported translator compares with the original."""

    same: int
    texts: int
    megabytes: float
    milliseconds: float

    def __str__(self):
        return (
            f"{self.same} of {self.texts} sentences translated exactly as by the model, {self.megabytes:.1f} MB, "
            f"{self.milliseconds:.1f} ms per sentence"
        )


def compare(folder, run, translator, texts):
    """The `Verdict` on an exported folder, where `run(texts)` translates with it."""
    found = run(texts)  # which also warms it up
    times = []
    for string in texts:
        start = time.perf_counter()
        run([string])
        times.append(time.perf_counter() - start)
    size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
    same = sum(a == b for a, b in zip(found, translator(texts), strict=True))
    return Verdict(same, len(texts), size / 2**20, 1000 * statistics.median(times))
