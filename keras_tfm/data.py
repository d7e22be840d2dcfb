"""Training data: built-in tasks that need no download."""

import numpy as np


def reverse(num_examples, length=12, num_symbols=20, seed=0):
    """A toy task: turn a sequence round. Whoever solves it must look at the right place.

    Args:
        num_examples: number of sequences.
        length: of every sequence.
        num_symbols: symbols are 1 … num_symbols; 0 stays free for padding.
        seed: other seeds give other sequences.

    Returns:
        sources and targets, int32 arrays (num_examples, length).

    >>> sources, targets = reverse(2, length=5)
    >>> bool((sources[:, ::-1] == targets).all())
    True
    """
    if min(num_examples, length, num_symbols) <= 0:
        raise ValueError(
            "`num_examples`, `length` and `num_symbols` must be positive. "
            f"Received: {num_examples=}, {length=}, {num_symbols=}"
        )
    sources = np.random.default_rng(seed).integers(1, num_symbols + 1, (num_examples, length), dtype="int32")
    return sources, sources[:, ::-1].copy()
