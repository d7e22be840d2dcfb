"""Schedule, loss and metrics for training a Transformer with `compile` and `fit`."""

from typing import Any

import keras
import numpy as np  # noqa: F401, for the examples

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, one_of, positive, rate
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


def token_weights(labels, sample_weight=None, ignore_class=0):
    """The weight of each label in float32: its sample weight or 1, but 0 for those that are ignored."""
    if ignore_class is not None and len(labels.shape) != 2:
        raise UserError(
            "`y_true` must be (batch, length), or `ignore_class` None, so that all classes of a classifier count. "
            f"Received: {ignore_class=}, y_true.shape={tuple(labels.shape)}"
        )
    weights = ops.ones_like(labels) if ignore_class is None else ops.not_equal(labels, ignore_class)
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


MEAN = "mean_with_sample_weight"
# Reduction → function of losses and weights, both (batch, length), and of the number of labels that are not ignored.
REDUCTIONS = {
    MEAN: lambda values, weights, count: token_mean(values, weights),
    "sum_over_batch_size": lambda values, weights, count: mean_over_replicas(ops.sum(values * weights), count),
    "sum": lambda values, weights, count: ops.sum(values * weights),
    "none": lambda values, weights, count: values * weights,
}
REDUCTIONS |= {"mean": REDUCTIONS["sum_over_batch_size"], None: REDUCTIONS["none"]}


@keras.saving.register_keras_serializable(package="keras_tfm")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy with label smoothing (https://arxiv.org/abs/1512.00567) of logits, without padding.

    Args:
        label_smoothing: share of the probability that is spread evenly over the vocabulary.
        ignore_class: label that does not count, by default padding; None for a classifier, all of whose classes count.
        r_drop: weight of the R-Drop term (https://arxiv.org/abs/2106.14448), which makes predictions for the same row
            under different dropout agree. It needs batches that hold each row twice, `BucketedBatches(…, copies=2)`;
            for other batches it is zero.
        reduction: "mean_with_sample_weight", which is the mean over labels, or another one of Keras.
        name, dtype: of the loss. It is computed in float32.

    Call arguments:
        y_true, y_pred: labels (batch, length) and logits (batch, length, vocab_size); with `ignore_class=None` also
            labels (batch,) and logits (batch, classes).
        sample_weight: None, (batch,) or (batch, length): the loss is the weighted mean.

    >>> loss = SmoothedCrossentropy(label_smoothing=0.1)
    >>> print(f"{float(loss(np.array([[3, 1, 0]]), np.zeros((1, 3, 8)))):.3f} = log 8")
    2.079 = log 8
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_class: int | None = 0,
        *,
        r_drop: float = 0.0,
        reduction: str | None = MEAN,
        name: str = "smoothed_crossentropy",
        dtype: Any = None,
    ):
        one_of("reduction", reduction, REDUCTIONS)
        check("r_drop", r_drop, not r_drop or reduction == MEAN, f"0 unless the reduction is {MEAN}")
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.label_smoothing, self.r_drop = rate("label_smoothing", label_smoothing), r_drop
        self.ignore_class = ignore_class

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Ignores the mask that Keras attaches to `y_pred`: the labels show which of them are padding."""
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = labels_of(y_true, y_pred)
        weights = token_weights(y_true, sample_weight, self.ignore_class)
        count = ops.sum(token_weights(y_true, None, self.ignore_class))
        loss = REDUCTIONS[self.reduction](self.call(y_true, y_pred), weights, count)
        loss = loss + self.r_drop / 2 * self.disagreement(y_true, y_pred, weights) if self.r_drop else loss
        return ops.cast(loss, self.dtype)

    def call(self, y_true, y_pred):
        return ops.crossentropy(y_true, y_pred, self.label_smoothing)

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
        own = {"label_smoothing": self.label_smoothing, "ignore_class": self.ignore_class, "r_drop": self.r_drop}
        return super().get_config() | own


class _TokenMean(keras.metrics.Mean):
    """A mean over labels that are not ignored."""

    def __init__(self, name: str, ignore_class: int | None = 0, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.ignore_class = ignore_class

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = labels_of(y_true, y_pred)
        super().update_state(self.of_labels(labels, y_pred), token_weights(labels, sample_weight, self.ignore_class))

    def get_config(self):
        return super().get_config() | {"ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAccuracy(_TokenMean):
    """Share of labels, without those of the `ignore_class`, that have the largest logit; see `SmoothedCrossentropy`.

    >>> metric = TokenAccuracy()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3)[None][:, [1, 1, 0]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "accuracy", ignore_class: int | None = 0, **kwargs: Any):
        super().__init__(name, ignore_class, **kwargs)

    def of_labels(self, labels, y_pred):
        return ops.equal(ops.argmax(y_pred, axis=-1), labels)


@keras.saving.register_keras_serializable(package="keras_tfm")
class Perplexity(_TokenMean):
    """The exponential of `SmoothedCrossentropy` without smoothing.

    >>> metric = Perplexity()
    >>> metric.update_state(np.array([[1, 2, 0]]), np.zeros((1, 3, 8)))
    >>> round(float(metric.result()), 3)
    8.0
    """

    def __init__(self, name: str = "perplexity", ignore_class: int | None = 0, **kwargs: Any):
        super().__init__(name, ignore_class, **kwargs)

    def of_labels(self, labels, y_pred):
        return ops.crossentropy(labels, y_pred)

    def result(self):
        return ops.exp(super().result())
