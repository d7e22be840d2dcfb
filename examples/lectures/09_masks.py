"""A mask belongs before the softmax: after it, the future still leaks through the normaliser."""

import keras
import numpy as np
from keras import ops
from lecture import Result, bars, heat_map, interval, panels, run, stated
from measure import trained

from keras_tfm.layers import TransformerEncoder, masks
from keras_tfm.layers.scores import MIXINGS, attend, soft

TOKENS, NEXT, LENGTH, WIDTH = 16, 4, 16, 32
SEEN = np.array((4, 8, 12))  # numbers of tokens after which the next one is predicted


def zeroed(scores, mask):
    """Softmax over all keys; then the weights of hidden keys are set to zero: the sentence of the notes."""
    return soft(scores) * ops.cast(mask, scores.dtype)


def inside(scores, mask):
    """exp(score) of hidden keys is replaced with zero inside the softmax, as CS 182 does in practice."""
    powers = ops.exp(scores - ops.max(scores, -1, keepdims=True)) * ops.cast(mask, scores.dtype)
    return powers / ops.sum(powers, -1, keepdims=True)


MIXINGS["zeroed"] = zeroed
BEFORE, AFTER, WITHOUT = "−∞ before the softmax", "zeros after the softmax", "no mask"
LAYERS = {BEFORE: soft, AFTER: zeroed, WITHOUT: lambda scores, mask: soft(scores)}
MODELS = {BEFORE: {"causal": True}, AFTER: {"causal": True, "mixing": "zeroed"}, WITHOUT: {}}


def one_layer(mixing, seed):
    """Weights (query, key) of 100 sequences, mean sum of a row, and how much outputs change with the last token."""
    q, k, v = np.random.default_rng(seed).normal(size=(3, 100, LENGTH, 1, WIDTH)).astype("float32")
    before, weights = attend(q, k, v, mixing=mixing, mask=masks.causal(LENGTH, LENGTH))
    last = np.where(np.arange(LENGTH) == LENGTH - 1, -1, 1).astype("float32")[:, None, None]
    after, _ = attend(q, k * last, v * last, mixing=mixing, mask=masks.causal(LENGTH, LENGTH))
    return np.array(weights)[:, 0], np.array(weights).sum(-1).mean(), abs(np.array(after - before))[:, :-1].mean()


def sequences(count, seed):
    """Each token is followed by one of four, all equally likely: no model can predict better than log 4 nats."""
    rng, followers = np.random.default_rng(seed), (np.arange(TOKENS)[:, None] * 5 + np.arange(NEXT) * 3) % TOKENS
    tokens = rng.integers(TOKENS, size=(count, LENGTH + 1))
    for t in range(LENGTH):
        tokens[:, t + 1] = followers[tokens[:, t], rng.integers(NEXT, size=count)]
    return tokens


def build(options):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(TOKENS, WIDTH)(ids)
    x = TransformerEncoder(num_layers=2, num_heads=4, ff_dim=64, dropout=0.0, norm_first=True, **options)(x)
    return keras.Model(ids, keras.layers.Dense(TOKENS)(x))


def losses(name, seeds, examples):
    """Loss of trained language models, given whole sequences, and given only the tokens up to the one to predict."""
    found, text, entropy = [], sequences(500, 99), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    makers = (lambda: build(MODELS[name])), (lambda seed: ((new := sequences(examples, seed))[:, :-1], new[:, 1:]))
    for _, model, _ in trained(name, *makers, seeds, 5, learning_rate=3e-3):
        whole = model.predict(text[:, :-1], verbose=0)[:, SEEN - 1]
        past = np.stack([model.predict(text[:, :seen], verbose=0)[:, -1] for seen in SEEN], axis=1)
        found.append([float(entropy(text[:, SEEN], logits)) for logits in (whole, past)])
    return np.array(found)


