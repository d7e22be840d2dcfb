"""Minimum-risk training: a trained translator learns from its own samples which of them score well.

python examples/minimum_risk.py [--epochs 10] [--rounds 4]      any Keras backend; needs the extra `train`

The "reinforcement learning" of https://arxiv.org/abs/1609.08144, in the form of https://arxiv.org/abs/1512.02433: draw
several translations of each source from the model, and minimise their expected cost, Σ Q(y) cost(y). Q(y) is the
model's own probability of y among the samples, and the cost is 1 − chrF / 100. Here a small translator that has not
quite learned to reverse words trains for one epoch on new samples in each round. Their expected cost falls; the chrF of
greedy translations need not follow. On Multi30k the method did not pay off, so it is not part of the package.
"""

import argparse

import keras
import numpy as np
from keras import ops
from sacrebleu import sentence_chrf

from keras_tfm import Translator, decoding, transformer
from keras_tfm.data import model_inputs, padded, tasks
from keras_tfm.text import PAD, ByteTokenizer
from keras_tfm.training import SmoothedCrossentropy

LENGTH, PAIRS, SAMPLES = 12, 128, 6  # tokens of a text with its end token, sources per round, samples of each
WORDS = {"min_length": 2, "max_length": 5, "symbols": "abcd"}  # at most 9 letters and spaces


class MinimumRisk(keras.losses.Loss):
    """Expected cost of the samples of each source, which stand side by side; sample weights are their costs."""

    def __call__(self, y_true, y_pred, sample_weight, sharpness=0.5):
        losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        scores = -ops.sum(losses * ops.cast(y_true != PAD, losses.dtype), axis=-1)  # log-probabilities
        chances = ops.softmax(sharpness * ops.reshape(scores, (-1, SAMPLES)))
        return ops.mean(ops.sum(chances * ops.reshape(sample_weight, (-1, SAMPLES)), axis=-1))


def draw(model, tokenizer, pairs, seed):
    """Inputs, labels and costs of samples; the first of each source is replaced by the reference."""
    sides = (tokenizer.encode(texts) for texts in zip(*pairs, strict=True))
    source, references = (np.repeat(padded(side, LENGTH), SAMPLES, axis=0) for side in sides)
    labels = np.array(decoding.sample(model.prefill, model.step, source, LENGTH, seed=seed))
    labels[::SAMPLES] = references[::SAMPLES]
    return model_inputs(source, labels), labels, costs(tokenizer.decode(labels), tokenizer.decode(references))


def costs(texts, references):
    scores = [sentence_chrf(ours, [right]).score for ours, right in zip(texts, references, strict=True)]
    return 1 - np.array(scores, "float32") / 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="of ordinary training, before the first round")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    tokenizer, pairs = ByteTokenizer(), tasks.reverse(max(1000, options.rounds * PAIRS), **WORDS)
    sources, targets = zip(*tasks.reverse(50, "test", **WORDS), strict=True)
    sizes = {"num_layers": 1, "model_dim": 64, "num_heads": 4, "ff_dim": 128, "dropout": 0.0}
    model = transformer(tokenizer.vocab_size, positions="learned", max_length=LENGTH, **sizes)
    source, labels = (padded(tokenizer.encode(texts), LENGTH) for texts in zip(*pairs, strict=True))
    model.compile(keras.optimizers.Adam(2e-3), SmoothedCrossentropy(0.0))
    model.fit(model_inputs(source, labels), labels, batch_size=64, epochs=options.epochs, verbose=2)
    translate = Translator(model, tokenizer, num_beams=1, max_length=LENGTH)
    print(f"before: chrF {100 * (1 - costs(translate(sources), targets).mean()):.1f}")
    model.compile(keras.optimizers.Adam(3e-5), MinimumRisk())
    for number in range(options.rounds):
        inputs, labels, weights = draw(model, tokenizer, pairs[number * PAIRS :][:PAIRS], seed=number)
        settings = {"sample_weight": weights, "batch_size": 8 * SAMPLES, "verbose": 0}
        before = model.evaluate(inputs, labels, **settings)
        model.fit(inputs, labels, shuffle=False, **settings)  # the samples of a source stay together
        after = model.evaluate(inputs, labels, **settings)
        chrf = 100 * (1 - costs(translate(sources), targets).mean())
        print(f"round {number + 1}: expected cost {before:.3f} → {after:.3f}, chrF {chrf:.1f}")


if __name__ == "__main__":
    main()
