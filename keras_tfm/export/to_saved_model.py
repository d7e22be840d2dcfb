"""SavedModels: strings → strings, for `tf.saved_model.load` and TensorFlow Serving."""

import inspect

from keras_tfm import decoding, files, kernels
from keras_tfm.arguments import positive
from keras_tfm.export.common import compare, graph_of, longest_of, save_settings, tensorflow
from keras_tfm.exported import NewFolder, SavedModelTranslator
from keras_tfm.text import END, PAD


def saved_model(translator, folder, n_best=None, max_length=None, compare_on=None):
    """Writes a translator as a SavedModel, with its tokenizers and its search inside.

    It loads with `tensorflow` and `tensorflow_text` alone. Beams, penalties and constraints are those of the
    translator. Batches may have any size, none too. Each text is one sentence; of what is longer than `max_length` the
    end is cut off. The search is for TensorFlow's own runtime: XLA would not compile its loops.

    Signatures, their inputs and outputs:
        serving_default: texts (batch,) → translation (batch,).
        translate: texts (batch,) → translations (batch, n), scores (batch, n) and lengths (batch, n), best first; cut
            (batch,), how many tokens of the source were cut off. Of a greedy translator n is 1, and scores are zero.
        tokens: ids (batch, length), each row with its end token, zeros behind → ids (batch, length) of the best. Ids
            that no token has are an error.
        encode: texts (batch,) → embeddings (batch, length, model_dim) of the encoder and mask (batch, length).

    Args:
        translator: a `Translator`; of several models, `encode` takes the first.
        folder: where to write; an earlier export is replaced, once all is written.
        n_best: how many hypotheses `translate` gives, by default all of the beam.
        max_length: tokens of the longest source, by default that of the translator, or 128 if that is less.
        compare_on: sentences that are translated by what was written and by the translator, before it stays.

    Returns:
        What the comparison found, a `Verdict`; None without one.
    """
    tf, place = tensorflow(), NewFolder(folder)
    source, target = translator.source_tokenizer.in_graph(), translator.target_tokenizer.in_graph()
    max_length = min(positive("max_length", max_length or 128), translator.max_length)
    n_best = min(positive("n_best", n_best or translator.beams), translator.beams)

    def tokenized(texts):
        """Ids (batch, length) of texts, each row with its end token, and how many tokens of each were cut off."""
        rows, cut = _tokenized(source, texts, max_length - 1)
        ends = tf.fill([tf.size(texts), 1], END)
        return tf.concat([rows, ends], axis=1).to_tensor(PAD), cut

    # functions of the graph, so that it has each search once
    def search(n):
        return graph_of(
            lambda sources: translator.search(sources[:, :max_length], max_length, n), ([None, None], "int32")
        )

    best = search(None if translator.beams == 1 else 1)
    several = best if n_best == 1 else search(n_best)

    def strings(ids, texts):
        """Ids (batch, n, length) → (batch, n) strings; what was blank stays empty."""
        shape = tf.shape(ids)
        found = tf.reshape(target.detokenize(tf.reshape(ids, (shape[0] * shape[1], shape[2]))), shape[:2])
        return tf.where(tf.strings.strip(texts)[:, None] == "", "", found)

    def serving_default(texts):
        return {"translation": strings(best(tokenized(texts)[0])[0][:, :1], texts)[:, 0]}

    def translate(texts):
        sources, cut = tokenized(texts)
        ids, scores = several(sources)
        lengths = tf.reduce_sum(tf.cast(ids != PAD, "int32"), axis=-1)
        lengths = tf.where(tf.strings.strip(texts)[:, None] == "", 0, lengths)
        return {"translations": strings(ids, texts), "scores": scores, "lengths": lengths, "cut": cut}

    def tokens(ids):
        return {"ids": best(_known(ids, translator.source_tokenizer))[0][:, 0]}

    def encode(texts):
        sources = tokenized(texts)[0]
        return {"embeddings": translator.models[0].encode(sources), "mask": sources != PAD}

    with place as new:
        _save(new, translator.models, [source, target], serving_default, translate, tokens, encode)
        longest = longest_of(translator, max_length)
        save_settings(
            translator, new, format="saved_model", max_length=max_length, longest=longest, precision="float32"
        )
        return None if compare_on is None else compare(new, SavedModelTranslator(new), translator, compare_on)


def saved_classifier(model, tokenizer, folder, labels=None, max_length=128):
    """Writes an `encoder_classifier` as a SavedModel, with its tokenizer inside.

    Signatures, their inputs and outputs; a text without a token is read as its end:
        serving_default: texts (batch,) → label (batch,) and probabilities (batch, classes).
        tokens: ids (batch, length) → probabilities (batch, classes).
        encode: texts (batch,) → embeddings (batch, model_dim).

    Args:
        model: an `encoder_classifier`.
        tokenizer: what its ids came from.
        folder: where to write; an earlier export is replaced, once all is written.
        labels: names of the classes, by default their numbers.
        max_length: tokens of the longest text; the end of others is cut off.
    """
    tf, place = tensorflow(), NewFolder(folder)
    _check(model, "encoder_classifier", tokenizer)
    source = tokenizer.in_graph()
    classes = model.output_shape[-1]
    labels = [str(label) for label in (range(classes) if labels is None else labels)]
    if len(labels) != classes:
        raise ValueError(f"`labels` must name each of the {classes} classes. Received: {labels=}")
    names = tf.constant(labels)

    def tokenized(texts):
        rows, _ = _tokenized(source, texts, positive("max_length", max_length))
        ends = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(tf.cast(rows.row_lengths() == 0, "int32"))], END),
            tf.cast(rows.row_lengths() == 0, "int64"),
        )
        return tf.concat([rows, ends], axis=1).to_tensor(PAD)

    def classified(ids):
        return tf.nn.softmax(model(ids[:, :max_length]))

    def tokens(ids):
        return {"probabilities": classified(_known(ids, tokenizer))}

    def serving_default(texts):
        probabilities = classified(tokenized(texts))
        return {"label": tf.gather(names, tf.argmax(probabilities, axis=-1)), "probabilities": probabilities}

    def encode(texts):
        return {"embeddings": model.encode(tokenized(texts))}

    with place as new:
        _save(new, [model], [source], serving_default, tokens, encode)
        files.write_manifest(new, format="saved_classifier", max_length=max_length, labels=labels)


