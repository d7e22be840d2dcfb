"""Draws the matrices of docs/lectures/by-hand.md, each number on a colour.

python docs/by_hand_svg.py docs/lectures

A product stands below its second and right of its first matrix, as on a blackboard.
"""

import pathlib
import sys

import numpy as np
import svg

WORDS = "the", "dog", "barks"
FEATURES = "article", "noun", "verb", "meaning"
X = np.array([[1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 1]])
W_Q = np.array([[0, 0], [2, 0], [0, 2], [0, 0]])  # nouns ask for articles, verbs for nouns
W_K = np.array([[2, 0], [0, 2], [0, 0], [0, 0]])  # what articles and nouns answer to
W_V = np.array([[1, 0], [2, 0], [0, 0], [0, 1]])
CELL, ROW = 58, 36


def main(folder):
    svg.write(folder / "by-hand.svg", 914, 450, "Three matrices give each word a query, a key and a value", roles())
    svg.write(folder / "by-hand_2.svg", 914, 400, "“dog” attends to “the”, “barks” attends to “dog”", attention())


def roles():
    yield svg.text(36, 126, "Each number of a product:", "note start")
    yield svg.text(36, 146, "the row on its left times the column above", "note start")
    yield from drawn("X", "words as vectors", X, 76, 320, WORDS, FEATURES)
    asks, answers, gives = ("article?", "noun?"), ("article", "noun"), ("noun", "meaning")
    yield from drawn("W_q", "what a word looks for", W_Q, 400, 126, FEATURES, asks)
    yield from drawn("W_k", "what it offers", W_K, 580, 126, (), answers)
    yield from drawn("W_v", "what it gives", W_V, 760, 126, (), gives)
    yield from drawn("Q = XW_q", "queries", X @ W_Q, 400, 320)
    yield from drawn("K = XW_k", "keys", X @ W_K, 580, 320)
    yield from drawn("V = XW_v", "values", X @ W_V, 760, 320)


def attention():
    q, k, v = X @ W_Q, X @ W_K, X @ W_V
    scores = q @ k.T / np.sqrt(k.shape[1])
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    yield from drawn("Q", "queries", q, 76, 270, WORDS)
    yield from drawn("Kᵀ", "keys", k.T, 262, 152, (), WORDS)
    yield from drawn("QKᵀ/√2", "scores", scores, 262, 270)
    yield svg.text(470, 331, "→", "title")
    yield from drawn("softmax", "weights: rows sum to 1", weights, 506, 270, (), WORDS)
    yield from drawn("V", "values", v, 760, 116, WORDS)
    yield from drawn("softmax(QKᵀ/√2) V", "outputs", weights @ v, 760, 270)


def drawn(name, note, matrix, x, y, rows=(), columns=()):
    """The shapes of a matrix whose upper left corner is at x, y, with words for its rows and columns."""
    middle, above = x + matrix.shape[1] * CELL / 2, y - 20 * bool(columns)
    yield svg.text(middle, above - 28, name, "name")
    yield svg.text(middle, above - 10, note, "note")
    for number, word in enumerate(rows):
        yield svg.text(x - 8, y + ROW * number + 23, word, "note end")
    for number, word in enumerate(columns):
        yield svg.text(x + CELL * (number + 0.5) - 1, y - 8, word, "note")
    for (row, column), value in np.ndenumerate(matrix):
        share = value / max(matrix.max(), 1)
        left, top = x + CELL * column, y + ROW * row
        yield svg.rect(left, top, CELL - 2, ROW - 2, "#0f766e", f'rx="4" fill-opacity="{0.06 + 0.9 * share:.2f}"')
        number = f"{value:.2f}" if isinstance(value, np.floating) else str(value)
        yield svg.text(left + CELL / 2 - 1, top + 22, number, "light" if share > 0.7 else "")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
