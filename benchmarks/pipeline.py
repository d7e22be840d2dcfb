"""Speed of the input pipeline, and of the training that it feeds.

python benchmarks/pipeline.py DATA [--steps 8]      KERAS_BACKEND selects the backend

DATA contains `tok/` of Multi30k. Prints the number of pairs encoded per second; for each kind of batches, the share of
padding and the target tokens served per second; and the target tokens per second of `fit` with the tiny size.
"""

import argparse
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

from keras_tfm import data, text, training
from keras_tfm.data import BucketedBatches, PackedBatches
from keras_tfm.models import transformer

KINDS = {
    "14 shapes": lambda pairs: BucketedBatches(pairs, 4096),
    "3 shapes": lambda pairs: BucketedBatches(pairs, 4096, num_shapes=3),
    "packed": lambda pairs: PackedBatches(pairs, 4096),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=8, help="number of training steps that are timed")
    options = parser.parse_args()
    files = data.ParallelFiles(*(options.folder / f"tok/train.lc.norm.tok.{side}.gz" for side in ("en", "de")))
    tokenizer = text.train_tokenizer((line for pair in files for line in pair), "bpe", 10_000)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        pairs = data.encode_pairs(files, folder, tokenizer, verbose=0)
        print(f"encoded {len(files) / (time.perf_counter() - start):,.0f} pairs a second\n")
        print("| batches | padding | served, tokens/s |\n| --- | --- | --- |")
        for name, make in KINDS.items():
            batches = make(pairs)
            print(f"| {name} | {padding_share(batches):.1%} | {served(batches):,.0f} |")
        tokens = trained(pairs, tokenizer, options.steps)
    print(f"\n`fit` of the tiny size on {keras.backend.backend()}: {tokens:,.0f} tokens/s")


def padding_share(batches):
    """Share of padding among the tokens of an epoch, on both sides together."""
    total = padding = 0
    for index in range(len(batches)):
        inputs, labels = batches.batch(0, index)
        for ids in (inputs["source"], labels):
            total, padding = total + ids.size, padding + int((ids == 0).sum())
    return padding / total


def served(batches):
    """Target tokens per second, over an epoch that has not been served before."""
    start = time.perf_counter()
    tokens = sum(int((batches.batch(1, index)[1] > 0).sum()) for index in range(len(batches)))
    return tokens / (time.perf_counter() - start)


def trained(pairs, tokenizer, steps):
    """Target tokens per second of training, after compilation."""
    batches = BucketedBatches(pairs, 4096, num_shapes=1)
    model = transformer(tokenizer.vocab_size, size="tiny")
    model.compile("adam", training.SmoothedCrossentropy())
    speed = training.TokensPerSecond(batches.mean_tokens())
    model.fit(batches.repeat(), steps_per_epoch=steps + 1, shuffle=False, callbacks=[speed])
    return speed.rate()


if __name__ == "__main__":
    main()