def main(seeds=5, examples=6400):
    layers = {name: [one_layer(mixing, seed) for seed in range(seeds)] for name, mixing in LAYERS.items()}
    sums, changes = ({name: np.array([each[n] for each in layers[name]]) for name in layers} for n in (1, 2))
    gap = max(abs(layers[BEFORE][seed][0] - one_layer(inside, seed)[0]).max() for seed in range(seeds))
    found = {name: losses(name, seeds, examples) for name in MODELS}
    first, axes = panels("With zeros after the softmax, weights no longer sum to one", 2, 6, 5.5)
    for axis, name in zip(axes, (BEFORE, AFTER), strict=True):
        weights, ticks, blues = layers[name][0][0][0], range(1, LENGTH + 1), {"cmap": "Blues", "vmin": 0, "vmax": 1}
        image = heat_map(axis, weights, [f"{sum(row):.2f}" for row in weights], ticks, name, **blues)
        axis.set(xlabel="attends to word", ylabel="words 1 to 16: sum of weights")
    first.colorbar(image, ax=axes, label="weight")
    second, (axis,) = panels("Without a correct mask, a model reads the answer, and fails once it is gone", 1, 7, 4.6)
    for number, label in enumerate(("given the whole sequence", "given only the past, as when it writes")):
        values = np.stack([found[name][:, number] for name in MODELS], axis=1)
        bars(axis, [name.replace(" the", "\nthe") for name in MODELS], values, 0.38 * number - 0.19, 0.36, label=label)
        for place, (mean, half) in enumerate(zip(*interval(values), strict=True)):
            axis.text(place + 0.38 * number - 0.19, mean + half + 0.15, f"{mean:.2g}", ha="center", fontsize=11)
    axis.axhline(np.log(NEXT), color="black", linestyle=":", label="best possible without the future")
    axis.axhline(np.log(TOKENS), color="gray", linestyle="--", label="guessing")
    axis.set(ylabel="loss of the next token, nats", ylim=(0, 9))
    axis.legend(frameon=False, fontsize=11, loc="upper left")
    whole, past = ({name: stated(found[name][:, number]) for name in MODELS} for number in (0, 1))
    leaks = changes[AFTER].min() > changes[BEFORE].max() and sum(interval(found[AFTER][:, 0])) < np.log(NEXT)
    return Result(
        [first, second],
        ["mask", "sum of weights", "change by a future token", "loss, whole sequence", "loss, only the past"],
        [[name, *map(stated, (sums[name], changes[name], *found[name].T))] for name in MODELS],
        "for t prime bigger than bigger than or equal to T you multiply that by a0 So that's why it means to be masked",
        "Applied Deep Learning, L56.1",
        [
            "Right is α(t, t′) = exp e(t, t′) / Σ exp e(t, s) over s ≤ t, and 0 for t′ > t: the sum must leave out the "
            "future, too. The notes number places by the word to be written, we by the word that is read, which is one "
            "earlier; so their “t′ ≥ t” is our “t′ > t”.",
            "With zeros after the softmax, a language model learns to read the next token from the sum: its loss is "
            f"{whole[AFTER]} nats, below {np.log(NEXT):.2f}, the least that is possible without the future, and "
            f"{past[AFTER]} once the future is not there. With no mask, it is {whole[WITHOUT]} and {past[WITHOUT]}.",
            f"The control has −∞ before the softmax, as in CS224N and CS 182: its loss is {whole[BEFORE]} nats with "
            f"the whole sequence there and {past[BEFORE]} with the past only.",
            f"With zeros after the softmax, a row sums to {stated(sums[AFTER])} on average, and a new last token "
            f"changes earlier outputs by {stated(changes[AFTER])}; with −∞ before it, by {changes[BEFORE].max():g}.",
            "What CS 182 does in practice, zeros for exp(e) inside the softmax, is the same as −∞ (weights differ by "
            f"{gap:.0e} at most). Later, Applied Deep Learning says that weights of the past sum to one, as they must.",
        ],
        "A small model and short sequences: how soon and how far a larger model would use this leak is not measured.",
        verdict="the notes are wrong" if leaks else "holds" if changes[AFTER].max() == 0 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
