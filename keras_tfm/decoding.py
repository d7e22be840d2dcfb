"""Greedy decoding, sampling and beam search, over the `start` and `step` of a model.

    start(sources, max_length) → cache
    step(tokens, position, cache) → logits (rows, n, vocabulary), cache

A cache is any tree of dicts, lists and tensors. Tensors under a key "memory" belong to a source and are shared by its
hypotheses; all others belong to a hypothesis and move with it. Those under a key "state" keep their size, the others
have room for a number of positions, (…, positions, features). `step` may be given several rows for each row of the
memory: first all rows of source 0, then those of source 1, and so on.

Axes: b batch, k beams, l length, v vocabulary.
"""

import copy
import functools

import keras
import numpy as np
from keras import ops

from keras_tfm import kernels
from keras_tfm.arguments import one_of, positive
from keras_tfm.kernels import NEVER, flat_places, take_each
from keras_tfm.text import END, PAD, START

# Name → divisor of a hypothesis' log probability, as a function of its number of tokens and an exponent.
PENALTIES = {
    "length": lambda length, exponent: length**exponent,
    "gnmt": lambda length, exponent: ((5 + length) / 6) ** exponent,  # https://arxiv.org/abs/1609.08144
}


MANY = 16  # rows, and positions, from which on it pays to divide a search, which takes twice as long to compile
GROUPS = 4


