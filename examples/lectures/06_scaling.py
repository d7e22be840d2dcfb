"""Without the division by √d, gradients first grow; at d = 1024, a few queries get a large one and most get none."""

import numpy as np
from keras import ops
from lecture import Result, interval, line, panels, run, stated

from keras_tfm.layers.scores import SCORES, soft

WIDTHS = (4, 16, 64, 256, 1024)
QUERIES, KEYS = 200, 32
DIVISORS = {"q · k": lambda d: 1.0, "q · k / √d": lambda d: d**0.5, "q · k / d": lambda d: float(d)}


def measure(divisor, width, seed):
    """Of random queries and keys: the variance of q · k, and for each query the norms of two gradients of its weights.

    The first is that with respect to the scores, the Jacobian of the softmax; the second, with respect to the query, is
    what goes on to W_q.
    """
    rng = np.random.default_rng(seed)
    q, k = (rng.normal(size=(1, count, 1, width)).astype("float32") for count in (QUERIES, KEYS))
    products = SCORES["dot"][0](ops.convert_to_tensor(q), ops.convert_to_tensor(k))
    weights = np.array(soft(products / divisor)[0, 0])
    jacobians = weights[:, :, None] * np.eye(KEYS) - weights[:, :, None] * weights[:, None]
    to_query = jacobians @ k[0, :, 0] / divisor
    return np.var(np.array(products)), *(np.linalg.norm(each, axis=(1, 2)) for each in (jacobians, to_query))


def main(seeds=10):
    found = {}
    for name, divisor in DIVISORS.items():
        runs = [[measure(divisor(width), width, seed) for width in WIDTHS] for seed in range(seeds)]
        variance = np.array([[products for products, _, _ in run] for run in runs])
        to_score, to_query = (np.array([[each[place] for each in run] for run in runs]) for place in (1, 2))
        found[name] = variance, to_score.mean(-1), to_query.mean(-1), np.median(to_query, -1)  # (seeds, widths) each
    medians, scaled = found["q · k"][3].mean(0), found["q · k / √d"][3].mean(0)
    grow = "first grow" if medians.max() > 1.5 * medians[0] else "do not grow"
    none = f"at d = {WIDTHS[-1]} most queries get {'none' if medians[-1] < scaled[-1] / 10 else 'some'}"
    first, axes = panels(f"Without / √d, gradients {grow}; {none}", 2, 4.8, 4.2)
    for name in DIVISORS:
        line(axes[0], WIDTHS, found[name][1], marker="o", label=name)
    axes[0].set(ylabel="norm of ∂ weights / ∂ (divided scores)", ylim=(0, None))
    line(axes[1], WIDTHS, found["q · k"][2], marker="o", color="C0", label="q · k, mean of the queries")
    line(axes[1], WIDTHS, found["q · k"][3], marker="s", color="C3", label="q · k, median")
    line(axes[1], WIDTHS, found["q · k / √d"][2], marker="o", color="C1", label="q · k / √d, mean ≈ median")
    line(axes[1], WIDTHS, found["q · k / d"][2], marker="^", color="C2", label="q · k / d, mean")
    axes[1].set(ylabel="norm of ∂ weights / ∂ query", ylim=(0, 3.1))
    second, (below,) = panels("The variance of q · k is d", 1, 5.5, 4)
    line(below, WIDTHS, found["q · k"][0], marker="o", label="measured")
    below.plot(WIDTHS, WIDTHS, "k:", label="d")
    below.set(yscale="log", ylabel="variance of q · k")
    for axis in (*axes, below):
        axis.set(xscale="log", xlabel="d, width of queries and keys", xticks=WIDTHS, xticklabels=WIDTHS)
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=11)
    return result([first, second], found, seeds)


def result(figures, found, seeds):
    columns, rows = ["d", "variance of q · k"], [[str(width)] for width in WIDTHS]
    chosen = [("q · k", 0), *((name, place) for place in (1, 2, 3) for name in DIVISORS)]
    labels = "∂ scores", "∂ query, mean", "∂ query, median"
    columns += [f"{label}, {name}" for label in labels for name in DIVISORS]
    for name, place in chosen:
        for row, values in zip(rows, found[name][place].T, strict=True):
            row.append(stated(values))
    factors = found["q · k"][1][:, 0] / found["q · k"][1][:, -1]
    (shrunk, half), plain = interval(factors), found["q · k"]
    means, medians, scaled = plain[2].mean(0), plain[3].mean(0), found["q · k / √d"]
    ratio, middle = plain[1].mean(0) / scaled[1].mean(0), WIDTHS.index(64)  # the width of a head in the paper
    larger = " and ".join(str(width) for width, each in zip(WIDTHS, ratio, strict=True) if each > 1)
    through = bool(shrunk - half > 1 and abs(scaled[1][:, 0] / scaled[1][:, -1] - 1).mean() < 0.3)
    small = bool(means[-1] < means[0])
    return Result(
        figures,
        columns,
        rows,
        "Because of this, inputs to the softmax function can be large, making the gradients small",
        "CS224N, Lecture 9, Scaled Dot Product",
        [
            f"q · k is a sum of d products, so its variance is d: {stated(plain[0][:, -1])} at d = {WIDTHS[-1]}; "
            "divided by √d, it is 1 at any width.",
            "Without the division by √d, the gradient through the softmax, of the weights with respect to the scores, "
            f"falls by a factor of {stated(factors)} from d = {WIDTHS[0]} to {WIDTHS[-1]}: that half of the sentence "
            f"is {'right' if through else 'not right here'}. But at d = {larger} it is larger than with the division, "
            f"and at {WIDTHS[middle]}, a head's width in the paper, only {100 - 100 * ratio[middle]:.0f} % smaller.",
            f"Without the division by √d, what reaches a query does not simply get small: its median goes from "
            f"{medians[0]:.2f} at d = {WIDTHS[0]} to {medians[middle]:.2f} at {WIDTHS[middle]} (with the division: "
            f"{scaled[3].mean(0)[middle]:.2f}), and then to {medians[-1]:.4f} at {WIDTHS[-1]}, where its mean is "
            f"{means[-1]:.2f}: at the end a few queries, between two keys, get a large gradient, and most get none.",
            f"With / √d, mean and median of what reaches a query stay at {scaled[2].mean():.2f} and "
            f"{scaled[3].mean():.2f}; with / d, all weights become alike, and at d = {WIDTHS[-1]} it is "
            f"{found['q · k / d'][2][:, -1].mean():.3f}.",
        ],
        limits="“Holds here” is said of the softmax, from d = 256 on; at 64, what reaches a query is larger without "
        "the division. Gradients are those of the weights: there is no loss. Queries and keys are random, with "
        "components of variance 1; a trained model can have others, and whether it learns better with / √d is not "
        "measured.",
        verdict="holds here" if through and not small else "holds" if through else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
