"""Multi30k English→German with the tiny preset, from text files to BLEU, by the command `keras-tfm train`.

python benchmarks/multi30k.py DATA [--raw] [--out runs/multi30k] [any flag of keras-tfm train]

DATA holds `tok/` (tokenised, lower-cased) and `raw/`. Everything is chosen on val; test2016 is only reported.
"""

import argparse
import pathlib
import sys
import time

FLAGS = {
    "preset": "tiny",
    "dropout": 0.3,
    "tokenizer": "bpe",
    "vocab_size": 10_000,
    "batch_tokens": 8192,
    "num_shapes": 3,
    "steps": 12_000,
    "learning_rate": 0.005,
    "warmup_steps": 2000,
    "schedule": "cosine",
    "r_drop": 5,
    "average": 10,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--raw", action="store_true", help="cased text, scored by sacreBLEU's own tokeniser")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/multi30k"))
    options, flags = parser.parse_known_args()
    middle = "raw/{}" if options.raw else "tok/{}.lc.norm.tok"

    def file(split, language):
        return f"{options.data / middle.format(split)}.{language}.gz"

    from keras_tfm import cli

    texts = ["--source", file("train", "en"), "--target", file("train", "de")]
    texts += ["--valid_source", file("val", "en"), "--valid_target", file("val", "de")]
    start = time.perf_counter()
    recipe = ["--norm_first", *(f"--{name}={value}" for name, value in FLAGS.items())]
    model, tokenizers = cli.run(["train", *texts, "--out", str(options.out), *recipe, *flags])
    print(f"trained in {time.perf_counter() - start:.0f} s")
    for split in ("val", "test_2016_flickr"):
        report(split, model, tokenizers["tokenizer"], file(split, "en"), file(split, "de"), options)


def report(split, model, tokenizer, source, target, options):
    """Translates greedily and prints BLEU and chrF with their signatures."""
    import sacrebleu

    from keras_tfm import data, decoding

    start = time.perf_counter()
    hypotheses = decoding.translate(model, tokenizer, tokenizer, data.read_lines(source))
    seconds = time.perf_counter() - start
    references = [list(data.read_lines(target))]
    (options.out / f"{split}.greedy").write_text("\n".join(hypotheses) + "\n")
    bleu = sacrebleu.BLEU(tokenize="13a" if options.raw else "none", force=True)
    chrf = sacrebleu.CHRF()
    print(f"{split}, greedy, {seconds:.1f} s")
    for metric in (bleu, chrf):
        print(f"  {metric.corpus_score(hypotheses, references)}  {metric.get_signature()}")


if __name__ == "__main__":
    sys.exit(main())
