"""Our decoding beside that of others: same trained weights, same sentences, in turns.

python benchmarks/decoding.py MODEL DATA [--systems ours/jax ctranslate2/float32 …] [--batch_sizes 1 16 64]

MODEL is a post-norm run, for example of `keras-tfm train --recipe small_corpus --no-norm_first …`, since Marian has no
other; DATA contains `tok/` of Multi30k. The shortest to longest sentences of val, evenly chosen, are translated by
    ours         `Translator`
    keras_hub    keras-hub's samplers over the `start` and `step` of our model, compiled
    transformers `generate` of Hugging Face's Marian, from `keras-tfm export --format huggingface`
    ctranslate2  CTranslate2, from `keras-tfm export --format ctranslate2`
Each system is a process of its own, sorts the sentences by length and has all threads, or the GPU if there is one.
"bfloat16" after the name of a system is the type that it computes in; `transformers/static` has a static cache, which
transformers compiles. Tokens per second count what each system writes itself. Systems whose packages are missing are
skipped.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import turns

SYSTEMS = {
    "ours/tensorflow": ("tensorflow",),
    "ours/jax": ("jax",),
    "ours/jax/bfloat16": ("jax",),
    "keras_hub/tensorflow": ("keras_hub", "tensorflow"),
    "keras_hub/jax": ("keras_hub", "jax"),
    "keras_hub/jax/bfloat16": ("keras_hub", "jax"),
    "transformers": ("transformers", "torch"),
    "transformers/bfloat16": ("transformers", "torch"),
    "transformers/static/bfloat16": ("transformers", "torch"),
    "ctranslate2/float32": ("ctranslate2",),
    "ctranslate2/int8": ("ctranslate2",),
}
DEFAULT = [name for name in SYSTEMS if "bfloat16" not in name]  # which is slow on most CPUs
BEAMS = (1, 4)
LENGTH_PENALTY, MAX_LENGTH = 1.0, 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/decoding"), help="for the exports")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=DEFAULT, metavar="SYSTEM")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each system (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--child", metavar="SYSTEM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return serve(options)
    export(options)
    children = []
    for system in options.systems:
        backend = system.split("/")[1] if system.startswith(("ours", "keras_hub")) else None
        arguments = [system, options.model, options.data, "--out", options.out, "--sentences", options.sentences]
        children.append(turns.Child(__file__, system, *arguments, needs=SYSTEMS[system], backend=backend))
    cases = [(beams, size) for beams in BEAMS for size in options.batch_sizes]
    found = turns.take_turns(children, cases * options.rounds)
    results = {child.name: speeds(child, cases) for child in found}
    show(results, cases)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def export(options):
    """Writes the folders that the peers read, unless they are there."""
    forms = {"huggingface": "float32", "ctranslate2": "float32", "ctranslate2_int8": "int8"}
    for name, precision in forms.items():
        folder, form = options.out / name, name.removesuffix("_int8")
        reader = "transformers" if form == "huggingface" else f"{form}/{precision}"
        if not folder.exists() and any(system.startswith(reader) for system in options.systems):
            print(f"exporting {folder}", flush=True)
            flags = ["--format", form, "--precision", precision, "--out", folder, "--max_length", MAX_LENGTH]
            command = [sys.executable, "-m", "keras_tfm", "export", options.model, *flags]
            subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def speeds(child, cases):
    """Tokens per second of each case, and BLEU."""
    rows = {}
    for beams, size in cases:
        answers = [answer for answer in child.answers if answer["case"] == [beams, size]]
        row = {name: statistics.median(answer[name] for answer in answers) for name in ("tokens_per_second", "bleu")}
        rows[f"beams {beams}, batch {size}"] = row
    return rows


def show(results, cases):
    names = [f"beams {beams}, batch {size}" for beams, size in cases]
    print("\nOutput tokens per second (and ratio to the best other package)\n")
    print("| system | " + " | ".join(names) + " | BLEU, greedy | beam 4 |\n| --- |" + " --- |" * (len(names) + 2))
    for system, rows in results.items():
        cells = []
        for name in names:
            others = [row[name]["tokens_per_second"] for other, row in results.items() if not other.startswith("ours")]
            speed = rows[name]["tokens_per_second"]
            cells.append(f"{speed:,.0f} ({speed / max(others):.2f})" if others else f"{speed:,.0f}")
        bleu = [f"{rows[name]['bleu']:.1f}" for name in (names[0], names[-1])]
        print(f"| {system} | {' | '.join(cells + bleu)} |")


# ── in the process of a system ──


def serve(options):
    """Answers each (beams, batch size) with tokens per second and BLEU."""
    import sacrebleu

    from keras_tfm.data import read_lines

    files = [options.data / f"tok/val.lc.norm.tok.{side}.gz" for side in ("en", "de")]
    pairs = sorted(zip(*map(read_lines, files), strict=True), key=lambda pair: len(pair[0].split()))
    pairs = pairs[:: max(len(pairs) // options.sentences, 1)][: options.sentences]
    sources, references = map(list, zip(*pairs, strict=True))
    start = time.perf_counter()
    make = MAKERS[options.child.split("/")[0]](options)
    first, translators = time.perf_counter() - start, {}

    def work(case):
        beams, size = case
        if (beams, size) not in translators:
            translators[beams, size] = make(beams, size)
            translators[beams, size](sources)  # compiles
        start = time.perf_counter()
        texts, tokens = translators[beams, size](sources)
        seconds = time.perf_counter() - start
        bleu = sacrebleu.BLEU(tokenize="none", force=True).corpus_score(texts, [references]).score
        return {"case": case, "tokens_per_second": tokens / seconds, "bleu": bleu}

    turns.serve(first, work, lambda: None)


def batches(rows, size):
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def our_translator(options):
    """The translator, with its model in bfloat16 if the name of the system says so."""
    from keras_tfm import Translator

    loaded = Translator.load(options.model)
    (model,) = loaded.models
    dtype = "mixed_bfloat16" if options.child.endswith("bfloat16") else "float32"
    copied = type(model).from_config(model.get_config() | {"dtype": dtype})
    copied.set_weights(model.get_weights())
    return Translator(copied, *loaded.tokenizers)


def ours(options):
    from keras_tfm import Translator

    loaded = our_translator(options)

    def make(beams, size):
        search = {"num_beams": beams, "batch_size": size, "length_penalty": LENGTH_PENALTY, "max_length": MAX_LENGTH}
        translator = Translator(loaded.models, *loaded.tokenizers, **search)

        def run(sources):
            texts = translator(sources)
            return texts, count(loaded.target_tokenizer, texts)

        return run

    return make


def count(tokenizer, texts):
    """Number of tokens of texts, each with its end token."""
    return sum(len(ids) + 1 for ids in tokenizer.encode(texts))


def keras_hub(options):
    import keras
    from keras_hub.samplers import BeamSampler, GreedySampler

    from keras_tfm import ops
    from keras_tfm.runtimes import programs
    from keras_tfm.text import END, PAD, START

    translator = our_translator(options)
    (model,) = translator.models

    def make(beams, size):
        sampler = GreedySampler() if beams == 1 else BeamSampler(num_beams=beams)

        def search(sources, width):
            longest = translator.longest(width)
            prompt = ops.concatenate(
                [ops.full((size, 1), START, dtype="int32"), ops.zeros((size, longest), dtype="int32")], axis=1
            )

            def following(prompt, cache, index):
                token = ops.slice(prompt, (0, index - 1), (prompt.shape[0], 1))
                logits, cache = model.step(token, index - 1, cache)
                return logits[:, -1], None, cache

            cache, mask = model.prefill(sources, longest), ops.not_equal(prompt, PAD)
            return sampler(following, prompt, cache=cache, index=1, mask=mask, stop_token_ids=(END,))[:, 1:]

        program = programs.compiled(search, model.variables)

        def run(sources):
            texts = []
            for group in batches(translator.source_tokenizer.encode(sources), size):
                width = next(width for width in (16, 32, 64, 128) if width > max(map(len, group)))
                ids = np.full((size, width), PAD, "int32")
                for row, numbers in enumerate(group):
                    ids[row, : len(numbers) + 1] = [*numbers, END]
                found = keras.ops.convert_to_numpy(program(ids, width))[: len(group)]
                texts += translator.target_tokenizer.decode(found)
            return texts, count(translator.target_tokenizer, texts)

        return run

    return make


def transformers(options):
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    folder = options.out / "huggingface"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, as JAX has it
    dtype = torch.bfloat16 if options.child.endswith("bfloat16") else torch.float32
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder).to(device, dtype).eval()

    def make(beams, size):
        search = {"num_beams": beams, "length_penalty": LENGTH_PENALTY, "max_new_tokens": MAX_LENGTH}
        search |= {"cache_implementation": "static"} if "static" in options.child else {}

        def run(sources):
            texts, tokens = [], 0
            for group in batches(sources, size):
                inputs = tokenizer(group, return_tensors="pt", padding=True).to(device)
                with torch.inference_mode():
                    found = model.generate(**inputs, **search)[:, 1:].cpu()
                tokens += int((found != model.config.pad_token_id).sum())
                texts += tokenizer.batch_decode(found, skip_special_tokens=True)
            return texts, tokens

        return run

    return make


def ctranslate2(options):
    import ctranslate2

    from keras_tfm.export.runners import vocabulary
    from keras_tfm.text import load_tokenizer

    folder = options.out / ("ctranslate2_int8" if options.child.endswith("int8") else "ctranslate2")
    tokenizers = [load_tokenizer(folder / f"{side}_tokenizer") for side in ("source", "target")]
    names = [vocabulary(tokenizer) for tokenizer in tokenizers]
    ids = {name: number for number, name in enumerate(names[1])}
    translator = ctranslate2.Translator(str(folder), intra_threads=os.cpu_count())

    def make(beams, size):
        search = {"beam_size": beams, "length_penalty": LENGTH_PENALTY, "max_batch_size": size}

        def run(sources):
            rows = [[names[0][number] for number in row] for row in tokenizers[0].encode(sources)]
            found = translator.translate_batch(rows, max_decoding_length=MAX_LENGTH, **search)
            rows = [[ids[name] for name in result.hypotheses[0]] for result in found]
            return tokenizers[1].decode(rows), sum(len(row) + 1 for row in rows)

        return run

    return make


MAKERS = {"ours": ours, "keras_hub": keras_hub, "transformers": transformers, "ctranslate2": ctranslate2}


if __name__ == "__main__":
    main()
