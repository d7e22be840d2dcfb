"""Compares the export formats of a translator: each in a process of its own, one thread, sentence by sentence.

python benchmarks/export.py MODEL DATA [--sentences 200] [--beams 1 4]

Prints two tables for each number of beams (1 is greedy search): quality, size and speed of each format, and the time of
a short translation compared with a long one. MODEL is a folder that `keras-tfm train` wrote. DATA contains `tok/` of
Multi30k; the first sentences of val are translated.
"""

import argparse
import multiprocessing
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
from keras_tfm.exported import CTranslate2Translator, LiteRTTranslator
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
    for beams in options.beams:
        side_by_side(options.model, beams, sources, references)


def side_by_side(model, beams, sources, references):
    """Exports a translator in all formats, and prints their quality, size and speed."""
    translator = load(model, beams)
    expected = translator(sources)
    with tempfile.TemporaryDirectory() as folder:
        paths = exported(translator, pathlib.Path(folder))
        runs = {name: in_a_process(name, path, model, beams) for name, path in paths.items()}
        found, speeds = {}, {name: [] for name in runs}
        bar = keras.utils.Progbar(ROUNDS * len(runs), unit_name="run")
        for _ in range(ROUNDS):  # in turns, since machines are noisy
            for name, run in runs.items():
                found[name], seconds = run(sources)
                speeds[name].append(len(sources) / seconds)
                bar.add(1)
        print(f"\n{len(sources)} sentences of val, {beams} beams, one thread\n")
        print("| form | MB | BLEU | as the model | sentences/s | of LiteRT float32 |")
        print("| --- | --- | --- | --- | --- | --- |")
        base = statistics.median(speeds["LiteRT float32"])
        for name, path in paths.items():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20
            bleu = evaluation.scores(found[name], references, "none")["bleu"]
            same = sum(a == b for a, b in zip(found[name], expected, strict=True)) / len(expected)
            speed = statistics.median(speeds[name])
            print(f"| {name} | {size:.1f} | {bleu:.2f} | {same:.1%} | {speed:.1f} | {speed / base:.2f} |")
        early_exit(translator, sources, runs)


def early_exit(translator, sources, runs):
    """Prints the time of a translation of about 5 tokens, and of one of about 60 (or the longest there is)."""
    texts = [" ".join(source.split()[:3]) for source in sources[:20]]
    texts += [" ".join(sources[first : first + count]) for count in (4, 6, 8) for first in range(0, 20, 4)]
    lengths = [len(ids) + 1 for ids in translator.target_tokenizer.encode(translator(texts))]
    short, long = (min(range(len(texts)), key=lambda n: abs(lengths[n] - goal)) for goal in (5, 60))
    print(f"\n| form | {lengths[short]} tokens | {lengths[long]} tokens | ratio |\n| --- | --- | --- | --- |")
    for name, run in runs.items():
        times = [statistics.median(run([texts[n]])[1] for _ in range(9)) for n in (short, long)]
        print(f"| {name} | {1000 * times[0]:.1f} ms | {1000 * times[1]:.1f} ms | {times[0] / times[1]:.2f} |")


def load(model, beams):
    return Translator.load(model, beams=beams, max_length=128)


def exported(translator, folder):
    """Exports a translator in each format, and returns a dict of the folders by name."""
    paths = {"SavedModel": folder / "saved_model"}
    translator.export(paths["SavedModel"])
    for precision in export.FORMATS["litert"].PRECISIONS:
        paths[f"LiteRT {precision}"] = folder / f"litert-{precision}"
        translator.export(paths[f"LiteRT {precision}"], "litert", precision)
    for precision in ("float32", "int8"):
        paths[f"CTranslate2 {precision}"] = folder / f"ctranslate2-{precision}"
        translator.export(paths[f"CTranslate2 {precision}"], "ctranslate2", precision)
    return paths


def in_a_process(name, path, model, beams):
    """Loads an export in a new process, and returns a function of strings: their translations and the seconds taken."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    arguments = there, name.split()[0], path, model, beams
    spawn.Process(target=answer, args=arguments, daemon=True).start()
    there.close()  # so that `recv` raises an error when the process ends

    def run(texts):
        here.send(texts)
        return here.recv()

    run(["a dog"])  # loads
    return run


def answer(connection, kind, path, model, beams):
    """Translates the texts that a connection sends, one by one and with one thread."""
    if kind == "SavedModel":
        import tensorflow_text  # noqa: F401, registers the operators of tokenizers

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        signature = tf.saved_model.load(str(path)).signatures["serving_default"]

        def run(texts):
            return [signature(tf.constant([text]))["translation"].numpy()[0].decode() for text in texts]

    elif kind == "LiteRT":
        run = LiteRTTranslator(path, num_threads=1)  # sorts the texts by length
    else:
        one = CTranslate2Translator(path)

        def run(texts):
            return [one([text])[0] for text in texts]

    while True:
        try:
            texts = connection.recv()
        except EOFError:  # the benchmark has ended
            return
        start = time.perf_counter()
        found = run(texts)
        connection.send((found, time.perf_counter() - start))


if __name__ == "__main__":
    main()
