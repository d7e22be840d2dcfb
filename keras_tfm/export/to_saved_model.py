"""SavedModels: strings → strings, with tokenizers and search inside.

They load with `tensorflow` and `tensorflow_text` alone, and take batches of any size, also empty ones. Each text is
translated as one sentence. XLA cannot compile the loops of the search; with `jit_compile`, there are others for single
texts, which it does compile: see `FIXED_WIDTHS`.

Signatures:
    serving_default: texts (batch,) → translation (batch,). Texts for a multilingual model begin with a tag,
        ">>de<<Open"; what has slots in place of placeholders, "Delete ⟦1⟧", comes back with the same slots. Both are
        tokens, see `keras_tfm.text.masking`, which masks and restores texts; `keras_tfm.load` does so for you.
    translate: texts (batch,) → translations, scores and lengths (batch, n) of the `n_best` hypotheses, best first, and
        cut (batch,), the number of source tokens that were cut off. A greedy translator has n = 1 and zero scores.
    tokens: ids (batch, length), each row with its end token and zeros after it → ids (batch, length) of the best
        translation. Ids outside the vocabulary are an error.
    encode: texts (batch,) → embeddings (batch, length, features) of the encoder, that of the first model if there are
        several, and mask (batch, length). An encoder that summarizes the source returns (batch, 1, features).
"""

import functools

import tensorflow as tf

from keras_tfm import ops
from keras_tfm.export.common import graph_of
from keras_tfm.runtimes.saved_model import saved_model
from keras_tfm.runtimes.xla import XLA
from keras_tfm.text import END, PAD

FIXED_WIDTHS = (32, 128)  # of sources; where the SavedModel runs, XLA compiles a search for each when it is first used


def write(translator, folder, settings):
    """Writes a SavedModel; see `keras_tfm.export.export`."""
    graphs = _Graphs(translator, settings["max_length"], settings["n_best"], settings["jit_compile"])
    texts, ids = ([None], "string", "texts"), ([None, None], "int64", "ids")
    signatures = {
        "serving_default": graph_of(graphs.serving_default, texts),
        "translate": graph_of(graphs.translate, texts),
        "tokens": graph_of(graphs.tokens, ids),
        "encode": graph_of(graphs.encode, texts),
    }
    module = tf.Module()
    module.weights = [variable.value for model in translator.models for variable in model.variables]
    module.tokenizers = [graphs.source, graphs.target]
    tf.saved_model.save(module, str(folder), signatures=signatures)


class _Graphs:
    """The functions behind the signatures."""

    def __init__(self, translator, max_length, n_best, jit_compile):
        self.translator, self.max_length, self.jit_compile = translator, max_length, jit_compile
        self.source, self.target = translator.source_tokenizer.in_graph(), translator.target_tokenizer.in_graph()
        # as functions of the graph, so that it contains each search once
        self.best = self._searching(None)
        self.several = self._searching(n_best) if n_best > 1 else self.best

    def serving_default(self, texts):
        ids, _ = self.best(self._tokenized(texts)[0])
        return {"translation": self._strings(ids[:, :1], texts)[:, 0]}

    def translate(self, texts):
        sources, cut = self._tokenized(texts)
        ids, scores = self.several(sources)
        lengths = tf.reduce_sum(tf.cast(ids != PAD, "int32"), axis=-1)
        lengths = tf.where(_blank(texts), 0, lengths)
        return {"translations": self._strings(ids, texts), "scores": scores, "lengths": lengths, "cut": cut}

    def tokens(self, ids):  # int64: clients would wrap larger numbers to 32 bits
        size = self.translator.source_tokenizer.vocab_size
        message = f"`ids` must be numbers from 0 to {size - 1}. Received:"
        known = tf.debugging.Assert(tf.reduce_all((ids >= 0) & (ids < size)), [message, ids])
        with tf.control_dependencies([known]):
            return {"ids": self.best(tf.cast(ids, "int32"))[0][:, 0]}

    def encode(self, texts):
        sources, _ = self._tokenized(texts)
        with ops.using(saved_model()):
            return {"embeddings": self.translator.models[0].encode(sources), "mask": sources != PAD}

    def _searching(self, n):
        """A function of the graph that searches: ids (batch, length) → ids and scores of the `n` best hypotheses."""
        ids = [None, None], "int32"
        search = graph_of(functools.partial(self._search, n=n), ids)
        if not self.jit_compile:
            return search
        widths = sorted({min(width, self.max_length) for width in FIXED_WIDTHS})
        one_row = [self._compiled_search(width, n) for width in widths]

        def choose(sources):
            rows, length = tf.unstack(tf.shape(sources))
            place = tf.where(rows == 1, tf.reduce_sum(tf.cast(length > widths, "int32")), len(widths))
            return tf.switch_case(place, [functools.partial(each, sources) for each in (*one_row, search)])

        return graph_of(choose, ids)

    def _search(self, sources, n):
        with ops.using(saved_model()):
            return self.translator.search(sources[:, : self.max_length], self.max_length, n)

    def _compiled_search(self, width, n):
        """A function that pads one row of ids (1, at most width) to this width, for which XLA compiles a search."""

        def search(sources):
            with ops.using(XLA):
                return self.translator.search(sources, width, n)

        compiled = graph_of(search, ([1, width], "int32"), jit_compile=True)
        return lambda ids: compiled(tf.ensure_shape(tf.pad(ids, [[0, 0], [0, width - tf.shape(ids)[1]]]), (1, width)))

    def _tokenized(self, texts):
        """Ids (batch, length) of texts, each row with its end token, and the number of tokens cut off from each."""
        length = self.max_length - 1
        rows = self.source.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))
        cut = tf.maximum(tf.cast(rows.row_lengths(), "int32") - length, 0)
        return tf.concat([rows[:, :length], tf.fill([tf.size(texts), 1], END)], axis=1).to_tensor(PAD), cut

    def _strings(self, ids, texts):
        """Ids (batch, n, length) → strings (batch, n), empty for blank texts."""
        shape = tf.shape(ids)
        strings = self.target.detokenize(tf.reshape(ids, (shape[0] * shape[1], shape[2])))
        return tf.where(_blank(texts), "", tf.reshape(strings, shape[:2]))


def _blank(texts):
    return tf.strings.strip(texts)[:, None] == ""
