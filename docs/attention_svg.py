"""Draws what the package's date translator reads for each character that it writes.

python docs/attention_svg.py docs/attention.svg
"""

import pathlib
import sys

from keras_tfm import Translator, record_attention
from keras_tfm.text.arrays import model_inputs, padded

SOURCE, STEP, MARGIN = "Mittwoch, 3. Mai 2023", 34, 30
LAYER = "decoder/decoder_1/memory_attention"
COLOURS = ["#0f766e"] * 4 + ["#94a3b8"] + ["#c2410c"] * 2 + ["#94a3b8"] + ["#4338ca"] * 2  # year, month, day
STYLE = "text{font:600 24px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;text-anchor:middle}"
STYLE += "path{fill:none;stroke-linecap:round}"


def main(path):
    translator = Translator.from_preset("dates", num_beams=1, max_length=64)
    (target,) = translator([SOURCE])
    source_ids, target_ids = translator.source_tokenizer.encode([SOURCE, target])
    with record_attention() as maps:
        translator.models[0](model_inputs(*(padded([ids], len(ids) + 1) for ids in (source_ids, target_ids))))
    weights = maps[LAYER][0][0].mean(axis=0)  # (target, source), the mean of the heads
    width, height = 2 * MARGIN + STEP * len(SOURCE), 300
    indent = MARGIN + STEP * (len(SOURCE) - len(target)) / 2
    top, bottom, shapes = 46, height - 30, []
    for row, (letter, colour) in enumerate(zip(target, COLOURS, strict=True)):
        x = indent + STEP * (row + 0.5)
        for column, weight in enumerate(weights[row, : len(SOURCE)]):
            if letter != "-" and weight > 0.08:
                above, middle = MARGIN + STEP * (column + 0.5), height / 2
                curve = f"M{above:.0f} {top + 12}C{above:.0f} {middle:.0f} {x:.0f} {middle:.0f} {x:.0f} {bottom - 28}"
                look = f'stroke="{colour}" stroke-width="{1 + 5 * weight:.1f}" opacity="{0.25 + 0.75 * weight:.2f}"'
                shapes.append(f'<path d="{curve}" {look}/>')
        shapes.append(f'<text x="{x:.0f}" y="{bottom}" fill="{colour}">{letter}</text>')
    for column, letter in enumerate(SOURCE):
        strongest = weights[: len(target), column].argmax()
        read = weights[strongest, column] > 0.25 and target[strongest] != "-"
        colour = COLOURS[strongest] if read else "#94a3b8"
        shapes.append(f'<text x="{MARGIN + STEP * (column + 0.5):.0f}" y="{top}" fill="{colour}">{letter}</text>')
    title = f"Attention from {target} to {SOURCE}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    parts = [
        head,
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" rx="12" fill="#fff"/>',
        *shapes,
        "</svg>",
    ]
    pathlib.Path(path).write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
