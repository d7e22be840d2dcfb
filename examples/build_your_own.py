"""A classifier made of our layers: does the 1 come before the 2?

python examples/build_your_own.py      trains and saves the model, then loads and evaluates it in a new process
"""

import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np

from keras_tfm.layers import PositionalEncoding, TransformerEncoderBlock


def sequences(count, seed):
    """Sequences of 4 to 16 symbols from 3 to 30, padded with zeros; each contains one 1 and one 2."""
    rng = np.random.default_rng(seed)
    x, answers = rng.integers(3, 31, (count, 16)), np.zeros(count, "int32")
    for n, length in enumerate(rng.integers(4, 17, count)):
        one, two = rng.permutation(length)[:2]
        x[n, one], x[n, two], x[n, length:] = 1, 2, 0
        answers[n] = one < two
    return x, answers


def classifier():
    symbols = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(31, 64, mask_zero=True)(symbols)
    x = PositionalEncoding(combine="concat", dim=16)(x)
    x = TransformerEncoderBlock(num_heads=4, ff_dim=128, activation="swiglu", norm_first=True)(x)
    x = TransformerEncoderBlock(num_heads=4, ff_dim=128, score="cosine", positions="rotary", norm_first=True)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)  # the mask gets here, so padding is not averaged
    return keras.Model(symbols, keras.layers.Dense(1, activation="sigmoid")(x))


def main():
    if len(sys.argv) > 1:  # in the new process
        model = keras.models.load_model(sys.argv[1])
        loss, accuracy = model.evaluate(*sequences(2048, seed=2), batch_size=64, verbose=0)
        print(f"new process: accuracy {accuracy:.1%}")
        return
    keras.utils.set_random_seed(1)
    model = classifier()
    model.compile(keras.optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"])
    model.fit(*sequences(5120, seed=1), batch_size=64, epochs=2, validation_data=sequences(2048, seed=2), verbose=2)
    file = pathlib.Path(tempfile.mkdtemp()) / "classifier.keras"
    model.save(file)
    subprocess.run([sys.executable, __file__, file], check=True)


if __name__ == "__main__":
    main()
