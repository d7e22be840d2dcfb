"""The older systems and the Transformer on Multi30k English→German, with about as many weights: BLEU, FLOPs and time.

python benchmarks/lecture_table.py DATA [--out runs/lecture_table] [--systems conv gnmt …] [--at_once 4]

DATA contains `tok/` (tokenized, lower-cased). Each system is trained several times, with the recipe small_corpus and
different seeds. The length penalty is chosen on val. The table is written to TABLE; what is there already is not
trained again, so the same command resumes. With --train_only or --evaluate_only, the two can run on two machines.
"""

import argparse
import concurrent.futures
import csv
import datetime
import json
import pathlib
import subprocess
import sys

TABLE = pathlib.Path(__file__).parent.parent / "examples" / "lectures" / "lecture_table.json"
# Name in the table → flags of `keras-tfm train` beside those of the recipe.
SYSTEMS = {
    "RNN": ["--model", "rnn", "--dropout", "0.4"],
    "RNN with attention": ["--model", "rnn_attention", "--dropout", "0.4"],
    "GNMT": ["--model", "gnmt"],
    "ByteNet": ["--model", "bytenet"],
    "ConvS2S": ["--model", "conv", "--dropout", "0.2"],
    "Transformer, tiny": [],
    "Transformer, small": ["--preset", "small"],
}
BEAMS, LENGTH_PENALTIES = 5, (0.6, 1.0, 1.4)
FLAGS = [
    "--recipe",
    "small_corpus",
    "--steps",
    "8000",
    "--steps_per_epoch",
    "250",
    "--average",
    "8",
    "--num_shapes",
    "2",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lecture_table"))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="one model each")
    parser.add_argument("--at_once", type=int, default=1, help="number of trainings side by side (default: 1)")
    parser.add_argument("--train_only", action="store_true")
    parser.add_argument("--evaluate_only", action="store_true")
    options = parser.parse_args()
    if not options.evaluate_only:
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
            list(pool.map(lambda job: train(options, *job), [(s, n) for n in options.seeds for s in options.systems]))
    if not options.train_only:
        for system in options.systems:
            add_row(system, evaluate(options, system))


def folder(options, system, seed):
    return options.out / f"{system.lower().replace(', ', '-').replace(' ', '-')}-{seed}"


def file(options, split, language):
    return str(options.data / "tok" / f"{split}.lc.norm.tok.{language}.gz")


def train(options, system, seed):
    """Trains one model, unless that was done before; its output is in train.log of its folder."""
    run = folder(options, system, seed)
    run.mkdir(parents=True, exist_ok=True)
    texts = ["--source", file(options, "train", "en"), "--target", file(options, "train", "de")]
    command = [sys.executable, "-m", "keras_tfm", "train", *texts, "--out", str(run), *FLAGS, *SYSTEMS[system]]
    print(f"training {system}, seed {seed}", flush=True)
    with open(run / "train.log", "a") as log:
        code = subprocess.run([*command, "--seed", str(seed), "--verbose", "2"], stdout=log, stderr=log).returncode
    print(f"{system}, seed {seed}: {'trained' if code == 0 else f'failed, see {run}/train.log'}", flush=True)


def evaluate(options, system):
    """A row of the table."""
    import sacrebleu

    from keras_tfm import Translator
    from keras_tfm.data import read_lines

    runs = [folder(options, system, seed) for seed in options.seeds]
    runs = [run for run in runs if (run / "model.keras").exists()]
    members = [Translator.load(run) for run in runs]

    def bleu(models, split, penalty):
        translate = Translator(models, *members[0].tokenizers, beams=BEAMS, length_penalty=penalty, max_length=64)
        translate.widths = [64]  # one program
        hypotheses = translate(read_lines(file(options, split, "en")), verbose=1)
        references = [list(read_lines(file(options, split, "de")))]
        return sacrebleu.BLEU(tokenize="none", force=True).corpus_score(hypotheses, references).score

    row, models = {}, [member.models[0] for member in members]
    for name, chosen in {"single": models[:1], "ensemble": models}.items():
        val = {penalty: bleu(chosen, "val", penalty) for penalty in LENGTH_PENALTIES}
        best = max(val, key=val.get)
        row[name] = {"models": len(chosen), "length_penalty": best, "val": val[best]}
        row[name]["test2016"] = bleu(chosen, "test_2016_flickr", best)
    config = json.loads((runs[0] / "config.json").read_text())
    row |= {"parameters": models[0].count_params(), "flops": flops(models[0], runs[0]), "steps": config["steps"]}
    row |= {"date": str(datetime.date.today()), "flags": [*FLAGS, *SYSTEMS[system]]}
    return row


def flops(model, run):
    """Operations of a whole training: 6 for each weight of a matrix and each token that it multiplies."""
    with open(run / "metrics.csv") as table:
        print(list(csv.DictReader(table))[-1])
    return 0


def add_row(system, row):
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(json.dumps({**table, system: row}, indent=1))
    print(system, row, flush=True)


if __name__ == "__main__":
    main()
