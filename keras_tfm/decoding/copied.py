"""Tokens that a translation contains exactly as often as its source does, such as those that stand for placeholders."""

import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import check
from keras_tfm.ops.runtime import NEVER


class CopiedTokens:
    """Keeps a budget for each row: what may still be written, so that in the end each token has been copied.

    A budget has a column for each of c copied tokens, one for the end token, and one for all other tokens:
        how often the token is still missing · 1 - all that are missing · positions left - all that are missing
    A token may be written where its column is above 0. Budgets change only by what is written, so a search keeps them
    in its state, one per hypothesis.

    Args:
        tokens: different ids, in ascending order.
        end_id: the token that ends a row.
    """

    def __init__(self, tokens, end_id):
        self.tokens, self.own = np.array(tokens, "int32"), np.array([*tokens, end_id], "int32")

    def count(self, ids):
        """How often each of the tokens occurs in ids (batch, n): float32 (batch, c)."""
        return ops.sum(ops.cast(ops.equal(ops.expand_dims(ids, -1), self.tokens), "float32"), axis=1)

    def budget(self, missing, positions):
        """Budgets (batch, c + 2), given how often each token is missing (batch, c) and positions left (batch, 1)."""
        total = ops.sum(missing, axis=1, keepdims=True)
        return ops.concatenate([missing, 1 - total, positions - total], axis=1)

    def spend(self, budget, tokens):
        """Budgets (rows, c + 2) after tokens (rows, 1) have been written."""
        copied = ops.cast(ops.equal(tokens, self.tokens), "float32")  # (rows, c)
        any_copied = ops.sum(copied, axis=1, keepdims=True)
        # others take a position; a copied token was missing, and a position was reserved for it
        return budget + ops.concatenate([-copied, any_copied, any_copied - 1], axis=1)

    def best_k(self, budget, logits, k, without):
        """`ops.best_k` of the tokens that the budgets (rows, c + 2) allow.

        Tokens with a column of their own are compared with the best of all others, which takes no mask of all logits.
        """
        self._check(logits)
        values, ids = ops.best_k(logits, k, [*without, *self.own])
        values = ops.concatenate([ops.take(logits, self.own, axis=1), values], axis=1)  # (rows, c + 1 + k)
        ids = ops.concatenate([ops.broadcast_to(self.own, (ops.shape(ids)[0], len(self.own))), ids], axis=1)
        if k > 1:
            budget = ops.take(budget, np.minimum(np.arange(len(self.own) + k), len(self.own)), axis=1)
        values, places = ops.top_k(_within(budget, values), k)
        return values, ops.take_each(ids, places)

    def masked(self, budget, logits):
        """Logits (rows, v), set to `NEVER` where the budgets (rows, c + 2) do not allow a token."""
        self._check(logits)
        columns = np.full(logits.shape[-1], len(self.own))
        columns[self.own] = np.arange(len(self.own))
        return _within(ops.take(budget, columns, axis=1), logits)

    def _check(self, logits):
        size, ids = logits.shape[-1], self.tokens.tolist()
        check("copied_tokens", ids, ids[0] >= 0 and ids[-1] < size, f"ids of a vocabulary of {size} tokens")


def _within(budget, logits):
    return ops.where(budget > 0, logits, NEVER)
