"""Why a small vocabulary does badly in a short run with much dropout: its model is smaller, and its sentences longer.

python benchmarks/vocabularies.py DATA [--pairs 8000] [--seeds 5]

DATA contains `tok/` of Multi30k. Trains on the first pairs with each vocabulary, dropout rate and number of steps, once
per seed; the loss of 500 others, in nats per sentence, does not depend on how a sentence is divided. It refutes that
the small vocabulary itself is to blame if that one comes as close with less dropout and more steps. Each loss is added
to examples/lectures/vocabularies.json as soon as it is known, so the same command resumes.
"""

import argparse
import itertools
import json
import os
import pathlib

FILE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "vocabularies.json"
SIZES, RATES, STEPS = (500, 4000), (0.3, 0.1), (600, 2400)


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
    for seed, steps, rate, size in itertools.product(range(1, options.seeds + 1), STEPS, RATES, SIZES):
        name = f"{size} tokens, dropout {rate}, {steps} steps"
        if str(seed) in losses.setdefault(name, {}):
            continue
        flags = {"tokenizer": "bpe", "vocab_size": size, "dropout": rate, "steps": steps}
        loss = nats_per_sentence(pairs[:-HELD_OUT], pairs[-HELD_OUT:], seed, **flags)
        losses[name][str(seed)] = round(float(loss), 2)
        FILE.write_text(json.dumps(losses, indent=1) + "\n")
        print(f"{name}, seed {seed}: {loss:.1f} nats per sentence", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
