"""Which tokens may be written at which position."""

import copy
import functools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, positive
from keras_tfm.decoding.copied import CopiedTokens
from keras_tfm.ops.runtime import NEVER, masked_columns
from keras_tfm.text import END, PAD, START


class Constraints:
    """Which tokens may be written at which position.

    Args:
        max_length: maximum number of tokens, including the end token.
        min_length: minimum number of tokens, including the end token.
        suppress_tokens: ids that are never written; neither are padding and the start token.
        prefix: ids (batch, n) that each row starts with; `pad_id` leaves a position free.
        no_repeat_ngram_size: no sequence of this many tokens occurs twice in a translation; 0 for no such rule.
        limits: None or (batch,), the maximum number of tokens of each row, where that is less than `max_length`.
        copied_tokens: ids that a translation contains exactly as often as its source does, in any order. Those of a
            prefix count. They may repeat n-grams.
        start_id: the token that a search feeds first.
        end_id: the token that ends a row.
        pad_id: what follows the end token. It may be the same as `end_id`.
    """

    def __init__(
        self,
        max_length: int,
        min_length: int = 0,
        suppress_tokens: Sequence[int] = (),
        prefix: Any = None,
        no_repeat_ngram_size: int = 0,
        limits: Any = None,
        copied_tokens: Sequence[int] = (),
        *,
        start_id: int = START,
        end_id: int = END,
        pad_id: int = PAD,
    ):
        self.max_length = positive("max_length", max_length)
        for name, value in (("start_id", start_id), ("end_id", end_id), ("pad_id", pad_id)):
            check(name, value, type(value) is int and value >= 0, "an integer of at least 0")
        self.start_id, self.end_id, self.pad_id = start_id, end_id, pad_id
        fine = isinstance(min_length, int) and 0 <= min_length <= max_length
        check("min_length", min_length, fine, f"from 0 to {max_length=}")
        if end_id in suppress_tokens:
            raise UserError(f"`suppress_tokens` must not contain the end token, {end_id}. Received: {suppress_tokens=}")
        fine = isinstance(no_repeat_ngram_size, int) and no_repeat_ngram_size >= 0
        check("no_repeat_ngram_size", no_repeat_ngram_size, fine, "an integer of at least 0")
        if prefix is not None and (len(np.shape(prefix)) != 2 or np.shape(prefix)[1] > max_length):
            raise UserError(f"`prefix` must be (batch, n), n ≤ {max_length}. Received: shape {np.shape(prefix)}")
        self.min_length, self.no_repeat_ngram_size = min_length, no_repeat_ngram_size
        wrong = sorted({start_id, end_id, pad_id, *suppress_tokens} & {*copied_tokens})
        check("copied_tokens", wrong, not wrong, "ids other than start, end, padding and those of `suppress_tokens`")
        self.copied = CopiedTokens(sorted({*copied_tokens}), end_id) if len(copied_tokens) else None
        self.suppress_tokens = sorted({pad_id, start_id, *suppress_tokens} - {end_id})
        self.prefix = None if prefix is None or np.shape(prefix)[1] == 0 else ops.cast(prefix, "int32")
        if self.prefix is not None:  # number of tokens of each row before the first position that is free
            places = np.arange(self.prefix.shape[1], dtype="int32")
            self.given = ops.min(ops.where(self.prefix != pad_id, len(places), places), axis=1)
        # the last position of each row, (batch,) or an int
        self.last = max_length - 1 if limits is None else ops.cast(ops.minimum(limits, max_length) - 1, "int32")

    def of_rows(self, places: Any) -> Self:
        """The constraints of some rows."""
        chosen = copy.copy(self)
        if self.prefix is not None:
            chosen.prefix, chosen.given = (ops.take(x, places, axis=0) for x in (self.prefix, self.given))
        chosen.last = ops.take(self.last, places, axis=0) if ops.is_tensor(self.last) else self.last
        return chosen

    @property
    def may_exclude_all(self) -> bool:
        """Whether there may be positions at which no token is allowed; if not, the end token always is."""
        return self.min_length > 1

    def shared_length(self) -> Any:
        """How many positions, from the first on, hold tokens of the prefix in all rows, none of which ends there."""
        places = np.arange(self.prefix.shape[1], dtype="int32")
        before_last = ops.less(places, ops.reshape(ops.convert_to_tensor(self.last), (-1, 1)))
        shared = ops.logical_and(ops.logical_and(self.prefix != self.pad_id, self.prefix != self.end_id), before_last)
        return ops.cast(ops.min(ops.where(shared, len(places), places), initial=len(places)), "int32")

    def budget(self, sources: Any) -> Any:
        """The first budget of each source (batch, n), see `CopiedTokens`; None without copied tokens."""
        if self.copied is None:
            return None
        missing, last = self.copied.count(sources), ops.reshape(ops.convert_to_tensor(self.last), (-1, 1))
        positions = ops.cast(last + 1, "float32")
        if self.prefix is not None:
            fits = ops.less_equal(np.arange(self.prefix.shape[1], dtype="int32"), last)
            prefix = ops.where(fits, self.prefix, self.pad_id)
            missing = ops.maximum(missing - self.copied.count(prefix), 0)
            positions = positions - ops.sum(ops.cast(prefix != self.pad_id, "float32"), axis=1, keepdims=True)
        return self.copied.budget(missing, positions)

    def spend(self, budget: Any, tokens: Any, position: Any) -> Any:
        """What is left of a budget after tokens (rows, 1) have been written at `position`."""
        left = self.copied.spend(budget, tokens)
        if self.prefix is None:
            return left
        wanted = self._wanted(ops.shape(tokens)[0], position)
        return ops.where(wanted != self.pad_id, budget, left)  # the first budget has the prefix taken off

    def most_probable(self, logits: Any, k: Any, position: Any, written: Any, budget: Any = None) -> Any:
        """The `k` most probable tokens that may follow `written` (rows, l) at `position`.

        Args:
            logits: float32 (rows, v).
            budget: what is left for each row, see `budget` and `spend`.

        Returns:
            log probabilities and ids, (rows, k) each, best first; `NEVER` where fewer than `k` tokens may follow.
            The log probability of a token of the prefix before its first free position is 0.
        """
        if self.prefix is None and self.no_repeat_ngram_size == 0 and not self.may_exclude_all:
            best_k = ops.best_k if budget is None else functools.partial(self.copied.best_k, budget)
            values, ids = best_k(logits, k, self.suppress_tokens)
            normalizer = ops.log_normalizer(logits, values, ids)
        else:
            values, ids = ops.best_k(self.masked(logits, position, written, budget), k)
            normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        values = ops.maximum(values - normalizer, NEVER)
        if self.prefix is not None:
            given = ops.logical_and(position < self._repeated(self.given, ops.shape(logits)[0]), values > NEVER / 2)
            values = ops.where(given, 0.0, values)
        return values, ids

    def masked(self, logits: Any, position: Any, written: Any, budget: Any = None) -> Any:
        """Logits (rows, v), set to `NEVER` or lowered by 1e9 where a token may not follow `written` (rows, l)."""
        vocabulary, allowed = np.arange(logits.shape[-1]), masked_columns(logits, self.suppress_tokens)
        if self.min_length > 1:
            too_early = ops.logical_and(vocabulary == self.end_id, position < self.min_length - 1)
            allowed = ops.where(too_early, NEVER, allowed)
        if self.no_repeat_ngram_size:
            repeats = self._repeats(logits, position, written)
            if budget is not None:
                repeats = ops.logical_and(repeats, ~np.isin(vocabulary, self.copied.tokens))
            allowed = ops.where(repeats, NEVER, allowed)
        if budget is not None:
            allowed = self.copied.masked(budget, allowed)
        if self.prefix is not None:
            wanted = self._wanted(ops.shape(logits)[0], position)
            forced = ops.where(ops.equal(vocabulary, wanted), logits, NEVER)
            allowed = ops.where(wanted != self.pad_id, forced, allowed)
        return allowed

    def _repeats(self, logits, position, written):
        """Whether a token (rows, v) would complete an n-gram that has been written before."""
        n, rows, length = self.no_repeat_ngram_size, ops.shape(written)[0], written.shape[1]
        if length < n:
            return False
        before = ops.maximum(ops.add(position, np.arange(1 - n, 0)), 0)
        last = ops.take(written, before, axis=1)  # (rows, n - 1)
        ends = np.arange(n - 1, length)  # where an earlier n-gram may end
        alike = ops.broadcast_to(ops.less(ends, position), (rows, len(ends)))
        for place in range(n - 1):
            alike = ops.logical_and(alike, written[:, place : place + len(ends)] == last[:, place, None])
        row = ops.broadcast_to(ops.arange(rows)[:, None], (rows, len(ends)))
        places = ops.reshape(ops.stack([row, written[:, n - 1 :]], axis=-1), (-1, 2))
        return ops.scatter(places, ops.cast(ops.reshape(alike, (-1,)), places.dtype), ops.shape(logits)) > 0

    def _wanted(self, rows, position):
        """The prefix at `position`, (rows, 1)."""
        return self._repeated(ops.take(self.filled_prefix(), position, axis=1), rows)

    def _repeated(self, x, rows):
        """x (batch,) for each of the rows, a multiple of the batch: (rows, 1)."""
        return ops.repeat(x, rows // ops.shape(self.prefix)[0], axis=0)[:, None]

    def filled_prefix(self) -> Any:
        """The prefix with padding after it, (batch, max_length)."""
        missing = self.max_length - self.prefix.shape[1]
        return ops.pad(self.prefix, [(0, 0), (0, missing)], constant_values=self.pad_id)
