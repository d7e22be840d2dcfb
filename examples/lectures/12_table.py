"""The notes' results table in small: six systems on Multi30k English→German, at equal parameters."""

from lecture import panels, publish, stored

OLDER = ("RNN", "RNN with attention", "GNMT", "ByteNet", "ConvS2S")
LARGER = "Transformer, small"


def main():
    names = [*OLDER, "Transformer, tiny", LARGER]
    table = stored(*names)
    figure, (quality, cost) = panels(
        "At equal parameters, the Transformer translates best and costs least", 2, 6.5, 4.2
    )
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
        row = table[name]
        cost.scatter(row["flops"] / 1e15, row["single"]["test2016"], s=row["parameters"] / 5e4)
        cost.annotate(
            name, (row["flops"] / 1e15, row["single"]["test2016"]), xytext=(6, -12), textcoords="offset points"
        )
    cost.set(xscale="log", xlabel="training, 10¹⁵ floating-point operations", ylabel="BLEU, test2016")
    cost.margins(0.25, 0.15)
    rows = [row_of(name, table[name]) for name in names]
    tiny, best = table["Transformer, tiny"], max(table[name]["single"]["test2016"] for name in OLDER)
    gains = [table[name]["ensemble"]["test2016"] - table[name]["single"]["test2016"] for name in names]
    dates = sorted(table[name]["date"] for name in names)
    publish(
        __file__,
        figure,
        ["system", "parameters", "BLEU val", "test2016", "ensemble val", "test2016", "10¹⁵ FLOPs", "min on a GPU"],
        rows,
        "ensembles are going to give you the best performance but then you can have two different versions of your "
        "transformer a base model and a bigger model",
        "Applied Deep Learning, L56.1",
        f"Of the systems of one size, the Transformer is the best with {tiny['single']['test2016']:.1f} BLEU. The best "
        f"older one has {best:.1f}. A second model adds {min(gains):.1f} to {max(gains):.1f}. The larger Transformer "
        f"has {table[LARGER]['single']['test2016']:.1f}. The table is a stored one, of {dates[-1]}: "
        "benchmarks/lecture_table.py. (The same notes say that ByteNet introduced byte-pair encoding. It did not: it "
        "reads characters, and it was Sennrich et al. who brought BPE to translation.)",
        agrees=min(gains) > 0 and tiny["single"]["test2016"] > best,
    )


def row_of(name, row):
    bleu = [f"{row[kind][split]:.1f}" for kind in ("single", "ensemble") for split in ("val", "test2016")]
    time = f"{row['seconds'] / 60:.1f}" if "seconds" in row else "–"
    return [name, f"{row['parameters']:,}", *bleu, f"{row['flops'] / 1e15:.2f}", time]


if __name__ == "__main__":
    main()
