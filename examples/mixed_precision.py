"""Mixed precision: the same training in float32 and in mixed_bfloat16, side by side.

python examples/mixed_precision.py [--epochs 3] [--images 1297]      any Keras backend; needs the extra `examples`

Trains the model of image_classifier.py, four times as wide. Under mixed_bfloat16 the weights stay float32, and layers
compute in bfloat16, except for masks, softmax, norms and losses. What that saves depends on the machine: GPUs, TPUs and
CPUs with AMX multiply bfloat16 matrices in hardware. Each precision gets a process of its own, so that its memory can
be measured: how much the process grows by while it trains.
"""

import argparse
import resource
import subprocess
import sys
import time

import keras
import numpy as np
from image_classifier import load, moved, patches, vision_transformer

from keras_tfm.common import extras
from keras_tfm.training import SCHEDULES

BATCH, POLICIES = 128, ("float32", "mixed_bfloat16")


class StepTimes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def megabytes():
    """The most memory that this process has used."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(policy, epochs, count):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    images, digits, test_images, test_digits = load(count)
    x, labels = patches(moved(images)), np.tile(digits, 5)
    model, steps = vision_transformer(num_classes=10, model_dim=256), epochs * -(-len(x) // BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(SCHEDULES["cosine"](1e-3, steps // 5, steps)), loss, metrics=["accuracy"])
    times, before = StepTimes(), megabytes()
    model.fit(x, labels, batch_size=BATCH, epochs=epochs, verbose=2, callbacks=[times])
    step, grown = np.median(np.diff(times.ends)), megabytes() - before
    _, right = model.evaluate(patches(test_images), test_digits, batch_size=100, verbose=0)
    print(f"{policy}: {right:.1%} of held-out images, {1000 * step:.0f} ms per step, {grown:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="number of images to train on (default: all)")
    parser.add_argument("--policy", choices=POLICIES, help="train in this precision only (default: in both)")
    options = parser.parse_args()
    extras.require_or_exit("sklearn")
    if options.policy:
        return train(options.policy, options.epochs, options.images)
    for policy in POLICIES:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--policy", policy], check=True)


if __name__ == "__main__":
    main()
