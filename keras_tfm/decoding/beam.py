"""Beam search, over the `prefill` and `step` of a model; see `keras_tfm.decoding.search`."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, one_of, positive
from keras_tfm.decoding.search import Search, last_logits, map_hypotheses
from keras_tfm.ops.runtime import NEVER, flat_places

MAX_SLOTS = 8  # a wider beam reorders its cache, since each query is multiplied with the keys in all slots

# Name → divisor of a hypothesis' log probability, as a function of its number of tokens and an exponent.
PENALTIES = {
    "length": lambda length, exponent: length**exponent,
    "gnmt": lambda length, exponent: ((5 + length) / 6) ** exponent,  # https://arxiv.org/abs/1609.08144
}


def beam_search(
    prefill: Callable,
    step: Callable,
    sources: Any,
    max_length: int,
    num_beams: int = 4,
    n_best: int = 1,
    penalty: str = "length",
    length_penalty: float = 0.6,
    coverage_penalty: float = 0.0,
    early_stopping: bool = True,
    capacity: int | None = None,
    **constraints: Any,
) -> tuple[Any, Any]:
    """Finds the best hypotheses with a beam.

    Each step keeps the `num_beams` best continuations of all hypotheses. Those that end leave the beam and are kept
    separately.

    Args:
        prefill, step, sources, max_length, capacity, **constraints: as for `greedy`. The tokens of a prefix add nothing
            to the score, but count as part of the length.
        num_beams: number of hypotheses to keep.
        n_best: number of hypotheses to return, at most `num_beams`.
        penalty: a key of `PENALTIES`: what the log probability of a hypothesis is divided by.
        length_penalty: its exponent; 0 for none, higher values favour longer hypotheses.
        coverage_penalty: factor of Σ log min(attention to a source token, 1), which is added to the score of a
            hypothesis when it ends (https://arxiv.org/abs/1609.08144); `step` must then also return the attention
            (rows, source length).
        early_stopping: whether the search stops as soon as no hypothesis in the beam would be one of the `n_best` if it
            ended now. That takes fewer steps, and seldom misses a longer hypothesis with a better score. If False, it
            stops when none can become one: its probability can only fall, and its logarithm is divided by at most the
            largest divisor of any length that it can reach.

    Returns:
        ids (batch, n_best, max_length), padding after the end token, and scores (batch, n_best), best first. Slots with
        no hypothesis have padding as ids and the score `NEVER`.
    """
    check("n_best", n_best, positive("n_best", n_best) <= positive("num_beams", num_beams), f"at most {num_beams=}")
    check_search(penalty, length_penalty, coverage_penalty, early_stopping)
    divisors = PENALTIES[penalty](np.arange(1, max_length + 1, dtype="float32"), length_penalty)
    options = {"num_beams": num_beams, "n_best": n_best, "divisors": divisors, "coverage_penalty": coverage_penalty}
    options["early_stopping"] = early_stopping
    return _BeamSearch(prefill, step, sources, max_length, capacity, constraints, **options).decode()


def check_search(penalty="length", length_penalty=0.6, coverage_penalty=0.0, early_stopping=True):
    """Raises an error for options that `beam_search` does not accept."""
    one_of("penalty", penalty, PENALTIES)
    one_of("early_stopping", early_stopping, (False, True))
    check("length_penalty", length_penalty, isinstance(length_penalty, (int, float)), "a number")
    fine = isinstance(coverage_penalty, (int, float)) and coverage_penalty >= 0
    check("coverage_penalty", coverage_penalty, fine, "a number of at least 0")


class _BeamSearch(Search):
    """Adds to the state: hypotheses that are `alive` or have `ended`, and the `parents` (b, k) of those alive.

    If the cache is kept in place, also the `ancestors` (b, k, l, 1), see `keras_tfm.decoding.search`.
    """

    def __init__(self, *arguments, num_beams, n_best, divisors, coverage_penalty, early_stopping):
        super().__init__(*arguments)
        self.num_beams, self.n_best, self.divisors, self.early_stopping = num_beams, n_best, divisors, early_stopping
        self.coverage_penalty = coverage_penalty

    def decode(self):
        shape, repeated = (self.batch, self.num_beams), functools.partial(_repeated, n=self.num_beams)
        state, written = self.begin(at_once=not self.coverage_penalty)  # which needs the attention of each token
        state |= self._opened(state["cache"], repeated) | {"tokens": repeated(state["tokens"])}
        alive = {
            "ids": ops.reshape(repeated(written), (*shape, self.max_length)),
            "scores": ops.tile(ops.convert_to_tensor([[0.0] + [NEVER] * (self.num_beams - 1)]), (self.batch, 1)),
        }
        if self.constraints.copied:
            budget = self.constraints.budget(self.sources)
            alive["budget"] = ops.reshape(repeated(budget), (*shape, budget.shape[1]))
        if self.coverage_penalty:
            alive["coverage"] = ops.zeros((*shape, ops.shape(self.sources)[1]))
        ended = {"ids": alive["ids"], "scores": ops.full(shape, 2 * NEVER)}
        ended = self.run(state | {"alive": alive, "ended": ended, "parents": ops.zeros(shape, dtype="int32")})
        ids, scores = (ended[name][:, : self.n_best] for name in ("ids", "scores"))
        ids = ops.where(ops.expand_dims(scores > NEVER / 2, -1), ids, self.constraints.pad_id)
        return ids, ops.maximum(scores, NEVER)

    def _opened(self, cache, repeated):
        """The cache for `num_beams` hypotheses per source; if a part of it is kept in place, also the "ancestors"."""
        lengths = []

        def with_slots(own):
            lengths.append(ops.shape(own["k"])[2])
            return {"k": _in_slots(own["k"], self.num_beams), "v": _in_slots(own["v"], self.num_beams), "slots": []}

        keeps = ops.current().keeps_caches and self.num_beams <= MAX_SLOTS
        cache = map_hypotheses(repeated, cache, kept=with_slots if keeps else None)
        # all slots hold what has been written so far; positions come last but one, as in all that can grow
        shape = (self.batch, self.num_beams, *lengths[:1], 1)
        return {"cache": cache} | ({"ancestors": ops.zeros(shape, dtype="int32")} if lengths else {})

    def _reordered(self, state):
        """The cache for the next step, and the table of ancestors if there is one."""
        reordered = functools.partial(_take_rows, places=state["parents"])
        if "ancestors" not in state:
            return map_hypotheses(reordered, state["cache"]), {}
        own = ops.broadcast_to(
            np.arange(self.num_beams, dtype="int32")[:, None, None], (self.batch, self.num_beams, 1, 1)
        )
        table = ops.take_each(state["ancestors"], state["parents"])
        table = ops.slice_update(table, (0, 0, state["position"], 0), own)
        slots = {"ancestors": ops.squeeze(table, axis=-1), "position": state["position"]}
        cache = map_hypotheses(reordered, state["cache"], kept=lambda own: {**own, "slots": slots})
        return cache, {"ancestors": table}

    def result(self, state):
        return state["ended"]

    def searching(self, state):
        """Which rows (b,) can still find a hypothesis that is one of the best."""
        take, position = ops.take, ops.minimum(state["position"], self.max_length - 1)
        divisor = take(self.divisors, position, axis=0)
        if not self.early_stopping:
            # The highest score that a hypothesis can still get, here or at its last position: log probabilities are
            # negative, divisors rise or fall with the length, and the coverage penalty only subtracts.
            divisor = ops.maximum(divisor, take(self.divisors, self.constraints.last, axis=0))
        best_possible = ops.max(state["alive"]["scores"], axis=1) / divisor
        return ops.logical_and(best_possible > state["ended"]["scores"][:, self.n_best - 1], best_possible > NEVER / 2)

    def advance(self, state):
        position, alive = state["position"], state["alive"]
        cache, ancestors = self._reordered(state)
        logits, cache, *attention = self.step(state["tokens"], position, cache)
        if bool(attention) != bool(self.coverage_penalty):
            rule = "`step` must return attention if, and only if, `coverage_penalty` is not 0"
            received = f"coverage_penalty={self.coverage_penalty}, {2 + len(attention)} outputs of step"
            raise UserError(f"{rule}. Received: {received}")
        cache = map_hypotheses(lambda x: x, cache, kept=lambda own: {"k": own["k"], "v": own["v"], "slots": []})
        if attention:
            alive = {**alive, "coverage": alive["coverage"] + ops.reshape(attention[0], ops.shape(alive["coverage"]))}
        scores, tokens, parents = self._continuations(last_logits(logits), position, alive)
        alive = {name: ops.take_each(x, parents) for name, x in alive.items()}
        alive["ids"] = ops.slice_update(alive["ids"], (0, 0, position), ops.expand_dims(tokens, -1))
        if "budget" in alive:
            budget = self.constraints.spend(_as_rows(alive["budget"]), ops.reshape(tokens, (-1, 1)), position)
            alive["budget"] = ops.reshape(budget, ops.shape(alive["budget"]))
        last = ops.reshape(position >= self.constraints.last, (-1, 1))
        ends = ops.logical_or(tokens == self.constraints.end_id, last)
        ended = self._ended(state["ended"], alive, ops.logical_and(ends, scores > NEVER / 2), scores, position)
        alive["scores"] = ops.where(ends, 2 * NEVER, scores)
        new = {"position": position + 1, "tokens": ops.reshape(tokens, (-1, 1)), "parents": parents}
        return {**state, **new, **ancestors, "alive": alive, "ended": ended, "cache": cache}

    def _continuations(self, logits, position, alive):
        """Scores, tokens and parents (b, k) of the best continuations of all hypotheses."""
        per_beam = min(self.num_beams, logits.shape[-1])
        written, budget = _as_rows(alive["ids"]), _as_rows(alive["budget"]) if "budget" in alive else None
        values, ids = self.constraints.most_probable(logits, per_beam, position, written, budget)  # (b · k, per beam)
        values = ops.reshape(values + ops.reshape(alive["scores"], (-1, 1)), (self.batch, self.num_beams * per_beam))
        scores, places = ops.top_k(values, self.num_beams)
        tokens = ops.take_each(ops.reshape(ids, (self.batch, self.num_beams * per_beam)), places)
        return scores, tokens, ops.cast(places // per_beam, "int32")

    def _ended(self, ended, alive, ends, scores, position):
        """The best `num_beams` of the hypotheses that had ended and of those that end now."""
        final = scores / ops.take(self.divisors, position, axis=0)
        if self.coverage_penalty:
            tokens = ops.cast(self.sources != self.constraints.pad_id, "float32")
            covered = ops.log(ops.clip(alive["coverage"], 1e-9, 1.0)) * tokens[:, None]
            final = final + self.coverage_penalty * ops.sum(covered, axis=-1)
        final = ops.concatenate([ended["scores"], ops.where(ends, final, 2 * NEVER)], axis=1)
        best, which = ops.top_k(final, self.num_beams)
        return {"ids": ops.take_each(ops.concatenate([ended["ids"], alive["ids"]], axis=1), which), "scores": best}


def _as_rows(x):
    """(b, k, n) → (b · k, n)."""
    return ops.reshape(x, (-1, x.shape[-1]))


def _repeated(x, n):
    """Each row `n` times, (b, …) → (b · n, …); `ops.repeat` forgets the shape if the batch size is not known yet."""
    rows, *rest = ops.shape(x)
    return ops.reshape(ops.concatenate([ops.expand_dims(x, 1)] * n, axis=1), (rows * n, *rest))


def _in_slots(x, n):
    """Each position `n` times, (b, h, l, d) → (b, h, l · n, d)."""
    batch, heads, length, dim = ops.shape(x)
    return ops.reshape(ops.concatenate([ops.expand_dims(x, 3)] * n, axis=3), (batch, heads, length * n, dim))


def _take_rows(x, places):
    """The rows of x (b · k, …) at places (b, k) within each group of k: (b · k, …)."""
    return ops.take(x, flat_places(places, places.shape[1]), axis=0)
