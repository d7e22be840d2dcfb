"""Forecasts a chaotic time series: an encoder reads 96 values and predicts the next 32 at once.

python examples/forecast.py [--epochs 15] [--length 6000]      any Keras backend

The series is that of Mackey and Glass (https://doi.org/10.1126/science.267326), a standard test of forecasting.
Patches of 4 values are the tokens (https://arxiv.org/abs/2211.14730). The last third of the series is held out. Errors
are root mean squares, in standard deviations of the series. One step ahead, linear regression is hard to beat; further
ahead, it cannot follow.
"""

import argparse

import keras
import numpy as np

from keras_tfm.layers import PositionalEncoding, TransformerEncoderBlock
from keras_tfm.training import SCHEDULES

PAST, FUTURE, PATCH, BATCH = 96, 32, 4, 64


def mackey_glass(length, delay=17, seed=1):
    """x' = 0.2 x(t − delay) / (1 + x(t − delay)¹⁰) − 0.1 x(t), scaled to mean 0 and standard deviation 1."""
    series = list(1.2 + 0.1 * np.random.default_rng(seed).normal(size=delay + 1))
    for _ in range(length + 500):
        series.append(0.9 * series[-1] + 0.2 * series[-1 - delay] / (1 + series[-1 - delay] ** 10))
    series = np.array(series[-length:], "float32")  # without its beginning, which depends on the random values
    return (series - series.mean()) / series.std()


def windows(series):
    """Every stretch of the series, as past (n, PAST) and future (n, FUTURE)."""
    both = np.lib.stride_tricks.sliding_window_view(series, PAST + FUTURE)
    return both[:, :PAST].copy(), both[:, PAST:].copy()


def forecaster(model_dim=64, num_layers=2):
    past = keras.Input((PAST,))
    x = keras.layers.Reshape((PAST // PATCH, PATCH))(past)
    x = PositionalEncoding("learned", max_length=PAST // PATCH)(keras.layers.Dense(model_dim)(x))
    for _ in range(num_layers):
        x = TransformerEncoderBlock(num_heads=4, ff_dim=2 * model_dim, norm_first=True, dropout=0.0)(x)
    return keras.Model(past, keras.layers.Dense(FUTURE)(keras.layers.Flatten()(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--length", type=int, default=6000, help="number of values of the series")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    series, end = mackey_glass(options.length), options.length * 2 // 3
    (past, future), (test_past, test_future) = windows(series[:end]), windows(series[end:])
    model, steps = forecaster(), options.epochs * -(-len(past) // BATCH)
    model.compile(keras.optimizers.AdamW(SCHEDULES["cosine"](2e-3, steps // 10, steps)), "mse")
    model.fit(past, future, batch_size=BATCH, epochs=options.epochs, verbose=2)

    linear = np.linalg.lstsq(np.pad(past, ((0, 0), (0, 1)), constant_values=1), future)[0]
    forecasts = {
        "Transformer": model.predict(test_past, verbose=0),
        "linear regression": test_past @ linear[:-1] + linear[-1],
        "last value": test_past[:, -1:],
    }
    for name, forecast in forecasts.items():
        errors = np.sqrt(np.mean((forecast - test_future) ** 2, axis=0))
        print(f"{name}: error {errors[0]:.3f} after 1 step, {errors[7]:.3f} after 8, {errors[-1]:.3f} after {FUTURE}")


if __name__ == "__main__":
    main()
