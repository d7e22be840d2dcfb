"""The older systems and the Transformer on Multi30k English→German, at equal parameters: BLEU, FLOPs, time, ensembles.

python benchmarks/lecture_table.py DATA [--out runs/lecture_table] [--systems ConvS2S GNMT …] [--at_once 4]

DATA contains `tok/` (tokenized, lower-cased). Each system is trained once per seed with the recipe small_corpus, and
timed alone for a few steps. Then it is evaluated with a beam of 5; the length penalty is chosen on val. The rows are
added to examples/lectures/lecture_table.json. Trainings that have ended are not repeated, so the same command resumes.
"""

import argparse
import concurrent.futures
import csv
import datetime
import json
import math
import operator
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "lecture_table.json"
# Name in the table → flags of `keras-tfm train`. The last ones compare vocabularies.
SYSTEMS = {
    "RNN": "--model rnn",
    "RNN with attention": "--model rnn_attention",
    "GNMT": "--model gnmt",
    "ByteNet": "--model bytenet",
    "ConvS2S": "--model conv",
    "Transformer, tiny": "",
    "Transformer, small": "--size small",
}
BPE = {f"BPE, {size:,}": f"--tokenizer bpe --vocab_size {size}" for size in (500, 2000, 6000, 12_000)}
WORDS = {f"words, {size:,}": f"--tokenizer word --vocab_size {size}" for size in (500, 2000, 6000, 12_000, 30_000)}
VOCABULARIES = BPE | WORDS
COMMON = "--recipe small_corpus --num_shapes 2 --steps_per_epoch 250"
LONG, SHORT = "--steps 8000 --average 8", "--steps 3000 --average 4 --r_drop 0 --warmup_steps 500"
TIMED = "--steps 300 --average 1 --steps_per_epoch 100"
BEAMS, LENGTH_PENALTIES = 5, (0.6, 1.0, 1.4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lecture_table"))
    names = [*SYSTEMS, *VOCABULARIES]
    parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", default=["1", "2"], help="one model for each, and an ensemble of all")
    parser.add_argument("--at_once", type=int, default=1, help="number of trainings side by side (default: 1)")
    parser.add_argument("--only", choices=("train", "time", "evaluate"), help="one part, if they run on two machines")
    options = parser.parse_args()
    parts = [options.only] if options.only else ["train", "time", "evaluate"]
    systems = [name for name in options.systems if name in SYSTEMS]
    if "train" in parts:
        jobs = [(name, seed) for seed in options.seeds for name in options.systems if seed == "1" or name in SYSTEMS]
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(lambda job: train(options, *job), jobs))
    for name in systems if "time" in parts else ():
        train(options, name, "time")
    for name in options.systems if "evaluate" in parts else ():
        add_row(name, evaluate(options, name))


def run_folder(options, name, seed):
    return options.out / f"{name.lower().replace(',', '').replace(' ', '-')}-{seed}"


def texts(options, split):
    return [str(options.data / "tok" / f"{split}.lc.norm.tok.{language}.gz") for language in ("en", "de")]


def flags(name, seed):
    length = SHORT if name in VOCABULARIES else TIMED if seed == "time" else LONG
    return f"{COMMON} {length} {(SYSTEMS | VOCABULARIES)[name]} --seed {1 if seed == 'time' else seed}"


def train(options, name, seed):
    """Trains one model, unless that was done before; what it prints is in a log beside its folder."""
    run, (source, target) = run_folder(options, name, seed), texts(options, "train")
    if (run / "model.keras").exists():
        return
    options.out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "keras_tfm", "train", "--source", source, "--target", target, "--out", str(run)]
    log = run.with_suffix(".log")
    print(f"training {name}, {seed}", flush=True)
    with open(log, "a") as file:
        code = subprocess.run([*command, *shlex.split(flags(name, seed)), "--verbose", "2"], stdout=file, stderr=file)
    print(f"{name}, {seed}: {f'failed, see {log}' if code.returncode else 'trained'}", flush=True)


