"""Texts as pieces that a model can translate: lines, and the sentences of lines that are too long."""

from keras_tfm.text.base import LINE_END, SENTENCE_END, truncated


def split(tokenizer, string, max_length, stacklevel):
    """Splits a text into pieces of less than `max_length` tokens: [(ids, separator behind them), …].

    A line that is too long is split into sentences, and a sentence that is still too long is truncated, with a warning
    at this `stacklevel` of the caller.
    """
    pieces = []
    for line, newline in _divided(LINE_END, string):
        (ids,) = tokenizer.encode([line]) if line.strip() else ([],)
        if len(ids) < max_length:
            pieces.append((ids, newline))
            continue
        sentences, spaces = zip(*_divided(SENTENCE_END, line), strict=True)
        for ids, sentence, space in zip(tokenizer.encode(sentences), sentences, spaces, strict=True):
            pieces.append((truncated(ids, max_length - 1, sentence, stacklevel + 1), space))  # minus the end token
        pieces.append(([], newline))
    return pieces


def _divided(pattern, string):
    """Splits a string at the matches of a pattern: [(part, match behind it), …]."""
    ends = [*(match.span() for match in pattern.finditer(string)), (len(string), len(string))]
    starts = [0, *(stop for _, stop in ends)]
    return [(string[start:end], string[end:stop]) for start, (end, stop) in zip(starts, ends, strict=False)]


def join(pieces):
    """Combines the hypotheses of pieces, [(hypotheses, separator), …], to as many as the piece with the most has.

    >>> join([([("a", -1.0), ("b", -3.0)], " "), ([("c", -1.0)], "")])
    [('a c', -2.0), ('b c', -4.0)]
    """
    best = [("", 0.0)]
    for hypotheses, separator in pieces:
        joined = [(before + string + separator, score + more) for before, score in best for string, more in hypotheses]
        best = sorted(joined, key=lambda pair: -pair[1])[: max(len(best), len(hypotheses))]
    return best
