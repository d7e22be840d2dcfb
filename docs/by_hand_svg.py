"""Draws the matrices of docs/lectures/by-hand.md, each number on a colour.

python docs/by_hand_svg.py docs/lectures/by-hand.svg
"""

import pathlib
import re
import sys

import numpy as np

WORDS = "the", "dog", "barks"
X = np.array([[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 1]])  # columns: an article, a noun, a verb, and how much it means
W_Q = np.array([[0, 0], [2, 0], [0, 2], [0, 0]])  # nouns ask for articles, verbs for nouns
W_K = np.array([[2, 0], [0, 2], [0, 0], [0, 0]])  # what articles and nouns answer to
W_V = np.array([[1, 0], [2, 0], [0, 0], [0, 1]])
CELL, GAP, TOP = 58, 46, 70
STYLE = (
    "text{font:15px system-ui,sans-serif;text-anchor:middle;fill:#1e293b}.name{font-weight:600}.word{text-anchor:end}"
)
STYLE += ".light{fill:#fff}.note{font-size:13px;fill:#475569}"


def main(path):
    scores = (X @ W_Q) @ (X @ W_K).T / np.sqrt(2)
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = [
        [("X", "words as vectors", X), ("Q = XW_q", "queries", X @ W_Q), ("K = XW_k", "keys", X @ W_K)],
        [("QKᵀ/√2", "scores", scores), ("softmax", "weights: rows sum to 1", weights), ("V = XW_v", "values", X @ W_V)],
        [("softmax(QKᵀ/√2) V", "outputs", weights @ (X @ W_V))],
    ]
    shapes, y = [], TOP
    for row in rows:
        x = 64
        for name, note, matrix in row:
            shapes += drawn(name, note, matrix, x, y)
            x += matrix.shape[1] * CELL + GAP + 50
        y += len(WORDS) * 36 + TOP + 10
    box = f'viewBox="0 0 736 {y - TOP + 20}" role="img" aria-label="Attention by hand"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    parts = [
        head,
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" rx="12" fill="#fff"/>',
        *shapes,
        "</svg>",
    ]
    pathlib.Path(path).write_text("\n".join(parts) + "\n")


def drawn(name, note, matrix, x, y):
    """The shapes of a matrix whose upper left corner is at x, y."""
    middle = x + matrix.shape[1] * CELL / 2
    name = re.sub("_(.)", r'<tspan dy="4" font-size="11">\1</tspan>', name)
    yield f'<text class="name" x="{middle:.0f}" y="{y - 30}">{name}</text>'
    yield f'<text class="note" x="{middle:.0f}" y="{y - 11}">{note}</text>'
    for row, word in enumerate(WORDS):
        yield f'<text class="word" x="{x - 8}" y="{y + 36 * row + 23}">{word}</text>'
        for column, value in enumerate(matrix[row]):
            share = value / max(matrix.max(), 1)
            place = f'x="{x + column * CELL}" y="{y + 36 * row}" width="{CELL - 2}" height="34" rx="4"'
            yield f'<rect {place} fill="#0f766e" fill-opacity="{0.06 + 0.9 * share:.2f}"/>'
            text = f"{value:.2f}" if isinstance(value, np.floating) else str(value)
            light = ' class="light"' if share > 0.7 else ""  # white only where the colour is dark enough
            yield f'<text{light} x="{x + (column + 0.5) * CELL - 1:.0f}" y="{y + 36 * row + 22}">{text}</text>'


if __name__ == "__main__":
    main(sys.argv[1])
