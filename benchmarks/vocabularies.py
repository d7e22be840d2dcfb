"""Why a small vocabulary does badly in a short run with much dropout: its model has fewer parameters.

python benchmarks/vocabularies.py DATA [--seeds 1 2 3 4 5]

DATA contains `tok/` of Multi30k. Trains the tiny Transformer of lecture 11 with a small and a large vocabulary, once
per seed: as there, with less dropout, and with less dropout for longer. The loss of val, in nats per sentence, does not
depend on how a sentence is divided. If the small vocabulary itself were to blame, its loss would not come closer to
that of the large one. Each loss is added to examples/lectures/vocabularies.json as soon as it is known, so the same
command resumes.
"""

import argparse
import itertools
import json
import os
import pathlib

FILE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "vocabularies.json"
SIZES = 2000, 12_000  # tokens
TRAININGS = (0.3, 3000), (0.1, 3000), (0.2, 8000)  # dropout rate, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    options = parser.parse_args()

    from short_runs import nats_per_sentence

    from keras_tfm.data import ParallelFiles

    train, val = (
        ParallelFiles(*(options.data / "tok" / f"{split}.lc.norm.tok.{language}.gz" for language in ("en", "de")))
        for split in ("train", "val")
    )
    losses = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed, (rate, steps), size in itertools.product(options.seeds, TRAININGS, SIZES):
        name = f"{size} tokens, dropout {rate}, {steps} steps"
        if str(seed) in losses.setdefault(name, {}):
            continue
        changes = {"tokenizer": "bpe", "vocab_size": size, "dropout": rate, "steps": steps, "warmup_steps": 500}
        loss = nats_per_sentence(train, list(val), seed, recipe="small_corpus", average=4, r_drop=0, **changes)
        losses[name][str(seed)] = round(float(loss), 2)
        FILE.write_text(json.dumps(losses, indent=1) + "\n")
        print(f"{name}, seed {seed}: {loss:.1f} nats per sentence", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
