"""Batch norm is behind layer norm in small batches; without residual connections, six blocks learn next to nothing."""

from functools import cache, partial

import keras
import numpy as np
from lecture import Result, bars, chance, interval, line, panels, run, stated
from measure import trained

from keras_tfm.layers import FeedForward, MultiHeadSelfAttention, PositionalEncoding

LENGTH, SYMBOLS, WIDTH, HEADS, BATCHES = 16, 16, 32, 4, (2, 16)


class OfPaddingToo(keras.layers.BatchNormalization):
    def call(self, x, training=None, mask=None):  # Keras' own leaves out what the mask hides
        return super().call(x, training)


NORMS = {"layer norm": keras.layers.LayerNormalization, "no norm": keras.layers.Identity}
NORMS["batch norm"] = partial(keras.layers.BatchNormalization, momentum=0.95)
NORMS["batch norm + padding"] = partial(OfPaddingToo, momentum=0.95)
BLOCKS = {"Transformer": lambda: (MultiHeadSelfAttention(HEADS), FeedForward(4 * WIDTH))}
BLOCKS["LSTM"] = lambda: (keras.layers.Bidirectional(keras.layers.LSTM(WIDTH // 2, return_sequences=True)),)
PARTS = {"both": ("layer norm", True), "norm only": ("layer norm", False), "residual only": ("no norm", True)}
PARTS["neither"] = ("no norm", False)  # the norm behind each sublayer, and whether it has a residual connection
DEEP = {"Transformer": ("Transformer", "both", "Transformers"), "LSTM alone": ("LSTM", "neither", "plain LSTMs")}
DEEP |= {"LSTM, norms and residuals": ("LSTM", "both", "LSTMs with norms and residuals")}
COUNTS = ("one", "two", "three", "four", "five", "six")


def data(seed, count):
    """Sequences of 2 to 16 symbols, padded with zeros, and the same symbols sorted."""
    rng = np.random.default_rng(seed)
    padding = np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, (count, 1))
    x = np.where(padding, SYMBOLS, rng.integers(1, SYMBOLS, (count, LENGTH)))
    return np.where(padding, 0, x), np.where(padding, 0, np.sort(x, axis=1))


def build(block, norm, residual, depth):
    symbols = keras.Input((LENGTH,), dtype="int32")
    x = PositionalEncoding()(keras.layers.Embedding(SYMBOLS, WIDTH, mask_zero=True)(symbols))
    for _ in range(depth):
        for sublayer in BLOCKS[block]():
            x = NORMS[norm]()(keras.layers.Add()([x, sublayer(x)]) if residual else sublayer(x))
    return keras.Model(symbols, keras.layers.Dense(SYMBOLS)(x))


@cache
def losses(seeds, batch_size, steps, *options):
    """Loss on fresh sequences after training, in nats per symbol, by seed."""
    makers, (x, y) = (lambda: build(*options), lambda seed: data(seed, steps * batch_size)), data(99, 512)
    models = trained(f"{options}, batches of {batch_size}", *makers, seeds, 1, batch_size)
    return np.array([model.evaluate(x, y, batch_size=64, verbose=0) for _, model, _ in models])


def first_gradients(seeds, *options):
    """Norm of the gradient in the first block of untrained encoders, as a power of ten."""
    found, model = [], build(*options)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weight = next(weight for weight in model.trainable_weights if "inner/kernel" in weight.path)
    for seed in range(1, seeds + 1):
        keras.utils.set_random_seed(seed)
        model.set_weights(build(*options).get_weights())
        before = weight.numpy()
        model.train_on_batch(*data(seed, 32))  # one step of plain gradient descent
        found.append(np.log10(np.linalg.norm(before - weight.numpy())))
    return f"10^({stated(found)})"


def main(seeds=5, sequences=1600, steps=250, blocks=6):
    norms, depths = [norm for norm in NORMS if norm != "no norm"], sorted({1, blocks // 2, blocks})
    sizes = {n: [losses(seeds, size, sequences // size, "Transformer", n, True, 2) for size in BATCHES] for n in norms}
    parts = {name: losses(seeds, 16, steps, "Transformer", *part, blocks) for name, part in PARTS.items()}
    early = {name: first_gradients(seeds, "Transformer", *part, 2 * blocks) for name, part in PARTS.items()}
    deep = {
        name: [losses(seeds, 16, steps, kind, *PARTS[part], depth) for depth in depths]
        for name, (kind, part, _) in DEEP.items()
    }
    first, (axis,) = panels(f"Without residual connections, {blocks} blocks learn next to nothing", 1, 6, 4.4)
    bars(axis, [*PARTS], np.stack([*parts.values()], axis=1))
    margins = [np.subtract(*interval(sizes["batch norm"][n] - sizes["layer norm"][n])) for n in (0, 1)]
    far, gain = "" if margins[0] > 0 else "not clearly ", parts["residual only"] - parts["both"]
    second, (below,) = panels(f"In batches of {BATCHES[0]}, batch norm is {far}behind layer norm", 1, 6.5, 4.4)
    for n, values in enumerate(np.array([*sizes.values()]).transpose(1, 2, 0)):  # (batch sizes, seeds, norms)
        bars(below, norms, values, 0.38 * n - 0.19, 0.36, label=f"batches of {BATCHES[n]}")
    deeper = {name: values[-2] - values[-1] for name, values in deep.items()}  # what the last layers gain, by seed
    gaining = " and ".join(DEEP[name][2] for name, more in deeper.items() if np.subtract(*interval(more)) > 0)
    many, fewer = (COUNTS[depth - 1] for depth in depths[:-3:-1])
    where = f"only in {gaining}" if gaining else "in no model"
    third, (last,) = panels(f"{many.title()} layers beat {fewer} {where}", 1, 6, 4.4)
    for (name, values), style in zip(deep.items(), ("o-", "s--", "^-"), strict=True):
        line(last, [*map(str, depths)], np.stack(values, axis=1), marker=style[0], linestyle=style[1:], label=name)
    for each in (axis, below, last):
        chance(each, np.log(SYMBOLS - 1), "guessing")
        each.set(xlabel="layers" if each is last else "", ylabel="loss, nats per symbol", ylim=(0, 3.6))
        each.legend(frameon=False, fontsize=11, loc="upper left", ncols=2)
    text = {n: [*map(stated, v)] for n, v in (sizes | deep).items()} | {n: [stated(v)] for n, v in parts.items()}
    layers = f"{', '.join(map(str, depths[:-1]))} and {depths[-1]} layers"
    what = dict.fromkeys(sizes, "batches of {} and {}".format(*BATCHES)) | dict.fromkeys(deep, layers)
    ours, rnn, both = (", ".join(text[name]) for name in DEEP)
    return Result(
        [first, second, third],
        ["what is trained", "loss, nats per symbol"],
        [[f"{name}, {what.get(name, f'{blocks} blocks')}", ", ".join(text[name])] for name in text],
        "batch norm is hard to use with sequence models",
        "CS 182, Lecture 12, Layer Normalization",
        [
            f"After {sequences:,} sequences in batches of {BATCHES[0]}, batch norm is at {text['batch norm'][0]} nats, "
            f"layer norm at {text['layer norm'][0]}; in batches of {BATCHES[1]}, at {text['batch norm'][1]} and "
            f"{text['layer norm'][1]}. If batch norm averages padding, too: {', '.join(text['batch norm + padding'])}.",
            f"Before training, a weight matrix in the first of {2 * blocks} blocks, with norm and residual connections "
            f"or less, has a gradient of norm {', '.join(f'{value} ({name})' for name, value in early.items())}.",
            f"After {steps} steps, {blocks} blocks with norm and residual connections, or less, have a loss of "
            f"{', '.join(f'{text[name][0]} ({name})' for name in PARTS)} nats. What the norm gains with residual "
            f"connections is {stated(gain)} nats, seed by seed.",
            f"Loss with {layers}: Transformers {ours}; LSTMs {rnn}; LSTMs with norms and residuals {both}. "
            f"What {many} layers gain over {fewer} is {', '.join(map(stated, deeper.values()))} nats, seed by seed.",
        ],
        "One toy task and learning rate. Blocks are post-norm, as in the notes, and trained without the warm-up that "
        f"deep post-norm needs (exercise 3). Gradients are of {2 * blocks} blocks, the losses beside them of {blocks}. "
        "Which depth or norm is best for translation is not measured.",
        verdict="holds" if min(margins) > 0 else "holds here" if margins[0] > 0 else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
