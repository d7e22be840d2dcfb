"""Seconds until something happens: imports beside that of Keras, and `keras-tfm translate` to its first line.

python benchmarks/startup.py [--backends tensorflow jax] [--rounds 5] [--json FILE]

Every figure is the median of new processes, which take turns. An import is timed inside its process; `import keras_tfm`
alone is quick, since what it defines is imported on first use. A translation is timed from the start of its process
until it has written a date: with the date translator that comes with the package, on each backend, and with its LiteRT
export, which needs no Keras. Backends that are missing are skipped.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import turns

IMPORTS = ("import keras", "import keras_tfm", "from keras_tfm import Translator, layers, models")
TEXT, DATE = "3. Mai 2023", "2023-05-03"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=["tensorflow", "jax"], default=["tensorflow", "jax"])
    parser.add_argument("--rounds", type=int, default=5, help="number of processes for each figure (default: 5)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = {}
        for backend in available(options.backends):
            cases |= {(line, backend): lambda line=line, backend=backend: imported(line, backend) for line in IMPORTS}
            cases["keras-tfm translate", backend] = lambda backend=backend: translated(backend)
        if not turns.missing(["tensorflow", "ai_edge_litert"]):
            exported = pathlib.Path(folder, "litert")
            export(exported)
            cases["keras-tfm translate, LiteRT", ""] = lambda: translated("tensorflow", exported)
        times = {case: [] for case in cases}
        for number in range(options.rounds):
            for case, run in cases.items():
                times[case].append(run())
            print(f"round {number + 1} of {options.rounds}", flush=True)
    medians = {case: statistics.median(values) for case, values in times.items()}
    print("\n| what | backend | seconds | above `import keras` |\n| --- | --- | --- | --- |")
    for (what, backend), seconds in medians.items():
        base = medians.get(("import keras", backend)) if what == IMPORTS[2] else None
        print(f"| `{what}` | {backend} | {seconds:.2f} | {'' if base is None else f'{seconds - base:+.2f}'} |")
    if options.json:
        rows = [{"what": what, "backend": backend, "seconds": times[what, backend]} for what, backend in times]
        options.json.write_text(json.dumps(rows, indent=1))


def available(backends):
    for backend in backends:
        if turns.missing([backend]):
            print(f"{backend}: skipped, it is not installed", flush=True)
        else:
            yield backend


def environment(backend):
    return {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}


def imported(line, backend):
    """Seconds of an import in a new process."""
    program = f"import time; start = time.perf_counter(); {line}; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment(backend), capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


def translated(backend, *model):
    """Seconds of a new process until it has written a translation."""
    command = [sys.executable, "-m", "keras_tfm", "translate", *map(str, model), "--text", TEXT]
    start = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment(backend), **pipes) as process:
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
    if process.returncode or line.strip() != DATE:
        raise RuntimeError(f"{' '.join(command)} must write {DATE}. Received: {line!r}, status {process.returncode}")
    return seconds


def export(folder):
    """Writes the date translator as a LiteRT file."""
    from keras_tfm.artifacts import SHIPPED

    print("exporting the date translator", flush=True)
    flags = ["--format", "litert", "--max_length", "64", "--out", str(folder)]
    command = [sys.executable, "-m", "keras_tfm", "export", str(SHIPPED), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
