"""Why a small vocabulary does badly in a short run with much dropout: its model is smaller, and its sentences longer.

python benchmarks/vocabularies.py DATA [--pairs 8000] [--seeds 5]

DATA contains `tok/` of Multi30k. Trains a tiny Transformer of 2 + 2 layers on the first pairs, once per seed, with each
vocabulary and much dropout, little dropout, and little dropout for four times as long; the loss of 500 others, in nats
per sentence, does not depend on how a sentence is divided. If the small vocabulary itself were to blame, its loss would
not come closer to that of the large one. Each loss is added
to examples/lectures/vocabularies.json as soon as it is known, so the same command resumes.
"""

import argparse
import itertools
import json
import os
import pathlib

FILE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "vocabularies.json"
SIZES = 500, 4000  # tokens
TRAININGS = (0.3, 600), (0.1, 600), (0.1, 2400)  # dropout rate, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()

    from short_runs import HELD_OUT, nats_per_sentence

    from keras_tfm.data import ParallelFiles

    files = [options.data / "tok" / f"train.lc.norm.tok.{language}.gz" for language in ("en", "de")]
    pairs = list(itertools.islice(ParallelFiles(*files), options.pairs + HELD_OUT))
    losses = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed, (rate, steps), size in itertools.product(range(1, options.seeds + 1), TRAININGS, SIZES):
        name = f"{size} tokens, dropout {rate}, {steps} steps"
        if str(seed) in losses.setdefault(name, {}):
            continue
        flags = {"tokenizer": "bpe", "vocab_size": size, "num_layers": 2, "dropout": rate, "steps": steps}
        loss = nats_per_sentence(pairs[:-HELD_OUT], pairs[-HELD_OUT:], seed, **flags)
        losses[name][str(seed)] = round(float(loss), 2)
        FILE.write_text(json.dumps(losses, indent=1) + "\n")
        print(f"{name}, seed {seed}: {loss:.1f} nats per sentence", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
