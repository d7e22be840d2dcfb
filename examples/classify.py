"""Trains a text classifier and writes it as a SavedModel that maps strings to labels.

python examples/classify.py [train.tsv] [--out runs/classifier]

Each line of the TSV file is a text, a tab and a label. Without a file, it learns from a small built-in data set:
requests to a voice assistant. A tenth of the texts is held out for testing. The SavedModel works without this package:

    import tensorflow as tf, tensorflow_text
    classify = tf.saved_model.load("runs/classifier").signatures["serving_default"]
    classify(tf.constant(["play some jazz"]))["label"]
"""

import argparse
import itertools
import os
import random

os.environ["KERAS_BACKEND"] = "tensorflow"  # a SavedModel is a TensorFlow graph

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.batches import padded
from keras_tfm.models import encoder_classifier
from keras_tfm.text import END, PAD, train_tokenizer

MAX_LENGTH = 64  # tokens; longer texts are truncated
REQUESTS = {  # label → three parts, each with several phrases to choose from
    "music": ("play|put on|find me|I want", "some jazz|the new album|a song|my list", "now|please|today"),
    "weather": ("will it rain|how warm is it|will it snow", "in Rome|at home|here", "today|tomorrow|at noon|now"),
    "alarm": ("wake me|set an alarm|let me sleep|call me", "at seven|in an hour|at noon", "today|tomorrow|please"),
}


def built_in():
    phrases = [(label, [part.split("|") for part in parts]) for label, parts in REQUESTS.items()]
    return [(" ".join(words), label) for label, parts in phrases for words in itertools.product(*parts)]


def read(path):
    with open(path, encoding="utf-8") as file:
        pairs = [line.rstrip("\n").rsplit("\t", 1) for line in file if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise SystemExit(f"{path}: each line must be a text, a tab and a label")
    return pairs


class Exported(tf.Module):
    """Tokenizer, model and labels in one graph."""

    def __init__(self, model, tokenizer, labels):
        self.model, self.tokenizer, self.labels = model, tokenizer.in_graph(), tf.constant(labels)
        self.weights = [variable.value for variable in model.variables]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    def classify(self, texts):
        ids = self.tokenizer.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))[:, : MAX_LENGTH - 1]
        ids = tf.concat([ids, tf.fill([tf.size(texts), 1], END)], axis=1).to_tensor(PAD)
        return {"label": tf.gather(self.labels, tf.argmax(self.model(ids), axis=1))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="train.tsv")
    parser.add_argument("--out", default="runs/classifier", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    examples = read(options.file) if options.file else built_in()
    random.Random(1).shuffle(examples)
    texts, names = zip(*examples, strict=True)
    labels, classes = np.unique(names, return_inverse=True)
    test = -(-len(texts) // 10)  # number of texts that are held out, the first ones
    tokenizer = train_tokenizer(texts[test:], "bpe", 8000)
    ids = padded([row[: MAX_LENGTH - 1] for row in tokenizer.encode(texts[test:])], MAX_LENGTH)
    model = encoder_classifier(tokenizer.vocab_size, len(labels), num_layers=2, model_dim=64, num_heads=4, ff_dim=256)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(ids, classes[test:], batch_size=16, epochs=options.epochs, verbose=2)

    exported = Exported(model, tokenizer, labels)
    tf.saved_model.save(exported, options.out, signatures=exported.classify)
    classify = tf.saved_model.load(options.out).signatures["serving_default"]
    found = classify(tf.constant(texts[:test]))["label"].numpy()
    right = np.mean([label.decode() == name for label, name in zip(found, names, strict=False)])
    print(f"{options.out}: {right:.1%} of {test} held-out texts classified correctly")


if __name__ == "__main__":
    main()
