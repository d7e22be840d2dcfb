"""Byte-pair encoding leaves no word unknown; on short captions, it translates about as well as whole words."""

import json
import os
import pathlib

import numpy as np
from lecture import Result, panels, run, stored

from keras_tfm.data import read_lines
from keras_tfm.text import UNKNOWN, train_tokenizer

SETTLED = 6000  # entries, from which on BLEU does not rise
DATA = pathlib.Path(os.environ.get("MULTI30K", "data/multi30k")) / "tok"


def texts(split, *languages):
    return [line for name in languages for line in read_lines(DATA / f"{split}.lc.norm.tok.{name}.gz")]


def measure(kind, size):
    """The share of the German words of test2016 that a tokenizer does not know, and its tokens per sentence."""
    lines = texts("test_2016_flickr", "de")
    encoded = [list(ids) for ids in train_tokenizer(texts("train", "en", "de"), kind, size).encode(lines)]
    unknown = sum(ids.count(UNKNOWN) for ids in encoded) / sum(len(line.split()) for line in lines)
    return unknown, sum(map(len, encoded)) / len(lines)


def losses():
    """Size and training → mean loss in nats per sentence and half the width of its 95 % interval, of five seeds."""
    table = json.loads(pathlib.Path(__file__).with_name("vocabularies.json").read_text())
    means = {}
    for name, seeds in table.items():
        size, training = name.split(" tokens, ")
        values = list(seeds.values())
        means[int(size), training] = np.mean(values), 2.78 * np.std(values, ddof=1) / len(values) ** 0.5
    return means


def draw_losses(axis, means):
    sizes, trainings = (list(dict.fromkeys(key[place] for key in means)) for place in (0, 1))
    for shift, size in zip((-0.2, 0.2), sizes, strict=True):
        values, halves = zip(*(means[size, training] for training in trainings), strict=True)
        places = np.arange(len(trainings)) + shift
        axis.bar(places, values, 0.38, yerr=halves, capsize=3, label=f"{size:,} tokens of BPE")
    axis.set(ylabel="nats per sentence", xticks=range(len(trainings)))
    axis.set_xticklabels([training.replace(", ", ",\n") for training in trainings])
    axis.legend(frameon=False)


def main():
    table, rows, curves = stored("BPE", "words"), [], {"BPE": [], "words": []}
    if not DATA.exists():
        print(f"there is no Multi30k at {DATA.parent} (set MULTI30K): all figures are stored ones")
    for name, row in table.items():
        kind, size = name.split(", ")
        size, found = int(size.replace(",", "")), (row["unknown"], row["tokens"])
        if DATA.exists():
            found = measure({"BPE": "bpe", "words": "word"}[kind], size)
        curves[kind].append((size, 100 * found[0], found[1], row["single"]["test2016"]))
        rows.append([name, *(f"{value:.1f}" for value in curves[kind][-1][1:])])
        print(*rows[-1], flush=True)
    figure, axes = panels("BPE leaves no word unknown, at the price of longer sentences", 4)
    labels = ("unknown words of test2016, %", "tokens per sentence", "BLEU, test2016")
    for column, (axis, label) in enumerate(zip(axes[:3], labels, strict=True), 1):
        for kind, points in curves.items():
            sizes = [point[0] for point in points]
            axis.plot(sizes, [point[column] for point in points], marker="o", label=kind)
        axis.set(xscale="log", xlabel="size of the vocabulary", ylabel=label, xticks=sizes)
        axis.set_xticklabels([f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    means = losses()
    draw_losses(axes[3], means)
    trainings = list(dict.fromkeys(training for _, training in means))
    gaps = [
        " against ".join(
            f"{mean:.1f} ± {half:.1f}" for (size, other), (mean, half) in means.items() if other == training
        )
        for training in trainings
    ]

    def of(kind):
        found = [point[3] for point in curves[kind] if point[0] >= SETTLED]
        return f"{min(found):.1f} to {max(found):.1f}"

    return Result(
        figure,
        ["vocabulary", "unknown words, %", "tokens per sentence", "BLEU"],
        rows,
        "by pair encoding is something in between it's a tradeoff right in the middle and it's going help you get rid "
        "of your unknown words",
        "Applied Deep Learning, L56.1",
        f"With BPE no word is unknown, whatever the size. With {SETTLED:,} entries or more, BPE reaches {of('BPE')} "
        f"BLEU and words {of('words')}: no clear difference, as captions have few rare words. Small vocabularies lose "
        "either way: 500 words leave many unknown, and 500 tokens of BPE make long sentences and a model with fewer "
        "parameters, which needs less dropout and more steps: beside 4,000 tokens it has "
        + "; ".join(f"{gap} nats per sentence with {training}" for gap, training in zip(gaps, trainings, strict=True))
        + " (five seeds, 95 % intervals). The figures are stored ones, BLEU of a tiny Transformer after 3,000 steps "
        "(benchmarks/lecture_table.py), losses of half its layers on 8,000 pairs (benchmarks/vocabularies.py).",
        agrees=not any(point[1] for point in curves["BPE"]),
    )


if __name__ == "__main__":
    run(__file__, main)
