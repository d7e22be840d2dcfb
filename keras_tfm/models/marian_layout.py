"""Where each weight of a Transformer is in a checkpoint of Marian in the format of Hugging Face, and in which order.

Sines and cosines of positions alternate here; there, all sines come first. A Transformer computes the same whatever the
order of its features, as long as all weights agree on it.
"""

import math
from typing import NamedTuple

import numpy as np

# Layers of a block: ours → theirs, and whether they read or write features.
LAYERS = {
    "attention/query": ("self_attn.q_proj", "reads"),
    "attention/key": ("self_attn.k_proj", "reads"),
    "attention/value": ("self_attn.v_proj", "reads"),
    "attention/output": ("self_attn.out_proj", "writes"),
    "attention_residual/norm": ("self_attn_layer_norm", "writes"),
    "memory_attention/query": ("encoder_attn.q_proj", "reads"),
    "memory_attention/key": ("encoder_attn.k_proj", "reads"),
    "memory_attention/value": ("encoder_attn.v_proj", "reads"),
    "memory_attention/output": ("encoder_attn.out_proj", "writes"),
    "memory_residual/norm": ("encoder_attn_layer_norm", "writes"),
    "feed_forward/inner": ("fc1", "reads"),
    "feed_forward/outer": ("fc2", "writes"),
    "feed_forward_residual/norm": ("final_layer_norm", "writes"),
}
WEIGHTS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def order_of_features(width):
    """Their feature for each of ours: the sine and the cosine of each frequency alternate."""
    return np.arange(width).reshape(2, -1).T.reshape(-1)


class Counterpart(NamedTuple):
    """Where a weight of ours is in their checkpoint, and in which order.

    Attributes:
        name, shape: of their tensor.
        rows, columns: of their tensor, in our order; a vector is one row.
        transposed: whether ours is transposed.
    """

    name: str
    shape: tuple
    rows: np.ndarray
    columns: np.ndarray
    transposed: bool = False

    def to_ours(self, array, shape):
        array = np.atleast_2d(array)[np.ix_(self.rows, self.columns)]
        return (array.T if self.transposed else array).reshape(shape)

    def to_theirs(self, array):
        matrix, counts = np.empty(self.shape, "float32"), (len(self.rows), len(self.columns))
        array = array.reshape(counts[::-1]).T if self.transposed else array.reshape(counts)
        np.atleast_2d(matrix)[np.ix_(self.rows, self.columns)] = array
        return matrix


def counterpart(path, shape, orders):
    """The `Counterpart` of our weight with this path and shape, for the order of the ids of source and target."""
    first, *middle, weight = path.split("/")
    if first.endswith("embedding"):
        return _counterpart_of_table(first, weight, shape, orders)
    block, _, layer = "/".join(middle).partition("/")
    if layer:
        (theirs, role), number = LAYERS[layer], block.removeprefix(f"{first}_")
        name = f"model.{first}.layers.{number}.{theirs}.{WEIGHTS[weight]}"
    else:  # the norm of the embeddings
        name, role = f"model.{first}.layernorm_embedding.{WEIGHTS[weight]}", "writes"
    if weight != "kernel":
        size = math.prod(shape)
        columns = order_of_features(size) if role == "writes" else np.arange(size)
        return Counterpart(name, (size,), np.arange(1), columns)
    inputs = math.prod(shape[: 2 if layer.endswith("/output") else 1])  # attention's output reads (heads, head_dim)
    outputs = math.prod(shape) // inputs
    rows = order_of_features(outputs) if role == "writes" else np.arange(outputs)
    columns = order_of_features(inputs) if role == "reads" else np.arange(inputs)
    return Counterpart(name, (outputs, inputs), rows, columns, transposed=True)


def _counterpart_of_table(layer, weight, shape, orders):
    order = orders[0] if layer == "source_embedding" else orders[-1]
    size = order.max() + 1
    if weight == "bias":
        return Counterpart("final_logits_bias", (1, size), np.arange(1), order)
    if weight == "reverse_embeddings":
        return Counterpart("lm_head.weight", (size, shape[0]), order, order_of_features(shape[0]), transposed=True)
    sides = {
        "embedding": "shared",
        "source_embedding": "encoder.embed_tokens",
        "target_embedding": "decoder.embed_tokens",
    }
    return Counterpart(f"model.{sides[layer]}.weight", (size, shape[1]), order, order_of_features(shape[1]))
