"""Batch norm suffers far more than layer norm in small batches; depth needs a norm to keep gradients in range."""

from functools import partial
from itertools import product

import keras
import numpy as np
from lecture import Result, fit, gradients, panels, run

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention, PositionalEncoding, TransformerEncoder

LENGTH, SYMBOLS, WIDTH, HEADS, LOSS = 16, 16, 32, 4, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class OfPaddingToo(keras.layers.BatchNormalization):
    def call(self, x, training=None, mask=None):  # Keras' own leaves out what the mask hides
        return super().call(x, training)


NORMS = {"layer norm": keras.layers.LayerNormalization, "no norm": keras.layers.Identity}
NORMS["batch norm"] = partial(keras.layers.BatchNormalization, momentum=0.95)
NORMS["batch norm with padding"] = partial(OfPaddingToo, momentum=0.95)


def data(count, seed):
    """Sequences of 2 to 16 symbols, padded with zeros, and the same symbols sorted."""
    rng = np.random.default_rng(seed)
    padding = np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, (count, 1))
    x = np.where(padding, SYMBOLS, rng.integers(1, SYMBOLS, (count, LENGTH)))
    return np.where(padding, 0, x), np.where(padding, 0, np.sort(x, axis=1))


def build(norm="layer norm", depth=2, residual=True, norm_first=None):
    """An encoder of the package if `norm_first` is given, else one in which each part can be replaced or left out."""
    keras.utils.set_random_seed(1)
    symbols = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(SYMBOLS, WIDTH, mask_zero=True)(symbols)
    if norm_first is not None:
        x = TransformerEncoder(num_layers=depth, num_heads=HEADS, ff_dim=4 * WIDTH, dropout=0.0, norm_first=norm_first)(
            x
        )
        return keras.Model(symbols, keras.layers.Dense(SYMBOLS)(x))
    x = PositionalEncoding()(x)
    for number in range(depth):
        for sublayer in (MultiHeadSelfAttention(HEADS), FeedForward(4 * WIDTH, name=f"feed_forward_{number}")):
            x = keras.layers.Add()([x, sublayer(x)]) if residual else sublayer(x)
            x = NORMS[norm]()(x)
    return keras.Model(symbols, keras.layers.Dense(SYMBOLS)(x))


def losses(title, model, batch_size, steps):
    """Loss in fresh data after training, with the layers in training mode and in inference mode."""
    fit(title, model, *data(steps * batch_size, 1), 1, batch_size)
    model.optimizer.learning_rate = 0.0  # now only the averages that batch norm uses in inference mode still change
    training = model.fit(*data(min(steps, 100) * batch_size, 2), batch_size, verbose=0).history["loss"][0]
    return training, model.evaluate(*data(1024, 3), batch_size=32, verbose=0)


def first_gradient(norm, residual, depth):
    """Norm of the gradient in the first block of an untrained encoder."""
    found = gradients(build(norm, depth, residual), *data(32, 1), LOSS)
    return next(np.linalg.norm(value) for path, value in found.items() if "feed_forward_0/inner/kernel" in path)


def main(steps=1000, blocks=24):
    steps = {2: steps, 16: steps * 12 // 100, 32: steps * 3 // 10}  # by batch size
    trained, untrained = sorted({2, blocks // 4 or 1, blocks // 2}), sorted({2, blocks // 3 or 1, blocks})
    found = {(norm, size): losses(norm, build(norm), size, steps[size]) for norm in NORMS for size in (2, 32)}
    deep, sizes = {"post-norm": [], "pre-norm": []}, {}
    for name, depth in product(deep, trained):
        model = build(depth=depth, norm_first=name == "pre-norm")
        deep[name].append(losses(f"{name}, {depth} blocks", model, 16, steps[16])[1])
    for name in ("norm and residual", "norm", "residual", "neither"):
        norm = "layer norm" if "norm" in name else "no norm"
        sizes[name] = [first_gradient(norm, "residual" in name, depth) for depth in untrained]
    figure, axes = panels("Batch norm suffers in small batches; depth needs a norm, better before each sublayer", 3)
    for number, size in enumerate((2, 32)):
        training, inference = np.array([found[norm, size] for norm in NORMS]).T
        places = np.arange(len(NORMS)) + 0.4 * number - 0.2
        axes[0].bar(places, inference, 0.36, label=f"batches of {size}", zorder=2)
        axes[0].plot(places, training, "k_", ms=15, mew=2, label=None if number else "in training mode", zorder=3)
    axes[0].set(ylabel="loss, nats per symbol", ylim=(0, 3))
    axes[0].set_xticks(range(len(NORMS)), [name.replace(" norm", "\nnorm") for name in NORMS], fontsize=8)
    axes[1].plot(trained, np.array([*deep.values()]).T, "o-", label=list(deep))
    axes[1].set(xlabel="blocks", ylabel="loss, nats per symbol", xticks=trained, ylim=(0, 3))
    axes[2].plot(untrained, np.array([*sizes.values()]).T, "o-", label=list(sizes))
    axes[2].set(xlabel="blocks", ylabel="gradient norm of the first block", xticks=untrained, yscale="log")
    for axis in axes:
        axis.legend(frameon=False, fontsize=9)
    layer, batch, big = found["layer norm", 2], found["batch norm", 2], found["batch norm", 32]
    return Result(
        figure,
        ["norm", "batch size", "loss in training mode", "in inference mode"],
        [[norm, str(size), *values] for (norm, size), values in found.items()],
        "batch norm is hard to use with sequence models",
        "CS 182, Lecture 12, Layer Normalization",
        f"In batches of 2 ({steps[2]:,} steps), batch norm ends at a loss of {batch[1]:.2f} ({batch[0]:.2f} in "
        f"training mode), layer norm at {layer[1]:.2f}. In batches of 32 ({steps[32]} steps, so more sequences), batch "
        f"norm ends at {big[1]:.2f} and layer norm at {found['layer norm', 32][1]:.2f}: different lengths do not hurt "
        f"batch norm, small batches do. With {trained[-1]} blocks and no warm-up, pre-norm ends at "
        f"{deep['pre-norm'][-1]:.2f}, post-norm at {deep['post-norm'][-1]:.2f}. Residual connections alone do not "
        f"“prevent the gradients from getting to large or small” (NLU): with {untrained[-1]} blocks the first one's "
        f"gradient is {sizes['residual'][-1]:.0e}, with neither residual connections nor norms "
        f"{sizes['neither'][-1]:.0e}, and with both {sizes['norm and residual'][-1]:.2g}.",
        agrees=None if batch[1] > 1.1 * layer[1] and big[1] < found["layer norm", 32][1] else bool(batch[1] > layer[1]),
    )


if __name__ == "__main__":
    run(__file__, main)
