"""A small vision Transformer that reads handwritten digits, made of the layers in plain Keras.

python examples/image_classifier.py [--epochs 8] [--images 1297]      any Keras backend; needs the extra `examples`

Each image of 8 × 8 pixels is cut into 16 patches, which the Transformer reads like the words of a sentence
(https://arxiv.org/abs/2010.11929). The images come with scikit-learn; the last 500 are held out. The others are also
shown moved by one pixel, as there are few. The trained model is saved, loaded and compared with logistic regression.
"""

import argparse
import pathlib
import tempfile

import keras
import numpy as np

from keras_tfm.common import extras
from keras_tfm.layers import PositionalEncoding, TransformerEncoderBlock
from keras_tfm.training import SCHEDULES

BATCH, TEST = 64, 500


def load(count=None):
    """Images (n, 8, 8) and their digits, the first `count` to train on and the last `TEST` to test on."""
    extras.require_or_exit("sklearn")
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype("float32") / 16
    return images[:-TEST][:count], digits[:-TEST][:count], images[-TEST:], digits[-TEST:]


def moved(images):
    """The images, and the images moved by a pixel in each direction: (5 · n, 8, 8)."""
    return np.concatenate([images, *(np.roll(images, by, axis) for by in (-1, 1) for axis in (1, 2))])


def patches(images):
    """Images (n, 8, 8) → patches of 2 × 2 pixels (n, 16, 4)."""
    return images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)


def vision_transformer(num_classes, model_dim=64, num_layers=2):
    inputs = keras.Input((16, 4))
    x = PositionalEncoding("learned", max_length=16)(keras.layers.Dense(model_dim)(inputs))
    for _ in range(num_layers):
        x = TransformerEncoderBlock(num_heads=4, ff_dim=2 * model_dim, norm_first=True, dropout=0.1)(x)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, help="number of images to train on (default: all)")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    images, digits, test_images, test_digits = load(options.images)
    train, labels = patches(moved(images)), np.tile(digits, 5)
    model, steps = vision_transformer(num_classes=10), options.epochs * -(-len(train) // BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(SCHEDULES["cosine"](3e-3, steps // 10, steps)), loss, metrics=["accuracy"])
    model.fit(train, labels, batch_size=BATCH, epochs=options.epochs, verbose=2)

    file = pathlib.Path(tempfile.mkdtemp()) / "digits.keras"
    model.save(file)
    found = keras.models.load_model(file).predict(patches(test_images), verbose=0).argmax(1)
    from sklearn.linear_model import LogisticRegression

    pixels, test_pixels = images.reshape(-1, 64), test_images.reshape(-1, 64)
    linear = LogisticRegression(max_iter=1000).fit(pixels, digits).predict(test_pixels)
    for name, answers in (("vision Transformer", found), ("logistic regression", linear), ("always 0", 0)):
        print(f"{name}: {np.mean(answers == test_digits):.1%} of {TEST} held-out images")


if __name__ == "__main__":
    main()
