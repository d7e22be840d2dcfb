"""Greedy decoding and sampling, over the `prefill` and `step` of a model.

    prefill(sources, max_length) → cache
    step(tokens, position, cache) → logits (rows, n, vocabulary), cache

A cache is any tree of dicts, lists and tensors, whose first axis is that of the rows; each step returns one of the same
structure, shapes and dtypes. What a tensor belongs to depends on the keys above it:
    "memory"    one per source, shared by its hypotheses; fixed size
    "state"     one per hypothesis; fixed size
    any other   one per hypothesis, with an axis of positions that can grow, (…, positions, features)
`step` may be given several rows for each row of the memory: first all rows of source 0, then those of source 1, and so
on. It may also return the attention to the source, which `beam_search` uses.

A beam search reorders the cache at each step, as hypotheses take the places of others. A dict of "k", "v" and "slots",
an empty list, need not be: its arrays are (rows, heads, positions, features), and its layer also reads them as slots.
Runtimes with `keeps_caches` then leave them where they were written. Each source has as many slots at each position as
there are places in the beam, hypothesis n writes to slot n, and the arrays are (sources, heads, positions · slots,
features), first all slots of position 0. In a step, "slots" has the "position" of the search and the "ancestors"
(sources, beams, positions): the slots in which a hypothesis finds what belongs to it. All such parts of a cache have
the same number of positions.

A search feeds one token at a time, but reads the tokens that all rows start with, see `prefix`, at once; a cache with a
"state" reads these one by one, too.

Axes: b batch, k beams, l length, v vocabulary.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, check, positive, positive_number
from keras_tfm.decoding.constraints import Constraints
from keras_tfm.ops.runtime import NEVER

# Number of rows, and of positions, from which on it pays to gather unfinished rows into smaller batches, although the
# search then takes twice as long to compile.
MIN_SIZE_TO_COMPACT = 16
COMPACT_DIVISOR = 4  # a smaller batch has a fourth of the rows


def greedy(
    prefill: Callable, step: Callable, sources: Any, max_length: int, capacity: int | None = None, **constraints: Any
) -> Any:
    """Writes the most probable token at each position, until all rows have ended.

    A row in which no token is allowed at some position, by `min_length` and other constraints, becomes all padding.

    Args:
        prefill, step: of a model, see the module docstring.
        sources: ids (batch, source length).
        max_length, **constraints: see `Constraints`, `start_id`, `end_id` and `pad_id` among them.
        capacity: half of the positions that the cache starts with; it is doubled whenever it is full. By default the
            cache has `max_length` positions from the start. Only for TensorFlow graphs that XLA does not compile.

    Returns:
        ids (batch, max_length), padding after the end token.
    """
    return _OneByOne(prefill, step, sources, max_length, capacity, constraints).decode()


def sample(
    prefill: Callable,
    step: Callable,
    sources: Any,
    max_length: int,
    seed: Any = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    **constraints: Any,
) -> Any:
    """Draws each token by its probability, until all rows have ended.

    Args:
        prefill, step, sources, max_length, **constraints: as for `greedy`.
        seed: an integer, for reproducible draws; None or a `keras.random.SeedGenerator`, for others in each call;
            or the random numbers themselves, (batch, max_length) in [0, 1).
        temperature: above 1 for more variety, below for less.
        top_k: draw from this many most probable tokens only.
        top_p: draw from the fewest tokens that together have this probability (https://arxiv.org/abs/1904.09751).
        min_p: draw from tokens with at least this fraction of the highest probability (https://arxiv.org/abs/2407.01082).

    Returns:
        ids (batch, max_length), padding after the end token.
    """
    check_sampling(temperature, top_k, top_p, min_p)
    if seed is None or isinstance(seed, (int, np.integer, keras.random.SeedGenerator)):
        rows = ops.shape(ops.convert_to_tensor(sources))[0]
        seed = keras.random.uniform((rows, max_length), dtype="float32", seed=seed)
    draw = functools.partial(_draw, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return _OneByOne(prefill, step, sources, max_length, None, constraints).decode(draw, seed)


class Prompted(NamedTuple):
    """What `prefill` returns if the sources are prompts: the cache, and the prompt (batch, n) of each row."""

    cache: object
    prompt: object


def check_sampling(temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Raises an error for options that `sample` does not accept."""
    positive_number("temperature", temperature)
    positive("top_k", top_k, optional=True)
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        fine = share is None or isinstance(share, (int, float)) and 0 < share <= 1
        check(name, share, fine, "above 0 and at most 1")


class Search:
    """A loop over `step`. Its state is a dict: position, tokens to feed next, cache, and what subclasses add."""

    def __init__(self, prefill, step, sources, max_length, capacity, constraints):
        self.step, self.max_length, self.capacity = functools.partial(_checked, step), max_length, capacity
        self.constraints, self.sources = Constraints(max_length, **constraints), ops.convert_to_tensor(sources)
        self.batch = ops.shape(self.sources)[0]
        many = isinstance(self.batch, int) and self.batch >= MIN_SIZE_TO_COMPACT and max_length >= MIN_SIZE_TO_COMPACT
        self.compacts = ops.current().compacts_batches and capacity is None and many
        prefix = self.constraints.prefix
        self.first_capacity = max((max_length + 1) // 2, 0 if prefix is None else prefix.shape[1])
        self.cache = prefill(
            self.sources, self.first_capacity if self.compacts else max_length if capacity is None else capacity
        )
        if isinstance(self.cache, Prompted):
            self.cache, prompt = self.cache
            if prefix is None:
                self.constraints = Constraints(max_length, **constraints | {"prefix": prompt})

    def begin(self, at_once=True):
        """The first state, for one hypothesis per source, and what is written already, (b, l).

        If `at_once`, one step reads what all rows start with. It reads padding in longer prefixes, too; the steps at
        these positions replace it before any token attends to it.
        """
        rules, start = self.constraints, ops.full((self.batch, 1), self.constraints.start_id, dtype="int32")
        state = {"position": ops.convert_to_tensor(0, dtype="int32"), "tokens": start, "cache": self.cache}
        nothing = ops.full((self.batch, self.max_length), rules.pad_id, dtype="int32")
        if rules.prefix is None or not at_once or self.capacity is not None or _has_state(self.cache):
            return state, nothing
        read, position = ops.concatenate([start, rules.prefix], axis=1), rules.shared_length()
        _, cache, *_ = self.step(read[:, :-1], 0, self.cache)
        state = {"position": position, "tokens": ops.take(read, position, axis=1)[:, None], "cache": cache}
        return state, ops.where(ops.arange(self.max_length) < position, rules.filled_prefix(), nothing)

    def run(self, state):
        """The result of the loop from a state on."""
        if self.compacts:
            return self._run_compacting(state)
        if self.capacity is None:
            return self.result(ops.while_loop(self.unfinished, self.advance, state))
        state["capacity"] = positive("capacity", self.capacity) if isinstance(self.capacity, int) else self.capacity
        return self.result(ops.while_loop(self.unfinished, self._grow_cache, state))

    def unfinished(self, state):
        return ops.logical_and(state["position"] < self.max_length, ops.any(self.searching(state)))

    def _grow_cache(self, state):
        state = {**_grown(state), "capacity": 2 * state["capacity"]}
        return ops.while_loop(self._unfinished_within_capacity, self.advance, state)

    def _unfinished_within_capacity(self, state):
        return ops.logical_and(state["position"] < state["capacity"], self.unfinished(state))

    def _run_compacting(self, state):
        """Runs all rows together, then gathers unfinished ones into smaller batches, as finished rows cost time.

        All rows have a cache for half of the positions, and run until it is full or until one group is left. Shapes
        are fixed, as XLA needs them.
        """
        size = self.batch // COMPACT_DIVISOR

        def many_left(state):
            left = ops.sum(ops.cast(self.searching(state), "int32"))
            return ops.logical_and(state["position"] < self.first_capacity, left > size)

        def finish_group(left, result):
            # unfinished rows first, filled up with finished ones
            places = ops.cast(ops.top_k(ops.cast(left, "int32"), size)[1], "int32")
            group, chosen = self._group(places), functools.partial(_rows, places=places, batch=self.batch)
            part = _grown(keras.tree.map_structure(chosen, state))
            ended = group.result(ops.while_loop(group.unfinished, group.advance, part))
            index, new = places[:, None], ops.take(left, places)

            def updated(old, ended):
                kept = ops.where(ops.reshape(new, (-1,) + (1,) * (len(old.shape) - 1)), ended, chosen(old))
                return ops.scatter_update(old, index, kept)

            return ops.scatter_update(left, index, ops.zeros_like(new)), keras.tree.map_structure(
                updated, result, ended
            )

        state = ops.while_loop(many_left, self.advance, state)
        left = self.searching(state)
        return ops.while_loop(lambda left, result: ops.any(left), finish_group, (left, self.result(state)))[1]

    def _group(self, places):
        """The search for some rows."""
        group = copy.copy(self)
        group.sources, group.batch = ops.take(self.sources, places, axis=0), places.shape[0]
        group.constraints = self.constraints.of_rows(places)
        return group


class _OneByOne(Search):
    """Writes one token per row and step: the most probable one, or the one that `draw(logits, uniforms)` returns."""

    def decode(self, draw=None, uniforms=None):
        """Decodes; `uniforms` (b, l) are the random numbers of each row, of which `draw` is given a column."""
        self.draw = draw
        state, written = self.begin()
        state |= {"written": written, "done": ops.zeros((self.batch,), "bool")}
        if self.constraints.copied:
            state["budget"] = self.constraints.budget(self.sources)
        if uniforms is not None:
            state["uniforms"] = ops.convert_to_tensor(uniforms)  # not in `draw`: groups take their rows of the state
        return self.run(state)

    def result(self, state):
        return state["written"]

    def searching(self, state):
        """Which rows (b,) are not finished."""
        return ops.logical_not(state["done"])

    def advance(self, state):
        position, done, written, budget = state["position"], state["done"], state["written"], state.get("budget")
        pad_id = self.constraints.pad_id
        logits, cache, *_ = self.step(state["tokens"], position, state["cache"])
        if self.draw is None and not self.constraints.may_exclude_all:
            chosen = self.constraints.most_probable(last_logits(logits), 1, position, written, budget)[1]
        else:
            scores = self.constraints.masked(last_logits(logits), position, written, budget)
            if self.draw is None:
                chosen = ops.best_k(scores, 1)[1]
            else:
                chosen = self.draw(scores, ops.take(state["uniforms"], position, axis=1)[:, None])
            if self.constraints.may_exclude_all:  # a row that cannot continue has no translation, as in a beam search
                stuck = ops.logical_and(ops.logical_not(done), ops.max(scores, axis=-1) < NEVER / 2)
                done, written = ops.logical_or(done, stuck), ops.where(ops.expand_dims(stuck, 1), pad_id, written)
        tokens = ops.where(ops.expand_dims(done, 1), pad_id, chosen)
        written = ops.slice_update(written, (0, position), tokens)
        ends = ops.logical_or(tokens[:, 0] == self.constraints.end_id, position >= self.constraints.last)
        new = {"position": position + 1, "tokens": tokens, "written": written, "done": ops.logical_or(done, ends)}
        if budget is not None:
            new["budget"] = self.constraints.spend(budget, tokens, position)
        return {**state, **new, "cache": cache}


def _draw(scores, uniforms, temperature, top_k, top_p, min_p):
    """Draws tokens (b, 1) by their scores (b, v) and random numbers (b, 1), see `sample`."""
    scores = scores / temperature
    lowest = []  # scores that a token must reach
    if top_k is not None:
        lowest.append(ops.top_k(scores, min(top_k, scores.shape[-1]))[0][:, -1:])
    if min_p is not None:
        lowest.append(ops.max(scores, axis=-1, keepdims=True) + np.log(min_p))
    for threshold in lowest:
        scores = ops.where(scores < threshold, NEVER, scores)
    if top_p is not None:
        ordered = ops.top_k(scores, scores.shape[-1])[0]
        shares = ops.softmax(ordered)
        inside = ops.cumsum(shares, axis=-1) - shares < top_p  # the most probable token always is
        threshold = ops.min(ops.where(inside, ordered, -NEVER), axis=-1, keepdims=True)
        scores = ops.where(scores < threshold, NEVER, scores)
    # A random number in [0, 1) chooses the token whose share of the cumulated probabilities it falls into.
    cumulative = ops.cumsum(ops.softmax(scores), axis=-1)
    below = cumulative <= uniforms * cumulative[:, -1:]  # tokens below the draw; their number is the id that is drawn
    return ops.cast(ops.sum(ops.cast(below, "int32"), axis=-1, keepdims=True), "int32")


def _checked(step, tokens, position, cache):
    """What `step` returns, if it is what a search expects."""
    outputs = step(tokens, position, cache)
    if not isinstance(outputs, (tuple, list)) or len(outputs) not in (2, 3):
        received = f"{len(outputs)} values" if isinstance(outputs, (tuple, list)) else type(outputs).__name__
        raise UserError(f"`step` must return logits, the new cache and perhaps attention. Received: {received}")
    rows, shape = tokens.shape[0], tuple(outputs[0].shape)
    if len(shape) != 3 or None not in (rows, shape[0]) and rows != shape[0]:
        raise UserError(f"`step` must return logits (rows, n, vocabulary) for {rows} rows. Received: shape {shape}")
    return outputs


def last_logits(logits):
    """Logits of the last token, (rows, n, v) → float32 (rows, v); without a copy if there is one token."""
    return ops.cast(ops.squeeze(logits, axis=1) if logits.shape[1] == 1 else logits[:, -1], "float32")


def map_hypotheses(function: Callable, cache: Any, skip: Any = ("memory",), kept: Callable | None = None) -> Any:
    """The cache with `function` applied to each tensor of a hypothesis, except under the keys of `skip`.

    If `kept` is given, it is applied to each dict that has "slots", see the module docstring.
    """
    if isinstance(cache, dict):
        if kept is not None and "slots" in cache:
            return kept(cache)
        parts = cache.items()
        return {key: x if key in skip else map_hypotheses(function, x, skip, kept) for key, x in parts}
    if isinstance(cache, (list, tuple)):
        return [map_hypotheses(function, x, skip, kept) for x in cache]
    return function(cache)


def _has_state(cache):
    """Whether a part of the cache is not addressed by positions."""
    parts = cache.values() if isinstance(cache, dict) else cache if isinstance(cache, (list, tuple)) else ()
    return isinstance(cache, dict) and "state" in cache or any(map(_has_state, parts))


def _grown(state):
    """The state of a search with twice as many positions in its cache."""
    grown = {name: state[name] for name in ("cache", "ancestors") if name in state}
    return state | map_hypotheses(_doubled, grown, skip=("memory", "state"))


def _doubled(x):
    """Twice as many positions, (…, n, features) → (…, 2n, features)."""
    return ops.concatenate([x, ops.zeros_like(x)], axis=-2)


def _rows(x, places, batch):
    """The rows of x that belong to the sources at `places`. Scalars are returned unchanged."""
    if len(x.shape) == 0:
        return x
    grouped = ops.reshape(x, (batch, x.shape[0] // batch, *x.shape[1:]))
    return ops.reshape(ops.take(grouped, places, axis=0), (-1, *x.shape[1:]))


class Ensemble:
    """Models with one vocabulary that decide together: `step` averages their probabilities."""

    def __init__(self, models: Sequence[Any]):
        self.models = list(models)

    def prefill(self, sources: Any, max_length: int, **options: Any) -> Any:
        caches = [model.prefill(sources, max_length, **options) for model in self.models]
        if isinstance(caches[0], Prompted):
            return Prompted([cache for cache, _ in caches], caches[0].prompt)
        return caches

    def step(self, tokens: Any, position: Any, cache: Any, **options: Any) -> tuple[Any, Any]:
        outputs = [model.step(tokens, position, own, **options) for model, own in zip(self.models, cache, strict=True)]
        shares = [ops.softmax(ops.cast(logits, "float32")) for logits, _ in outputs]
        return ops.log(sum(shares) / len(shares) + 1e-30), [own for _, own in outputs]