def evaluate(options, name):
    """A row of the table."""
    from keras_tfm import Translator

    runs = [run_folder(options, name, seed) for seed in options.seeds]
    members = [Translator.load(run) for run in runs if (run / "model.keras").exists()]
    models, tokenizers = [member.models[0] for member in members], members[0].tokenizers
    row = {"parameters": models[0].count_params(), "date": str(datetime.date.today()), "flags": flags(name, "1")}
    row |= training_cost(options, name, models[0], tokenizers)
    for kind, chosen in {"single": models[:1], "ensemble": models}.items():
        if kind == "single" or len(models) > 1:
            row[kind] = {"models": len(chosen), **scores(options, chosen, tokenizers)}
    if name in VOCABULARIES:
        row["unknown"], row["tokens"] = text_statistics(options, tokenizers[0])
    return row


def scores(options, models, tokenizers):
    """BLEU on val, with the length penalty that is best there, and on test2016."""
    import sacrebleu

    from keras_tfm import Translator
    from keras_tfm.data import read_lines

    def bleu(split, penalty):
        translate = Translator(models, *tokenizers, num_beams=BEAMS, length_penalty=penalty, max_length=128)
        translate.widths = [64, 128]  # two programs
        source, target = map(list, map(read_lines, texts(options, split)))
        return sacrebleu.BLEU(tokenize="none", force=True).corpus_score(translate(source, verbose=1), [target]).score

    val = {penalty: bleu("val", penalty) for penalty in LENGTH_PENALTIES}
    best = max(val, key=val.get)
    return {"length_penalty": best, "val": val[best], "test2016": bleu("test_2016_flickr", best)}


def training_cost(options, name, model, tokenizers):
    """Operations of a training, and its seconds on the machine that timed it.

    Operations: 6 for each weight of a matrix and each token that it multiplies, forwards and backwards.
    """
    from keras_tfm.artifacts import Run
    from keras_tfm.data import ParallelFiles, PreparedPairs
    from keras_tfm.training import Recipe, encoding, trainer

    config = Run(run_folder(options, name, options.seeds[0])).read_config()
    chosen = {key: config[key] for key in ("batch_tokens", "num_shapes", "steps", "steps_per_epoch")}
    recipe = Recipe(**config["options"] | chosen)
    with tempfile.TemporaryDirectory() as folder:
        pairs = PreparedPairs(ParallelFiles(*texts(options, "train")))
        encoded, _ = encoding.encode(Run(folder), pairs, None, tokenizers, recipe)
        copies = 2 if recipe.r_drop else 1
        batches = trainer.make_batches(encoded, recipe, copies=copies)
        passes, per_step = recipe.steps / len(batches), batches.mean_tokens()
        tokens = len(encoded[0].sources.tokens), len(encoded[0].targets.tokens)
    table = model.target_embedding.input_dim * model.target_embedding.output_dim
    sides = matrices(model.encoder), matrices(model.decoder) + table
    cost = {"flops": 6 * copies * passes * sum(map(operator.mul, tokens, sides)), "steps": recipe.steps}
    timed = run_folder(options, name, "time") / "metrics.csv"
    if timed.exists():
        with open(timed) as file:
            rate = float(list(csv.DictReader(file))[-1]["tokens/s"])
        cost["seconds"] = recipe.steps * per_step / rate
    return cost


def matrices(layer):
    """Number of weights of a layer that multiply something."""
    return sum(math.prod(weight.shape) for weight in layer.trainable_weights if len(weight.shape) > 1)


def text_statistics(options, tokenizer):
    """The share of words of test2016 (German) that the tokenizer does not know, and its tokens per sentence."""
    from keras_tfm.data import read_lines
    from keras_tfm.text import UNKNOWN

    lines = list(read_lines(texts(options, "test_2016_flickr")[1]))
    encoded = tokenizer.encode(lines)
    unknown = sum(ids.count(UNKNOWN) for ids in map(list, encoded))
    return unknown / sum(len(line.split()) for line in lines), sum(map(len, encoded)) / len(lines)


def add_row(name, row):
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(json.dumps({**table, name: row}, indent=1) + "\n")
    print(name, json.dumps(row), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    main()
