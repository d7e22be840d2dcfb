"""What several lectures measure, with several seeds: the weights are new for each, the program is compiled once."""

import keras
import numpy as np
from lecture import interval

from keras_tfm.common.progress import Progress


def percent(values):
    """Mean and interval of percentages over the seeds as text, such as "97.2 ± 0.4"."""
    return "{:.1f} ± {:.1f}".format(*interval(values))


def trained(
    title,
    build,
    data,
    seeds,
    epochs,
    batch_size=64,
    learning_rate=1e-3,
    loss=None,
    metrics=(),
    sizes=(None,),
    first_seed=1,
    **options,
):
    """Trains with Adam from each seed, and yields the seed, the model, and Keras' history as a dict of lists.

    `build()` makes the model, `data(seed)` its inputs and labels; with `sizes`, those of each are `data(seed, size)`,
    and the size is yielded in front. The seeds are those from `first_seed` on. The model is always the same one: use
    it before the next is yielded.
    """
    loss, model = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True), None
    with Progress(len(sizes) * seeds * epochs, title, "epoch", 1) as bar:
        steps = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: bar.add(1))
        numbers = range(first_seed, first_seed + seeds)
        for case in [(seed,) if size is None else (seed, size) for size in sizes for seed in numbers]:
            keras.utils.set_random_seed(case[0])
            new = build()
            if model is None:
                model = new
                model.compile(keras.optimizers.Adam(learning_rate), loss, metrics=list(metrics))
                model.optimizer.build(model.trainable_variables)
                state = [np.array(variable) for variable in model.optimizer.variables]
            model.set_weights(new.get_weights())
            for variable, value in zip(model.optimizer.variables, state, strict=True):
                variable.assign(value)
            history = model.fit(*data(*case), batch_size, epochs, verbose=0, callbacks=[steps], **options).history
            yield *case[::-1], model, history


class Nudge(keras.layers.Layer):
    """Adds zeros to the features of a batch: weights, whose gradient is that with respect to the features."""

    def build(self, shape):
        self.nudge = self.add_weight(shape, "zeros")

    def call(self, x):
        return x + self.nudge


def input_gradients(title, encoder, width, length, seeds, rows=16):
    """Norm of d output / d input of an untrained encoder, (seeds, length): at the end, for inputs 0, 1, … before it.

    Inputs are random and have a variance of 1; `encoder()` makes a layer (batch, length, width) → (batch, length, any).
    """

    def build():
        x = keras.Input(batch_shape=(rows, length, width))
        return keras.Model(x, encoder()(Nudge(name="nudge")(x))[:, -1])

    model, norms = build(), []
    model.compile(keras.optimizers.SGD(1.0), lambda direction, y: rows * keras.ops.sum(direction * y, axis=-1))
    with Progress(seeds, title, "seed", 1) as bar:
        for seed in range(1, seeds + 1):
            keras.utils.set_random_seed(seed)
            model.set_weights(build().get_weights())
            normal = np.random.default_rng(seed).normal
            # The mean square over random directions of the output is the square of the Jacobian's norm.
            model.train_on_batch(normal(size=model.input_shape), normal(size=model.output_shape))
            norms.append(np.linalg.norm(model.get_layer("nudge").get_weights()[0], axis=-1).mean(0)[::-1])
            bar.add(1)
    return np.array(norms)
