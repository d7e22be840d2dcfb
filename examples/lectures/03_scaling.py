"""Without the division by √d, the softmax saturates and its gradient shrinks as d grows."""

import numpy as np
from keras import ops
from lecture import Result, panels, run

from keras_tfm.layers.scores import SCORES, soft

WIDTHS = (4, 16, 64, 256, 1024, 4096)
QUERIES, KEYS = 200, 32


def measure(score, width):
    """Mean over random queries of the largest weight, of the entropy, and of the norm of the softmax' Jacobian."""
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=(1, count, 1, width)).astype("float32") for count in (QUERIES, KEYS))
    weights = np.array(soft(SCORES[score][0](ops.convert_to_tensor(q), ops.convert_to_tensor(k)))[0, 0])
    entropy = -(weights * np.log(weights + 1e-30)).sum(-1)
    jacobians = weights[:, :, None] * np.eye(KEYS) - weights[:, :, None] * weights[:, None]
    return weights.max(-1).mean(), entropy.mean(), np.linalg.norm(jacobians, axis=(1, 2)).mean()


def main():
    found = {score: np.array([measure(score, width) for width in WIDTHS]) for score in ("dot", "scaled_dot")}
    figure, axes = panels("Without / √d, attention saturates and its gradient vanishes as d grows", 3)
    names = {"dot": "q · k", "scaled_dot": "q · k / √d"}
    labels = ("largest attention weight", "entropy, nats", "norm of ∂ softmax / ∂ score")
    for column, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        for score, values in found.items():
            axis.plot(WIDTHS, values[:, column], marker="o", label=names[score])
        axis.set(xscale="log", xlabel="d, width of queries and keys", ylabel=label, xticks=WIDTHS, xticklabels=WIDTHS)
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    rows = [
        [str(width), *(value for pair in zip(found["dot"][n], found["scaled_dot"][n], strict=True) for value in pair)]
        for n, width in enumerate(WIDTHS)
    ]
    columns = ["d", "largest weight", "with / √d", "entropy", "with / √d", "gradient", "with / √d"]
    shrunk = found["dot"][0, 2] / found["dot"][-1, 2]
    return Result(
        figure,
        columns,
        rows,
        "Because of this, inputs to the softmax function can be large, making the gradients small",
        "CS224N, Lecture 9, Scaled Dot Product",
        f"For random queries and {KEYS} random keys, the gradient through the softmax falls by a factor of "
        f"{shrunk:.0f} from d = {WIDTHS[0]} to d = {WIDTHS[-1]}; divided by √d, it stays about the same.",
        agrees=bool(shrunk > 3 and abs(found["scaled_dot"][0, 2] / found["scaled_dot"][-1, 2] - 1) < 0.3),
    )


if __name__ == "__main__":
    run(__file__, main)
