"""Two ways to keep placeholders: a search that must write each slot once, and alignment by cross-attention.

python benchmarks/placeholders.py saved_models/software/keras --data DATA [--texts 50]

DATA is what examples/software/corpus.py writes. On the same held-out texts, which all have placeholders:

- constraint: the search writes each slot of the source exactly once, as the package does;
- free: the search may write slots or not; a text that lacks one stays untranslated;
- alignment: the search writes no slots, and each is put before the word that attends to it most, by the mean of the
  heads of one decoder layer, for each layer.

The model was trained with slots in its texts. Needs the extras tensorflow and train, and sacrebleu[ja].
"""

import argparse
import itertools
import pathlib
import random
import statistics

import numpy as np
from software import TESTS, pairs

from keras_tfm import Translator, decoding, text
from keras_tfm.layers.recording import attention_maps
from keras_tfm.text import END, PAD, START, masking
from keras_tfm.training import evaluation

SEED = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=int, default=50, help="of each language")
    options = parser.parse_args()
    translator = Translator.load(options.model, num_beams=4, max_length=128)
    free = Translator.load(options.model, num_beams=4, max_length=128)
    free.slots, free.sampler = [], decoding.Beam(num_beams=4)  # a search that may leave them out
    results = {}
    for language in translator.languages:
        chosen = sample(options.data, language, options.texts)
        for name, answers in systems(translator, free, [source for source, _ in chosen], language):
            results.setdefault(name, []).append((language, chosen, answers))
        print(language, len(chosen), flush=True)
    print("\n| system | BLEU, mean of languages | correct |\n| --- | --- | --- |")
    for name, found in results.items():
        print(f"| {name} | {statistics.mean(bleu(*each) for each in found):.1f} | {correct(found):.1f} % |")


def sample(folder, language, count):
    """Held-out pairs whose both sides have the same placeholders."""
    both = [pair for pair in pairs(folder, TESTS, language) if text.find_protected(pair[0])]
    both = [pair for pair in both if masking.mask_pair(*pair, masking.MAX_SLOTS)]
    return random.Random(SEED).sample(both, min(count, len(both)))


def systems(translator, free, sources, language):
    """Yields names and lists of translations, as `translate_protected` returns them."""
    yield "constraint", translator.translate_protected(sources, target_language=language)
    yield "free search", free.translate_protected(sources, target_language=language)
    masked = [masking.mask(source, translator.placeholders) for source in sources]
    tags = [f">>{language}<<"] * len(masked)
    without = {"suppress_tokens": tuple(translator.source_tokenizer.slots)}
    found = free._hypotheses([each.text for each in masked], tags, None, 0, **without)
    rows = [tag + each.text for tag, each in zip(tags, masked, strict=True)]
    ids = translator.source_tokenizer.encode(rows), translator.target_tokenizer.encode([best[0][0] for best in found])
    for layer, maps in enumerate(cross_attention(translator.models[0], *ids), 1):
        aligned = [insert(translator, *each) for each in zip(*ids, maps, strict=True)]
        restored = [each.restore(string) for each, string in zip(masked, aligned, strict=True)]
        yield f"alignment, layer {layer}", restored


def cross_attention(model, sources, targets):
    """Weights (rows, target, source) of each decoder layer, the mean of its heads."""
    sources, targets = [[*ids, END] for ids in sources], [[START, *ids] for ids in targets]
    inputs = [np.array(list(itertools.zip_longest(*side, fillvalue=PAD))).T for side in (sources, targets)]
    maps = attention_maps(model, dict(zip(("source", "target"), inputs, strict=True)))
    return [np.mean(maps[name], axis=1) for name in maps if name.endswith("memory_attention")]


def insert(translator, source, target, weights):
    """A translation with the slots of its source, each before the word that attends to it most."""
    tokenizer, slots = translator.target_tokenizer, translator.source_tokenizer.slots
    places = {}
    for column, token in enumerate(source):
        if token in slots:
            row = int(np.argmax(weights[: len(target) + 1, column]))
            while 0 < row < len(target) and not starts_word(tokenizer, target, row):
                row -= 1
            places.setdefault(row, []).append(token)
    parts = [[*places.get(row, []), *target[row : row + 1]] for row in range(len(target) + 1)]
    return tokenizer.decode([[token for part in parts for token in part]])[0]


def starts_word(tokenizer, ids, place):
    """Whether a token has a space before it."""
    before, after = tokenizer.decode([ids[:place], ids[: place + 1]])
    return after[len(before) :].startswith(" ")


def bleu(language, chosen, answers):
    tokenize = "ja-mecab" if language == "ja" else "13a"
    targets = [target for _, target in chosen]
    return evaluation.scores([answer.text for answer in answers], targets, tokenize)["bleu"]


def correct(found):
    """Percent of answers that keep everything."""
    problems = [answer.problem for _, _, answers in found for answer in answers]
    return 100 * problems.count("") / len(problems)


if __name__ == "__main__":
    main()
