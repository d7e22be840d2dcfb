"""Lists of ids as arrays: what models read."""

from collections.abc import Sequence

import numpy as np

from keras_tfm.text.base import END, START


def shifted(labels: np.ndarray) -> np.ndarray:
    """The decoder's input: the start token, then all labels but the last; padding where the labels are padding.

    >>> shifted(np.array([[7, 8, 2, 0]]))
    array([[1, 7, 8, 0]], dtype=int32)
    """
    target = np.full_like(labels, START, dtype="int32")
    target[:, 1:] = labels[:, :-1]
    return np.where(labels > 0, target, np.int32(0))


def model_inputs(source: np.ndarray, labels: np.ndarray, packed: bool = False) -> dict[str, np.ndarray]:
    """Inputs of a model for ids (rows, source length) and labels (rows, target length), with one pair in each row.

    Args:
        packed: whether the model has `packed=True`, which takes segments and positions as well.

    >>> inputs = model_inputs(np.array([[7, 2, 0]]), np.array([[8, 2]]), packed=True)
    >>> inputs["target"], inputs["source_segments"], inputs["source_positions"]
    (array([[1, 8]], dtype=int32), array([[1, 1, 0]], dtype=int32), array([[0, 1, 0]], dtype=int32))
    """
    inputs = {"source": source, "target": shifted(labels)}
    for side, ids in list(inputs.items()) if packed else ():
        segments = (ids > 0).astype("int32")
        inputs |= {f"{side}_segments": segments, f"{side}_positions": segments * np.arange(ids.shape[1], dtype="int32")}
    return inputs


def padded(rows: Sequence[Sequence[int]], width: int, count: int | None = None) -> np.ndarray:
    """Lists of ids → an array (count, width): each row with its end token, then padding. `count` adds empty rows.

    >>> padded([[7, 8], [9]], width=4)
    array([[7, 8, 2, 0],
           [9, 2, 0, 0]], dtype=int32)
    """
    ids = np.zeros((count or len(rows), width), "int32")
    for number, row in enumerate(rows):
        ids[number, : len(row) + 1] = [*row, END]
    return ids
