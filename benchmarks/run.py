"""Runs the benchmarks that suit two cores, one after the other, in about half an hour: `make bench`.

python benchmarks/run.py [--data DATA] [--model MODEL] [--only training_tiny …] [--out runs/bench]

DATA contains `tok/` of Multi30k, and MODEL is a post-norm run (see `decoding.py`); what needs them is skipped without
them. Each benchmark prints its tables, and writes all figures to a JSON file in the folder `--out`.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

# Name → arguments, in which DATA, MODEL, OUT and EXPORTS stand for paths.
BENCHMARKS = {
    "training_tiny": "training.py --sizes tiny --rounds 3",
    # the quickest way of each system, since all together would need more than 16 GB
    "training_base": "training.py --sizes base --rounds 2 --steps 1 --systems ours/tensorflow ours/jax keras_hub/xla "
    "keras_hub/jax torch/compiled",
    "decoding": "decoding.py MODEL DATA --sentences 64 --rounds 2 --out EXPORTS",
    "attention": "attention.py --lengths 128 512 2048 8192 --rounds 1 --picture OUT/attention.svg",
    "batching": "batching.py DATA --turn_tokens 8000 --rounds 2",
    "export": "export.py MODEL DATA --num_beams 4 --sentences 100 --rounds 2",
    "serving": "serving.py --minute 30",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=[*BENCHMARKS], metavar="BENCHMARK")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bench"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as exports:
        paths = {"DATA": options.data, "MODEL": options.model, "OUT": options.out, "EXPORTS": pathlib.Path(exports)}
        for number, name in enumerate(options.only, 1):
            print(f"\n── {name}, {number} of {len(options.only)} ──\n", flush=True)
            if missing := unavailable(name, paths):
                print(f"{name}: skipped, {missing}: make bench DATA=… MODEL=…", flush=True)
                continue
            start = time.perf_counter()
            if subprocess.run(command(name, paths)).returncode:
                failed.append(name)
            print(f"{name}: {'failed' if name in failed else 'done'} after {time.perf_counter() - start:.0f} s")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def unavailable(name, paths):
    """What a benchmark needs and does not have, in words; None if it can run."""
    marks = {"DATA": "tok/val.lc.norm.tok.en.gz", "MODEL": "."}
    for word, file in marks.items():
        if word in BENCHMARKS[name].split():
            if paths[word] is None:
                return f"it needs {word}"
            if not (paths[word] / file).exists():
                return f"{paths[word] / file} is not there"
    return None


def command(name, paths):
    """The command line of a benchmark."""
    words = []
    for word in BENCHMARKS[name].split():
        first, *rest = word.split("/")
        words.append(str(pathlib.Path(paths[first], *rest)) if first in paths else word)
    file = pathlib.Path(__file__).with_name(words[0])
    return [sys.executable, str(file), *words[1:], "--json", str(paths["OUT"] / f"{name}.json")]


if __name__ == "__main__":
    main()
