"""The notes' results table in small: six systems on Multi30k English→German, at about equal parameters."""

from lecture import Result, interval, panels, run, stated, stored

OLDER = ("RNN", "RNN with attention", "GNMT", "ByteNet", "ConvS2S")
TINY, LARGER = "Transformer, tiny", "Transformer, small"
SPLITS = ("val", "test2016")
SEEDS = (41.88, 41.41, 41.61)  # test2016 of the tiny Transformer after 18,000 steps: docs/benchmarks.md
COSTS = 3.3e18, 1.2e21  # FLOPs: the lowest and highest of table 2 of https://arxiv.org/abs/1706.03762


def main():
    names = [*OLDER, TINY, LARGER]
    table = stored(*names)
    val, bleu = ({name: table[name]["single"][split] for name in names} for split in SPLITS)
    second, older = sorted(OLDER, key=bleu.get)[-2:]
    gap, wider = bleu[TINY] - bleu[older], val[TINY] - val[older]
    gains = {
        split: [table[name]["ensemble"][split] - table[name]["single"][split] for name in names] for split in SPLITS
    }
    ensembles = {
        split: mean - half > 0 for split, (mean, half) in zip(gains, map(interval, gains.values()), strict=True)
    }
    worse = [name for name, gain in zip(names, gains["test2016"], strict=True) if gain < 0]
    title = f"Against {older}, the tiny Transformer has {wider:+.1f} BLEU on val and {gap:+.1f} on test2016"
    figures = [
        draw_quality(title + " (too close to call)" * (abs(gap) < 1), table, names),
        draw_cost(table, names, bleu),
    ]
    flops = [table[name]["flops"] for name in (*OLDER, TINY)]
    return Result(
        figures,
        ["system", "parameters", "BLEU val", "test2016", "ensemble val", "test2016", "10¹⁵ FLOPs", "min on a GPU"],
        [row_of(name, table[name]) for name in names],
        "ensembles are going to give you the best performance but then you can have two different versions of your "
        "transformer a base model and a bigger model",
        "Applied Deep Learning, L56.1",
        [
            f"A second model adds {stated(gains['val'])} BLEU on val and {stated(gains['test2016'])} on test2016 (mean "
            f"and 95 % interval over these seven systems): {spoken(ensembles)}. The length penalty was chosen on val, "
            "so the gain there is optimistic.",
            f"On test2016, ensembles of two are worse than one model for {len(worse)} of {len(names)} systems"
            f"{': ' * bool(worse)}{' and '.join(worse)}.",
            f"The larger Transformer, with five times the parameters, has {bleu[LARGER]:.1f} BLEU on test2016, the "
            f"tiny one {bleu[TINY]:.1f}.",
            f"Of the older systems of its size, {older} is {gap:.1f} BLEU behind the tiny Transformer on test2016, "
            f"{wider:.1f} on val, and {second} is next. On a thousand sentences, gaps under one point mean little: "
            "three trainings of the tiny Transformer, with 18,000 steps and not the 8,000 of this table, range from "
            f"{min(SEEDS)} to {max(SEEDS)} on test2016.",
            f"An RNN without attention is {bleu['RNN with attention'] - bleu['RNN']:.0f} BLEU behind the one with it: "
            "that gap is clear.",
            "Training costs are not “on the same order”: in table 2 of “Attention Is All You Need” they range "
            f"over a factor of {COSTS[1] / COSTS[0]:.0f}, and its abstract claims “a small fraction of the training "
            f"costs”. Here, {min(flops) / 1e15:.2f} to {max(flops) / 1e15:.2f} · 10¹⁵ FLOPs are near each other as "
            "sizes and steps were made equal.",
        ],
        f"Each row is one training, stored on {max(row['date'] for row in table.values())}, so it has no interval of "
        "its own. The recipe was tuned on the Transformer; of the older systems only dropout and the clipping of "
        "gradients were changed, so their rows are lower bounds. ByteNet reads BPE here and not the characters it was "
        "made for: its row says little about ByteNet. Minutes are projected from one timing of 300 steps. And captions "
        "are short: 12 words on average.",
        verdict="holds" if all(ensembles.values()) else "holds here" if any(ensembles.values()) else "not on this task",
        seeds=1,
    )


def spoken(ensembles):
    """For which splits the interval of the gain is above zero."""
    return ", ".join(f"{'holds' if better else 'not clear'} on {split}" for split, better in ensembles.items())


def draw_quality(title, table, names):
    figure, axes = panels(title, 2, 5.5, 5)
    for axis, split in zip(axes, SPLITS, strict=True):
        for shift, kind, label in ((0.2, "single", "one model"), (-0.2, "ensemble", "ensemble of two")):
            values = [table[name][kind][split] for name in names]
            drawn = axis.barh([shift - height for height in range(len(names))], values, 0.36, label=label, zorder=2)
            axis.bar_label(drawn, fmt="%.1f", padding=3, fontsize=11)
        axis.set(xlabel=f"BLEU, {split}, beam 5", xlim=(0, 52))
        axis.set_yticks([-height for height in range(len(names))], names if axis is axes[0] else [""] * len(names))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, loc="outside lower center", ncols=2)
    return figure


def draw_cost(table, names, bleu):
    minutes = {name: table[name]["seconds"] / 60 for name in names}
    other = min(names[1:], key=minutes.get)  # names[0] is the RNN
    lead = "clearly" if minutes[other] > 1.5 * minutes["RNN"] else "not clearly"
    taken = f"it takes {minutes['RNN']:.1f} minutes, {other} {minutes[other]:.1f}"
    title = f"The RNN is {lead} the fastest on a GPU: {taken}"
    figure, (axis,) = panels(title, 1, 7.5, 4.5)
    for name in names:
        axis.scatter(minutes[name], bleu[name], s=table[name]["parameters"] / 4e4, zorder=2)
        place = {"xytext": (-13, -5), "ha": "right"} if name == "RNN with attention" else {"xytext": (12, -5)}
        place = {"xytext": (0, 16), "ha": "center"} if name == LARGER else place
        axis.annotate(name, (minutes[name], bleu[name]), textcoords="offset points", **place)
    axis.set_title("the area of a circle is the number of parameters", fontsize=12)
    axis.set(xlabel="minutes for 8,000 steps, projected from 300 steps", ylabel="BLEU, test2016", ylim=(25, 46))
    axis.set_xlim(0, 1.15 * max(minutes.values()))
    return figure


def row_of(name, row):
    bleu = [f"{row[kind][split]:.1f}" for kind in ("single", "ensemble") for split in SPLITS]
    return [name, f"{row['parameters']:,}", *bleu, f"{row['flops'] / 1e15:.2f}", f"{row['seconds'] / 60:.1f}"]


if __name__ == "__main__":
    run(__file__, main)
