"""Draws every tensor of docs/lectures/one-sentence.md with its shape: encoder on the left, decoder on the right.

python docs/one_sentence_svg.py docs/lectures/one-sentence.svg
"""

import pathlib
import sys

SOURCE = ">>de<<", "The", "file", "could", "not", "be", "saved", ".", "end"
TARGET = "Die", "Datei", "konnte", "nicht", "gespeichert", "werden", ".", "end"
HEIGHT, WIDTH, STEP = 44, 390, 68
STYLE = "text{font:15px system-ui,sans-serif;text-anchor:middle;fill:#1e293b}"
STYLE += ".shape{font:13px ui-monospace,monospace;fill:#475569}"
STYLE += ".word{font-size:13px}.head{font-weight:600;font-size:17px}path{fill:none;stroke:#475569;stroke-width:1.6;"
STYLE += "marker-end:url(#tip)}.bracket{marker-end:none;stroke:#0f766e}"
TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
TIP += '<path d="M0 0L8 4L0 8" style="marker-end:none"/></marker>'
TEAL, ORANGE, GREY = "#ccfbf1", "#ffedd5", "#f1f5f9"

ENCODER = [  # from below: what it is, its shape, its colour
    ("embeddings · √256", "(1, 9, 256)", GREY),
    ("+ positions", "(1, 9, 256)", GREY),
    ("self-attention, 4 heads", "weights (1, 4, 9, 9)", ORANGE),
    ("feed-forward, 256 → 1,408 → 256", "(1, 9, 256)", TEAL),
    ("memory", "(1, 9, 256)", GREY),
]
DECODER = [
    ("embeddings · √256", "(1, 8, 256)", GREY),
    ("+ positions", "(1, 8, 256)", GREY),
    ("self-attention, causal, 4 heads", "weights (1, 4, 8, 8)", ORANGE),
    ("attention to the memory, 4 heads", "weights (1, 4, 8, 9)", ORANGE),
    ("feed-forward, 256 → 1,408 → 256", "(1, 8, 256)", TEAL),
    ("logits: product with the embeddings", "(1, 8, 20000)", GREY),
    ("softmax: the next token", "(1, 8, 20000)", GREY),
]


def main(path):
    bottom = 40 + STEP * len(DECODER) + 40
    shapes = [
        *column(ENCODER, 30, bottom, SOURCE, 2, 3, "× 6 blocks"),
        *column(DECODER, 530, bottom, ("start", *TARGET[:-1]), 2, 4, "× 3 blocks"),
        f'<text class="head" x="225" y="{bottom + 62}">encoder: the source</text>',
        f'<text class="head" x="725" y="{bottom + 62}">decoder: the target, shifted right</text>',
        *words(TARGET, 530, 44),
        f'<path d="M725 {bottom - STEP * len(DECODER) + 8}V58"/>',
        memory_arrow(bottom),
    ]
    box = f'viewBox="0 0 950 {bottom + 84}" role="img" aria-label="One sentence through the whole Transformer"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}><defs>{TIP}</defs><style>{STYLE}</style>'
    parts = [head, '<rect width="100%" height="100%" rx="12" fill="#fff"/>', *shapes, "</svg>"]
    pathlib.Path(path).write_text("\n".join(parts) + "\n")


def column(parts, x, bottom, tokens, first, last, repeats):
    """Boxes from below, arrows between them, and a bracket around those that are repeated."""
    yield from words(tokens, x, bottom + 34)
    for number, (name, shape, colour) in enumerate(parts):
        y = bottom - STEP * (number + 1) + 10
        yield f'<path d="M{x + WIDTH / 2:.0f} {y + STEP - 2}V{y + HEIGHT + 2}"/>'
        yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{colour}" stroke="#94a3b8"/>'
        yield f'<text x="{x + WIDTH / 2:.0f}" y="{y + 19}">{name}</text>'
        yield f'<text class="shape" x="{x + WIDTH / 2:.0f}" y="{y + 37}">{shape}</text>'
    top, end = bottom - STEP * (last + 1) + 4, bottom - STEP * first - 4
    side = x + WIDTH + 8 if x > 400 else x - 8
    inward = -6 if x > 400 else 6
    yield f'<path class="bracket" d="M{side + inward} {top}H{side}V{end}H{side + inward}"/>'
    middle = (top + end) / 2
    turn = f'transform="rotate(-90 {side + (14 if x > 400 else -6)} {middle:.0f})"'
    yield f'<text class="word" x="{side + (14 if x > 400 else -6)}" y="{middle:.0f}" {turn}>{repeats}</text>'


def words(tokens, x, y):
    """Tokens side by side over the width of a column."""
    lengths = [len(token) + 1.6 for token in tokens]
    scale, place = WIDTH / sum(lengths), x
    for token, length in zip(tokens, lengths, strict=True):
        token = token.replace("<", "&lt;").replace(">", "&gt;")
        yield f'<text class="word" x="{place + length * scale / 2:.0f}" y="{y}">{token}</text>'
        place += length * scale


def memory_arrow(bottom):
    """From the memory to the decoder's attention to it."""
    start, end = bottom - STEP * 5 + 10 + HEIGHT / 2, bottom - STEP * 4 + 10 + HEIGHT / 2
    return f'<path d="M420 {start:.0f}H475V{end:.0f}H528"/>'


if __name__ == "__main__":
    main(sys.argv[1])
