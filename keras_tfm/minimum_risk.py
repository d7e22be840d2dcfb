"""Minimum-risk training: a trained translator learns from its own hypotheses which of them score well.

The "reinforcement learning" step of https://arxiv.org/abs/1609.08144, in the form of https://arxiv.org/abs/1512.02433:
sample hypotheses of each source, and lower their expected cost, Σ Q(y) cost(y), where Q is the model's own probability
of each hypothesis among those that were sampled.

    model.compile(keras.optimizers.Adam(1e-5), MinimumRisk(samples=8))
    for _ in range(rounds):
        inputs, labels, costs = sample_hypotheses(translator, sources, references, samples=8)
        model.fit(inputs, labels, sample_weight=costs, batch_size=8 * 8, shuffle=False)  # groups stay together
"""

import keras
import numpy as np
from keras import ops

from keras_tfm import decoding, evaluation, kernels
from keras_tfm.arguments import positive
from keras_tfm.backend.replicas import mean_over_replicas
from keras_tfm.batches import model_inputs, padded
from keras_tfm.progress import Progress
from keras_tfm.text import PAD


@keras.saving.register_keras_serializable(package="keras_tfm")
class MinimumRisk(keras.losses.Loss):
    """Expected cost of groups of hypotheses, which follow each other in the batch; costs come as sample weights.

    Args:
        samples: hypotheses of a group.
        sharpness: exponent of the probabilities in Q; small values hear more hypotheses.

    Call arguments:
        y_true, y_pred: ids (groups · samples, length), 0 on padding, and logits (groups · samples, length, vocabulary).
        sample_weight: cost of each hypothesis, (groups · samples,).

    >>> loss = MinimumRisk(samples=2)
    >>> ids, logits = np.array([[4, 2], [5, 2]]), np.zeros((2, 2, 6), "float32")
    >>> print(f"{float(loss(ids, logits, np.array([0.0, 1.0]))):.2f}")  # both are as probable
    0.50
    """

    def __init__(self, samples, sharpness=0.005, name="minimum_risk", **kwargs):
        super().__init__(name=name, **kwargs)
        self.samples, self.sharpness = positive("samples", samples), sharpness

    def __call__(self, y_true, y_pred, sample_weight):
        real = ops.cast(ops.not_equal(y_true, PAD), "float32")
        losses = keras.losses.sparse_categorical_crossentropy(y_true, ops.cast(y_pred, "float32"), from_logits=True)
        scores = -ops.reshape(ops.sum(losses * real, axis=-1), (-1, self.samples))  # log-probabilities
        costs = ops.cast(ops.reshape(sample_weight, (-1, self.samples)), "float32")
        risks = ops.softmax(self.sharpness * scores) * costs  # (groups, samples)
        return mean_over_replicas(ops.sum(risks), ops.cast(ops.shape(risks)[0], "float32"))

    def get_config(self):
        return {**super().get_config(), "samples": self.samples, "sharpness": self.sharpness}


def sample_hypotheses(
    translator, sources, references, samples=8, temperature=1.0, max_length=64, batch_size=16, seed=0, verbose=1
):
    """What the model of a translator says of each source when it draws at random, and what that costs.

    Args:
        translator: a `Translator` of one model.
        sources, references: lists of strings.
        samples: hypotheses of each source; the first of them is the reference.
        temperature: of the samples.
        max_length: pairs with a text of so many tokens are left out.
        batch_size: sources that are looked at together.
        seed: other seeds draw others.
        verbose: 1 shows the progress.

    Returns:
        inputs of the model and labels, all (groups · samples, max_length), and costs (groups · samples,): 1 −
        chrF / 100, by sacreBLEU.
    """
    if positive("samples", samples) < 2:
        raise ValueError(f"`samples` must be at least 2, one of which is the reference. Received: {samples=}")
    (model,), max_length = translator.models, min(positive("max_length", max_length), translator.max_length)
    encoded = translator.source_tokenizer.encode(sources), translator.target_tokenizer.encode(references)
    pairs = [pair for pair in zip(*encoded, references, strict=True) if all(0 < len(x) < max_length for x in pair[:2])]
    if not pairs:
        raise ValueError(
            f"`sources` must hold texts of fewer than {max_length} tokens. Received: {len(sources)}, all longer"
        )
    sides = ([pair[side] for pair in pairs] for side in (0, 1))
    source, labels = (np.repeat(padded(side, max_length), samples, axis=0) for side in sides)
    chances = np.random.default_rng(seed).random(labels.shape, "float32")
    draw = kernels.compiled(
        lambda inputs, length: decoding.sample(
            model.start, model.step, inputs["source"], length, seed=inputs["chances"], temperature=temperature
        ),
        model.variables,
        [model.running],
    )
    rows = batch_size * samples
    with Progress(len(source), "sampling", "translation", verbose) as bar:
        for first in range(0, len(source), rows):
            inputs = {"source": source[first : first + rows], "chances": chances[first : first + rows]}
            count = len(inputs["source"])
            inputs = {name: np.pad(x, ((0, rows - count), (0, 0)), mode="edge") for name, x in inputs.items()}
            drawn = ops.convert_to_numpy(draw(inputs, max_length))[:count]
            is_reference = np.arange(first, first + count)[:, None] % samples == 0
            labels[first : first + count] = np.where(is_reference, labels[first : first + count], drawn)
            bar.add(count)
    expected = [reference for _, _, reference in pairs for _ in range(samples)]
    chrf = evaluation.sacrebleu().CHRF()
    hypotheses = translator.target_tokenizer.decode(labels)
    scores = [chrf.sentence_score(ours, [theirs]).score for ours, theirs in zip(hypotheses, expected, strict=True)]
    inputs = model_inputs(source, labels, model.arguments.get("packed"))
    return inputs, labels, 1 - np.array(scores, "float32") / 100
