"""The notes' results table in small: six systems on Multi30k English→German, at about equal parameters."""

import json
import pathlib
from itertools import pairwise

import numpy as np
from lecture import Result, bars, interval, panels, run, stated, stored

OLDER = ("RNN", "RNN with attention", "GNMT", "ByteNet", "ConvS2S")
TINY, LARGER = "Transformer, tiny", "Transformer, small"
SPLITS, MINUTES = ("val", "test2016"), "GPU minutes (projected)"
PLACES = {"RNN with attention": {"xytext": (-13, -5), "ha": "right"}, LARGER: {"xytext": (0, 16), "ha": "center"}}
SEEDED = pathlib.Path(__file__).with_name("lecture_seeds.json")  # by benchmarks/lecture_seeds.py
# FLOPs of table 2 of https://arxiv.org/abs/1706.03762: lowest; highest of one model to German, to French; of all.
COSTS = 3.3e18, 2.3e19, 1.5e20, 1.2e21


def main():
    table = {name: stored(name)[name] for name in (*OLDER, TINY, LARGER)}
    seeded = json.loads(SEEDED.read_text())
    gains = {name: gains_of(row) for name, row in seeded.items()}  # (3, pairs)
    over_one, over_chosen, over_best = np.transpose([values.mean(1) for values in gains.values()])
    holds = is_clear(over_one) and is_clear(over_chosen)
    steps, seeds = seeded[TINY]["steps"], seeded[TINY]["losses"]
    bleu = {name: np.array(row["single"]["test2016"]) for name, row in seeded.items()}
    ranked = sorted(bleu, key=lambda name: -bleu[name].mean())
    order = ", ".join(f"{said(name)} ({stated(bleu[name])})" for name in ranked)
    alike = [f"{said(a)} and {said(b)}" for a, b in pairwise(ranked) if not is_clear(bleu[a] - bleu[b])]
    long = {name: row["single"]["test2016"] for name, row in table.items()}
    gained = f"{over_one.mean():.1f} BLEU over one model, {over_chosen.mean():.1f} over the better on val"
    title = f"An ensemble of two gains {gained if holds else 'nothing clear'}"
    ahead, behind = sorted((TINY, "ConvS2S"), key=lambda name: -bleu[name].mean())
    costs = [highest / COSTS[0] for highest in COSTS[1:]]
    return Result(
        [draw_seeds(title, ranked, seeded, gains), draw_cost(table, long)],
        ["system", "steps", "parameters", *SPLITS, *(f"ensemble, {each}" for each in SPLITS), MINUTES],
        [table_row(name, seeded[name]) for name in (*OLDER, TINY)] + [table_row(*item) for item in table.items()],
        "ensembles are going to give you the best performance but then you can have two different versions of your "
        "transformer a base model and a bigger model",
        "Applied Deep Learning, L56.1",
        [
            f"With {len(seeds)} short trainings of each of six systems, an ensemble of two has {stated(over_one)} BLEU "
            "more on test2016 than its models have on average (mean and 95 % interval over the systems). Over pairs of "
            f"seeds instead, that is clear for {clear_for(gains, 0)}.",
            "The control is the better of the same two models, chosen on val: if an ensemble only gained from having "
            f"two to choose from, that would do as well. The ensemble has {stated(over_chosen)} BLEU more; over pairs "
            f"of seeds, that is clear for {clear_for(gains, 1)}. Choosing on val gains only "
            f"{stated(over_one - over_chosen)}; over the model that is better on test2016 itself, which nobody can "
            f"choose, the ensemble still has {stated(over_best)} more.",
            f"By the mean on test2016, the order is {order}. "
            f"Neighbours in it differ beyond the interval{', but for ' * bool(alike)}{'; '.join(alike)}.",
            f"With {steps:,} steps, {said(ahead)} has a lead of {stated(bleu[ahead] - bleu[behind])} BLEU over "
            f"{said(behind)}; in one training each, with 8,000 and R-Drop, {long[ahead]:.1f} to {long[behind]:.1f}.",
            f"With one training each, of 8,000 steps, the larger Transformer has {long[LARGER]:.1f} BLEU on test2016; "
            f"the tiny one, with a fifth of the parameters, {long[TINY]:.1f}. That has no interval.",
            "Training costs are “on the same order” only for single models of English to German: in table 2 of "
            f"“Attention Is All You Need” these range over a factor of {costs[0]:.0f}, those of English to French over "
            f"{costs[1]:.0f}, and with ensembles all of them over {costs[2]:.0f}. Here they are about equal by design.",
        ],
        f"The five trainings of each system have {steps:,} steps only, without R-Drop; systems that learn slowly are "
        "behind for that reason, too. Each model is in two pairs, so the intervals of a single system are too narrow. "
        "An ensemble of two also has twice the parameters: one model of twice the size is the control that is missing. "
        "Rows of 8,000 steps are one training each, and their length penalty was chosen on val. The recipe was tuned "
        "on the Transformer; of the older systems only dropout and the clipping of gradients were changed, so they "
        "could probably do better. ByteNet reads BPE here, not the characters it was made for. Captions are short.",
        verdict="holds here" if holds else "not on this task",
        seeds=len(seeds),
    )


