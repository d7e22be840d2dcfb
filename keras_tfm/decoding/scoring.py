"""How probable given translations are."""

import keras
import numpy as np

from keras_tfm.common.progress import Progress
from keras_tfm.text.arrays import model_inputs, padded

MULTIPLE = 16  # widths are multiples of this, so that there are few shapes to compile


def log_probabilities(models, sources, targets, batch_size=64, verbose=0):
    """The natural logarithm of the probability of each target, given its source; its end token counts.

    Args:
        models: models of `keras_tfm.models` with an encoder and a decoder, whose probabilities are averaged.
        sources, targets: lists of lists of ids, without end tokens.
        batch_size: number of pairs that are scored together.
        verbose: 1 shows progress on standard error.

    Returns:
        a NumPy array with one number for each pair.
    """
    scores, lengths = np.zeros(len(sources)), [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    order = np.argsort(lengths, kind="stable")
    with Progress(len(order), "scoring", "pair", verbose) as bar:
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            rows = ([side[number] for number in batch] for side in (sources, targets))
            arrays = (padded(side, (max(map(len, side)) // MULTIPLE + 1) * MULTIPLE, batch_size) for side in rows)
            scores[batch] = _of_batch(models, *arrays)[: len(batch)]
            bar.add(len(batch))
    return scores


def _of_batch(models, source, labels):
    """Log probabilities (batch,) of labels (batch, target length)."""
    chosen = []
    for model in models:
        with model.running:
            logits = model.predict_on_batch(model_inputs(source, labels, model.arguments.get("packed")))
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits.astype("float32"), from_logits=True)
        chosen.append(-keras.ops.convert_to_numpy(losses))  # (batch, target length)
    mean = np.logaddexp.reduce(chosen, axis=0) - np.log(len(models))
    return (mean * (labels > 0)).sum(axis=1)
