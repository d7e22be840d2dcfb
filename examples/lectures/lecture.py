"""What the lectures share: how they train, draw, and publish what they find."""

import argparse
import hashlib
import inspect
import json
import pathlib
import sys
import time
from typing import NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_tfm.common.progress import Progress

STARTED = time.perf_counter()
VERDICTS = {True: "supports", None: "supports, but only in part,", False: "corrects"}


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


def panels(title, columns=1, width=4.6, height=3.6):
    """A figure with the claim as its title, and a list of its axes."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    return figure, list(axes)


class Result(NamedTuple):
    """What a lecture shows.

    figure: a matplotlib figure.
    columns, rows: the table: names of its columns, and a list of values for each row.
    notes, source: a sentence of the notes, word for word, and which notes they are.
    found: one or two sentences that say what was measured.
    agrees: whether that supports the notes: True, False, or None for in part.
    """

    figure: Figure
    columns: list
    rows: list
    notes: str
    source: str
    found: str
    agrees: bool | None


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
    """Prints the table, saves the figure and everything else for the page, and ends with the sentence of the notes."""
    folder.mkdir(parents=True, exist_ok=True)
    result.figure.savefig(folder / f"{file.stem}.png", dpi=130)
    cells = [[value if isinstance(value, str) else f"{value:,.4g}" for value in row] for row in result.rows]
    widths = [max(map(len, column)) for column in zip(result.columns, *cells, strict=True)]
    for row in (result.columns, *cells):
        print("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)))
    print(f"saved {folder / file.stem}.png")
    print(f"{result.found}\nThis {VERDICTS[result.agrees]} the notes ({result.source}): “{result.notes}”")
    saved = {name: value for name, value in result._asdict().items() if name != "figure"} | {"rows": cells}
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
    """Changes when the lecture or this file changes."""
    return hashlib.sha256(file.read_bytes() + pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
