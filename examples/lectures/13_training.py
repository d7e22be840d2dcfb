"""In training, the decoder reads the right words, all at once; when it translates, it reads its own, one by one."""

import numpy as np
from lecture import Result, interval, line, panels, run, stated
from measure import percent, trained

from keras_tfm.models import transformer
from keras_tfm.training import SmoothedCrossentropy

WORDS, LENGTH, BATCH, EPOCHS, START = 12, 10, 64, 6, 1
SOURCE, TARGET = 4, 4 + WORDS  # the first ids; word w is translated by 2w or 2w + 1, by gender
AGREES, ALONE, COPY = "each word agrees with the last", "words stand alone", "without the shift"


def data(count, seed, kind=AGREES):
    """Random words, and their translations; each keeps or switches the gender of the one before, or has its own."""
    source = np.random.default_rng(seed).integers(0, WORDS, (count, LENGTH))
    switches = np.random.default_rng(0).permutation(WORDS) % 2
    gender = switches[source] if kind == ALONE else np.cumsum(switches[source], axis=1) % 2
    target = TARGET + 2 * source + gender
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)  # shifted to the right by one
    return {"source": source + SOURCE, "target": target if kind == COPY else before}, target


def build():
    sizes = {"num_layers": 2, "model_dim": 48, "num_heads": 4, "ff_dim": 96, "dropout": 0.0}
    return transformer(TARGET + 2 * WORDS, **sizes, norm_first=True)


def decode(model, source, target=None, first=None):
    """Logits (rows, LENGTH, words) of decoding in steps; it reads the target, or its own words, or first `first`."""
    cache, read, logits = model.prefill(source, LENGTH), np.full((len(source), 1), START), []
    for place in range(LENGTH):
        step, cache = model.step(read, place, cache)
        logits.append(np.array(step[:, 0]))
        own = logits[-1].argmax(-1) if first is None or place else first
        read = (own if target is None else target[:, place])[:, None]
    return np.stack(logits, axis=1)


def measure(kind, seeds, steps, rows):
    """For each seed: losses in training; accuracy by place, forced and free; how far a pass is off; what changes."""
    found, (x, y) = [], data(rows, 0, kind)
    plan = (lambda seed: data(steps * BATCH // EPOCHS, seed, kind)), seeds, EPOCHS, BATCH, 2e-3
    for _, model, history in trained(kind, build, *plan, loss=SmoothedCrossentropy(0.0)):
        forced, free = decode(model, x["source"], y), decode(model, x["source"]).argmax(-1)
        off = abs(np.array(model(x)) - forced).max()  # the logits of one pass over all places
        wrong = TARGET + (free[:, 0] - TARGET ^ 1)  # the other gender
        changed = (decode(model, x["source"], first=wrong).argmax(-1) != free)[:, 1:].mean()
        right = (100 * (forced.argmax(-1) == y).mean(0), 100 * (free == y).mean(0))
        found.append((history["loss"], *right, off, 100 * changed))
    return [np.array(each) for each in zip(*found, strict=True)]


def draw(found, gaps):
    places, chance = range(1, LENGTH + 1), 100 / (2 * WORDS)
    lost, control = (gaps[kind].mean() for kind in (AGREES, ALONE))
    title = f"Reading its own words costs {lost:.0f} points at place {LENGTH}, {control:.0f} where words stand alone"
    figure, axes = panels(title, 2, 5.5, 4)
    for axis, kind in zip(axes, (AGREES, ALONE), strict=True):
        line(axis, places, found[kind][1], label="reads the right words", marker="o", lw=2)
        line(axis, places, found[kind][2], label="reads its own words", marker="s", lw=2, linestyle="--")
        axis.set_title(kind, fontsize=12)
        axis.set(xlabel="place of the word", ylabel="correct, %", ylim=(0, 105), xticks=places)
    loss, own = found[COPY][0][:, -1].mean(), found[COPY][2].mean()
    title = f"Without the shift, the loss falls to {loss:.1g}, and {own:.0f} % of the words are translated correctly"
    other, (left, right) = panels(title, 2, 5.5, 4)
    for kind, label in ((AGREES, "with the shift"), (COPY, COPY)):
        line(left, range(1, EPOCHS + 1), found[kind][0], label=label, marker="o", lw=2)
        line(right, places, found[kind][2], label=label, marker="o", lw=2)
    left.set(xlabel="epoch", ylabel="loss in training, nats per word", ylim=(0, None))
    right.set(xlabel="place of the word", ylabel="translated correctly, %", ylim=(0, 105), xticks=places)
    for axis in (*axes, right, left):
        if axis is not left:
            axis.axhline(chance, color="black", linestyle=":", label="guessing")
        axis.legend(frameon=False, fontsize=11)
    return [figure, other]


def main(seeds=5, steps=120, rows=500):
    found = {kind: measure(kind, seeds, steps, rows) for kind in (AGREES, ALONE, COPY)}
    gaps = {kind: forced[:, -1] - free[:, -1] for kind, (_, forced, free, *_) in found.items()}
    gap, change = ({kind: percent(x[kind]) for kind in found} for x in (gaps, {k: f[-1] for k, f in found.items()}))
    columns = [f"{name}: place {place}, %" for name in ("right words", "its own") for place in (1, LENGTH)]
    rows = [
        [kind, stated(losses[:, -1]), *(percent(each[:, place]) for each in read for place in (0, -1)), gap[kind]]
        for kind, (losses, *read, _, _) in found.items()
    ]
    more, others = (x[AGREES] - x[ALONE] for x in (gaps, {kind: f[-1] for kind, f in found.items()}))
    off = max(found[kind][3].max() for kind in (AGREES, ALONE))
    shown = off < 1e-3 and np.dot((1, -1), interval(more)) > 0 and np.dot((1, -1), interval(others)) > 10
    return Result(
        draw(found, gaps),
        ["task", "loss in training", *columns, f"gap at place {LENGTH}", "change with the first word, %"],
        [[*row, change[row[0]]] for row in rows],
        "the inputs at step 2&3 will be based on the output at step 1",
        "CS 182, Lecture 12, Masked decoding",
        [
            f"One pass over all places gives the same logits as {LENGTH} steps with a cache that read the same words "
            f"(they differ by at most {off:.1g}), so training needs no loop.",
            f"Decoding needs a loop: if the first word is replaced by its other translation, {change[AGREES]} % of the "
            f"words after it change where each agrees with the last; where words stand alone, {change[ALONE]} %.",
            f"Reading its own words costs the decoder {gap[AGREES]} points at place {LENGTH}, and {gap[ALONE]} in the "
            "control, which after a short training relies on its last word without need. Seed by seed, it is "
            f"{stated(more)} more where words depend on each other: errors add up.",
            f"Of the right words, the decoder that reads them learns later ones later: {rows[0][2]} % are correct at "
            f"place 1 when training is stopped, {rows[0][3]} % at place {LENGTH}.",
            "A decoder without the shift reads at each place the word that it is to write: its loss falls to "
            f"{found[COPY][0][:, -1].mean():.1g}, and it translates {percent(found[COPY][2].mean(1))} % correctly.",
        ],
        limits="A made-up language, and models that were stopped early so that they make mistakes: how large the gap "
        "is in a real translator, which makes other mistakes and can recover from some, is not shown.",
        verdict="holds" if shown else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