def said(name):
    """A name as it stands in a sentence."""
    return "the tiny Transformer" if name == TINY else name


def gains_of(row):
    """BLEU on test2016 of ensembles over the mean of their models, the better on val, and that on test: (3, pairs)."""
    pairs, ensemble = np.array(row["ensemble"]["seeds"]) - 1, np.array(row["ensemble"]["test2016"])
    val, test = (np.array(row["single"][split])[pairs] for split in SPLITS)
    chosen = np.take_along_axis(test, val.argmax(1)[:, None], axis=1)[:, 0]
    return np.stack([ensemble - test.mean(1), ensemble - chosen, ensemble - test.max(1)])


def is_clear(values):
    """Whether the interval is above zero."""
    mean, half = interval(values)
    return mean > half


def clear_for(gains, number):
    """The systems that gain, as text."""
    unclear = [f"{said(name)} ({stated(each[number])})" for name, each in gains.items() if not is_clear(each[number])]
    return f"all but {'; '.join(unclear)}" if unclear else "each of them"


def draw_seeds(title, names, seeded, gains):
    """BLEU of single models and ensembles, and what ensembles gain, with intervals."""
    figure, axes = panels(title, 2, 6.4, 4.8)
    labels = [name.replace(", tiny", "").replace(" ", "\n") for name in names]
    for n, (kind, label) in enumerate((("single", "one model"), ("ensemble", "ensemble of two"))):
        values = np.transpose([seeded[name][kind]["test2016"] for name in names])
        bars(axes[0], labels, values, 0.4 * n - 0.2, 0.36, label=label, color=f"C{n}")
    for n, label in enumerate(("one model", "the better on val", "the better on test2016")):
        values = np.transpose([gains[name][n] for name in names])
        bars(axes[1], labels, values, 0.27 * n - 0.27, 0.24, label=f"over {label}", color=("C2", "C4", "C7")[n])
    for axis, label in zip(axes, ("BLEU, test2016", "gain of an ensemble, BLEU"), strict=True):
        axis.set(ylabel=label, ylim=(None, 1.3 * axis.get_ylim()[1]))  # room for the legend
        axis.tick_params(axis="x", labelsize=11)
        axis.legend(frameon=False, fontsize=11, loc="upper right")
    return figure


def draw_cost(table, bleu):
    """BLEU against the time of a training, with circles as large as the models."""
    minutes = {name: row["seconds"] / 60 for name, row in table.items()}
    fast = min(minutes, key=minutes.get)
    took = {name: f"{minutes[name]:.1f} minutes for {bleu[name]:.1f} BLEU" for name in (fast, TINY)}
    figure, (axis,) = panels(f"On a GPU, {fast} would take {took[fast]}, the tiny Transformer {took[TINY]}", 1, 8, 4.5)
    for name, row in table.items():
        axis.scatter(minutes[name], bleu[name], s=row["parameters"] / 4e4, zorder=2)
        place = PLACES.get(name, {"xytext": (12, -5)})
        axis.annotate(name, (minutes[name], bleu[name]), textcoords="offset points", **place)
    axis.set_title("the area of a circle is the number of parameters", fontsize=12)
    axis.set(xlabel="minutes for 8,000 steps, projected from 300 steps", ylabel="BLEU, test2016")
    axis.set(xlim=(0, 1.15 * max(minutes.values())), ylim=(25, 46))
    return figure


def table_row(name, row):
    """Cells of a system that was trained with several seeds, or once."""
    write = "{:.1f}".format if "seconds" in row else stated
    bleu = [write(row[kind][split]) for kind in ("single", "ensemble") for split in SPLITS]
    minutes = f"{row['seconds'] / 60:.1f}" if "seconds" in row else "–"
    return [name, f"{row['steps']:,}", f"{row['parameters'] / 1e6:.1f} M", *bleu, minutes]


if __name__ == "__main__":
    run(__file__, main)
