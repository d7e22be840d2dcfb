"""Through one vector, long sentences are learned slowly; which words come out best depends on the order of writing."""

import keras
import numpy as np
from lecture import Result, chance, interval, line, panels, run, stated
from measure import trained

from keras_tfm import models

RNN, MORE, WORDS, LONGEST, EPOCHS, BATCH = "RNN", "RNN, 4 × the steps", 20, 12, 4, 64
LENGTHS, PLACES, TWO = np.arange(2, LONGEST + 1), np.arange(1, LONGEST + 1), "{} % and {} %".format
DICTIONARY = np.concatenate([[0, 1, 2], 3 + np.random.default_rng(0).permutation(WORDS)])
SIZES = {"vocab_size": 3 + WORDS, "model_dim": 64, "dropout": 0.0}
BUILDERS = {
    "RNN": lambda: models.rnn(**SIZES, units=80),
    "RNN with attention": lambda: models.rnn_attention(**SIZES, units=72),
    "ConvS2S": lambda: models.conv(**SIZES, units=50, num_layers=2),
    "Transformer": lambda: models.transformer(**SIZES, num_layers=2, num_heads=4, ff_dim=80, norm_first=True),
}
ORDERS = {"": int, "last word first": lambda place: -place, "odd words first": lambda place: place % 2}
# model, order, times the steps, shortest sentence in training
PLANS = {n: (n, "", 1, 2) for n in BUILDERS} | {f"RNN, {order}": (RNN, order, 1, 2) for order in [*ORDERS][1:]}
PLANS |= {MORE: (RNN, "", 4, 2), "Transformer, 2 × the steps": ("Transformer", "", 2, 2)}
PLANS["Transformer, long ones only"] = ("Transformer", "", 1, LONGEST)


def data(count, seed, order="", shortest=2):
    """Random words, and their translations by a dictionary, word for word, in an order."""
    rng, places = np.random.default_rng(seed), np.arange(LONGEST + 1)
    lengths = rng.integers(shortest, LONGEST + 1, (count, 1))
    source = np.where(places < lengths, rng.integers(3, 3 + WORDS, (count, LONGEST + 1)), 0)
    turns = [[*sorted(range(n), key=ORDERS[order]), *places[n:]] for n in range(LONGEST + 1)]
    target = DICTIONARY[np.take_along_axis(source, np.array(turns)[lengths[:, 0]], axis=1)]
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    return {"source": source[:, :-1], "target": before}, np.where(places == lengths, 2, target)


def read_out(model):
    """Percentage of words that a linear classifier reads from the summary of long sentences, for each place."""
    words = data(4000, 998, shortest=LONGEST)[0]["source"]
    summary = np.pad(np.array(model.encode(words))[:, 0], ((0, 0), (0, 1)), constant_values=1)
    (x, fresh), (y, truth) = np.split(summary, [3000]), np.split(words, [3000])
    ridge = np.linalg.inv(x.T @ x + 0.1 * np.eye(x.shape[1])) @ x.T
    return 100 * (np.tensordot(fresh @ ridge, np.eye(3 + WORDS)[y], 1).argmax(-1) == truth).mean(0)


