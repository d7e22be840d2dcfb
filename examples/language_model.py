"""Trains a language model on lines of text, and continues prompts.

python examples/language_model.py [lines.txt] [--prompt "the cat"] [--epochs 10]      any Keras backend

Without a file, it learns from sentences of a tiny grammar.
"""

import argparse
import itertools

import keras
import numpy as np

from keras_tfm import decoding
from keras_tfm.batches import padded, shifted
from keras_tfm.models import decoder_lm
from keras_tfm.text import train_tokenizer
from keras_tfm.training import SmoothedCrossentropy

NOUNS = ("cat", "dog", "bird", "child", "king")
GRAMMAR = (("the", "a"), NOUNS, ("sees", "likes", "follows"), ("the", "a"), NOUNS, ("at night.", "in town.", "today."))


def read(path):
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="lines.txt")
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--max_length", type=int, default=64, help="tokens; longer lines are truncated")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    lines = read(options.file) if options.file else [" ".join(words) for words in itertools.product(*GRAMMAR)]

    tokenizer = train_tokenizer(lines, "bpe", 4000)
    rows = [ids[: options.max_length - 1] for ids in tokenizer.encode(lines)]
    labels = padded(rows, max(map(len, rows)) + 1)  # each row ends with the end token
    sizes = {"num_layers": 2, "model_dim": 64, "num_heads": 4, "ff_dim": 256}
    model = decoder_lm(tokenizer.vocab_size, norm_first=True, **sizes)
    model.compile(keras.optimizers.Adam(2e-3), SmoothedCrossentropy(smoothing=0.0))
    model.fit(shifted(labels), labels, batch_size=32, epochs=options.epochs, verbose=2)  # predicts the next token

    prompts = options.prompt or ["the cat", "a king likes", ""]
    for prompt, text in zip(prompts, continued(model, tokenizer, prompts, options.max_length), strict=True):
        print(f"{prompt!r} → {text!r}")


def continued(model, tokenizer, prompts, max_length, seed=0):
    """Samples a continuation of each prompt, which it must begin with."""
    rows = [ids[: max_length - 1] for ids in tokenizer.encode(prompts)]
    prefix = np.zeros((len(rows), max_length), "int32")
    for number, ids in enumerate(rows):
        prefix[number, : len(ids)] = ids
    options = {"seed": seed, "temperature": 0.8, "top_k": 20, "prefix": prefix}
    return tokenizer.decode(
        keras.ops.convert_to_numpy(decoding.sample(model.start, model.step, prefix, max_length, **options))
    )


if __name__ == "__main__":
    main()
