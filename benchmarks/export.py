"""Compares the export formats of a translator: quality, size, memory and speed, sentence by sentence.

python benchmarks/export.py MODEL DATA [--threads 1 2] [--num_beams 1 4] [--sentences 200] [--rounds 3] [--json FILE]

MODEL is a folder that `keras-tfm train` wrote. DATA contains `tok/` of Multi30k; the first sentences of val are
translated. Each format with each number of threads is a process of its own, which imports no more than it needs, and
they take turns. Formats whose packages are missing are skipped. For each number of beams (1 is greedy search) and of
threads there are two tables:
    of each format: MB on disk; seconds to load, from the first import until a short sentence is translated; resident MB
    of the process after all translations; BLEU; share of the sentences that come out as the model writes them;
    sentences per second, one after the other (LiteRT's runner sorts them by length, for which it is fastest)
    the time of a short translation compared with a long one
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import turns

# Name → format, precision, and packages that write and run it.
FORMS = {"SavedModel": ("saved_model", "float32", ["tensorflow", "tensorflow_text"])}
FORMS |= {f"LiteRT {x}": ("litert", x, ["tensorflow", "ai_edge_litert"]) for x in ("float32", "float16", "int8")}
FORMS |= {f"CTranslate2 {x}": ("ctranslate2", x, ["ctranslate2"]) for x in ("float32", "int8")}
FORMS |= {"ONNX": ("onnx", "float32", ["tensorflow", "onnx", "onnxruntime", "tf2onnx"])}
BASE = "LiteRT float32"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS], metavar="FORM")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--num_beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each format (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return serve(*options.child)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    results = {}
    for beams in options.num_beams:
        results[f"{beams} beams"] = measure(beams, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measure(beams, options):
    """Prints and returns the figures for a number of beams: {number of threads: {form: {…}}}."""
    from keras_tfm.data import read_lines
    from keras_tfm.training import evaluation
    from keras_tfm.translator import Translator

    files = (options.data / f"tok/val.lc.norm.tok.{side}.gz" for side in ("en", "de"))
    sources, references = (list(read_lines(file))[: options.sentences] for file in files)
    translator = Translator.load(options.model, num_beams=beams, max_length=128)
    expected, (lengths, texts) = translator(sources), short_and_long(translator, sources)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = export(translator, options.forms, pathlib.Path(folder))
        for threads in options.threads:
            results[f"{threads} threads"] = rows = {}
            requests = [(sources, 1)] * options.rounds + [([text], 5) for text in texts] * 3
            children = []
            for form in options.forms:
                arguments = [pathlib.Path(folder, form), threads, options.model, options.data]
                children.append(turns.Child(__file__, form, *arguments, needs=FORMS[form][2], backend="tensorflow"))
            for child in turns.take_turns(children, requests):
                found, short = child.answers[: options.rounds], child.answers[options.rounds :]
                same = sum(a == b for a, b in zip(found[0]["texts"], expected, strict=True))
                rows[child.name] = {
                    "megabytes": sizes[child.name],
                    "seconds_to_load": child.first,
                    "resident_megabytes": found[-1]["resident_megabytes"],
                    "bleu": evaluation.scores(found[0]["texts"], references, "none")["bleu"],
                    "as_the_model": same / len(expected),
                    "sentences_per_second": len(sources) / statistics.median(answer["seconds"] for answer in found),
                    "tokens": lengths,
                    "milliseconds": [1000 * statistics.median(x["seconds"] for x in short[n::2]) for n in (0, 1)],
                    "times": [answer["seconds"] for answer in found],
                }
            show(beams, threads, len(sources), rows)
    return results


def short_and_long(translator, sources):
    """Texts whose translations have about 5 and about 60 tokens (or come nearest), and their numbers of tokens."""
    texts = [" ".join(source.split()[:3]) for source in sources[:20]]
    texts += [" ".join(sources[first : first + count]) for count in (4, 6, 8) for first in range(0, 20, 4)]
    lengths = [len(ids) + 1 for ids in translator.target_tokenizer.encode(translator(texts))]
    places = [min(range(len(texts)), key=lambda n: abs(lengths[n] - goal)) for goal in (5, 60)]
    return [lengths[n] for n in places], [texts[n] for n in places]


def export(translator, forms, folder):
    """Exports in each format whose packages are there, into folders of their names; returns the megabytes of each."""
    sizes = {}
    for form in forms:
        format, precision, needs = FORMS[form]
        if not turns.missing(needs):
            print(f"exporting {form}", flush=True)
            translator.export(folder / form, format, precision)
            sizes[form] = sum(file.stat().st_size for file in (folder / form).rglob("*") if file.is_file()) / 1e6
    return sizes


def show(beams, threads, sentences, rows):
    print(f"\n{sentences} sentences of val, beams: {beams}, threads: {threads}\n")
    print("| form | MB | s to load | resident MB | BLEU | as the model | sentences/s | of LiteRT float32 |")
    print("| --- |" + " --- |" * 7)
    base = rows.get(BASE, {}).get("sentences_per_second")
    for form, row in rows.items():
        kept = f"{row['megabytes']:.1f} | {row['seconds_to_load']:.1f} | {row['resident_megabytes']:.0f}"
        speed = row["sentences_per_second"]
        ratio = f"{speed / base:.2f}" if base else ""
        print(f"| {form} | {kept} | {row['bleu']:.2f} | {row['as_the_model']:.1%} | {speed:.1f} | {ratio} |")
    for first in list(rows.values())[:1]:
        print("\n| form | {} tokens | {} tokens | ratio |\n| --- | --- | --- | --- |".format(*first["tokens"]))
    for form, row in rows.items():
        short, long = row["milliseconds"]
        print(f"| {form} | {short:.1f} ms | {long:.1f} ms | {short / long:.2f} |")
    print(flush=True)


# ── in the process of a format ──


def serve(folder, threads):
    """Answers texts, and how often to translate them, with their translations and the median of the seconds taken."""
    start = time.perf_counter()
    translate = loaded(pathlib.Path(folder), int(threads))
    translate(["a dog"])
    seconds = time.perf_counter() - start

    def work(request):
        texts, repeats = request
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            found = translate(texts)
            times.append(time.perf_counter() - start)
        return {"texts": found, "seconds": statistics.median(times), "resident_megabytes": resident_megabytes()}

    turns.serve(seconds, work, lambda: "")


def loaded(folder, threads):
    """A function of texts that translates one after the other."""
    from keras_tfm import artifacts
    from keras_tfm.export import runners

    form = artifacts.format_of(folder)
    if form == "litert":
        return runners.LiteRTTranslator(folder, threads)  # sorts the texts by length
    if form == "saved_model":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        one = runners.SavedModelTranslator(folder)
    else:
        one = runners.load(folder, threads)
    return lambda texts: [one([text])[0] for text in texts]


def resident_megabytes():
    """Memory of this process, on Linux."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
