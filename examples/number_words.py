"""A sequence-to-sequence model outside translation: reads "four thousand thirty two" and writes "4032".

python examples/number_words.py [--epochs 4] [--numbers 10000]      any Keras backend; needs the extra `train`

Words go in and digits come out, each with a tokenizer of its own. The numbers it is tested on do not occur in training.
For comparison: how many numbers come out right when each word is replaced by its digits, here "432".
"""

import argparse

import keras
import numpy as np

from keras_tfm.data import model_inputs, padded
from keras_tfm.data.tasks import split_of
from keras_tfm.models import transformer
from keras_tfm.text import ByteTokenizer, train_tokenizer
from keras_tfm.training import SCHEDULES, SmoothedCrossentropy
from keras_tfm.translator import Translator

BATCH = 64
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SMALL += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DIGITS = {word: str(n) for n, word in enumerate(SMALL)} | {word: str(n) for n, word in enumerate(TENS) if n > 1}


def spelled(number):
    """A number below 10,000 in words."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {spelled(number % size)}" if number % size else ""
            return f"{spelled(number // size)} {name}{rest}"
    if number < 20:
        return SMALL[number]
    return f"{TENS[number // 10]} {SMALL[number % 10]}" if number % 10 else TENS[number // 10]


def word_by_word(text):
    return "".join(DIGITS.get(word, "") for word in text.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--numbers", type=int, default=10_000, help="learn from and test on those below this one")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    pairs = [(spelled(number), str(number)) for number in range(options.numbers)]
    sources, targets = zip(*(pair for pair in pairs if split_of(pair[1]) == "train"), strict=True)
    words, digits = train_tokenizer(sources, "word", 100), ByteTokenizer()
    source, labels = padded(words.encode(sources), width=8), padded(digits.encode(targets), width=8)
    sizes = {"num_layers": 2, "model_dim": 64, "num_heads": 4, "ff_dim": 128, "dropout": 0.0}
    model = transformer(words.vocab_size, target_vocab_size=digits.vocab_size, norm_first=True, **sizes)
    steps = options.epochs * -(-len(sources) // BATCH)
    model.compile(keras.optimizers.Adam(SCHEDULES["cosine"](2e-3, steps // 10, steps)), SmoothedCrossentropy(0.0))
    model.fit(model_inputs(source, labels), labels, batch_size=BATCH, epochs=options.epochs, verbose=2)

    texts, numbers = zip(*(pair for pair in pairs if split_of(pair[1]) == "test"), strict=True)
    found = Translator(model, words, digits, num_beams=1, max_length=16)(texts)
    for text, number in list(zip(texts, found, strict=True))[:: len(texts) // 5]:
        print(f"{text} → {number}")
    for name, answers in (("the model", found), ("word by word", map(word_by_word, texts))):
        right = np.mean([answer == number for answer, number in zip(answers, numbers, strict=True)])
        print(f"{name}: {right:.1%} of {len(numbers)} new numbers")


if __name__ == "__main__":
    main()
