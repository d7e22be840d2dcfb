"""Trains Multi30k English→German with `keras-tfm train --recipe small_corpus`, and reports BLEU and chrF.

python benchmarks/multi30k.py DATA [--raw] [--out runs/multi30k] [--num_beams 5] [any flag of keras-tfm train]

DATA contains `tok/` (tokenized, lower-cased) and `raw/`. Choices are made on val; test2016 is only reported.
"""

import argparse
import pathlib
import sys
import time

SPLITS = ("val", "test_2016_flickr")
LENGTH_PENALTIES = (0.6, 1.0, 1.4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--raw", action="store_true", help="use cased text, scored with sacreBLEU's tokenizer")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/multi30k"))
    parser.add_argument("--num_beams", type=int, default=5, help="1 for greedy decoding only")
    options, flags = parser.parse_known_args()
    middle = "raw/{}" if options.raw else "tok/{}.lc.norm.tok"

    def file(split, language):
        return f"{options.data / middle.format(split)}.{language}.gz"

    from keras_tfm.cli import commands

    texts = ["--source", file("train", "en"), "--target", file("train", "de")]
    texts += ["--valid_source", file("val", "en"), "--valid_target", file("val", "de")]
    start = time.perf_counter()
    commands.run(["train", *texts, "--out", str(options.out), "--recipe", "small_corpus", *flags])
    print(f"trained in {time.perf_counter() - start:.0f} s")
    report(options, file)


def report(options, file):
    """Prints BLEU and chrF of greedy search, and of beam search with the length penalty that is best on val."""
    from keras_tfm.translator import Translator

    def score(split, name, **decoding):
        translate = Translator.load(options.out, batch_size=128, **decoding)
        return evaluate(translate, split, f"{split}, {name}", file(split, "en"), file(split, "de"), options)

    for split in SPLITS:
        score(split, "greedy", num_beams=1)
    if options.num_beams > 1:
        words = {penalty: f"beam {options.num_beams}, length penalty {penalty}" for penalty in LENGTH_PENALTIES}
        scores = {
            penalty: score("val", words[penalty], num_beams=options.num_beams, length_penalty=penalty)
            for penalty in words
        }
        best = max(scores, key=scores.get)
        score(SPLITS[-1], words[best], num_beams=options.num_beams, length_penalty=best)


def evaluate(translate, split, title, source, target, options):
    """Translates a split, prints BLEU and chrF with their signatures, and returns BLEU."""
    import sacrebleu

    from keras_tfm.data import read_lines

    start = time.perf_counter()
    hypotheses = translate(read_lines(source))
    seconds = time.perf_counter() - start
    references = [list(read_lines(target))]
    (options.out / f"{split}.{'greedy' if translate.num_beams == 1 else 'beam'}").write_text(
        "\n".join(hypotheses) + "\n"
    )
    bleu = sacrebleu.BLEU(tokenize="13a" if options.raw else "none", force=True)
    print(f"{title}, {seconds:.1f} s with compiling")
    for metric in (bleu, sacrebleu.CHRF()):
        print(f"  {metric.corpus_score(hypotheses, references)}  {metric.get_signature()}", flush=True)
    return bleu.corpus_score(hypotheses, references).score


if __name__ == "__main__":
    sys.exit(main())
