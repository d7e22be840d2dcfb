"""Byte-pair encoding leaves no word unknown; on short captions, it translates about as well as whole words."""

import json
import os
import pathlib

import numpy as np
from lecture import Result, panels, run, stored

from keras_tfm.data import read_lines
from keras_tfm.text import UNKNOWN, train_tokenizer

SETTLED = 6000  # entries, from which on BLEU does not rise
LOSSES = pathlib.Path(__file__).parent / "vocabularies.json"
STUDENT = 2.78  # 97.5 % quantile for five seeds
DATA = pathlib.Path(os.environ.get("MULTI30K", "data/multi30k")) / "tok"


def texts(split, *languages):
    return [line for name in languages for line in read_lines(DATA / f"{split}.lc.norm.tok.{name}.gz")]


def measure(kind, size):
    """The share of the German words of test2016 that a tokenizer does not know, and its tokens per sentence."""
    lines = texts("test_2016_flickr", "de")
    encoded = [list(ids) for ids in train_tokenizer(texts("train", "en", "de"), kind, size).encode(lines)]
    unknown = sum(ids.count(UNKNOWN) for ids in encoded) / sum(len(line.split()) for line in lines)
    return unknown, sum(map(len, encoded)) / len(lines)


def draw_losses(axis):
    """Means and intervals for a small and a large vocabulary after each training; returns them as text, by training."""
    losses, said = {}, {}
    for name, found in json.loads(LOSSES.read_text()).items():
        size, training = name.split(" tokens, ")
        half = STUDENT * np.std(list(found.values()), ddof=1) / len(found) ** 0.5
        losses.setdefault(int(size), {})[training] = np.mean(list(found.values())), half
    for number, (size, found) in enumerate(losses.items()):
        means, halves = zip(*found.values(), strict=True)
        style = {"fmt": "os"[number], "capsize": 4, "color": ("C0", "C2")[number], "label": f"BPE, {size:,} tokens"}
        axis.errorbar(np.arange(len(found)) + 0.16 * number, means, halves, **style)
        for training, (mean, half) in found.items():
            said.setdefault(training, []).append(f"{mean:.1f} ± {half:.1f}")
    axis.set_xticks(np.arange(len(said)) + 0.08, [training.replace(", ", "\n") for training in said])
    axis.set(ylabel="loss of val, nats per sentence", xlim=(-0.4, len(said) - 0.4))
    axis.legend(frameon=False)
    return {training: " and ".join(pair) for training, pair in said.items()}


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
    figure, axes = panels("BPE leaves no word unknown, at the price of longer sentences", 4, width=3.9)
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
    usual, less, longer = draw_losses(axes[3]).values()

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
        f"BLEU and words {of('words')}: no clear difference, as captions have few rare words. That small "
        "vocabularies of BPE lose is due to the training: their models have fewer parameters, need less dropout and "
        f"more steps. With 2,000 and 12,000 tokens, val costs {usual} nats per sentence (five seeds); {less} with "
        f"dropout 0.1 instead of 0.3; {longer} with dropout 0.2 and 8,000 steps instead of 3,000. BLEU and losses are "
        "stored ones, the former of one tiny Transformer each, after 3,000 steps: benchmarks/lecture_table.py and "
        "benchmarks/vocabularies.py.",
        agrees=not any(point[1] for point in curves["BPE"]),
    )


if __name__ == "__main__":
    run(__file__, main)
