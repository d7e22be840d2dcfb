"""The translator of software texts on two applications that were held out: quality, placeholders, speed.

python benchmarks/software.py saved_models/software --data DATA [--beside NAME=FOLDER …] [--texts 500] [--only SCORES]

DATA is what examples/software/corpus.py writes. Beside the model, on the same texts: any other run or export, such as
the model before distillation or a CTranslate2 export, and a translation memory, which answers with the translation of
the most similar training text (rapidfuzz). Needs the extras litert and train, rapidfuzz, and sacrebleu[ja].
"""

import argparse
import json
import pathlib
import random
import statistics
import time
import warnings

import keras_tfm
from keras_tfm import text
from keras_tfm.training import evaluation

TESTS = "test-thunderbird", "test-kate"
PARTS = ("scores", "placeholders", "speed")
SEED = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--texts", type=int, default=500, help="of each language and application")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--without_memory", action="store_true", help="leave out the translation memory, which is slow")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    folders = {"model": options.model} | dict(each.split("=", 1) for each in options.beside)
    translators = {name: keras_tfm.load(folder) for name, folder in folders.items()}
    languages = translators["model"].languages
    systems = {name: lambda texts, language, t=t: t(texts, target_language=language) for name, t in translators.items()}
    if not options.without_memory:
        systems["translation memory"] = Memory(options.data)
    if options.only in (None, "scores"):
        for test in TESTS:
            print_scores(test, {each: sample(options.data, test, each, options.texts) for each in languages}, systems)
    if options.only in (None, "placeholders"):
        print_placeholders(translators, {each: pairs(options.data, TESTS, each) for each in languages})
    if options.only in (None, "speed"):
        print_speed(translators, sample(options.data, TESTS[0], languages[0], 200), languages[0])


def pairs(folder, names, language):
    """All pairs of some files of a language."""
    lines = (line for name in names for line in (folder / f"{name}.{language}.tsv").read_text().splitlines())
    return [tuple(line.split("\t")) for line in lines]


def sample(folder, name, language, count):
    chosen = pairs(folder, [name], language)
    return random.Random(SEED).sample(chosen, min(count, len(chosen)))


class Memory:
    """A translation memory of the training texts."""

    def __init__(self, folder):
        self.folder, self.memories = folder, {}

    def __call__(self, texts, language):
        from rapidfuzz import fuzz, process

        if language not in self.memories:
            self.memories = {language: pairs(self.folder, ["train"], language)}
        memory = self.memories[language]
        sources = [source for source, _ in memory]
        return [memory[process.extractOne(each, sources, scorer=fuzz.ratio)[2]][1] for each in texts]


def print_scores(test, samples, systems):
    """BLEU and chrF of each system for each language."""
    sizes = ", ".join(f"{language} {len(chosen)}" for language, chosen in samples.items())
    print(f"\n{test}: texts {sizes}\n\n| system, BLEU / chrF | {' | '.join(samples)} | mean |")
    print("| --- |" + " --- |" * (len(samples) + 1))
    for name, translate in systems.items():
        results = []
        for language, chosen in samples.items():
            answers = translate([source for source, _ in chosen], language)
            tokenize = "ja-mecab" if language == "ja" else "13a"
            results.append(evaluation.scores(answers, [target for _, target in chosen], tokenize))
        cells = [f"{result['bleu']:.1f} / {result['chrf']:.1f}" for result in results]
        means = " / ".join(f"{statistics.mean(result[score] for result in results):.1f}" for score in ("bleu", "chrf"))
        print(f"| {name} | {' | '.join(cells)} | {means} |", flush=True)


def print_placeholders(translators, all_pairs, most=5000):
    """How many held-out texts with placeholders keep them."""
    chosen = [(source, language) for language in all_pairs for source, _ in all_pairs[language]]
    chosen = [(source, language) for source, language in chosen if text.find_protected(source)]
    chosen = random.Random(SEED).sample(chosen, min(most, len(chosen)))
    sources, languages = zip(*chosen, strict=True)
    print(f"\n| of {len(chosen)} texts with placeholders | correct | marked as not translated | wrong |")
    print("| --- | --- | --- | --- |")
    for name, translator in translators.items():
        answers = translator.translate_protected(sources, target_language=languages)
        marked = sum(bool(answer.problem) for answer in answers)
        compared = zip(sources, answers, strict=True)
        wrong = sum(bool(text.compare_protected(source, answer.text)) for source, answer in compared)
        shares = [f"{100 * count / len(chosen):.2f} %" for count in (len(chosen) - marked - wrong, marked, wrong)]
        print(f"| {name} | {' | '.join(shares)} |", flush=True)


def print_speed(translators, chosen, language, rounds=5):
    """Sentences per second in calls of all texts and of one, by systems that take turns; medians of some rounds."""
    sources, speeds = [source for source, _ in chosen], {name: ([], []) for name in translators}
    for number in range(rounds + 1):
        for name, translator in translators.items():
            for call, found in zip(([sources], [[source] for source in sources]), speeds[name], strict=True):
                start = time.perf_counter()
                for texts in call:
                    translator(texts, target_language=language)
                found += [len(sources) / (time.perf_counter() - start)] * (number > 0)  # the first one warms up
    print(f"\n| system | sentences/s in calls of {len(sources)} | of 1 |\n| --- | --- | --- |")
    for name, values in speeds.items():
        print(f"| {name} | {' | '.join(f'{statistics.median(each):.1f}' for each in values)} |")
    print(
        json.dumps({name: [[round(value, 1) for value in each] for each in values] for name, values in speeds.items()})
    )


if __name__ == "__main__":
    main()
