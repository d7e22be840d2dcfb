"""Without the feed-forward network, only the softmax is left to learn “if … and … then …”: it does, but late."""

import keras
import numpy as np
from lecture import Result, fit, panels, run

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
from keras_tfm.layers.scores import MIXINGS, soft

WIDTH, LENGTH, FILLERS, EPOCHS, BATCH = 32, 8, 8, 16, 128

MIXINGS["fixed"] = lambda scores, mask=None: soft(0 * scores, mask)  # the mean of all values
# Name → number of layers, mixing of attention, activation of the feed-forward network (None: there is none).
MODELS = {
    "fixed weights, 2 layers": (2, "fixed", None),
    "attention, 1 layer": (1, "soft", None),
    "attention, 2 layers": (2, "soft", None),
    "attention + ReLU": (1, "soft", "relu"),
}
NORMED = ("fixed weights, 2 layers", "attention, 2 layers", "attention + ReLU")  # also measured with layer norm


def sequences(seed, count):
    """A question, then letters in random order, two of which carry a bit; the answer is whether these bits differ."""
    rng = np.random.default_rng(seed)
    letters, bits = rng.integers(5, 5 + FILLERS, size=(count, LENGTH)), rng.integers(2, size=(count, 2))
    letters[:, :2] = bits + (0, 2)
    ids = np.pad(rng.permuted(letters, axis=1), ((0, 0), (1, 0)), constant_values=4)  # 4 is the question
    return ids, bits[:, 0] ^ bits[:, 1]


def accuracies(name, norm, seed, steps):
    """The number of parameters, and the accuracy on other sequences after each epoch."""
    keras.utils.set_random_seed(seed)
    layers, mixing, activation = MODELS[name]
    normalized = (lambda x: keras.layers.LayerNormalization()(x)) if norm else (lambda x: x)
    ids = keras.Input((LENGTH + 1,), dtype="int32")
    x = keras.layers.Embedding(5 + FILLERS, WIDTH)(ids)
    for _ in range(layers):
        x = x + MultiHeadSelfAttention(num_heads=4, mixing=mixing)(normalized(x))
        if activation:
            x = x + FeedForward(2 * WIDTH, activation=activation)(normalized(x))
    model = keras.Model(ids, keras.layers.Dense(2)(normalized(x)[:, 0]))
    options = {"metrics": ["accuracy"], "validation_data": sequences(99, 1024), "validation_batch_size": 1024}
    history = fit(name, model, *sequences(seed, steps * BATCH), EPOCHS, BATCH, 3e-3, **options)
    return model.count_params(), history["val_accuracy"]


def main(seeds=3, steps=30):
    cases = [(name, False) for name in MODELS] + [(name, True) for name in MODELS if name in NORMED]
    results = {case: [accuracies(*case, seed, steps) for seed in range(seeds)] for case in cases}
    steps, rows = np.arange(1, EPOCHS + 1) * steps, []  # `steps` per epoch

    figure, axes = panels("Without a feed-forward network, “if … and … then …” is left to the softmax", 2)
    for (name, norm), runs in results.items():
        curves = np.array([curve for _, curve in runs])
        lines = axes[norm].plot(steps, curves.T, color=f"C{[*MODELS].index(name)}", marker=".", alpha=0.7)
        lines[0].set_label(name)
        needed = np.median(np.where(curves >= 0.99, steps, np.inf).min(axis=1))
        rows.append([name, "yes" if norm else "no", runs[0][0], curves[:, -1].mean(), needed])
    for axis, title in zip(axes, ("without layer norm", "with layer norm, itself not linear"), strict=True):
        axis.set(title=title, xlabel="training step", ylabel="accuracy: do two bits differ?", ylim=(0.2, 1.02))
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right center")

    needed = {tuple(row[:2]): row[-1] for row in rows}
    fixed = rows[len(MODELS)]  # with layer norm
    alone, relu = needed["attention, 2 layers", "no"], needed["attention + ReLU", "no"]
    return Result(
        figure,
        ["layers", "layer norm", "parameters", "accuracy", "steps to 99%"],
        [[*row[:-1], row[-1] if np.isfinite(row[-1]) else "never"] for row in rows],
        '"if ... and ... then..." is hard to do.',
        "CS 182, Lecture 12, Adding nonlinearities",
        "Two letters carry a bit, and the answer is whether the bits differ. With fixed attention weights and nothing "
        f"else, the model is linear: accuracy {rows[0][3]:.2f}. Learned weights make attention alone non-linear enough "
        f"({rows[2][3]:.2f}), but it needs {alone:.0f} steps (median of {seeds} seeds); with a ReLU feed-forward "
        f"network and as many parameters, {relu:.0f}. Layer norm is not linear either: with it, fixed weights reach "
        f"{fixed[3]:.2f} on average, and attention alone needs {needed['attention, 2 layers', 'yes']:.0f} steps.",
        agrees=None if alone >= 2 * relu and rows[2][3] > 0.99 else bool(alone >= 2 * relu),
    )


if __name__ == "__main__":
    run(__file__, main)
