"""Exported forms of a translator side by side: the same weights and sentences, one thread, batches of one.

python benchmarks/export.py MODEL DATA [--sentences 200] [--beams 1 4]

Each number of beams has its tables, 1 being greedy search: the forms, and what a short translation takes beside a long
one, whose search ends later. MODEL is a folder that `keras-tfm train` wrote, DATA holds `tok/` of Multi30k, of which
the first of val are translated.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from keras_tfm import evaluation, export
from keras_tfm.data import read_lines
from keras_tfm.litert import LiteRTTranslator
from keras_tfm.translator import Translator

ROUNDS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    files = (options.data / f"tok/val.lc.norm.tok.{side}.gz" for side in ("en", "de"))
    sources, references = (list(read_lines(file))[: options.sentences] for file in files)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for beams in options.beams:
        side_by_side(Translator.load(options.model, beams=beams, max_length=128), sources, references)


def side_by_side(translator, sources, references):
    """Exports a translator in all forms, and prints what they say and how fast."""
    expected = translator(sources)
    with tempfile.TemporaryDirectory() as folder:
        forms = exported(translator, pathlib.Path(folder))
        found, speeds = {name: [] for name in forms}, {name: [] for name in forms}
        bar = keras.utils.Progbar(ROUNDS * len(forms), unit_name="run")
        for _ in range(ROUNDS):  # by turns, since machines are noisy
            for name, (run, _) in forms.items():
                start = time.perf_counter()
                found[name] = run(sources)
                speeds[name].append(len(sources) / (time.perf_counter() - start))
                bar.add(1)
        print(f"\n{len(sources)} sentences of val, {translator.beams} beams, one thread\n")
        print("| form | MB | BLEU | as the model | sentences/s | of LiteRT float32 |")
        print("| --- | --- | --- | --- | --- | --- |")
        base = statistics.median(speeds["LiteRT float32"])
        for name, (_, path) in forms.items():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20
            bleu = evaluation.scores(found[name], references, "none")["bleu"]
            same = sum(a == b for a, b in zip(found[name], expected, strict=True)) / len(expected)
            speed = statistics.median(speeds[name])
            print(f"| {name} | {size:.1f} | {bleu:.2f} | {same:.1%} | {speed:.1f} | {speed / base:.2f} |")
        early_exit(translator, sources, {name: run for name, (run, _) in forms.items()})


def early_exit(translator, sources, runs):
    """Prints what a translation of some 5 tokens takes, beside one of 60 or as many as the model writes."""
    texts = [" ".join(source.split()[:3]) for source in sources[:20]]
    texts += [" ".join(sources[first : first + count]) for count in (4, 6, 8) for first in range(0, 20, 4)]
    lengths = [len(ids) + 1 for ids in translator.target_tokenizer.encode(translator(texts))]
    short, long = (min(range(len(texts)), key=lambda n: abs(lengths[n] - goal)) for goal in (5, 60))
    print(f"\n| form | {lengths[short]} tokens | {lengths[long]} tokens | ratio |\n| --- | --- | --- | --- |")
    for name, run in runs.items():
        times = [statistics.median(timed(run, texts[n]) for _ in range(9)) for n in (short, long)]
        print(f"| {name} | {1000 * times[0]:.1f} ms | {1000 * times[1]:.1f} ms | {times[0] / times[1]:.2f} |")


def timed(run, text):
    start = time.perf_counter()
    run([text])
    return time.perf_counter() - start


def exported(translator, folder):
    """Name of each form → a function strings → strings that translates one by one, and its folder."""
    forms = {}

    def one_by_one(run):
        return lambda texts: [run(text) for text in texts]

    path = folder / "saved_model"
    export.saved_model(translator, path)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    forms["SavedModel"] = (
        one_by_one(lambda text: signature(tf.constant([text]))["translation"].numpy()[0].decode()),
        path,
    )
    for precision in export.PRECISIONS:
        path = folder / f"litert-{precision}"
        export.litert(translator, path, precision)
        forms[f"LiteRT {precision}"] = LiteRTTranslator(path, num_threads=1), path  # sorts, and goes one by one
    for quantization in (None, "int8"):
        path = folder / f"ctranslate2-{quantization}"
        export.ctranslate2(translator, path, quantization)
        forms[f"CTranslate2 {quantization or 'float32'}"] = one_by_one(export.run_ctranslate2(path, translator)), path
    return forms


if __name__ == "__main__":
    main()
