"""Mixed precision: the same training in float32 and in mixed_bfloat16, side by side.

python examples/mixed_precision.py      any Keras backend; needs the extra `examples`

Trains the model of image_classifier.py, four times as wide. Under mixed_bfloat16 the weights stay float32, and layers
compute in bfloat16, except for masks, softmax, norms and losses. What that saves depends on the machine: GPUs, TPUs and
CPUs with AMX multiply bfloat16 matrices in hardware. Each precision gets a process of its own, so that its memory can
be measured: how much the process grows by while it trains.
"""

import resource
import subprocess
import sys
import time

import keras
import numpy as np
from image_classifier import TEST, moved, patches, vision_transformer
from sklearn.datasets import load_digits

from keras_tfm.training import SCHEDULES

EPOCHS, BATCH = 3, 128


class StepTimes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def megabytes():
    """The most memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(policy):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype("float32") / 16
    x, labels = patches(moved(images[:-TEST])), np.tile(digits[:-TEST], 5)
    model, steps = vision_transformer(num_classes=10, model_dim=256), EPOCHS * -(-len(x) // BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(SCHEDULES["cosine"](1e-3, steps // 5, steps)), loss, metrics=["accuracy"])
    times, before = StepTimes(), megabytes()
    model.fit(x, labels, batch_size=BATCH, epochs=EPOCHS, verbose=2, callbacks=[times])
    step, grown = np.median(np.diff(times.ends)), megabytes() - before
    _, right = model.evaluate(patches(images[-TEST:]), digits[-TEST:], batch_size=100, verbose=0)
    print(f"{policy}: {right:.1%} of held-out images, {1000 * step:.0f} ms per step, {grown:.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        for policy in ("float32", "mixed_bfloat16"):
            subprocess.run([sys.executable, __file__, policy], check=True)
