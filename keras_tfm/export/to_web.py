"""A page that translates in the visitor's browser: model, tokenizers, runtime and page, for any static web server.

Signatures of `translator.tflite`, for one sentence. All shapes are fixed, which the runtime in the browser requires:
    translate: ids (1, max_length), with the end token and zeros after it → ids (1, n, longest), scores (1, n) and
        lengths (1, n) of the n best translations. A greedy translator has n = 1 and a score of zero.
    attention: source (1, max_length), target (1, longest), which begins with the start token → weights (heads, longest,
        max_length): what each token of the target attends to, for the heads of all layers. Only for models that attend
        to the source; for an ensemble, those of its first model.

With `explain`, a second page shows how the model translates; `keras_tfm.export.explain` computes what it shows.
"""

import pathlib
import shutil

from keras_tfm import ops
from keras_tfm.artifacts import EXPLAIN, FORMATS, PAGE
from keras_tfm.common import extras
from keras_tfm.common.arguments import UserError, check
from keras_tfm.export import explain, javascript, to_litert
from keras_tfm.export.common import graph_of
from keras_tfm.layers import recording
from keras_tfm.text import PAD, ByteTokenizer, MarianTokenizer, SentencePieceTokenizer

KNOWN = SentencePieceTokenizer, MarianTokenizer, ByteTokenizer  # tokenizer.js
FOLDER = pathlib.Path(__file__).parent / "page"


def write(translator, folder, settings):
    """Writes a page; see `keras_tfm.export.export`. Replaces `runtime` in the settings by what the page has to know."""
    for tokenizer in translator.tokenizers:
        known = isinstance(tokenizer, KNOWN)
        check("tokenizer", type(tokenizer).__name__, known, f"one of {[each.__name__ for each in KNOWN]} for a page")
    if settings["explain"]:
        explain.check_model(translator)
    copy_runtime(settings.pop("runtime"), folder / "runtime")
    for name in PAGE:
        (folder / name).write_bytes((FOLDER / name).read_bytes())
    graphs = _Graphs(translator, settings)
    ids = [1, settings["max_length"]], "int32"
    signatures = {"translate": graph_of(graphs.translate, (*ids, "ids"))}
    if translator.models[0].decoder.memory_attentions:
        target = [1, settings["longest"]], "int32", "target"
        signatures["attention"] = graph_of(graphs.attention, (*ids, "source"), target)
    (folder / FORMATS["web"].main).write_bytes(to_litert.converted(signatures, settings["precision"]))
    settings["heads"] = graphs.heads
    if settings["explain"]:
        page, model, modules = EXPLAIN
        (folder / page).write_bytes((FOLDER / page).read_bytes())
        shutil.copytree(FOLDER / modules, folder / modules)
        settings["explain"] = explain.write(translator, folder / model, settings)
    if translator.placeholders:
        settings["expressions"] = javascript.expressions(translator.source_tokenizer)  # for protected.js


def copy_runtime(paths, folder):
    """Copies LiteRT.js and D3, {name: path}, and lets its parts find each other without a bundler."""
    folder.mkdir()
    for name, path in paths.items():
        shutil.copyfile(path, folder / name)
    file, notice = folder / "litert.js", "// @litertjs/core, Apache-2.0; changed: the path of wasm-utils\n"
    before, *after = file.read_text().split('"@litertjs/wasm-utils"')
    if len(after) != 1:
        rule = f"`runtime` must contain version {extras.NPM_PACKAGES['@litertjs/core']} of @litertjs/core"
        received = f"{paths[file.name]}, which imports @litertjs/wasm-utils {len(after)} times"
        raise UserError(f"{rule}. Received: {received}")
    file.write_text(f'{notice}{before}"./wasm-utils.js"{after[0]}')


class _Graphs(to_litert.Graphs):
    """The functions behind the signatures."""

    heads = ()  # number of heads of each layer, known when `attention` has been traced

    def translate(self, ids):
        n = None if self.translator.num_beams == 1 else self.settings["n_best"]
        with self.tracing():
            best, scores = self.translator.search(to_litert.not_negative(ids), self.settings["max_length"], n)
            return {"ids": best, "scores": scores, "lengths": ops.sum(ops.cast(best != PAD, "int32"), axis=-1)}

    def attention(self, source, target):
        model = self.translator.models[0]
        with self.tracing(), recording.capture_attention() as maps:
            model.decoder(model.target_embedding(target), model.encode(source))
        weights = [maps[layer.path][0][0] for layer in model.decoder.memory_attentions]  # (heads, target, source) each
        self.heads = [x.shape[0] for x in weights]
        return {"weights": ops.cast(ops.concatenate(weights, axis=0), "float32")}
