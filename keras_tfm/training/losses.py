"""Schedule, loss and metrics for training a Transformer with `compile` and `fit`."""

from typing import Any

import keras
import numpy as np  # noqa: F401, for the examples

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, positive, rate
from keras_tfm.runtimes.replicas import mean_over_replicas, num_replicas


@keras.saving.register_keras_serializable(package="keras_tfm")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then decay by the square root of the step (https://arxiv.org/abs/1706.03762).

    Args:
        peak: the highest learning rate; in the paper `(model_dim * warmup_steps) ** -0.5`.
        warmup_steps: number of steps until the peak.

    >>> schedule = InverseSquareRoot(peak=0.1, warmup_steps=100)
    >>> [round(float(schedule(step)), 3) for step in (0, 49, 99, 399)]
    [0.001, 0.05, 0.1, 0.05]
    """

    def __init__(self, peak: float, warmup_steps: int = 4000):
        self.peak, self.warmup_steps = check("peak", peak, peak > 0, "positive"), positive("warmup_steps", warmup_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.peak * ops.minimum(step / self.warmup_steps, ops.rsqrt(step / self.warmup_steps))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


# Name → function of (peak, warmup_steps, total steps) that makes the schedule.
SCHEDULES = {
    "cosine": lambda peak, warmup, steps: keras.optimizers.schedules.CosineDecay(
        0.0, max(steps - warmup, 1), alpha=0.01, warmup_target=peak, warmup_steps=warmup
    ),
    "inverse_sqrt": lambda peak, warmup, steps: InverseSquareRoot(peak, warmup),
}


def labels_of(y_true, y_pred):
    """Labels as int32, (batch, length) for logits (batch, length, vocab_size), (batch,) for (batch, classes)."""
    labels = ops.cast(y_true, "int32")
    return ops.squeeze(labels, -1) if len(labels.shape) == len(y_pred.shape) else labels


def token_weights(labels, sample_weight=None):
    """The weight of each label in float32: its sample weight or 1, but 0 for padding, the label 0 in (batch, length).

    Labels (batch,) are classes, all of which count.
    """
    weights = ops.not_equal(labels, 0) if len(labels.shape) == 2 else ops.ones_like(labels)
    weights = ops.cast(weights, "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    if len(sample_weight.shape) not in (1, len(labels.shape)):
        shape = tuple(sample_weight.shape)
        raise UserError(f"`sample_weight` must be (batch,) or (batch, length). Received: sample_weight.shape={shape}")
    return weights * (sample_weight if len(sample_weight.shape) == len(labels.shape) else sample_weight[:, None])


def token_mean(values, weights):
    """Weighted mean of values with weights of the same shape."""
    return mean_over_replicas(ops.sum(values * weights), ops.sum(weights))


@keras.saving.register_keras_serializable(package="keras_tfm")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy with label smoothing (https://arxiv.org/abs/1512.00567), averaged over all labels except padding.

    Args:
        smoothing: share of the probability that is spread evenly over the vocabulary.
        r_drop: weight of the R-Drop term (https://arxiv.org/abs/2106.14448), which makes predictions for the same row
            under different dropout agree. It needs batches that hold each row twice, `BucketedBatches(…, copies=2)`;
            for other batches it is zero.
        reduction: always "mean_with_sample_weight".

    Call arguments:
        y_true, y_pred: labels (batch, length), 0 for padding, and logits (batch, length, vocab_size); or, for a
            classifier, labels (batch,), all of which count, and logits (batch, classes).
        sample_weight: None, (batch,) or (batch, length): the loss is the weighted mean.

    >>> loss = SmoothedCrossentropy(smoothing=0.1)
    >>> print(f"{float(loss(np.array([[3, 1, 0]]), np.zeros((1, 3, 8)))):.3f} = log 8")
    2.079 = log 8
    """

    def __init__(
        self,
        smoothing: float = 0.1,
        r_drop: float = 0.0,
        name: str = "smoothed_crossentropy",
        reduction: str = "mean_with_sample_weight",
    ):
        rule = '"mean_with_sample_weight", since the loss is a mean over tokens, not over rows'
        check("reduction", reduction, reduction == "mean_with_sample_weight", rule)
        super().__init__(name=name, reduction=reduction)
        self.smoothing, self.r_drop = rate("smoothing", smoothing), r_drop

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Ignores the mask that Keras attaches to `y_pred`: the labels show which of them are padding."""
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = labels_of(y_true, y_pred)
        weights = token_weights(y_true, sample_weight)
        loss = token_mean(self.call(y_true, y_pred), weights)
        return loss + self.r_drop / 2 * self.disagreement(y_true, y_pred, weights) if self.r_drop else loss

    def call(self, y_true, y_pred):
        return ops.crossentropy(y_true, y_pred, self.smoothing)

    def disagreement(self, y_true, y_pred, weights):
        """Mean symmetric Kullback-Leibler divergence of rows i and i + batch/2 that have the same labels."""
        rule = "0 if several replicas train together, since they hold different copies of a row"
        check("r_drop", self.r_drop, num_replicas() == 1, rule)
        half = y_true.shape[0] // 2 if y_true.shape[0] else ops.shape(y_true)[0] // 2
        first, second = (ops.log_softmax(ops.cast(y, "float32")) for y in (y_pred[:half], y_pred[half : 2 * half]))
        divergence = ops.sum((ops.exp(first) - ops.exp(second)) * (first - second), axis=-1) / 2
        twins = ops.equal(y_true[:half], y_true[half : 2 * half])
        twins = ops.all(twins, axis=1, keepdims=True) if len(twins.shape) == 2 else twins
        return token_mean(divergence, ops.where(twins, weights[:half], 0.0))

    def get_config(self):
        return {**super().get_config(), "smoothing": self.smoothing, "r_drop": self.r_drop}


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAccuracy(keras.metrics.Mean):
    """Share of labels, ignoring padding as `SmoothedCrossentropy` does, that have the largest logit.

    >>> metric = TokenAccuracy()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3)[None][:, [1, 1, 0]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = labels_of(y_true, y_pred)
        super().update_state(ops.equal(ops.argmax(y_pred, axis=-1), labels), token_weights(labels, sample_weight))


@keras.saving.register_keras_serializable(package="keras_tfm")
class Perplexity(keras.metrics.Mean):
    """The exponential of `SmoothedCrossentropy` without smoothing.

    >>> metric = Perplexity()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.zeros((1, 3, 8)))
    >>> round(float(metric.result()), 3)
    8.0
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = labels_of(y_true, y_pred)
        super().update_state(ops.crossentropy(labels, y_pred), token_weights(labels, sample_weight))

    def result(self):
        return ops.exp(super().result())
