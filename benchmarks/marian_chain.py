"""A trained translator through Hugging Face's format and back, then into every form to ship: does it stay the same?

python benchmarks/marian_chain.py RUN DATA [--transformers PYTHON] [--out runs/marian_chain]

RUN is a translator that Marian can hold, for example one trained with `--recipe small_corpus --no-norm_first`; DATA
contains `tok/` of Multi30k. Each step is a process of its own: export to Hugging Face's format, translation by
`transformers`, import, exports of what was imported, and the evaluation of each on val. PYTHON is an interpreter with
`transformers` and `torch`, which may be another environment. Needs the extras of all formats. The same command resumes.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

BEAMS = 5
FORMS = {"SavedModel": ("saved_model", "float32"), "LiteRT int8": ("litert", "int8")}
FORMS |= {"CTranslate2": ("ctranslate2", "float32"), "CTranslate2 int8": ("ctranslate2", "int8")}
# Reads lines, writes a JSON list of translations.
TRANSFORMERS = """
import json, sys, torch, transformers
folder, lines = sys.argv[1], sys.stdin.read().splitlines()
tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
model = transformers.MarianMTModel.from_pretrained(folder).eval()
result = []
for start in range(0, len(lines), 64):
    batch = tokenizer(lines[start : start + 64], return_tensors="pt", padding=True)
    with torch.no_grad():
        found = model.generate(**batch)
    result += tokenizer.batch_decode(found, skip_special_tokens=True)
    print(len(result), "of", len(lines), file=sys.stderr)
print(json.dumps(result))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--transformers", metavar="PYTHON", help="an interpreter that has transformers")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/marian_chain"))
    options = parser.parse_args()
    texts = [options.data / "tok" / f"val.lc.norm.tok.{language}.gz" for language in ("en", "de")]
    search, table = ["--num_beams", BEAMS, "--max_length", 128], Table(options.out / "table.json")
    table.add("the run itself", lambda: bleu(options.run, texts, *search))
    folder, again = options.out / "huggingface", options.out / "imported"
    if not folder.exists():
        keras_tfm("export", options.run, "--format", "huggingface", *search, "--out", folder)
    if options.transformers:
        table.add("transformers", lambda: transformers_bleu(options.transformers, folder, texts))
    keras_tfm("import", folder, "--out", again)
    table.add("imported again", lambda: bleu(again, texts, *search))
    for name, (form, precision) in FORMS.items():
        out = options.out / f"{form}_{precision}"
        if not out.exists():
            keras_tfm("export", again, "--format", form, "--precision", precision, *search, "--out", out)
        table.add(name, lambda out=out: bleu(out, texts))
    different, new = different_weights(options.run, again)
    print(f"after export and import, {different} weights differ, and these are new: {', '.join(new)}\n")
    print("| form | BLEU on val | difference |\n| --- | --- | --- |")
    for name, score in table.rows.items():
        print(f"| {name} | {score:.2f} | {score - table.rows['the run itself']:+.2f} |")


class Table:
    """Scores by name, in a file, so that the same command resumes."""

    def __init__(self, path):
        self.path = path
        self.rows = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name, measure):
        if name not in self.rows:
            self.rows[name] = measure()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=1))


def keras_tfm(*command):
    """Runs a command in a new process and returns what it prints."""
    print("keras-tfm", *command, flush=True)
    command = [sys.executable, "-m", "keras_tfm", *map(str, command)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def bleu(model, texts, *search):
    source, reference = texts
    flags = ["--source", source, "--reference", reference, "--tokenize", "none", *search]
    printed = keras_tfm("evaluate", model, *flags)
    return next(float(line.split()[1]) for line in printed.splitlines() if line.startswith("bleu"))


def transformers_bleu(python, folder, texts):
    import sacrebleu

    from keras_tfm.data import read_lines

    sources, references = map(list, map(read_lines, texts))
    print("transformers", flush=True)
    command = [python, "-c", TRANSFORMERS, str(folder)]
    child = subprocess.run(command, input="\n".join(sources), stdout=subprocess.PIPE, text=True, check=True)
    return sacrebleu.BLEU(tokenize="none", force=True).corpus_score(json.loads(child.stdout), [references]).score


def different_weights(first, second):
    """Number of weights of the first model that are not the same in the second, and the paths of new ones there.

    The row of padding in a table of embeddings, which is masked wherever it is read, does not count: Marian's decoder
    starts with padding, so this row comes back as that of the start token.
    """
    from keras_tfm import Translator

    ours, theirs = (
        {weight.path: np.array(weight) for weight in Translator.load(folder).models[0].trainable_weights}
        for folder in (first, second)
    )
    for weights in (ours, theirs):
        weights |= {path: table[1:] for path, table in weights.items() if path.endswith("embeddings")}
    return sum(not np.array_equal(ours[path], theirs[path]) for path in ours), sorted({*theirs} - {*ours})


if __name__ == "__main__":
    main()
