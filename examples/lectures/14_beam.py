"""Beam search finds what is more probable; with a wide beam that is too short, unless scores are divided by length."""

import keras
import numpy as np
from lecture import Result, interval, panels, run, stated
from measure import percent, trained
from phrases import END, ENGLISH, LONGEST, MAX, START, WORDS, data, read_back

from keras_tfm.decoding import Beam
from keras_tfm.models import transformer
from keras_tfm.training import SmoothedCrossentropy

BATCH, EPOCHS, MISSING, BEAMS, ALPHA = 64, 6, 0.1, (1, 2, 16), 0.6
PLAIN, DIVIDED, GNMT, CONTROL = "plain", "divided by length", "divided as by Google", "plain, nothing missing"
SEARCHES = (PLAIN, "length", 0.0), (DIVIDED, "length", 1.0), (GNMT, "gnmt", ALPHA)


def build():
    return transformer(len(WORDS), num_layers=1, model_dim=48, num_heads=4, ff_dim=96, dropout=0.0, norm_first=True)


def measure(model, penalty, length_penalty):
    """For each beam: mean log probability of what is found, right and empty translations in %, right by length."""
    source = np.concatenate([data(40, 0, 0.0, [length])[0]["source"] for length in range(1, LONGEST + 1)])
    found = []
    for size in BEAMS:
        written = model.generate(source, MAX, Beam(size, length_penalty, penalty))
        read = np.pad(written[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        logits = keras.ops.log_softmax(model.predict({"source": source, "target": read}, verbose=0, batch_size=200))
        scores = np.take_along_axis(np.array(logits), written[:, :, None], axis=2)[:, :, 0]
        right = 100 * (read_back(written) == source).all(1).reshape(LONGEST, -1).mean(1)
        probability = (scores * (written > 0)).sum(1).mean()
        found.append([probability, right.mean(), 100 * (written[:, 0] == END).mean(), *right])
    return found


def draw_tree(model, source, width=3):
    """Draws the search for one source: what it keeps, drops and ends, one step to the right of the other."""
    figure, (axis,) = panels(f"Beam search for “picture cup” keeps {width} beginnings at each step", 1, 12, 5)
    axis.set_title("blue: kept, grey: dropped, green: ended (■); – is padding; numbers: sums of logs", fontsize=12)
    look, box = {"ha": "center", "va": "center", "fontsize": 11}, {"boxstyle": "round", "fc": "white", "ec": "0.8"}
    axis.text(0, 0, "start", bbox=box, **look)
    alive, best, where = [((START,), 0.0)], ((), -np.inf), {(START,): (0, 0)}
    while alive and alive[0][1] > best[1]:
        target = np.array([tokens for tokens, _ in alive])
        logits = model({"source": np.repeat(source, len(alive), axis=0), "target": target})[:, -1]
        rows = np.array(keras.ops.log_softmax(logits))
        options = [((*alive[n][0], token), alive[n][1] + more) for (n, token), more in np.ndenumerate(rows)]
        alive, options = [], sorted(options, key=lambda option: -option[1])[: width + 2]
        for rank, (tokens, score) in enumerate(options):
            color = "0.6" if rank >= width else "C2" if tokens[-1] == END else "C0"
            where[tokens] = len(tokens) - 1, -rank
            axis.plot(*zip(where[tokens[:-1]], where[tokens], strict=True), color=color)
            axis.text(*where[tokens], f"{WORDS[tokens[-1]]}\n{score:.2f}", color=color, bbox=box, **look)
            best = (tokens, score) if color == "C2" and score > best[1] else best
            alive += [(tokens, score)] if color == "C0" else []
    path = [where[best[0][: n + 1]] for n in range(len(best[0]))]
    axis.plot(*zip(*path, strict=True), color="C2", lw=6, alpha=0.4, zorder=0)
    axis.axis("off")
    return figure


def draw(found):
    """What wider beams gain in probability, and how much is right, by beam and by number of nouns: a figure each."""
    wide, plain = f"a beam of {BEAMS[-1]}", found[PLAIN][:, -1].mean(0)
    without, nouns = f"Without a division, {wide} gets", range(1, LONGEST + 1)
    gain, right, longer = ({} for _ in range(3))
    for name, x in found.items():
        gain[name], right[name], longer[name] = x[:, 1:, 0] - x[:, :1, 0], x[:, :, 1], x[:, -1, 3:]
    figures = [
        ("A wider beam finds more probable translations", gain, BEAMS[1:], "beam", "nats above greedy search"),
        (f"{without} {plain[1]:.0f} % right", right, BEAMS, "beam", "right, %"),
        (f"{without} {plain[-1]:.0f} % right with {LONGEST} nouns", longer, nouns, "nouns", f"right with {wide}, %"),
    ]
    for number, (title, values, names, xlabel, ylabel) in enumerate(figures):
        figure, (axis,) = panels(title, 1, 8, 4.6)
        for place, (name, each) in enumerate(values.items()):
            mean, half = interval(each)
            ends = half if values is gain else [np.minimum(half, mean), np.minimum(half, 100 - mean)]  # 0 to 100 %
            axis.bar(np.arange(len(names)) + 0.2 * place - 0.3, mean, 0.18, yerr=ends, capsize=3, label=name, zorder=2)
        axis.set(xlabel=xlabel, ylabel=ylabel, xticks=range(len(names)), xticklabels=names)
        axis.set_ylim(0, None if values is gain else 105)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=11)
        figures[number] = figure
    return figures


def main(seeds=5, steps=300):
    found, tree = {name: [] for name in (PLAIN, DIVIDED, GNMT, CONTROL)}, None
    plan = (build, lambda seed, missing: data(steps * BATCH // EPOCHS, seed, missing), seeds, EPOCHS, BATCH, 3e-3)
    for missing, _, model, _ in trained("translators", *plan, sizes=(MISSING, 0.0), loss=SmoothedCrossentropy(0.0)):
        tree = tree or draw_tree(model, np.array([[ENGLISH, ENGLISH + 7, END, 0, 0, 0]]))  # picture cup
        for name, *penalty in SEARCHES if missing else ((CONTROL, "length", 0.0),):
            found[name].append(measure(model, *penalty))
    found = {name: np.array(values) for name, values in found.items()}  # (seeds, beams, what was measured)
    lost = {name: values[:, 0, 1] - values[:, -1, 1] for name, values in found.items()}
    low, high = ({name: np.dot((1, sign), interval(x)) for name, x in lost.items()} for sign in (-1, 1))
    gain = found[PLAIN][:, :, 0] - found[PLAIN][:, :1, 0]
    at = {name: [f"{percent(values[:, place, 1])} %" for place in (0, -1)] for name, values in found.items()}
    rows = [[name, str(beam), x[:, n]] for name, x in found.items() for n, beam in enumerate(BEAMS)]
    rows = [[name, beam, stated(x[:, 0]), *map(percent, x[:, [1, 2, -1]].T)] for name, beam, x in rows]
    return Result(
        [tree, *draw(found)],
        ["search", "beam", "log probability", "right, %", "empty, %", f"right, {LONGEST} nouns, %"],
        rows,
        "it had to change its beam search a little bit as well",
        "Applied Deep Learning, L56.1, on Google’s translator",
        [
            "“ein” is likelier than “eine”, but “eine Aufnahme” likelier than “ein Bild”, a trap for greedy search: "
            f"what a beam of 2 finds is more probable by {stated(gain[:, 1])} nats.",
            f"What a beam of {BEAMS[-1]} finds is more probable than what greedy search finds by {stated(gain[:, -1])} "
            f"nats, and {'far worse' if low[PLAIN] > 5 else 'no better'}: {at[PLAIN][1]} of it is right, with any of a "
            f"noun’s translations, against {at[PLAIN][0]}; {percent(found[PLAIN][:, -1, 2])} % is empty.",
            "A translation of n nouns keeps less than half of its probability with each noun; the empty one keeps "
            f"{100 * MISSING:.0f} %, the share of training pairs that lack theirs, and wins from about three nouns on.",
            f"With a beam of {BEAMS[-1]}, {at[PLAIN][1]} is right if scores are not divided, {at[DIVIDED][1]} if they "
            f"are divided by the length, {at[GNMT][1]} with Google’s divisor, ((5 + |y|) / 6)^{ALPHA}.",
            f"The control, trained on complete pairs, gets {at[CONTROL][1]} right with a beam of {BEAMS[-1]}.",
        ],
        "A made-up language with a fault in its data that was put there to show the effect: how often real data has "
        "such faults, and what a beam gains where a model is less sure of the words, is another question.",
        "holds here" if low[PLAIN] > max(5, high[DIVIDED], high[CONTROL]) else "not on this task",
        seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
