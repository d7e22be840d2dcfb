"""A mask belongs before the softmax: after it, the future still leaks through the normaliser."""

import keras
import numpy as np
from keras import ops
from lecture import Result, fit, panels, run

from keras_tfm.layers import TransformerEncoder, masks
from keras_tfm.layers.scores import MIXINGS, attend, soft

TOKENS, NEXT, LENGTH, WIDTH = 16, 4, 16, 32
SEEN = np.array((4, 8, 12))  # numbers of tokens after which the next one is predicted


def zeroed(scores, mask):
    """Softmax over all keys; then the weights of hidden keys are set to zero."""
    return soft(scores) * ops.cast(mask, scores.dtype)


MIXINGS["zeroed"] = zeroed
MODELS = {
    "−∞ before the softmax": {"causal": True},
    "zeros after the softmax": {"causal": True, "mixing": "zeroed"},
    "no mask": {},
}


def one_layer(mixing):
    """Sums of the weights at each position, and the change of each output when the last token changes."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 100, LENGTH, 1, WIDTH)).astype("float32")
    before, weights = attend(q, k, v, mixing=mixing, mask=masks.causal(LENGTH, LENGTH))
    k[:, -1], v[:, -1] = -k[:, -1], -v[:, -1]
    after, _ = attend(q, k, v, mixing=mixing, mask=masks.causal(LENGTH, LENGTH))
    return np.array(weights).sum(-1).mean((0, 1)), abs(np.array(after) - np.array(before)).mean((0, 2, 3))


def sequences(count, seed):
    """Each token is followed by one of four, all equally likely: no model can predict better than log 4 nats."""
    rng = np.random.default_rng(seed)
    followers = (np.arange(TOKENS)[:, None] * 5 + np.arange(NEXT) * 3) % TOKENS
    tokens = rng.integers(TOKENS, size=(count, LENGTH + 1))
    for t in range(LENGTH):
        tokens[:, t + 1] = followers[tokens[:, t], rng.integers(NEXT, size=count)]
    return tokens


def losses(name, options, examples):
    """Loss of a trained language model: given whole sequences, and given only the tokens up to the one to predict."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(TOKENS, WIDTH)(ids)
    x = TransformerEncoder(num_layers=2, num_heads=4, ff_dim=64, dropout=0.0, norm_first=True, **options)(x)
    model = keras.Model(ids, keras.layers.Dense(TOKENS)(x))
    text, train = sequences(500, seed=1), sequences(examples, seed=2)
    fit(name, model, train[:, :-1], train[:, 1:], epochs=5, learning_rate=3e-3)
    whole = model.predict(text[:, :-1], verbose=0)[:, SEEN - 1]
    hidden = np.stack([model.predict(text[:, :seen], verbose=0)[:, -1] for seen in SEEN], axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return [float(loss(text[:, SEEN], logits)) for logits in (whole, hidden)]


def main(examples=12800):
    found = {name: losses(name, options, examples) for name, options in MODELS.items()}
    layers = dict(zip(MODELS, map(one_layer, (soft, zeroed, lambda scores, mask: soft(scores))), strict=True))
    before, after, without = rows = [[name, *(n[:-1].mean() for n in layers[name]), *found[name]] for name in MODELS]

    figure, axes = panels("Hide the future before the softmax: zeros after it let it through", 3)
    for name in list(layers)[:2]:
        for axis, numbers in zip(axes[:2], layers[name], strict=True):
            axis.plot(numbers[:-1], marker="o", label=name)
    axes[0].set(title="rows no longer sum to one", xlabel="position", ylabel="sum of attention weights", ylim=(0, 1.3))
    axes[1].set(title=f"outputs when token {LENGTH - 1} changes", xlabel="position", ylabel="mean absolute change")
    axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    for n, label in enumerate(("given the whole sequence", "given only the past")):
        axes[2].bar(np.arange(3) + 0.38 * n - 0.19, [row[n + 3] for row in rows], 0.38, label=label, color=f"C{n + 2}")
    axes[2].axhline(np.log(NEXT), color="gray", linestyle=":", label="best possible without cheating")
    axes[2].set(title="trained language models", ylabel="loss of the next token, nats", xticks=range(3), ylim=(0, 8))
    axes[2].set_xticklabels([name.replace(" the", "\nthe") for name in found], fontsize=9)
    axes[2].legend(frameon=False, fontsize=9, loc="upper left")

    return Result(
        figure,
        ["mask", "sum of weights", "change by a future token", "loss, whole sequence", "loss, only the past"],
        rows,
        "for t prime bigger than bigger than or equal to T you multiply that by a0 So that's why it means to be masked",
        "Applied Deep Learning, L56.1",
        "With zeros after the softmax, rows no longer sum to one, and changing the last token changes earlier outputs "
        f"(by {after[2]:.2g} on average; with −∞ before the softmax by {before[2]:.2g}). A language model learns to "
        f"read the next token from that: its loss is {after[3]:.4f} nats ({np.log(NEXT):.2f} is the best possible), "
        f"but {after[4]:.2f} once the future is not there. With −∞, as in CS224N and CS 182, it is {before[3]:.2f} and "
        f"{before[4]:.2f}; without any mask, {without[3]:.4f} and {without[4]:.2f}. Asked by a student, the lecturer "
        "later says that the weights within the past add up to one, which is right.",
        agrees=bool(after[2] == 0),
    )


if __name__ == "__main__":
    run(__file__, main)
