"""What the lectures share: how they train, draw, and publish what they find."""

import argparse
import hashlib
import inspect
import json
import math
import pathlib
import sys
import textwrap
import time
from typing import NamedTuple

import keras
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from keras_tfm.common.progress import Progress

STARTED = time.perf_counter()
# What a lecture may conclude about a sentence of the notes.
VERDICTS = ("holds", "holds here", "not on this task", "the notes are wrong")


def fit(title, model, x, y, epochs, batch_size=64, learning_rate=1e-3, loss=None, metrics=(), **options):
    """Compiles a model with Adam, trains it with a progress bar, and returns Keras' history as a dict of lists."""
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(learning_rate), loss, metrics=list(metrics))
    with Progress(epochs, title, "epoch", 1) as bar:
        steps = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: bar.add(1))
        return model.fit(x, y, batch_size, epochs, verbose=0, callbacks=[steps], **options).history


def gradients(model, x, y, loss):
    """The gradient of each trainable weight, by path: what one step of plain gradient descent changes."""
    model.compile(keras.optimizers.SGD(1.0), loss)
    before = {weight.path: np.array(weight) for weight in model.trainable_weights}
    model.train_on_batch(x, y)
    return {weight.path: before[weight.path] - np.array(weight) for weight in model.trainable_weights}


def interval(values):
    """Mean over the first axis, which is that of the seeds, and half of its 95 % interval (Student's t)."""
    from scipy import stats  # comes with JAX

    values = np.asarray(values, dtype="float64")
    spread = values.std(axis=0, ddof=1) / len(values) ** 0.5
    return values.mean(axis=0), stats.t.ppf(0.975, len(values) - 1) * spread


def stated(values, digits=3):
    """Mean and interval over the seeds as text, such as "97.2 ± 0.4"."""
    mean, half = interval(values)
    if half < 1e-9:
        return f"{mean:.{digits}g} ± 0".replace("-", "−")
    places = max(0, -math.floor(math.log10(half / 2)))  # two digits if the first is 1
    return f"{mean:.{places}f} ± {half:.{places}f}".replace("-", "−")


def line(axis, x, values, each=False, **options):
    """Draws the mean of values (seeds, x), with its interval as a band, or with a thin line for `each` seed."""
    mean, half = interval(values)
    (drawn,) = axis.plot(x, mean, **options)
    if each:
        axis.plot(x, np.transpose(values), color=drawn.get_color(), alpha=0.5, linewidth=0.8)
    else:
        axis.fill_between(x, mean - half, mean + half, color=drawn.get_color(), alpha=0.2, linewidth=0)
    return drawn


def bars(axis, names, values, shift=0.0, width=0.7, **options):
    """Draws the means of values (seeds, bars), with their intervals; `shift` puts several bars side by side."""
    mean, half = interval(values)
    places = np.arange(len(names)) + shift
    axis.bar(places, mean, width, yerr=half, capsize=4, zorder=2, **options)
    axis.set_xticks(range(len(names)), names)


def heat_map(axis, image, rows=(), columns=(), title="", **options):
    """Draws a matrix with the names of its rows and columns."""
    drawn = axis.imshow(image, aspect="auto", **options)
    axis.set_title(title, fontsize=12)
    axis.grid(False)
    axis.set_yticks(range(len(rows)), rows)
    if len(columns):
        axis.set_xticks(range(len(columns)), columns)
    return drawn


def chance(axis, level, label="chance"):
    """Marks what a model reaches that has learned nothing."""
    axis.axhline(level, color="gray", linestyle=":", label=label, zorder=3)


def panels(title, columns=1, width=4.6, height=3.6):
    """A figure whose title says what it shows, and a list of its axes."""
    matplotlib.rcParams["font.size"] = 12  # readable from the back of a room
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(7.5 * width * columns)), fontsize=14, fontweight="bold")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    return figure, list(axes)


class Result(NamedTuple):
    """What a lecture shows.

    figures: matplotlib figures, each with one message, which is its title.
    columns, rows: the table: names of its columns, and a list of values for each row.
    notes, source: a sentence of the notes, word for word, and which notes they are.
    found: what was measured: a list of findings, the control among them, each of which makes sense on its own.
    limits: one sentence on what that does not show.
    verdict: a word of `VERDICTS`; for "the notes are wrong", `found` has the right formula.
    seeds: how many seeds a mean is of; 0 for what has no chance in it.
    unit: what there are several of, if not seeds.
    """

    figures: list[Figure]
    columns: list
    rows: list
    notes: str
    source: str
    found: list[str]
    limits: str
    verdict: str
    seeds: int
    unit: str = "seeds"


def run(file, main):
    """Publishes the `Result` of a lecture, `main(**sizes)`. Each size is a flag, such as `--seeds`."""
    file, parameters = pathlib.Path(file), inspect.signature(main).parameters.values()
    sizes = {parameter.name: parameter.default for parameter in parameters}
    parser = argparse.ArgumentParser(description=title(file))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/lectures"), metavar="FOLDER")
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help="(default: %(default)s)")
    given = vars(parser.parse_args())
    folder = given.pop("out")
    code = fingerprint(file) if given == sizes else "of other sizes"  # run.py runs those again
    publish(file, folder, code, main(**given))


def publish(file, folder, code, result):
    """Prints the table, saves the figures and everything else for the page, and ends with the sentence of the notes."""
    assert result.verdict in VERDICTS, result.verdict
    folder.mkdir(parents=True, exist_ok=True)
    figures = {}
    for number, figure in enumerate(result.figures, 1):
        name = f"{file.stem}{f'_{number}' * (number > 1)}.png"
        figure.savefig(folder / name, dpi=130)
        figures[name] = figure.get_suptitle().replace("\n", " ")
    cells = [[value if isinstance(value, str) else f"{value:,.4g}" for value in row] for row in result.rows]
    widths = [max(map(len, column)) for column in zip(result.columns, *cells, strict=True)]
    for row in (result.columns, *cells):
        print("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)))
    print(f"saved {', '.join(str(folder / name) for name in figures)}")
    print(*result.found, result.limits, f"{result.verdict} ({result.source}): “{result.notes}”", sep="\n")
    saved = result._asdict() | {"figures": figures, "rows": cells}
    saved |= {"title": title(file), "code": code, "seconds": time.perf_counter() - STARTED}
    (folder / f"{file.stem}.json").write_text(json.dumps(saved, indent=1, ensure_ascii=False))


def stored(*names):
    """Rows of lecture_table.json whose name starts with one of these; benchmarks/lecture_table.py wrote them."""
    path = pathlib.Path(__file__).with_name("lecture_table.json")
    table = json.loads(path.read_text())
    missing = [name for name in names if not any(row.startswith(name) for row in table)]
    if missing:
        rows = "; no ".join(missing)
        sys.exit(f"{path.name} has no {rows}: benchmarks/lecture_table.py, on a machine with a GPU, adds them")
    return {name: row for name, row in table.items() if name.startswith(names)}


def title(file):
    """The first line of a lecture's docstring."""
    return file.read_text().split("\n", 1)[0].strip('"')


def fingerprint(file):
    """Changes when the lecture or a module that lectures share changes."""
    shared = [file.with_name(f"{name}.py") for name in ("lecture", "measure", "phrases")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in (file, *shared))).hexdigest()[:16]