def saved_language_model(model, tokenizer, folder, max_length=128, **constraints):
    """Writes a `decoder_lm` as a SavedModel that goes on with texts, greedily, with its tokenizer inside.

    Signatures, their inputs and outputs:
        serving_default: texts (batch,) → text (batch,), each with what the model says behind it.
        tokens: ids (batch, length), zeros behind → ids (batch, max_length), zeros behind the end token.
        encode: texts (batch,) → embeddings (batch, length, model_dim) and mask (batch, length).

    Args:
        model: a `decoder_lm`.
        tokenizer: what its ids came from.
        folder: where to write; an earlier export is replaced, once all is written.
        max_length: tokens of the longest text, with what is said behind it; what is longer is cut off before that.
        **constraints: `no_repeat_ngram`, `forbidden`, … as of `keras_tfm.decoding.Constraints`.
    """
    tf, place = tensorflow(), NewFolder(folder)
    _check(model, "decoder_lm", tokenizer)
    graph = tokenizer.in_graph()
    decoding.Constraints(max_length, **constraints)  # or an error before all the work

    def tokenized(texts):
        return _tokenized(graph, texts, max_length - 1)[0].to_tensor(PAD)

    def continued(ids):
        room = tf.maximum(max_length - tf.shape(ids)[1], 0)
        prefix = tf.ensure_shape(tf.pad(ids[:, :max_length], [(0, 0), (0, room)]), [None, max_length])
        return decoding.greedy(model.start, model.step, ids, max_length, prefix=prefix, **constraints)

    def tokens(ids):
        return {"ids": continued(_known(ids, tokenizer))}

    def serving_default(texts):
        return {"text": graph.detokenize(continued(tokenized(texts)))}

    def encode(texts):
        ids = tokenized(texts)
        return {"embeddings": model.encode(ids), "mask": ids != PAD}

    with place as new:
        _save(new, [model], [graph], serving_default, tokens, encode)
        files.write_manifest(new, format="saved_language_model", max_length=max_length)


def _check(model, builder, tokenizer):
    if getattr(model, "builder", None) != builder:
        raise ValueError(f"`model` must be a `{builder}`. Received: {getattr(model, 'builder', type(model).__name__)}")
    if model.arguments["vocab_size"] < tokenizer.vocab_size:
        raise ValueError(
            f"`tokenizer` must have no more tokens than the model, {model.arguments['vocab_size']}. Received: "
            f"{tokenizer.vocab_size}"
        )


def _tokenized(tokenizer, texts, room):
    """Ragged ids of texts, at most `room` of each, and how many were cut off."""
    tf = tensorflow()
    rows = tokenizer.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))
    return rows[:, :room], tf.maximum(tf.cast(rows.row_lengths(), "int32") - room, 0)


def _known(ids, tokenizer):
    """Ids (int64, since clients would wrap larger numbers to 32 bits) as int32; others fail when the graph is run."""
    tf, size = tensorflow(), tokenizer.vocab_size
    message = f"`ids` must be numbers from 0 to {size - 1}. Received:"
    known = tf.debugging.Assert(tf.reduce_all((ids >= 0) & (ids < size)), [message, ids])
    with tf.control_dependencies([known]):
        return tf.cast(ids, "int32")


def _save(folder, models, tokenizers, *functions):
    """Writes functions of `texts` (batch,) or `ids` (batch, length) as the signatures of a SavedModel."""
    tf = tensorflow()
    inputs = {"texts": ([None], "string", "texts"), "ids": ([None, None], "int64", "ids")}
    signatures = {
        function.__name__: graph_of(function, inputs[next(iter(inspect.signature(function).parameters))])
        for function in functions
    }
    module = tf.Module()
    module.weights = [variable.value for model in models for variable in model.variables]
    module.tokenizers = tokenizers
    with kernels.using(kernels.Kernels(slice_update=_slice_update)):
        tf.saved_model.save(module, str(folder), signatures=signatures)


def _slice_update(x, starts, updates):
    """`ops.slice_update` by an operator that needs no XLA, which TensorFlow Serving disables."""
    tf = tensorflow()
    begin = tf.stack([tf.cast(start, "int32") for start in starts])
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=x,
        begin=begin,
        end=begin + tf.shape(updates),
        strides=tf.ones_like(begin),
        value=tf.cast(updates, x.dtype),
    )
