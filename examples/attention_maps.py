"""Attention maps: where does the date translator look while it writes the year, the month and the day?

python examples/attention_maps.py [--out runs/attention] [--dates 500]      any Keras backend; needs the extra `train`

Draws the map of one German date, dates.png. Then it measures, on days that the translator was not trained on, which
share of the attention is on the day, month and year of the text while they are written. The translator comes with the
package.
"""

import argparse
import pathlib
import re

import numpy as np

from keras_tfm import Translator, plots
from keras_tfm.data import model_inputs, padded, tasks
from keras_tfm.layers import recording

GERMAN = re.compile(r"(?P<day>\d+)\. (?P<month>\D+) (?P<year>\d{4})$")
ISO = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}  # places of each part in the translation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/attention"), metavar="FOLDER")
    parser.add_argument("--dates", type=int, default=500, help="number of dates to measure on; some are not in German")
    options = parser.parse_args()
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    translator, text = Translator.from_preset("dates", max_length=64), "Mittwoch, 3. Mai 2023"
    print(f"{text} → {plots.translation_map(translator, text, folder / 'dates.png', mean=True)}")

    pairs = [pair for pair in tasks.dates(options.dates, "test", locales=["de"]) if GERMAN.search(pair[0])]
    (model,), tokenizer = translator.models, translator.source_tokenizer
    source, labels = (padded(tokenizer.encode(texts), 48) for texts in zip(*pairs, strict=True))
    maps = recording.attention_maps(model, model_inputs(source, labels))
    weights = maps[model.decoder.memory_attentions[-1].path].mean(axis=1)  # of the heads → (dates, translation, text)
    print(f"attention in {len(pairs)} German dates:")
    for part, places in ISO.items():
        spans = [GERMAN.search(text).span(part) for text, _ in pairs]
        there = [row[places, start:end].sum(-1).mean() for row, (start, end) in zip(weights, spans, strict=True)]
        even = [(end - start) / (len(text) + 1) for (start, end), (text, _) in zip(spans, pairs, strict=True)]
        print(f"writing the {part}: {np.mean(there):.0%} on the {part}; {np.mean(even):.0%} if it were spread evenly")


if __name__ == "__main__":
    main()
