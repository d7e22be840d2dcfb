"""A summary of fixed size fails on long sentences; it keeps what must be written first, not what came last."""

import keras
import numpy as np
from lecture import Result, fit, panels, run

from keras_tfm import models
from keras_tfm.decoding import greedy
from keras_tfm.training import SmoothedCrossentropy

WORDS, LONGEST, EPOCHS, BATCH = 30, 20, 6, 64
LENGTHS, PLACES = np.arange(2, LONGEST + 1), np.arange(1, LONGEST + 1)
DICTIONARY = np.concatenate([[0, 1, 2], 3 + np.random.default_rng(0).permutation(WORDS)])
SIZES = {"vocab_size": 3 + WORDS, "model_dim": 64, "dropout": 0.0}
RNN, BACKWARDS, LONGER, UNTRAINED = "RNN", "RNN, target backwards", "RNN, 4 × the steps", "RNN, untrained"
BUILDERS = {
    RNN: lambda: models.rnn(**SIZES, units=80),
    "RNN with attention": lambda: models.rnn_attention(**SIZES, units=72),
    "ConvS2S": lambda: models.conv(**SIZES, units=50, num_layers=2),
    "Transformer": lambda: models.transformer(**SIZES, num_layers=2, num_heads=4, ff_dim=80, norm_first=True),
}
PLANS = {name: (build,) for name, build in BUILDERS.items()}
PLANS |= {BACKWARDS: (BUILDERS[RNN], True), LONGER: (BUILDERS[RNN], False, 4)}


def data(count, seed, backwards=False, shortest=2):
    """Random words and their translations by a dictionary, word for word, from the first on or from the last on."""
    rng, places = np.random.default_rng(seed), np.arange(LONGEST + 1)
    lengths = rng.integers(shortest, LONGEST + 1, (count, 1))
    source = np.where(places < lengths, rng.integers(3, 3 + WORDS, (count, LONGEST + 1)), 0)
    order = np.where((places < lengths) & backwards, lengths - 1 - places, places)
    target = DICTIONARY[np.take_along_axis(source, order, axis=1)]
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    return {"source": source[:, :-1], "target": before}, np.where(places == lengths, 2, target)


def train(name, steps, build, backwards=False, times=1):
    keras.utils.set_random_seed(1)
    steps *= times
    model, decay = build(), keras.optimizers.schedules.CosineDecay(3e-3, steps)
    x, y = data(steps * BATCH // EPOCHS, 1, backwards)
    fit(name, model, x, y, EPOCHS, BATCH, learning_rate=decay, loss=SmoothedCrossentropy(0.0))
    return model, backwards


def correct(model, count, backwards, shortest=2):
    """Whether greedy decoding writes the right word at each place of fresh targets, NaN where there is no word."""
    x, y = data(count, 2, backwards, shortest)
    written = np.array(greedy(model.prefill, model.step, x["source"], LONGEST + 1))
    return np.where(y > 2, 100.0 * (written == y), np.nan)[:, :LONGEST]


def read_out(model):
    """Percentage of words that a linear classifier reads from the summary of long sentences, for each place."""
    words = data(5000, 3, shortest=LONGEST)[0]["source"]
    summary = np.pad(np.array(model.encode(words))[:, 0], ((0, 0), (0, 1)), constant_values=1)
    (x, fresh), (y, truth) = np.split(summary, [4000]), np.split(words, [4000])
    ridge = np.linalg.inv(x.T @ x + 0.1 * np.eye(x.shape[1])) @ x.T
    return 100 * (np.tensordot(fresh @ ridge, np.eye(3 + WORDS)[y], 1).argmax(-1) == truth).mean(0)


def main(steps=600, tests=2000):
    keras.utils.set_random_seed(1)
    reads, by_length, by_place, rows = {UNTRAINED: read_out(BUILDERS[RNN]())}, {}, {}, []
    for name, plan in PLANS.items():
        model, backwards = train(name, steps, *plan)
        right = correct(model, tests, backwards)
        by_length[name] = [np.nanmean(right[(right >= 0).sum(1) == n]) for n in LENGTHS]
        by_place[name] = correct(model, tests, backwards, LONGEST).mean(0)[:: -1 if backwards else 1]
        reads |= {name: read_out(model)} if model.name == "rnn" else {}
        rows.append([name, f"{model.count_params():,}", *(by_length[name][n - 2] for n in (5, 10, 20))])
        rows[-1] += [*by_place[name][[0, -1]], *(reads[name][[0, -1]] if name in reads else "––")]
    rows.append([UNTRAINED, rows[0][1], *"–––––", *reads[UNTRAINED][[0, -1]]])
    figure, axes = panels("A summary of fixed size fails on long sentences, and keeps what is written first", 3, 4.8, 4)
    for axis, x, lines in zip(axes, (LENGTHS, PLACES, PLACES), (by_length, by_place, reads), strict=True):
        for name, values in lines.items():
            axis.plot(x, values, "--" if "," in name else "-", color=f"C{[*PLANS, UNTRAINED].index(name)}", label=name)
        axis.set(xticks=[1, 5, 10, 15, 20], xlabel=f"place of the source word, of {LONGEST}", ylim=(0, 105))
        axis.set_ylabel("words read from the summary, %" if lines is reads else "words translated correctly, %")
    axes[0].set_xlabel("words in the sentence")
    handles = axes[0].get_lines() + axes[2].get_lines()[:1]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False)
    rnn, attention, conv, transformer = (by_length[name][-1] for name in BUILDERS)
    places, read, start, other = by_place[RNN], reads[RNN], reads[UNTRAINED], reads[BACKWARDS]
    return Result(
        figure,
        ["model", "parameters", "5 words, %", "10 words", "20 words", "1st of 20", "20th", "1st is read, %", "20th"],
        rows,
        "the encoder representation also has a recency bias: mostly represents final words of the input; target words "
        "whose corresponding source words are at the beginning therefore more difficult to generate correctly.",
        "NLU Lecture 10, RNN problem",
        f"“The hidden representation is a bottleneck” is right: of {LONGEST} words, decoded greedily, {rnn:.3g}% are "
        f"right in the RNN ({by_length[LONGER][-1]:.0f}% after 4 × as many steps and sentences), {attention:.3g}% with "
        f"attention, {conv:.3g}% in ConvS2S, {transformer:.3g}% in the Transformer. The recency bias is there before "
        f"training: a linear classifier reads {start[-1]:.0f}% of the last words from the summary, {start[0]:.0f}% of "
        f"the first. Training reverses it: {read[-1]:.0f}% and {read[0]:.0f}%; {places[-1]:.0f}% and {places[0]:.0f}% "
        f"are translated correctly. If the target starts with the last word, it reads {other[-1]:.0f}% of the last and "
        f"{other[0]:.0f}% of the first. What is written first is kept; what is written last is difficult.",
        agrees=bool(read[-1] > read[0] and places[:5].mean() < places[-5:].mean()),
    )


if __name__ == "__main__":
    run(__file__, main)
