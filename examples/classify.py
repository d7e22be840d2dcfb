"""A text classifier: which language is a date written in?

python examples/classify.py [texts.tsv] [--epochs 5] [--export FOLDER]      any Keras backend; needs the extra `train`

Each line of the TSV file is a text, a tab and a label. Without a file, the texts are dates in eight languages. A tenth
is held out. `--export` (TensorFlow backend, extra `text`) writes a SavedModel that labels strings.
"""

import argparse
import random

import keras
import numpy as np

from keras_tfm.common import extras
from keras_tfm.data import padded, tasks
from keras_tfm.models import encoder_classifier
from keras_tfm.text import END, PAD, train_tokenizer

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt")
LENGTH = 48  # tokens of a text with its end token; longer texts are truncated


def dates():
    pairs = {(text, name) for name in LANGUAGES for text, _ in tasks.dates(800, locales=[name])}
    return sorted(pair for pair in pairs if any(map(str.isalpha, pair[0])))  # not those like 2023-05-03


def read(path):
    with open(path, encoding="utf-8") as file:
        pairs = [line.rstrip("\n").rsplit("\t", 1) for line in file if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise SystemExit(f"{path}: each line must be a text, a tab and a label")
    return pairs


def export(model, tokenizer, labels, folder):
    import tensorflow as tf

    def classify(texts):
        ids = module.tokenizer.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))[:, : LENGTH - 1]
        ids = tf.concat([ids, tf.fill([tf.size(texts), 1], END)], axis=1).to_tensor(PAD)
        return {"label": tf.gather(labels, tf.argmax(model(ids), axis=1))}

    module = tf.Module()
    module.tokenizer, module.weights = tokenizer.in_graph(), [variable.value for variable in model.variables]
    module.classify = tf.function(classify, [tf.TensorSpec([None], tf.string, "texts")], autograph=False)
    tf.saved_model.save(module, folder, signatures=module.classify)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="texts.tsv")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--export", metavar="FOLDER")
    options = parser.parse_args()
    if options.export and keras.backend.backend() != "tensorflow":
        parser.error("--export needs KERAS_BACKEND=tensorflow")
    extras.require_or_exit(*["tensorflow_text"] * bool(options.export))
    keras.utils.set_random_seed(1)
    random.Random(1).shuffle(pairs := read(options.file) if options.file else dates())
    texts, names = zip(*pairs, strict=True)
    labels, classes = np.unique(names, return_inverse=True)
    test = -(-len(texts) // 10)  # number of texts that are held out, the first ones
    tokenizer = train_tokenizer(texts[test:], "bpe", 1000)
    ids = padded([row[: LENGTH - 1] for row in tokenizer.encode(texts)], LENGTH)
    model = encoder_classifier(tokenizer.vocab_size, len(labels), num_layers=2, model_dim=64, num_heads=4, ff_dim=128)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(ids[test:], classes[test:], batch_size=32, epochs=options.epochs, verbose=2)
    found = model.predict(ids[:test], verbose=0).argmax(1)
    print(*(f"{text} → {labels[n]}" for text, n in zip(texts[:5], found, strict=False)), sep="\n")
    right, common = np.mean(found == classes[:test]), np.bincount(classes[:test]).max() / test
    print(f"{right:.1%} of {test} held-out texts are right; always the most common label: {common:.1%}")
    if options.export:
        export(model, tokenizer, labels, options.export)


if __name__ == "__main__":
    main()
