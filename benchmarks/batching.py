"""Training on batches that are padded to the longest text, bucketed by length, or packed: real tokens per second.

python benchmarks/batching.py DATA [--backends tensorflow jax] [--batch_tokens 4096] [--turn_tokens 12000] [--rounds 3]

    padded      one shape, of the longest source and the longest target
    bucketed    `BucketedBatches` with as many shapes as `keras-tfm train` uses on this machine
    packed      `PackedBatches`, several pairs in a row, and a model with `packed=True`

DATA contains `tok/` of Multi30k, English→German. All train the tiny size with dropout 0.1, label smoothing 0.1 and
Adam, on batches of at most `--batch_tokens` tokens per side, counting padding, in the order of an epoch. A turn is as
many batches as it takes to train on `--turn_tokens` target tokens that are not padding; only those count. Each kind
is a process of its own, and they take turns. Every shape is compiled before the first turn: "s to compile" is the time
of the first step of each shape, minus that of as many usual steps. "compilations" are the programs that XLA compiles
on JAX (small ones that fill variables included), and the graphs that are traced on TensorFlow, where a few serve all
shapes. Backends that are missing are skipped.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import tempfile
import time

import turns

KINDS = ("padded", "bucketed", "packed")
VOCABULARY = 10_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--backends", nargs="+", choices=["tensorflow", "jax"], default=["tensorflow", "jax"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--batch_tokens", type=int, default=4096)
    parser.add_argument("--turn_tokens", type=int, default=12_000, help="real target tokens per turn (default: 12000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each kind (default: 3)")
    parser.add_argument("--pairs", type=int, help="use only the first pairs of the data")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return serve(*options.child, options.batch_tokens)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        encode(options, folder)
        for backend in options.backends:
            results[backend] = measure(backend, folder, options)
    for backend, rows in results.items():
        show(backend, rows)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def encode(options, folder):
    """Writes the pairs as numbers, once for all systems."""
    from keras_tfm import data, text

    files = (options.data / f"tok/train.lc.norm.tok.{side}.gz" for side in ("en", "de"))
    pairs = list(data.ParallelFiles(*files))
    tokenizer = text.train_tokenizer((line for pair in pairs for line in pair), "bpe", VOCABULARY)
    encoded = data.encode_pairs(pairs[: options.pairs], folder, tokenizer, verbose=0)
    print(f"encoded {len(encoded):,} pairs", flush=True)


def measure(backend, folder, options):
    """Figures of each kind of batches, as a dict."""
    children = []
    for kind in options.kinds:
        arguments = [kind, folder, options.data, "--batch_tokens", options.batch_tokens]
        children.append(turns.Child(__file__, f"{kind}/{backend}", *arguments, needs=[backend], backend=backend))
    results = {}
    for child in turns.take_turns(children, [options.turn_tokens] * options.rounds):
        rates = [answer["tokens"] / answer["seconds"] for answer in child.answers]
        step = statistics.median(answer["seconds"] / answer["steps"] for answer in child.answers)
        results[child.name.split("/")[0]] = {
            "tokens_per_second": statistics.median(rates),
            "milliseconds_per_step": 1000 * step,
            "padding": child.first["padding"],
            "shapes": child.first["shapes"],
            "compilations": child.last,
            "seconds_to_compile": max(child.first["seconds"] - child.first["shapes"] * step, 0),
            "rates": rates,
        }
    return results


def show(backend, rows):
    print(f"\n{backend}\n\n| batches | padding | real target tokens/s | ratio to bucketed |", end="")
    print(" ms per step | shapes | compilations | s to compile |\n| --- |" + " --- |" * 7)
    base = rows.get("bucketed", {}).get("tokens_per_second")
    for kind, row in rows.items():
        ratio = f"{row['tokens_per_second'] / base:.2f}" if base else ""
        speed = f"{row['padding']:.1%} | {row['tokens_per_second']:,.0f} | {ratio} | {row['milliseconds_per_step']:.0f}"
        print(f"| {kind} | {speed} | {row['shapes']} | {row['compilations']} | {row['seconds_to_compile']:.0f} |")
    print(flush=True)


# ── in the process of a kind ──


def serve(kind, folder, batch_tokens):
    """Answers a number of tokens with the tokens, steps and seconds of training on about as many."""
    import keras

    from keras_tfm.data import BucketedBatches, PackedBatches, TokenPairs
    from keras_tfm.models import transformer
    from keras_tfm.runtimes import machine
    from keras_tfm.training import SmoothedCrossentropy

    keras.utils.set_random_seed(0)
    here, pairs = machine.current(), TokenPairs(folder)
    if kind == "packed":
        batches = PackedBatches(pairs, batch_tokens)
    else:
        batches = BucketedBatches(pairs, batch_tokens, num_shapes=1 if kind == "padded" else here.shapes)
    model = transformer(VOCABULARY, size="tiny", dropout=0.1, packed=kind == "packed")
    model.compile(keras.optimizers.Adam(1e-4), SmoothedCrossentropy(0.1), jit_compile=here.jit_compile)
    compilations = turns.compilations(model)

    shapes, tokens, padding = {}, 0, 0
    for index in range(len(batches)):
        inputs, labels = batches.batch(0, index)
        shapes.setdefault((inputs["source"].shape, labels.shape), (inputs, labels))
        tokens += inputs["source"].size + labels.size
        padding += int((inputs["source"] == 0).sum()) + int((labels == 0).sum())
    start = time.perf_counter()
    for inputs, labels in shapes.values():
        model.train_on_batch(inputs, labels)
    first = {"seconds": time.perf_counter() - start, "shapes": len(shapes), "padding": padding / tokens}
    following = (batches.batch(*divmod(number, len(batches))) for number in itertools.count())

    def work(goal):
        tokens = steps = seconds = 0
        while tokens < goal:
            inputs, labels = next(following)
            start = time.perf_counter()
            model.train_on_batch(inputs, labels)
            seconds += time.perf_counter() - start
            tokens, steps = tokens + int((labels > 0).sum()), steps + 1
        return {"tokens": tokens, "steps": steps, "seconds": seconds}

    turns.serve(first, work, compilations)


if __name__ == "__main__":
    main()
