"""Programs that XLA compiles: products of a few rows, and maxima, in the forms that it computes fastest."""

import functools
import math

import keras
from keras import ops

from keras_tfm.ops.runtime import DEFAULT, INFERENCE, chunked_top_k, joined_dense

FEW_ROWS = 16  # from 2 rows to this many, `_product_of_few` is faster on a CPU


def _few(x):
    """Whether x (rows, …, features) is a step of a few rows. For one row, or outside of a loop, it does not pay."""
    return None not in x.shape and math.prod(x.shape[1:-1]) == 1 and 1 < x.shape[0] <= FEW_ROWS


def _product_of_few(x, kernel=None, table=None):
    """A few rows x (…, k) times a kernel (k, n), or times a transposed table (n, k): (…, n).

    XLA needs a fraction of the time for table · xᵀ, where it reads the table once, row by row. The `maximum` of the
    product is a no-op on finite values; it stops XLA from commuting the product. The `maximum` of the kernel stops XLA
    from transposing it again at each step of a loop.
    """
    lowest = -65504 if keras.backend.standardize_dtype(x.dtype) == "float16" else -3e38
    if table is None:
        table = ops.maximum(ops.transpose(kernel), lowest)
    columns = ops.transpose(ops.reshape(x, (-1, x.shape[-1])))
    products = ops.transpose(ops.maximum(ops.matmul(table, columns), lowest))
    return ops.reshape(products, (*x.shape[:-1], table.shape[0]))


def _dense(x, *layers):
    joins = _few(x) and not any(layer.quantization_mode for layer in layers)
    return joined_dense(x, *layers, matmul=_product_of_few) if joins else DEFAULT.dense(x, *layers)


def _logits(x, table):
    return _product_of_few(x, table=table) if _few(x) else DEFAULT.logits(x, table)


def _maxima_by_halves(x):
    """Maxima of columns; XLA compares two halves faster than it reduces."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x = ops.maximum(x[:, :half], x[:, x.shape[1] - half :])  # the halves may overlap
    return ops.squeeze(x, axis=1)


XLA = INFERENCE._replace(
    dense=_dense,
    logits=_logits,
    best_k=functools.partial(chunked_top_k, maxima=_maxima_by_halves),
    compacts_batches=True,
)


def _product_of_one(x, kernel):
    """A single row x (1, …, k) times a kernel (k, n): sums along the rows of the transposed kernel.

    A GPU does that in one pass; of the product as it stands, XLA writes all terms to memory, and then adds them up.
    """
    terms = ops.cast(ops.transpose(kernel), "float32") * ops.cast(ops.reshape(x, (1, -1)), "float32")
    return ops.cast(ops.reshape(ops.sum(terms, axis=-1), (*x.shape[:-1], kernel.shape[1])), x.dtype)


def _dense_on_gpu(x, *layers):
    joins = (
        None not in x.shape and math.prod(x.shape[:-1]) == 1 and not any(layer.quantization_mode for layer in layers)
    )
    return joined_dense(x, *layers, matmul=_product_of_one) if joins else DEFAULT.dense(x, *layers)


# A step takes a GPU about as long for a few rows as for many, so batches keep their size.
XLA_ON_GPU = INFERENCE._replace(dense=_dense_on_gpu)