def measure(name, steps, tests, seeds):
    """For each seed: words translated correctly, in %, by length, place and turn; words that a classifier reads."""
    kind, order, times, shortest = PLANS[name]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps * times)
    makers = BUILDERS[kind], lambda seed: data(steps * times * BATCH // EPOCHS, seed, order, shortest)
    fresh = [data(tests, 999, order, least) for least in (2, LONGEST)]
    for _, model, _ in trained(name, *makers, seeds, EPOCHS, BATCH, rate, loss):
        hits = [100.0 * (model.predict(x, batch_size=500, verbose=0).argmax(-1) == y) for x, y in fresh]
        right, by_turn = np.where(fresh[0][1] > 2, hits[0], np.nan), hits[1][:, :LONGEST].mean(0)  # NaN: no word
        by_length = [np.nanmean(right[(right >= 0).sum(1) == n]) for n in LENGTHS]
        by_place = by_turn[np.argsort(sorted(range(LONGEST), key=ORDERS[order]))]
        yield by_length, by_place, by_turn, read_out(model) if kind == "RNN" else PLACES


def draw(title, names, values, x=PLACES, xlabel="place of the source word", ylabel="words translated correctly, %"):
    figure, (axis,) = panels(title, 1, 7.5, 4.4)
    for name, style in zip(names, ("o-11", "s-8", "^-6", "v-5", "D-6"), strict=False):
        line(axis, x, values[name], marker=style[0], linestyle=style[1], markersize=int(style[2:]), label=name)
    chance(axis, 100 / WORDS)
    axis.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 105), xticks=x[1::2])
    axis.legend(frameon=False, fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main(seeds=5, steps=250, tests=1000):
    found = {name: [np.array(v) for v in zip(*measure(name, steps, tests, seeds), strict=True)] for name in PLANS}
    found["RNN, first word first"] = found[RNN]
    length, place, turn, read = ({name: values[n] for name, values in found.items()} for n in range(4))
    read["untrained"] = np.array([read_out(BUILDERS[RNN]()) for _ in range(seeds)])
    rnns, ours = ["RNN, first word first", *[*PLANS][4:6]], [name for name in PLANS if "Transformer" in name]
    end, last = ({n: f"{stated(values[n][:, -1])} %" for n in found} for values in (length, place))
    ends = {n: "last word in {} % and the first in {} %".format(*map(stated, v[:, [-1, 0]].T)) for n, v in read.items()}
    early, late = ([v[n].reshape(seeds, 2, -1).mean(2).T for n in rnns] for v in (turn, place))  # first and last half
    recent, half = [np.subtract(*interval(b - a)) > 0 for a, b in late], [TWO(*map(stated, v)) for v in early]
    best = "best" if all(np.mean(a) > np.mean(b) for a, b in early) else "best in some orders only"
    gained, (gap, wide) = length[MORE] - length[RNN], interval(read[RNN][:, 0] - read[RNN][:, -1])
    slow = "learned slowly" if np.subtract(*interval(gained[:, -1])) > 0 else "translated badly"
    kept = "as well as" if abs(gap) < wide else "better than" if gap > 0 else "worse than"
    kept = f"Trained to write in order, an RNN keeps the first word {kept} the last"
    return Result(
        [
            draw(f"Without attention, long sentences are {slow}", [*BUILDERS, MORE], length, LENGTHS, "words to read"),
            draw(f"What an RNN writes first is translated {best}", rnns, place),
            draw(kept, [*rnns, "untrained"], read, ylabel="read from the summary\nby a linear classifier, %"),
            draw("The Transformer gets the last words right after more training", ours, place),
        ],
        ["model", "5 words, %", f"{LONGEST} words", f"1st of {LONGEST}", f"{LONGEST}th of {LONGEST}"],
        [[n, *map(stated, [*length[n][:, [3, -1]].T, *place[n][:, [0, -1]].T])] for n in PLANS],
        "the encoder representation also has a recency bias: mostly represents final words of the input; target words "
        "whose corresponding source words are at the beginning therefore more difficult to generate correctly.",
        "NLU Lecture 10, RNN problem",
        [
            f"Through one vector, an RNN gets {end[RNN]} of the words of sentences of {LONGEST} right, after 4 times "
            f"the steps {end[MORE]}.",
            f"With attention, {end['RNN with attention']} of the words of sentences of {LONGEST} are right, without it "
            f"{end[RNN]}; in ConvS2S and the Transformer, which have it, too, {end['ConvS2S']} and {end[ours[0]]}.",
            f"From the summary of an untrained RNN, a linear classifier reads the {ends['untrained']}; if the RNN is "
            f"trained to write in order, the {ends[RNN]}; to write the last word first, the {ends[rnns[1]]}.",
            f"Of the first and the last six words that it writes, an RNN gets {half[0]} right in order, {half[1]} with "
            f"the last word first, and {half[2]} with odd words first: what it writes first is translated {best}.",
            f"Of the last words, the Transformer gets {last[ours[0]]} right, after twice the steps {last[ours[1]]}, "
            f"and {last[ours[2]]} if all sentences in training have {LONGEST} words.",
        ],
        "The words are random, and the decoder reads the right words before each one (teacher forcing). How much a "
        "summary could hold, and what happens with real text, is not shown.",
        verdict="holds" if all(recent) else "holds here" if recent[0] else "not on this task",
        seeds=seeds,
    )


if __name__ == "__main__":
    run(__file__, main)
