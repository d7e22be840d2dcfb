"""The command `keras-tfm`."""

import argparse
import os
import pathlib


def main(argv=None):
    """Runs the command line `argv`, or that of the process."""
    parser = argparse.ArgumentParser(prog="keras-tfm", description="Transformers for Keras.")
    commands = parser.add_subparsers(required=True, metavar="command")
    demo_parser = commands.add_parser(
        "demo",
        help="train a tiny encoder to reverse sequences and draw what it attends to",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo_parser.add_argument("--out", type=pathlib.Path, default="demo", help="folder for the picture and the model")
    demo_parser.add_argument("--epochs", type=positive, default=4, help="passes over 10,000 sequences")
    demo_parser.add_argument("--length", type=positive, default=12, help="length of the sequences")
    demo_parser.add_argument("--seed", type=int, default=1, help="seed of data and weights")
    demo_parser.add_argument("--backend", choices=("tensorflow", "jax"), help="in place of KERAS_BACKEND")
    demo_parser.set_defaults(run=demo)
    arguments = vars(parser.parse_args(argv))
    backend, run = arguments.pop("backend"), arguments.pop("run")
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # read when Keras is imported, below
    run(**arguments)


def positive(text):
    """A positive integer, for argparse, which names the option and this function in its error."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def demo(out, epochs, length, seed):
    """Trains an encoder of one block on `reverse`, prints its accuracy on new sequences, draws its attention."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    from keras_tfm import data, plots
    from keras_tfm.layers import PositionalEncoding, TransformerEncoderBlock, record_attention

    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(seed)
    symbols = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(21, 64, mask_zero=True)(symbols)
    x = PositionalEncoding()(x)
    x = TransformerEncoderBlock(num_heads=1, ff_dim=128, dropout=0.0, name="encoder")(x)
    model = keras.Model(symbols, keras.layers.Dense(21)(x), name="reverse")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(*data.reverse(10_000, length, seed=seed), batch_size=128, epochs=epochs, verbose=2)

    sources, targets = data.reverse(1_000, length, seed=seed + 1)
    predictions = model.predict(sources, verbose=0).argmax(-1)
    print(f"\nbackend {keras.backend.backend()}, {model.count_params():,} parameters")
    for source, prediction in zip(sources[:3], predictions, strict=False):
        print("  ", *source, " → ", *prediction)
    print(f"accuracy on 1,000 new sequences: {(predictions == targets).mean():.2%} of the symbols, ", end="")
    print(f"{(predictions == targets).all(-1).mean():.2%} of the sequences")

    with record_attention() as maps:
        model(sources[:1])
    labels = [str(symbol) for symbol in sources[0]]
    plots.attention_map(maps["encoder/attention"][0][0], labels, labels, out / "attention.png", "Reversing a sequence")
    model.save(out / "reverse.keras")
    print(f"wrote {out / 'attention.png'} and {out / 'reverse.keras'}")
