"""Programs that XLA compiles: products of a few rows, and maxima, in the forms that it computes fastest."""

import functools
import math

import keras
from keras import ops

from keras_tfm.ops.runtime import DEFAULT, INFERENCE, affine, chunked_top_k, joined_dense, masked_columns

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


def _affine_of_few(x, kernel, bias=None):
    return affine(x, kernel, bias, _product_of_few)


def _dense(x, *layers):
    joins = _few(x) and not any(layer.quantization_mode for layer in layers)
    return joined_dense(x, *layers, affine=_affine_of_few) if joins else DEFAULT.dense(x, *layers)


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
    keeps_caches=True,
)


ROWS_OF_SUMS = 4  # up to this many rows, `_affine_by_sums` is faster on a GPU


def _affine_by_sums(x, kernel, bias=None):
    """A few rows x (…, k) times a kernel (k, n), plus a bias: sums along the rows of the transposed kernel.

    A GPU does that in one pass, the bias included if each term has a share of it; for a product of matrices, it needs
    several kernels, which pad the rows.
    """
    rows = ops.cast(ops.reshape(x, (-1, 1, x.shape[-1])), "float32")
    terms = ops.cast(ops.transpose(kernel), "float32") * rows  # (rows, n, k)
    if bias is not None:
        terms = terms + ops.cast(bias, "float32")[:, None] / x.shape[-1]
    return ops.cast(ops.reshape(ops.sum(terms, axis=-1), (*x.shape[:-1], kernel.shape[1])), x.dtype)


def _dense_on_gpu(x, *layers):
    few = None not in x.shape and math.prod(x.shape[:-1]) <= ROWS_OF_SUMS
    sums = few and not any(layer.quantization_mode for layer in layers)
    return joined_dense(x, *layers, affine=_affine_by_sums) if sums else DEFAULT.dense(x, *layers)


def _best_on_gpu(x, k, without=()):
    """`chunked_top_k`; the best one alone by a reduction, where sorting would take several kernels."""
    if k > 1:
        return chunked_top_k(x, k, without)
    x = masked_columns(x, without)
    return ops.max(x, axis=1, keepdims=True), ops.cast(ops.argmax(x, axis=1, keepdims=True), "int32")


# A step takes a GPU about as long for a few rows as for many, so batches keep their size.
XLA_ON_GPU = INFERENCE._replace(
    dense=_dense_on_gpu, layer_norm=DEFAULT.layer_norm, best_k=_best_on_gpu, keeps_caches=True
)
