"""Three pictures for a first look at the Transformer, written as PNG files; needs the extra `plot`.

python examples/pictures.py [--out runs/pictures]

mask.png       a causal mask: which keys each query may attend to
positions.png  sinusoidal positions: fast waves tell neighbours apart, slow ones tell the beginning from the end
schedule.png   learning rates over 1,000 steps: each schedule warms up before it decays
"""

import argparse
import pathlib

import numpy as np
from matplotlib.figure import Figure

from keras_tfm.layers import masks, sinusoids
from keras_tfm.training import SCHEDULES


def mask_map(mask, path):
    """Plots a mask (query, key); dark cells may be attended to."""
    figure = Figure(figsize=(1.5 + 0.3 * mask.shape[1], 1.2 + 0.3 * mask.shape[0]), layout="constrained")
    axis = figure.subplots()
    axis.pcolormesh(mask, cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=1)
    axis.invert_yaxis()
    axis.set(xlabel="key", ylabel="query", title="causal mask", aspect="equal")
    axis.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
    axis.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)


def position_curves(encoding, path):
    """Plots a position encoding (length, dim): all of it as a map, and a few features as curves."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    everything, some = figure.subplots(1, 2)
    image = everything.imshow(encoding.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    everything.set(xlabel="position", ylabel="feature")
    figure.colorbar(image, ax=everything)
    for feature in (0, encoding.shape[1] // 8, encoding.shape[1] // 4, encoding.shape[1] // 2):
        some.plot(encoding[:, feature], label=f"feature {feature}")
    some.set_xlabel("position")
    some.spines[["top", "right"]].set_visible(False)
    some.grid(alpha=0.3)
    some.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=150)


def schedule_curves(schedules, steps, path):
    """Plots the learning rate by step; `schedules` is a dict of Keras schedules by name."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axis = figure.subplots()
    places = np.linspace(0, steps - 1, 200).astype(int)
    for name, schedule in schedules.items():
        axis.plot(places, [float(schedule(int(step))) for step in places], label=name)
    axis.set(xlabel="step", ylabel="learning rate")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/pictures"), metavar="FOLDER")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    mask_map(np.array(masks.causal(8, 8)[0]), folder / "mask.png")
    position_curves(np.array(sinusoids(np.arange(60), 32)), folder / "positions.png")
    schedule_curves({name: make(0.002, 100, 1000) for name, make in SCHEDULES.items()}, 1000, folder / "schedule.png")
    print(f"wrote mask.png, positions.png and schedule.png to {folder}")


if __name__ == "__main__":
    main()
