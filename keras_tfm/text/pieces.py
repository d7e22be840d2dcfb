"""Splits texts into pieces that a model can translate: lines, and the sentences of lines that are too long."""

from keras_tfm.common.arguments import check, strings
from keras_tfm.text.base import LINE_END, SENTENCE_END, Tokenizer, encode_truncated


def split(tokenizer: Tokenizer, texts: list[str], tags: list[str], max_length: int, stacklevel: int) -> list[list]:
    """Splits each text into pieces of less than `max_length` tokens: [(ids, separator behind them), …].

    Each piece begins with the tag of its text. A line that is too long is split into sentences, and a sentence that is
    still too long is truncated, with a warning at this `stacklevel` of the caller.
    """
    by_text = [split_with_separators(LINE_END, text) for text in texts]
    # all lines together: SentencePiece starts threads in each call
    tagged = [tag + line for tag, lines in zip(tags, by_text, strict=True) for line, _ in lines if line.strip()]
    encoded, texts_pieces = iter(tokenizer.encode(tagged)), []
    for tag, lines in zip(tags, by_text, strict=True):
        pieces = []
        for line, newline in lines:
            ids = next(encoded) if line.strip() else []
            if len(ids) < max_length:
                pieces.append((ids, newline))
                continue
            sentences, spaces = zip(*split_with_separators(SENTENCE_END, line), strict=True)
            tagged = [tag + sentence for sentence in sentences]
            rows = encode_truncated(tokenizer, tagged, max_length - 1, stacklevel + 1)  # minus the end token
            pieces += [*zip(rows, spaces, strict=True), ([], newline)]
        texts_pieces.append(pieces)
    return texts_pieces


def split_with_separators(pattern, string):
    """Splits a string at the matches of a pattern: [(part, match behind it), …]."""
    ends = [*(match.span() for match in pattern.finditer(string)), (len(string), len(string))]
    starts = [0, *(stop for _, stop in ends)]
    return [(string[start:end], string[end:stop]) for start, (end, stop) in zip(starts, ends, strict=False)]


def prefixes(tokenizer: Tokenizer, prefix, counts: list[int], max_length: int) -> list[list[int]] | None:
    """The ids that the translation of each piece begins with, for texts of so many pieces: those of the first piece.

    Args:
        prefix: a string, or one for each text; None for no prefix.
    """
    if prefix is None:
        return None
    given = [prefix] * len(counts) if isinstance(prefix, str) else strings(prefix, "prefix")
    check("prefix", len(given), len(given) == len(counts), f"a string, or one for each of {len(counts)} texts")
    encoded = tokenizer.encode(given)
    longest = max(map(len, encoded), default=0)
    check("prefix", longest, longest < max_length, f"of less than max_length={max_length} tokens")
    return [ids if place == 0 else [] for ids, count in zip(encoded, counts, strict=True) for place in range(count)]


def join(pieces: list[tuple[list[tuple[str, float]], str]]) -> list[tuple[str, float]]:
    """Joins the hypotheses of consecutive pieces, [(hypotheses, separator), …]: as many as the longest list has.

    >>> join([([("a", -1.0), ("b", -3.0)], " "), ([("c", -1.0)], "")])
    [('a c', -2.0), ('b c', -4.0)]
    """
    best = [("", 0.0)]
    for hypotheses, separator in pieces:
        joined = [(before + string + separator, score + more) for before, score in best for string, more in hypotheses]
        best = sorted(joined, key=lambda pair: -pair[1])[: max(len(best), len(hypotheses))]
    return best


def encode_pairs(source_tokenizer, sources, target_tokenizer, targets, max_length):
    """The ids of two lists of strings; truncation is reported to the caller's caller."""
    source_ids = encode_truncated(source_tokenizer, sources, max_length - 1, stacklevel=4)
    return source_ids, encode_truncated(target_tokenizer, targets, max_length - 1, stacklevel=4)