class Constraints:
    """Which tokens may be written at which position.

    Args:
        max_length: maximum number of tokens, including the end token.
        min_length: minimum number of tokens, including the end token.
        forbidden: ids that are never written; neither are padding and the start token.
        prefix: ids (batch, n) that each row starts with; 0 leaves a position free.
        no_repeat_ngram: no sequence of this many tokens occurs twice in a translation; 0 for no such rule.
        limits: None or (batch,), the maximum number of tokens of each row, where that is less than `max_length`.
    """

    def __init__(self, max_length, min_length=0, forbidden=(), prefix=None, no_repeat_ngram=0, limits=None):
        self.max_length = positive("max_length", max_length)
        if not (isinstance(min_length, int) and 0 <= min_length <= max_length):
            raise ValueError(f"`min_length` must be from 0 to max_length={max_length}. Received: {min_length=}")
        if END in forbidden:
            raise ValueError(f"`forbidden` must not contain the end token, {END}. Received: {forbidden=}")
        if not isinstance(no_repeat_ngram, int) or no_repeat_ngram < 0:
            raise ValueError(f"`no_repeat_ngram` must be an integer of at least 0. Received: {no_repeat_ngram=}")
        if prefix is not None and (len(np.shape(prefix)) != 2 or np.shape(prefix)[1] > max_length):
            raise ValueError(f"`prefix` must be (batch, n), n ≤ {max_length}. Received: shape {np.shape(prefix)}")
        self.min_length, self.forbidden = min_length, sorted({PAD, START, *forbidden})
        self.prefix, self.no_repeat_ngram = prefix, no_repeat_ngram
        # the last position of each row, (batch,) or an int
        self.last = max_length - 1 if limits is None else ops.cast(ops.minimum(limits, max_length) - 1, "int32")

    def of_rows(self, places):
        """The constraints of some rows."""
        chosen = copy.copy(self)
        chosen.prefix = None if self.prefix is None else ops.take(self.prefix, places, axis=0)
        chosen.last = ops.take(self.last, places, axis=0) if ops.is_tensor(self.last) else self.last
        return chosen

    @property
    def may_exclude_all(self):
        """Whether there may be positions at which no token is allowed; if not, the end token always is."""
        return self.min_length > 1

    def most_probable(self, logits, k, position, written):
        """The `k` most probable tokens that may follow `written` (rows, l) at `position`.

        Args:
            logits: float32 (rows, v).

        Returns:
            log probabilities and ids, (rows, k) each, best first; `NEVER` where fewer than `k` tokens may follow.
        """
        kernel = kernels.current()
        if self.prefix is None and self.no_repeat_ngram == 0 and not self.may_exclude_all:
            values, ids = kernel.top_k(logits, k, self.forbidden)
            normaliser = kernel.log_normaliser(logits, values, ids)
        else:
            values, ids = kernel.top_k(self.masked(logits, position, written), k)
            normaliser = ops.logsumexp(logits, axis=-1, keepdims=True)
        return ops.maximum(values - normaliser, NEVER), ids

    def masked(self, logits, position, written):
        """Logits (rows, v), set to `NEVER` or lowered by 1e9 where a token may not follow `written` (rows, l)."""
        vocabulary, allowed = np.arange(logits.shape[-1]), kernels.masked_columns(logits, self.forbidden)
        if self.min_length > 1:
            too_early = ops.logical_and(vocabulary == END, position < self.min_length - 1)
            allowed = ops.where(too_early, NEVER, allowed)
        if self.no_repeat_ngram:
            allowed = ops.where(self._repeats(logits, position, written), NEVER, allowed)
        if self.prefix is not None:
            wanted = self._wanted(ops.shape(logits)[0], position)
            allowed = ops.where(wanted > 0, ops.where(ops.equal(vocabulary, wanted), logits, NEVER), allowed)
        return allowed

    def _repeats(self, logits, position, written):
        """Whether a token (rows, v) would complete an n-gram that has been written before."""
        n, rows, length = self.no_repeat_ngram, ops.shape(written)[0], written.shape[1]
        if length < n:
            return False
        before = ops.maximum(ops.add(position, np.arange(1 - n, 0)), 0)
        last = kernels.current().take(written, before, axis=1)  # (rows, n - 1)
        ends = np.arange(n - 1, length)  # where an earlier n-gram may end
        alike = ops.broadcast_to(ops.less(ends, position), (rows, len(ends)))
        for place in range(n - 1):
            alike = ops.logical_and(alike, written[:, place : place + len(ends)] == last[:, place, None])
        banned = ops.where(alike, written[:, n - 1 :], PAD)  # padding is never written anyway
        row = ops.broadcast_to(ops.arange(rows)[:, None], (rows, len(ends)))
        places = ops.reshape(ops.stack([row, banned], axis=-1), (-1, 2))
        return ops.scatter(places, ops.ones_like(places[:, 0]), ops.shape(logits)) > 0

    def _wanted(self, rows, position):
        """The prefix at `position`, (rows, 1)."""
        prefix = ops.pad(ops.cast(self.prefix, "int32"), [(0, 0), (0, self.max_length - np.shape(self.prefix)[1])])
        wanted = kernels.current().take(prefix, position, axis=1)
        return ops.repeat(wanted, rows // ops.shape(prefix)[0], axis=0)[:, None]


def greedy(start, step, sources, max_length, room=None, **constraints):
    """Writes the most probable token at each position, until all rows have ended.

    A row in which no token is allowed at some position, by `min_length` and other constraints, becomes all zeros.

    Args:
        start, step: of a model, see the module docstring.
        sources: ids (batch, source length).
        max_length, **constraints: see `Constraints`.
        room: initial size of the cache, in positions. It is doubled before the first step and whenever it is full. By
            default the cache has `max_length` positions from the start. Only for TensorFlow graphs that XLA does not
            compile.

    Returns:
        ids (batch, max_length), zeros after the end token.
    """
    return _OneByOne(start, step, sources, max_length, room, constraints).decode()


def sample(
    start, step, sources, max_length, seed=0, temperature=1.0, top_k=None, top_p=None, min_p=None, **constraints
):
    """Draws each token by its probability, until all rows have ended.

    Args:
        start, step, sources, max_length, **constraints: as for `greedy`.
        seed: an integer, for reproducible draws; or the random numbers themselves, (batch, max_length) in [0, 1).
        temperature: above 1 for more variety, below for less.
        top_k: draw from this many most probable tokens only.
        top_p: draw from the fewest tokens that together have this probability (https://arxiv.org/abs/1904.09751).
        min_p: draw from tokens with this fraction of the highest probability (https://arxiv.org/abs/2407.01082).

    Returns:
        ids (batch, max_length), zeros after the end token.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive. Received: {temperature=}")
    positive("top_k", top_k, optional=True)
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"`{name}` must be above 0 and at most 1. Received: {name}={share}")
    if isinstance(seed, (int, np.integer)):
        seed = keras.random.uniform((ops.shape(sources)[0], max_length), seed=int(seed))
    draw = functools.partial(_draw, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return _OneByOne(start, step, sources, max_length, None, constraints).decode(draw, seed)


def beam_search(
    start,
    step,
    sources,
    max_length,
    beams=4,
    n_best=1,
    penalty="length",
    length_penalty=0.6,
    coverage_penalty=0.0,
    thorough=True,
    room=None,
    **constraints,
):
    """Finds the best hypotheses with a beam.

    Each step keeps the `beams` best continuations of all hypotheses. Those that end leave the beam and are kept
    separately. The search stops when no hypothesis in the beam can still become one of the `n_best`: its probability
    can only fall, and its logarithm is divided by at most the largest divisor of any length that it can reach.

    Args:
        start, step, sources, max_length, room, **constraints: as for `greedy`.
        beams: number of hypotheses to keep.
        n_best: number of hypotheses to return, at most `beams`.
        penalty: a key of `PENALTIES`: what the log probability of a hypothesis is divided by.
        length_penalty: its exponent; 0 for none, higher values favour longer hypotheses.
        coverage_penalty: factor of Σ log min(attention to a source token, 1), which is added to the score of a
            hypothesis when it ends (https://arxiv.org/abs/1609.08144); `step` must then also return the attention
            (rows, source length).
        thorough: if False, the search stops as soon as no hypothesis in the beam would be one of the `n_best` if it
            ended now. That takes fewer steps, and seldom misses a longer hypothesis with a better score.

    Returns:
        ids (batch, n_best, max_length), zeros after the end token, and scores (batch, n_best), best first. Slots with
        no hypothesis have zeros as ids and the score `NEVER`.
    """
    if positive("n_best", n_best) > positive("beams", beams):
        raise ValueError(f"`n_best` must be at most {beams=}. Received: {n_best=}")
    check_search(penalty, length_penalty, coverage_penalty, thorough)
    divisors = PENALTIES[penalty](np.arange(1, max_length + 1, dtype="float32"), length_penalty)
    options = {"beams": beams, "n_best": n_best, "divisors": divisors, "coverage_penalty": coverage_penalty}
    options["thorough"] = thorough
    return _BeamSearch(start, step, sources, max_length, room, constraints, **options).decode()


def check_search(penalty="length", length_penalty=0.6, coverage_penalty=0.0, thorough=True):
    """Raises an error for options that `beam_search` does not accept."""
    one_of("penalty", penalty, PENALTIES)
    one_of("thorough", thorough, (False, True))
    if not isinstance(length_penalty, (int, float)):
        raise ValueError(f"`length_penalty` must be a number. Received: {length_penalty=}")
    if not isinstance(coverage_penalty, (int, float)) or coverage_penalty < 0:
        raise ValueError(f"`coverage_penalty` must be a number of at least 0. Received: {coverage_penalty=}")


class _Search:
    """A loop over `step`. Its state is a dict: position, tokens to feed next, cache, and what subclasses add."""

    def __init__(self, start, step, sources, max_length, room, constraints):
        self.step, self.max_length, self.room = step, max_length, room
        self.constraints, self.sources = Constraints(max_length, **constraints), ops.convert_to_tensor(sources)
        self.batch = ops.shape(self.sources)[0]
        many = isinstance(self.batch, int) and self.batch >= MANY and max_length >= MANY
        self.divided = kernels.current().divides_searches and room is None and many
        self.half = (max_length + 1) // 2
        self.cache = start(self.sources, self.half if self.divided else max_length if room is None else room)

    def run(self, rows, cache, **state):
        """The result of the loop, which starts with a start token in each of the rows."""
        state |= {"position": ops.convert_to_tensor(0, dtype="int32"), "cache": cache}
        state["tokens"] = ops.full((rows, 1), START, dtype="int32")
        if self.divided:
            return self._run_divided(state)
        if self.room is None:
            return self.result(ops.while_loop(self.unfinished, self.advance, state))
        state["room"] = positive("room", self.room) if isinstance(self.room, int) else self.room
        return self.result(ops.while_loop(self.unfinished, self._with_twice_the_room, state))

    def unfinished(self, state):
        return ops.logical_and(state["position"] < self.max_length, ops.any(self.searching(state)))

    def _with_twice_the_room(self, state):
        cache = map_hypotheses(_doubled, state["cache"], but=("memory", "state"))
        state = {**state, "room": 2 * state["room"], "cache": cache}
        return ops.while_loop(self._unfinished_with_room, self.advance, state)

    def _unfinished_with_room(self, state):
        return ops.logical_and(state["position"] < state["room"], self.unfinished(state))

    def _run_divided(self, state):
        """Runs all rows together, then those that take long in groups, so that few compute what nobody needs.

        All rows have a cache for half of the positions, and run until it is full or until one group is left. Shapes
        are fixed, as XLA needs them.
        """
        size = self.batch // GROUPS

        def many_left(state):
            left = ops.sum(ops.cast(self.searching(state), "int32"))
            return ops.logical_and(state["position"] < self.half, left > size)

        def finish_group(left, result):
            places = ops.cast(ops.top_k(ops.cast(left, "int32"), size)[1], "int32")  # all that are left, or others too
            group, chosen = self._group(places), functools.partial(_rows, places=places, batch=self.batch)
            part = keras.tree.map_structure(chosen, state)
            part["cache"] = map_hypotheses(_doubled, part["cache"], but=("memory", "state"))
            found = group.result(ops.while_loop(group.unfinished, group.advance, part))
            index, new = places[:, None], ops.take(left, places)

            def updated(old, found):
                kept = ops.where(ops.reshape(new, (-1,) + (1,) * (len(old.shape) - 1)), found, chosen(old))
                return ops.scatter_update(old, index, kept)

            return ops.scatter_update(left, index, ops.zeros_like(new)), keras.tree.map_structure(
                updated, result, found
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


class _OneByOne(_Search):
    """Writes one token per row and step: the most probable one, or the one that `draw(logits, uniforms)` returns."""

    def decode(self, draw=None, uniforms=None):
        """Decodes; `uniforms` (b, l) are the random numbers of each row, of which `draw` is given a column."""
        self.draw = draw
        state = {"written": ops.zeros((self.batch, self.max_length), "int32"), "done": ops.zeros((self.batch,), "bool")}
        if uniforms is not None:
            state["uniforms"] = ops.convert_to_tensor(uniforms)  # not in `draw`: groups take their rows of the state
        return self.run(self.batch, self.cache, **state)

    def result(self, state):
        return state["written"]

    def searching(self, state):
        """Which rows (b,) are not finished."""
        return ops.logical_not(state["done"])

    def advance(self, state):
        position, done, written = state["position"], state["done"], state["written"]
        logits, cache = self.step(state["tokens"], position, state["cache"])
        if self.draw is None and not self.constraints.may_exclude_all:
            chosen = self.constraints.most_probable(_last(logits), 1, position, written)[1]
        else:
            scores = self.constraints.masked(_last(logits), position, written)
            if self.draw is None:
                chosen = kernels.current().top_k(scores, 1)[1]
            else:
                chosen = self.draw(scores, ops.take(state["uniforms"], position, axis=1)[:, None])
            if self.constraints.may_exclude_all:  # a row that cannot go on has no translation, as in a beam search
                stuck = ops.logical_and(ops.logical_not(done), ops.max(scores, axis=-1) < NEVER / 2)
                done, written = ops.logical_or(done, stuck), ops.where(ops.expand_dims(stuck, 1), PAD, written)
        tokens = ops.where(ops.expand_dims(done, 1), PAD, chosen)
        written = kernels.current().slice_update(written, (0, position), tokens)
        ends = ops.logical_or(tokens[:, 0] == END, position >= self.constraints.last)
        new = {"position": position + 1, "tokens": tokens, "written": written, "done": ops.logical_or(done, ends)}
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
        inside = ops.cumsum(shares, axis=-1) - shares < top_p  # the first always is
        threshold = ops.min(ops.where(inside, ordered, -NEVER), axis=-1, keepdims=True)
        scores = ops.where(scores < threshold, NEVER, scores)
    # A random number in [0, 1) chooses the token whose share of the cumulated probabilities it falls into.
    shares = ops.cumsum(ops.softmax(scores), axis=-1)
    chosen = shares <= uniforms * shares[:, -1:]
    return ops.cast(ops.sum(ops.cast(chosen, "int32"), axis=-1, keepdims=True), "int32")


class _BeamSearch(_Search):
    """Adds to the state: hypotheses that are `alive` or have `ended`, and the `parents` (b, k) of those alive."""

    def __init__(self, *arguments, beams, n_best, divisors, coverage_penalty, thorough):
        super().__init__(*arguments)
        self.beams, self.n_best, self.divisors, self.thorough = beams, n_best, divisors, thorough
        self.coverage_penalty = coverage_penalty

    def decode(self):
        shape = self.batch, self.beams
        alive = {
            "ids": ops.zeros((*shape, self.max_length), dtype="int32"),
            "scores": ops.tile(ops.convert_to_tensor([[0.0] + [NEVER] * (self.beams - 1)]), (self.batch, 1)),
        }
        if self.coverage_penalty:
            alive["coverage"] = ops.zeros((*shape, ops.shape(self.sources)[1]))
        ended = {"ids": alive["ids"], "scores": ops.full(shape, 2 * NEVER)}
        parents = ops.zeros(shape, dtype="int32")
        cache = map_hypotheses(functools.partial(_repeated, n=self.beams), self.cache)
        ended = self.run(self.batch * self.beams, cache, alive=alive, ended=ended, parents=parents)
        ids, scores = (ended[name][:, : self.n_best] for name in ("ids", "scores"))
        return ops.where(ops.expand_dims(scores > NEVER / 2, -1), ids, PAD), ops.maximum(scores, NEVER)

    def result(self, state):
        return state["ended"]

    def searching(self, state):
        """Which rows (b,) can still find a hypothesis that is one of the best."""
        take, position = kernels.current().take, ops.minimum(state["position"], self.max_length - 1)
        divisor = take(self.divisors, position, axis=0)
        if self.thorough:
            # The highest score that a hypothesis can still get, here or at its last position: log probabilities are
            # negative, divisors rise or fall with the length, and the coverage penalty only subtracts.
            divisor = ops.maximum(divisor, take(self.divisors, self.constraints.last, axis=0))
        hope = ops.max(state["alive"]["scores"], axis=1) / divisor
        return ops.logical_and(hope > state["ended"]["scores"][:, self.n_best - 1], hope > NEVER / 2)

    def advance(self, state):
        position, alive = state["position"], state["alive"]
        cache = map_hypotheses(functools.partial(_take_rows, places=state["parents"]), state["cache"])
        logits, cache, *attention = self.step(state["tokens"], position, cache)
        if bool(attention) != bool(self.coverage_penalty):
            received = f"coverage_penalty={self.coverage_penalty}, {2 + len(attention)} outputs of step"
            raise ValueError(
                f"`step` must return attention if, and only if, `coverage_penalty` is not 0. Received: {received}"
            )
        if attention:
            alive = {**alive, "coverage": alive["coverage"] + ops.reshape(attention[0], ops.shape(alive["coverage"]))}
        scores, tokens, parents = self._continuations(_last(logits), position, alive)
        alive = {name: take_each(x, parents) for name, x in alive.items()}
        alive["ids"] = kernels.current().slice_update(alive["ids"], (0, 0, position), ops.expand_dims(tokens, -1))
        ends = ops.logical_or(tokens == END, ops.reshape(position >= self.constraints.last, (-1, 1)))
        ended = self._ended(state["ended"], alive, ops.logical_and(ends, scores > NEVER / 2), scores, position)
        alive["scores"] = ops.where(ends, 2 * NEVER, scores)
        new = {"position": position + 1, "tokens": ops.reshape(tokens, (-1, 1)), "parents": parents}
        return {**state, **new, "alive": alive, "ended": ended, "cache": cache}

    def _continuations(self, logits, position, alive):
        """Scores, tokens and parents (b, k) of the best continuations of all hypotheses."""
        per_beam = min(self.beams, logits.shape[-1])
        written = ops.reshape(alive["ids"], (-1, self.max_length))
        values, ids = self.constraints.most_probable(logits, per_beam, position, written)  # (b · k, per beam)
        values = ops.reshape(values + ops.reshape(alive["scores"], (-1, 1)), (self.batch, self.beams * per_beam))
        scores, places = ops.top_k(values, self.beams)
        tokens = take_each(ops.reshape(ids, (self.batch, self.beams * per_beam)), places)
        return scores, tokens, ops.cast(places // per_beam, "int32")

    def _ended(self, ended, alive, ends, scores, position):
        """The best `beams` of the hypotheses that had ended and of those that end now."""
        final = scores / kernels.current().take(self.divisors, position, axis=0)
        if self.coverage_penalty:
            covered = ops.log(ops.clip(alive["coverage"], 1e-9, 1.0)) * ops.cast(self.sources != 0, "float32")[:, None]
            final = final + self.coverage_penalty * ops.sum(covered, axis=-1)
        final = ops.concatenate([ended["scores"], ops.where(ends, final, 2 * NEVER)], axis=1)
        best, which = ops.top_k(final, self.beams)
        return {"ids": take_each(ops.concatenate([ended["ids"], alive["ids"]], axis=1), which), "scores": best}


def _last(logits):
    """Logits of the last token, (rows, n, v) → float32 (rows, v); without a copy if there is one token."""
    return ops.cast(ops.squeeze(logits, axis=1) if logits.shape[1] == 1 else logits[:, -1], "float32")


def map_hypotheses(function, cache, but=("memory",)):
    """The cache with `function` applied to each tensor that belongs to a hypothesis, but not under these keys."""
    if isinstance(cache, dict):
        return {key: x if key in but else map_hypotheses(function, x, but) for key, x in cache.items()}
    if isinstance(cache, (list, tuple)):
        return [map_hypotheses(function, x, but) for x in cache]
    return function(cache)


def _doubled(x):
    """Twice as many positions, (…, n, features) → (…, 2n, features)."""
    return ops.concatenate([x, ops.zeros_like(x)], axis=-2)


def _rows(x, places, batch):
    """The rows of x that belong to the sources at `places`; all of a number, which belongs to none."""
    if len(x.shape) == 0:
        return x
    grouped = ops.reshape(x, (batch, x.shape[0] // batch, *x.shape[1:]))
    return ops.reshape(ops.take(grouped, places, axis=0), (-1, *x.shape[1:]))


def _repeated(x, n):
    """Each row `n` times, (b, …) → (b · n, …); `ops.repeat` forgets the shape if the batch size is not known yet."""
    rows, *rest = ops.shape(x)
    return ops.reshape(ops.concatenate([ops.expand_dims(x, 1)] * n, axis=1), (rows * n, *rest))


def _take_rows(x, places):
    """The rows of x (b · k, …) at places (b, k) within each group of k: (b · k, …)."""
    return kernels.current().take(x, flat_places(places, places.shape[1]), axis=0)


class Ensemble:
    """Models with one vocabulary that decide together: `step` averages their probabilities."""

    def __init__(self, models):
        self.models = list(models)

    def start(self, sources, max_length, **options):
        return [model.start(sources, max_length, **options) for model in self.models]

    def step(self, tokens, position, cache, **options):
        outputs = [model.step(tokens, position, own, **options) for model, own in zip(self.models, cache, strict=True)]
        shares = [ops.softmax(ops.cast(logits, "float32")) for logits, _ in outputs]
        return ops.log(sum(shares) / len(shares) + 1e-30), [own for _, own in outputs]
