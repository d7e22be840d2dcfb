"""Subwords leave few words unknown, and bytes leave none; on short captions, they translate no better than words."""

import json
import os
import pathlib
import re
from itertools import product

import numpy as np
from lecture import Result, interval, line, panels, run, stated, stored

from keras_tfm.common.progress import Progress
from keras_tfm.data import read_lines
from keras_tfm.text import UNKNOWN, train_tokenizer

SIZES = (500, 2000, 6000, 12_000)
KINDS = {"words": ("word", {}), "BPE without bytes": ("bpe", {"byte_fallback": False}), "BPE": ("bpe", {})}
LOOKS = {"words": {"color": "C1", "marker": "o"}, "BPE": {"color": "C0", "marker": "o", "linestyle": "--"}}
LOOKS["BPE without bytes"] = {"color": "C2", "lw": 7, "alpha": 0.5}  # seen on both sides of a line that lies on it
LOSSES, MEASURED = (pathlib.Path(__file__).with_name(f"{name}.json") for name in ("vocabularies", "subwords"))
DATA = pathlib.Path(os.environ.get("MULTI30K", "data/multi30k"))


def texts(name):
    return list(read_lines(DATA / f"{name}.gz"))


def measure(seeds, sizes):
    """Of tokenizers of random halves of the text, (seeds, sizes, 3): words of test2016 that they do not know, in %;

    the same for that text with its capitals, which the training text lacks; and tokens per sentence.
    """
    train = np.array([texts(f"tok/train.lc.norm.tok.{language}") for language in ("en", "de")])  # (2, sentences)
    test = texts("tok/test_2016_flickr.lc.norm.tok.de")
    lower = [word for sentence in test for word in sentence.split()]
    capital = [word for sentence in texts("raw/test_2016_flickr.de") for word in re.findall(r"\w+|[^\w\s]", sentence)]
    found = {name: np.zeros((seeds, len(sizes), 3)) for name in KINDS}
    with Progress(len(KINDS) * seeds * len(sizes), "training tokenizers", "tokenizer") as bar:
        for seed, (name, (kind, options)), number in product(range(seeds), KINDS.items(), range(len(sizes))):
            half = np.random.default_rng(seed).permutation(train.shape[1])[: train.shape[1] // 2]
            tokenizer = train_tokenizer(train[:, half].ravel().tolist(), kind, sizes[number], **options)
            unknown = [np.mean([UNKNOWN in ids for ids in tokenizer.encode(words)]) for words in (lower, capital)]
            tokens = np.mean([len(ids) for ids in tokenizer.encode(test)])
            found[name][seed, number] = *(100 * share for share in unknown), tokens
            bar.add(1)
    return found


def draw_losses():
    """Losses of five seeds for a small and a large vocabulary, after each training: figure, text, the best of each."""
    losses = json.loads(LOSSES.read_text())
    values = np.array([[*seeds.values()] for seeds in losses.values()]).reshape(-1, 2, 5)  # (trainings, sizes, seeds)
    small, large = values.mean(2).min(0)
    figure, (axis,) = panels(f"At their best, 2,000 tokens cost {small - large:.1f} nats more than 12,000", 1, 6, 4.4)
    for n, (size, color) in enumerate((("2,000", "C3"), ("12,000", "C0"))):
        places, style = np.arange(n, len(losses), 2), {"fmt": "so"[n], "color": color, "capsize": 5, "ms": 8}
        axis.errorbar(places, *interval(values[:, n].T), **style, label=f"BPE, {size} tokens")
    axis.set_xticks(places - 0.5, [name.partition(" tokens, ")[2].replace(", ", "\n") for name in losses][::2])
    axis.set(ylabel="loss of val, nats per sentence", xlim=(-0.5, len(losses) - 0.5), ylim=(26, 36))
    axis.legend(frameon=False)
    return figure, [" / ".join(map(stated, pair)) for pair in values], f"{small:.1f} / {large:.1f}"


def main(seeds=5, sizes=4):
    sizes = SIZES[:sizes]
    if DATA.exists():
        found = measure(seeds, sizes)
        if (seeds, sizes) == (5, SIZES):  # for machines without Multi30k
            MEASURED.write_text(json.dumps({name: values.round(3).tolist() for name, values in found.items()}))
    else:
        print(f"there is no Multi30k at {DATA} (set MULTI30K): all figures are stored ones")
        found = {name: np.array(v)[:, : len(sizes)] for name, v in json.loads(MEASURED.read_text()).items()}
    words, alone, both = (found[name][:, -1] for name in KINDS)
    spelled = np.dot((1, -1), interval(alone[:, 1])) > 0
    known = "no word unknown; new characters need bytes" if spelled and not alone[:, 0].any() else "fewer words unknown"
    first, axes = panels(f"Subwords leave {known}", 2, 4.6, 4.2)
    second, lengths = panels("The price of small vocabularies is longer sentences", 1, 5.5, 4.2)
    titles = ("lower case, as in training", "with capitals, never seen", "")
    for column, (axis, title) in enumerate(zip((*axes, *lengths), titles, strict=True)):
        for name, values in found.items():
            line(axis, sizes, values[:, :, column], label=name, **LOOKS[name])
        axis.set(xscale="log", xlabel="size of the vocabulary", xticks=sizes, ylim=(-2, 62) if title else (0, 36))
        axis.set_xticklabels([f"{size:,}" for size in sizes])
        axis.set_title(title, fontsize=12)
        axis.set_ylabel("unknown words of test2016, %" if title else "tokens per sentence of test2016")
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=11)
    third, (usual, less, longer), best = draw_losses()
    rows, bleu = [], {name: f"{row['single']['test2016']:.1f}" for name, row in stored("BPE", "words").items()}
    for (name, values), (n, size) in product(found.items(), enumerate(sizes)):
        rows.append([row := f"{name}, {size:,}", *map(stated, values[:, n].T), bleu.get(row, "–")])
    return Result(
        [first, second, third],
        ["vocabulary", "unknown words, %", "with capitals, %", "tokens per sentence", "BLEU (one training)"],
        rows,
        "by pair encoding is something in between it's a tradeoff right in the middle and it's going help you get rid "
        "of your unknown words",
        "Applied Deep Learning, L56.1",
        [
            f"With {sizes[-1]:,} entries, a vocabulary of words does not know {stated(words[:, 0])} % of the words of "
            f"a German test set, test2016; BPE without bytes, which falls back to characters, {stated(alone[:, 0])} %.",
            "BPE leaves no word unknown whose letters it saw in training, and with bytes none at all: of a text with "
            f"capitals, which it did not see, {stated(alone[:, 1])} % and {stated(both[:, 1])} % are unknown.",
            f"With {sizes[-1]:,} entries and one training each, BPE reaches {rows[-1][-1]} BLEU on test2016, and words "
            f"{rows[len(sizes) - 1][-1]}: on these captions, no clear difference.",
            f"Loss of a sentence of val (five seeds), 2,000 / 12,000 tokens of BPE: {usual} nats with dropout 0.3 and "
            f"3,000 steps; {less} with dropout 0.1; {longer} with 0.2 and 8,000 steps. Best against best, that is "
            f"{best}; the large vocabulary gets worse with the other trainings.",
        ],
        "BLEU is of tokenizers of the whole text, one training each, so it has no interval; the other columns are of "
        "tokenizers of random halves of it. Texts with many rare words, where subwords should help most, are not "
        "measured. BLEU and losses are stored: benchmarks/lecture_table.py and benchmarks/vocabularies.py.",
        verdict="not on this task" if alone[:, 0].mean() > words[:, 0].mean() else "holds here" if spelled else "holds",
        seeds=seeds,
        unit="random halves of the training text",
    )


if __name__ == "__main__":
    run(__file__, main)
