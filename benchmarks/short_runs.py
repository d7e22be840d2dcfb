"""What a short run on a small corpus learns, with each form of the residual connections.

python benchmarks/short_runs.py SOURCE TARGET [--pairs 8000] [--steps 400] [--seeds 5]

SOURCE and TARGET are text files with a sentence per line. Trains the default recipe on the first pairs, once per seed
and form, and prints the loss of 500 others in nats per sentence: mean, and half the width of its 95 % interval. The
second form is the control: it refutes that norm_first matters if a longer warm-up does as well.
"""

import argparse
import itertools
import pathlib
import tempfile

import keras
import numpy as np

import keras_tfm
from keras_tfm import data
from keras_tfm.training import evaluation

FORMS = {
    "post-norm, warm-up of a tenth": lambda steps: {"norm_first": False, "warmup_steps": steps // 10},
    "post-norm, warm-up of a half": lambda steps: {"norm_first": False, "warmup_steps": steps // 2},
    "pre-norm, warm-up of a tenth": lambda steps: {"norm_first": True, "warmup_steps": steps // 10},
    "the default: pre-norm, warm-up of a quarter": lambda steps: {},
}
HELD_OUT = 500
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}  # 97.5 % quantile, by number of seeds


def nats_per_sentence(train, held_out, seed, **options):
    """The loss of held-out pairs after a run."""
    with tempfile.TemporaryDirectory() as folder:
        options |= {"num_shapes": 2, "seed": seed, "verbose": 0}
        translator = keras_tfm.train(train, folder, say=lambda message: None, **options)
    sources, references = zip(*held_out, strict=True)
    tokens = sum(len(ids) + 1 for ids in translator.target_tokenizer.encode(references))
    return np.log(evaluation.perplexity(translator, sources, references)) * tokens / len(held_out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=pathlib.Path)
    parser.add_argument("target", metavar="TARGET", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5, choices=STUDENT)
    options = parser.parse_args()
    pairs = data.ParallelFiles(options.source, options.target)
    pairs = list(itertools.islice(pairs, options.pairs + HELD_OUT))
    train, held_out = pairs[:-HELD_OUT], pairs[-HELD_OUT:]
    print(f"{options.source}: {len(train):,} pairs, {options.steps:,} steps on {keras.backend.backend()}\n")
    print("| form | nats per sentence |\n| --- | --- |")
    for name, form in FORMS.items():
        changes = {"steps": options.steps, "batch_tokens": 1024, **form(options.steps)}
        found = [nats_per_sentence(train, held_out, seed, **changes) for seed in range(1, options.seeds + 1)]
        half = STUDENT[options.seeds] * np.std(found, ddof=1) / len(found) ** 0.5
        print(f"| {name} | {np.mean(found):.1f} ± {half:.1f} |", flush=True)


if __name__ == "__main__":
    main()
