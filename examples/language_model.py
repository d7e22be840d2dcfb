"""A character language model that samples: it reads Python's own documentation and writes more of it.

python examples/language_model.py [text.txt] [--prompt "The "] [--epochs 3]      any Keras backend

Learns from any text file; by default from the help texts that come with Python. The last tenth is held out, and the
result compared with a table of how often each character follows the two before it.
"""

import argparse
import pathlib
from pydoc_data.topics import topics

import keras
import numpy as np

from keras_tfm import decoding
from keras_tfm.data import shifted
from keras_tfm.models import decoder_lm
from keras_tfm.text import ByteTokenizer
from keras_tfm.training import SCHEDULES, SmoothedCrossentropy

LENGTH, BATCH = 128, 16  # characters that the model reads at once, and rows in a batch


def table_bits(train, test, size, extra=0.03):
    """Bits per character of `test` by the counts in `train`, each increased by `extra`."""
    counts = np.full((size, size, size), extra, "float32")
    np.add.at(counts, (train[:-2], train[1:-1], train[2:]), 1)
    seen = counts[test[:-2], test[1:-1]]  # (test, next character)
    return -np.log2(seen[np.arange(len(seen)), test[2:]] / seen.sum(1)).mean()


def continued(model, tokenizer, prompts, length=LENGTH):
    """Samples a continuation of each prompt."""
    ids = np.zeros((len(prompts), length), "int32")
    for row, prompt in zip(ids, tokenizer.encode(prompts), strict=True):
        row[: len(prompt)] = prompt[:length]
    ids = model.generate(ids, length, decoding.Sample(temperature=0.7, seed=1))
    return tokenizer.decode(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="text.txt")
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    text = pathlib.Path(options.file).read_text("utf-8") if options.file else "\n".join(topics.values())

    tokenizer = ByteTokenizer()
    (ids,) = tokenizer.encode([text])
    rows = np.array(ids[: len(ids) // LENGTH * LENGTH], "int32").reshape(-1, LENGTH)
    test = -(-len(rows) // 10)
    train, test = rows[:-test], rows[-test:]
    sizes = {"num_layers": 2, "model_dim": 128, "num_heads": 4, "ff_dim": 512, "dropout": 0.0}
    model = decoder_lm(tokenizer.vocab_size, positions="rotary", norm_first=True, **sizes)
    steps = options.epochs * -(-len(train) // BATCH)
    model.compile(keras.optimizers.Adam(SCHEDULES["cosine"](4e-3, steps // 10, steps)), SmoothedCrossentropy(0.0))
    model.fit(shifted(train), train, batch_size=BATCH, epochs=options.epochs, verbose=2)  # predicts the next character

    bits = model.evaluate(shifted(test), test, batch_size=BATCH, verbose=0) / np.log(2)
    table = table_bits(train.ravel(), test.ravel(), tokenizer.vocab_size)
    print(*continued(model, tokenizer, options.prompt or ["The ", "class "]), sep="\n---\n")
    print(f"---\nbits per held-out character: {bits:.2f}; by a table of three characters: {table:.2f}")


if __name__ == "__main__":
    main()
