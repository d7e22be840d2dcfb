"""Exports a trained translator: `export(translator, folder, format)`, or `translator.export(folder, format)`.

    "saved_model"    strings → strings, for `tf.saved_model.load` and TensorFlow Serving
    "litert"         ids → ids by builtin operators, for phones and browsers
    "ctranslate2"    weights for CTranslate2, for servers without an accelerator
    "onnx"           encoder and decoder step, for ONNX Runtime

`keras_tfm.exported.load(folder)` runs each of them from its folder alone.
"""

from keras_tfm import exported, files
from keras_tfm.arguments import one_of, positive
from keras_tfm.export import to_ctranslate2, to_litert, to_onnx, to_saved_model
from keras_tfm.export.common import compare

# Format → module: its PRECISIONS, and `write`, which writes files into a folder and returns settings of its own.
FORMATS = {"saved_model": to_saved_model, "litert": to_litert, "ctranslate2": to_ctranslate2, "onnx": to_onnx}


def export(
    translator, folder, format="saved_model", precision="float32", max_length=None, n_best=None, compare_on=None
):
    """Writes a translator in a format to ship, with its tokenizers and the settings of its search.

    All formats but "ctranslate2" need the TensorFlow backend. Models trained on other backends can be exported too:
    save the translator there, and load it where KERAS_BACKEND=tensorflow.

    Args:
        translator: a `Translator`.
        folder: where to write. It must be new, empty or an earlier export, which is replaced when all is written.
        format: a word of `FORMATS`; their modules describe the files and signatures.
        precision: of the weights, a word of `FORMATS[format].PRECISIONS`.
        max_length: maximum number of source tokens; longer texts are truncated. By default that of the translator,
            limited to 128 unless the format is "ctranslate2".
        n_best: number of hypotheses that a SavedModel returns, by default all of the beam; None for other formats.
        compare_on: sentences to translate by the export and by the translator, before the folder is replaced.

    Returns:
        a `Verdict` on the comparison, or None without `compare_on`.
    """
    module = FORMATS[one_of("format", format, FORMATS)]
    if precision not in module.PRECISIONS:
        allowed = ", ".join(module.PRECISIONS)
        raise ValueError(f"`precision` for {format=} must be one of {allowed}. Received: {precision=}")
    if n_best is not None and format != "saved_model":
        raise ValueError(f"`n_best` must be None for {format=}, which returns one translation. Received: {n_best=}")
    if max_length is None:
        max_length = translator.max_length if format == "ctranslate2" else 128
    max_length = min(positive("max_length", max_length), translator.max_length)
    with exported.NewFolder(folder) as new:
        own = module.write(translator, new, precision, max_length, n_best)
        search = {"beams": translator.beams, **translator.options}
        search["forbidden"] = sorted(map(int, search["forbidden"]))
        files.write_manifest(new, format=format, precision=precision, max_length=max_length, **own, **search)
        return None if compare_on is None else compare(new, exported.load(new), translator, compare_on)
