"""Decoding: over `start` and `step` of a model, never over the model itself."""

import numpy as np
from keras import ops

from keras_tfm import backend
from keras_tfm.text import END, START


def greedy(start, step, sources, max_length):
    """The most probable token at each place, until all rows have ended.

    Args:
        start, step: of a model, see `SequenceModel`.
        sources: ids (batch, source length).
        max_length: how many tokens at the most, the end token among them.

    Returns:
        ids (batch, max_length), zeros behind the end token.
    """
    cache, batch = start(sources, max_length), ops.shape(sources)[0]
    tokens = ops.full((batch, 1), START, dtype="int32")
    written, done = ops.zeros((batch, max_length), dtype="int32"), ops.zeros((batch,), dtype="bool")

    def unfinished(position, tokens, done, written, cache):
        return ops.logical_and(position < max_length, ops.logical_not(ops.all(done)))

    def advance(position, tokens, done, written, cache):
        logits, cache = step(tokens, position, cache)
        best = ops.top_k(logits[:, -1], 1)[1]  # (batch, 1); builtin in LiteRT, unlike argmax
        best = ops.where(done[:, None], 0, ops.cast(best, "int32"))
        written = ops.slice_update(written, (0, position), best)
        return position + 1, best, ops.logical_or(done, ops.equal(best[:, 0], END)), written, cache

    state = (ops.convert_to_tensor(0, dtype="int32"), tokens, done, written, cache)
    return ops.while_loop(unfinished, advance, state)[3]


def translate(model, source_tokenizer, target_tokenizer, texts, batch_size=128, widths=(16, 32, 64, 128, 256, 512)):
    """Texts → translations, greedily, in batches of like length and of few shapes.

    Args:
        model: one of `keras_tfm.models` with a decoder.
        source_tokenizer, target_tokenizer: of `keras_tfm.text`.
        texts: an iterable of strings.
        batch_size: rows of a batch.
        widths: source lengths that batches are padded to; longer texts are cut to the last of them.
    """
    rows = [ids[: widths[-1] - 1] + [END] for ids in source_tokenizer.encode(texts)]
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    decode = backend.compiled(lambda sources, max_length: greedy(model.start, model.step, sources, max_length))
    outputs = [None] * len(rows)
    for first in range(0, len(rows), batch_size):
        members = order[first : first + batch_size]
        width = next(width for width in widths if width >= len(rows[members[-1]]))
        sources = np.zeros((batch_size, width), "int32")
        for line, number in enumerate(members):
            sources[line, : len(rows[number])] = rows[number]
        ids = ops.convert_to_numpy(decode(sources, 2 * width))
        for number, text in zip(members, target_tokenizer.decode(ids[: len(members)]), strict=True):
            outputs[number] = text
    return outputs
