"""The notes' results table in small: six systems on Multi30k English→German, at about equal parameters."""

from lecture import Result, panels, run, stored

OLDER = ("RNN", "RNN with attention", "GNMT", "ByteNet", "ConvS2S")
TINY, LARGER = "Transformer, tiny", "Transformer, small"


def main():
    names = [*OLDER, TINY, LARGER]
    table = stored(*names)
    val, bleu = ({name: table[name]["single"][split] for name in names} for split in ("val", "test2016"))
    minutes = {name: table[name]["seconds"] / 60 for name in names}
    best, older = max((*OLDER, TINY), key=val.get), max(OLDER, key=val.get)
    fastest = min(minutes, key=minutes.get)
    title = f"Of the systems of one size, {spoken(best)} translates best and {spoken(fastest)} trains fastest"
    figure, (quality, cost) = panels(title, 2, 6.5, 4.2)
    heights = range(len(names))
    for shift, kind in ((0.2, "single"), (-0.2, "ensemble")):
        values = [table[name][kind]["test2016"] for name in names]
        label = {"single": "one model", "ensemble": "ensemble of two"}[kind]
        bars = quality.barh([-height + shift for height in heights], values, 0.36, label=label)
        quality.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
    quality.set_yticks([-height for height in heights], names)
    quality.set(xlabel="BLEU, test2016, beam 5", xlim=(0, 50))
    quality.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=2)
    for name in names:
        cost.scatter(minutes[name], bleu[name], s=table[name]["parameters"] / 5e4)
        beside = {"xytext": (-13, -4), "ha": "right"} if name == "RNN with attention" else {"xytext": (13, -4)}
        cost.annotate(name, (minutes[name], bleu[name]), textcoords="offset points", **beside)
    cost.set(xlabel="training on one GPU, minutes", ylabel="BLEU, test2016", xlim=(0, 1.4 * max(minutes.values())))
    cost.margins(y=0.15)
    gains = {
        split: [table[name]["ensemble"][split] - table[name]["single"][split] for name in names]
        for split in ("val", "test2016")
    }
    gained = " and ".join(f"{min(found):+.1f} to {max(found):+.1f} on {split}" for split, found in gains.items())
    return Result(
        figure,
        ["system", "parameters", "BLEU val", "test2016", "ensemble val", "test2016", "10¹⁵ FLOPs", "min on a GPU"],
        [row_of(name, table[name]) for name in names],
        "ensembles are going to give you the best performance but then you can have two different versions of your "
        "transformer a base model and a bigger model",
        "Applied Deep Learning, L56.1",
        f"Of the systems of about one size, {spoken(best)} is the best on val: {val[best]:.1f} BLEU; of the older "
        f"ones, {older} is, with {val[older]:.1f}. On test2016 they have {bleu[best]:.1f} and {bleu[older]:.1f}: on a "
        f"thousand sentences, differences below one point mean little. The larger Transformer has {bleu[LARGER]:.1f} "
        f"there. A second model changes the score of a system by {gained}, so ensembles help as a rule, but not "
        f"always. The table is a stored one, of {max(row['date'] for row in table.values())}, by "
        "benchmarks/lecture_table.py: 8,000 steps for each system. (The same notes say that ByteNet introduced "
        "byte-pair encoding. It did not: it reads characters, and it was Sennrich et al. who brought BPE to "
        "translation.)",
        agrees=(min(gains["test2016"]) > 0 and best == TINY) or None,
    )


def spoken(name):
    return name if name in OLDER else "the Transformer"


def row_of(name, row):
    bleu = [f"{row[kind][split]:.1f}" for kind in ("single", "ensemble") for split in ("val", "test2016")]
    time = f"{row['seconds'] / 60:.1f}" if "seconds" in row else "–"
    return [name, f"{row['parameters']:,}", *bleu, f"{row['flops'] / 1e15:.2f}", time]


if __name__ == "__main__":
    run(__file__, main)
