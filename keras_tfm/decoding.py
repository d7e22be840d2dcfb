"""Decoding: over `start` and `step` of a model, never over the model itself.

    start(sources, max_length) → cache
    step(tokens, position, cache) → logits (rows, n, vocabulary), cache

A cache is any tree of dicts, lists and tensors. What lies under a key "memory" belongs to a source and is shared by all
of its hypotheses; everything else belongs to a hypothesis and moves with it. `step` may get several rows for each row
of the memory: those of source 0 come first, then those of source 1.

Axes: b batch, k beams, l length, v vocabulary.
"""

import keras
import numpy as np
from keras import ops

from keras_tfm import kernels
from keras_tfm.arguments import one_of, positive
from keras_tfm.kernels import NEVER, flat_places, take_each
from keras_tfm.text import END, PAD, START

# Word → what the logarithm of a probability is divided by, given the number of tokens and an exponent.
PENALTIES = {
    "length": lambda length, exponent: length**exponent,
    "gnmt": lambda length, exponent: ((5 + length) / 6) ** exponent,  # https://arxiv.org/abs/1609.08144
}


class Constraints:
    """What may be written where: scores of tokens that may not become `NEVER`, or lower by as much.

    Args:
        max_length: how many tokens at the most, the end token among them.
        min_length: how many at the least, the end token among them.
        forbidden: ids that are never written; padding and the start token never are.
        prefix: ids (batch, n) to begin with; 0 leaves a place free.
        no_repeat_ngram: so many tokens in a row never come twice; 0 for no such rule.
        limits: (batch,), for each row how many tokens at the most, where that is less than `max_length`.
    """

    def __init__(self, max_length, min_length=0, forbidden=(), prefix=None, no_repeat_ngram=0, limits=None):
        self.max_length = positive("max_length", max_length)
        if not (isinstance(min_length, int) and 0 <= min_length <= max_length):
            raise ValueError(f"`min_length` must be 0 … max_length={max_length}. Received: {min_length=}")
        if END in forbidden:
            raise ValueError(f"`forbidden` must not hold the end token, {END}. Received: {forbidden=}")
        if not isinstance(no_repeat_ngram, int) or no_repeat_ngram < 0:
            raise ValueError(f"`no_repeat_ngram` must be an integer of at least 0. Received: {no_repeat_ngram=}")
        self.min_length, self.forbidden = min_length, sorted({PAD, START, *forbidden})
        self.prefix, self.no_repeat_ngram = prefix, no_repeat_ngram
        # where the last token may stand, (batch,) or ()
        self.last = max_length - 1 if limits is None else ops.cast(ops.minimum(limits, max_length) - 1, "int32")
        if prefix is not None and (len(np.shape(prefix)) != 2 or np.shape(prefix)[1] > max_length):
            raise ValueError(f"`prefix` must be (batch, n), n ≤ {max_length}. Received: shape {np.shape(prefix)}")

    @property
    def only_forbids(self):
        """Whether all that `__call__` does is to forbid."""
        return self.min_length <= 1 and self.prefix is None and not self.no_repeat_ngram

    def __call__(self, scores, position, written):
        """Scores (rows, v) of what may stand at `position`, behind what is written (rows, l)."""
        vocabulary = np.arange(scores.shape[-1])
        allowed = scores + np.where(np.isin(vocabulary, self.forbidden), NEVER, 0).astype("float32")
        if self.min_length > 1:
            too_early = ops.logical_and(vocabulary == END, position < self.min_length - 1)
            allowed = ops.where(too_early, NEVER, allowed)
        if self.no_repeat_ngram:
            allowed = ops.where(self._repeats(scores, position, written), NEVER, allowed)
        if self.prefix is not None:
            wanted = self._wanted(ops.shape(scores)[0], position)
            allowed = ops.where(wanted > 0, ops.where(vocabulary == wanted, scores, NEVER), allowed)
        return allowed

    def _repeats(self, scores, position, written):
        """Whether a token (rows, v) would end an n-gram that has been there before."""
        n, rows, length = self.no_repeat_ngram, ops.shape(written)[0], written.shape[1]
        if length < n:
            return False
        before = ops.maximum(position - n + 1 + np.arange(n - 1), 0)
        last = kernels.current().take(written, before, axis=1)  # (rows, n - 1)
        ends = np.arange(n - 1, length)  # where an earlier n-gram may end
        alike = ops.broadcast_to(ends < position, (rows, len(ends)))
        for place in range(n - 1):
            alike = ops.logical_and(alike, written[:, place : place + len(ends)] == last[:, place, None])
        banned = ops.where(alike, written[:, n - 1 :], PAD)  # padding is never written anyway
        row = ops.broadcast_to(ops.arange(rows)[:, None], (rows, len(ends)))
        places = ops.reshape(ops.stack([row, banned], axis=-1), (-1, 2))
        return ops.scatter(places, ops.ones_like(places[:, 0]), ops.shape(scores)) > 0

    def _wanted(self, rows, position):
        """What the prefix has at a position, (rows, 1)."""
        prefix = ops.pad(ops.cast(self.prefix, "int32"), [(0, 0), (0, self.max_length - np.shape(self.prefix)[1])])
        wanted = kernels.current().take(prefix, position, axis=1)
        return ops.repeat(wanted, rows // ops.shape(prefix)[0], axis=0)[:, None]


def greedy(start, step, sources, max_length, room=None, **constraints):
    """The most probable token at each place, until all rows have ended.

    Args:
        start, step: of a model, see above.
        sources: ids (batch, source length).
        max_length, **constraints: see `Constraints`.
        room: half of what the cache has for the first tokens; it doubles whenever it is full. By default it has room
            for all of them from the first. For graphs of TensorFlow without XLA, in which shapes may change, and for
            caches whose tensors of a hypothesis are all (…, positions, features).

    Returns:
        ids (batch, max_length), zeros behind the end token.
    """

    def best(scores, position):
        return kernels.current().highest(scores, 1)[1]

    return _one_by_one(start, step, sources, best, max_length, constraints, room)


def sample(
    start,
    step,
    sources,
    max_length,
    seed=0,
    temperature=1.0,
    top_k=None,
    top_p=None,
    min_p=None,
    **constraints,
):
    """Tokens drawn by their probability, until all rows have ended.

    Args:
        start, step, sources, max_length, **constraints: as for `greedy`.
        seed: an integer, the same one draws the same tokens; or the numbers that decide, (batch, max_length) in [0, 1).
        temperature: above 1 for more variety, below for less.
        top_k: only the so many most probable tokens are drawn.
        top_p: only the most probable tokens that make up this probability (https://arxiv.org/abs/1904.09751).
        min_p: only tokens of this share of the highest probability (https://arxiv.org/abs/2407.01082).

    Returns:
        ids (batch, max_length), zeros behind the end token.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive. Received: {temperature=}")
    positive("top_k", top_k, optional=True)
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"`{name}` must be above 0 and at most 1. Received: {name}={share}")
    # One number in [0, 1) for each place chooses the token whose share of the probabilities it falls into.
    sources, chances = ops.convert_to_tensor(sources), seed
    if isinstance(seed, (int, np.integer)):
        chances = keras.random.uniform((ops.shape(sources)[0], max_length), seed=int(seed))

    def draw(scores, position):
        scores = scores / temperature
        if top_k is not None:
            scores = _at_least(scores, ops.top_k(scores, min(top_k, scores.shape[-1]))[0][:, -1:])
        if min_p is not None:
            scores = _at_least(scores, ops.max(scores, axis=-1, keepdims=True) + np.log(min_p))
        if top_p is not None:
            sorted_scores = ops.top_k(scores, scores.shape[-1])[0]
            shares = ops.softmax(sorted_scores)
            inside = ops.cumsum(shares, axis=-1) - shares < top_p  # the first always is
            scores = _at_least(scores, ops.min(ops.where(inside, sorted_scores, -NEVER), axis=-1, keepdims=True))
        shares = ops.cumsum(ops.softmax(scores), axis=-1)
        chance = ops.take(chances, position, axis=1)[:, None] * shares[:, -1:]
        return ops.cast(ops.sum(ops.cast(shares <= chance, "int32"), axis=-1, keepdims=True), "int32")

    return _one_by_one(start, step, sources, draw, max_length, constraints)


def _at_least(scores, threshold):
    return ops.where(scores < threshold, NEVER, scores)


def _last(logits):
    """Logits of the last token, (rows, n, v) → float32 (rows, v); of one token without a copy."""
    return ops.cast(ops.squeeze(logits, axis=1) if logits.shape[1] == 1 else logits[:, -1], "float32")


def _one_by_one(start, step, sources, choose, max_length, constraints, room=None):
    """Writes a token at each place, the one that `choose(scores (b, v), position)` names."""
    sources = ops.convert_to_tensor(sources)
    constrain, batch = Constraints(max_length, **constraints), ops.shape(sources)[0]
    tokens = ops.full((batch, 1), START, dtype="int32")
    written, done = ops.zeros((batch, max_length), dtype="int32"), ops.zeros((batch,), dtype="bool")

    def unfinished(position, tokens, done, written, cache):
        return ops.logical_and(position < max_length, ops.logical_not(ops.all(done)))

    def advance(position, tokens, done, written, cache):
        logits, cache = step(tokens, position, cache)
        scores = constrain(_last(logits), position, written)
        tokens = ops.where(ops.expand_dims(done, 1), PAD, choose(scores, position))
        written = kernels.current().slice_update(written, (0, position), tokens)
        done = ops.logical_or(done, ops.logical_or(tokens[:, 0] == END, position >= constrain.last))
        return position + 1, tokens, done, written, cache

    cache = start(sources, max_length if room is None else room)
    state = (ops.convert_to_tensor(0, dtype="int32"), tokens, done, written, cache)
    return _loop(unfinished, advance, state, room)[3]


def _loop(unfinished, advance, state, room):
    """The last state of a loop over (position, …, cache); given a `room`, the cache doubles whenever it is full."""
    if room is None:
        return ops.while_loop(unfinished, advance, state)
    if isinstance(room, int):
        positive("room", room)

    def with_twice_the_room(room, *state):
        def has_room(position, *others):
            return ops.logical_and(position < 2 * room, unfinished(position, *others))

        *others, cache = state
        return 2 * room, *ops.while_loop(has_room, advance, (*others, map_hypotheses(_doubled, cache)))

    return ops.while_loop(lambda room, *state: unfinished(*state), with_twice_the_room, (room, *state))[1:]


def _doubled(x):
    """As many positions again, (…, n, features) → (…, 2n, features)."""
    return ops.concatenate([x, ops.zeros_like(x)], axis=-2)


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
    room=None,
    **constraints,
):
    """The best hypotheses that a beam finds.

    At each place the `beams` best continuations of all hypotheses are kept. Those that end leave the beam and are kept
    apart. The search ends when no hypothesis that is left could still become one of the `n_best`: its probability can
    only fall, and its logarithm is divided by no more than the penalty of the longest that it may become.

    Args:
        start, step, sources, max_length, room, **constraints: as for `greedy`.
        beams: how many hypotheses are kept.
        n_best: how many are returned, at most `beams`.
        penalty: a word of `PENALTIES`: what divides the logarithm of a hypothesis' probability.
        length_penalty: its exponent; 0 for none, more for longer hypotheses.
        coverage_penalty: factor of Σ log min(attention to a source token, 1), which is added to the score of what has
            ended (https://arxiv.org/abs/1609.08144); `step` must then return attention (rows, source) as well.

    Returns:
        ids (batch, n_best, max_length), zeros behind the end token, and their scores (batch, n_best), best first;
        `NEVER` marks slots with no hypothesis.
    """
    if positive("n_best", n_best) > positive("beams", beams):
        raise ValueError(f"`n_best` must be at most {beams=}. Received: {n_best=}")
    check_penalties(penalty, length_penalty, coverage_penalty)
    divisor, constrain = PENALTIES[penalty], Constraints(max_length, **constraints)
    sources = ops.convert_to_tensor(sources)
    batch = ops.shape(sources)[0]
    cache = start(sources, max_length if room is None else room)
    cache = map_hypotheses(lambda x: _repeated(x, beams), cache)
    alive = {
        "ids": ops.zeros((batch, beams, max_length), dtype="int32"),
        "scores": ops.tile(ops.convert_to_tensor([[0.0] + [NEVER] * (beams - 1)]), (batch, 1)),
    }
    if coverage_penalty:
        alive["coverage"] = ops.zeros((batch, beams, ops.shape(sources)[1]))
    ended = {"ids": alive["ids"], "scores": ops.full((batch, beams), 2 * NEVER)}
    divisors = divisor(np.arange(1, max_length + 1, dtype="float32"), length_penalty)
    at_last = kernels.current().take(divisors, constrain.last)

    def unfinished(position, tokens, parents, alive, ended, cache):
        # the highest score that any hypothesis can still get, here or at its last place: scores are negative, divisors
        # rise or fall with the length, and coverage only takes away
        here = kernels.current().take(divisors, ops.minimum(position, max_length - 1))
        hope = ops.max(alive["scores"], axis=1) / ops.maximum(here, at_last)
        searching = ops.logical_and(hope > ended["scores"][:, n_best - 1], hope > NEVER / 2)
        return ops.logical_and(position < max_length, ops.any(searching))

    def advance(position, tokens, parents, alive, ended, cache):
        cache = map_hypotheses(lambda x: _take_rows(x, parents), cache)
        logits, cache, *attention = step(tokens, position, cache)
        logits, written = _last(logits), ops.reshape(alive["ids"], (-1, max_length))
        per_beam = min(beams, logits.shape[-1])
        # (b · k, per beam)
        scores, chosen = kernels.current().most_probable(logits, per_beam, constrain, position, written)
        scores = ops.reshape(scores + ops.reshape(alive["scores"], (-1, 1)), (batch, beams * per_beam))
        scores, places = ops.top_k(scores, beams)  # the best of all, (b, k)
        parents = ops.cast(places // per_beam, "int32")
        tokens = take_each(ops.reshape(chosen, (batch, beams * per_beam)), places)

        if bool(attention) != bool(coverage_penalty):
            received = f"{coverage_penalty=}, {2 + len(attention)} outputs of step"
            raise ValueError(f"`coverage_penalty` must come with a `step` that returns attention. Received: {received}")
        if attention:
            alive = {**alive, "coverage": alive["coverage"] + ops.reshape(attention[0], ops.shape(alive["coverage"]))}
        alive = {name: take_each(x, parents) for name, x in alive.items()}
        alive["ids"] = kernels.current().slice_update(alive["ids"], (0, 0, position), ops.expand_dims(tokens, -1))

        ends = ops.logical_or(tokens == END, ops.reshape(position >= constrain.last, (-1, 1)))
        final = scores / kernels.current().take(divisors, position)
        if coverage_penalty:
            covered = ops.log(ops.clip(alive["coverage"], 1e-9, 1.0)) * ops.cast(sources != 0, "float32")[:, None]
            final = final + coverage_penalty * ops.sum(covered, axis=-1)
        final = ops.where(ops.logical_and(ends, scores > NEVER / 2), final, 2 * NEVER)
        both = ops.concatenate([ended["scores"], final], axis=1)
        best, which = ops.top_k(both, beams)
        ids = ops.concatenate([ended["ids"], alive["ids"]], axis=1)
        ended = {"ids": take_each(ids, which), "scores": best}
        alive["scores"] = ops.where(ends, 2 * NEVER, scores)
        return position + 1, ops.reshape(tokens, (-1, 1)), parents, alive, ended, cache

    tokens, parents = ops.full((batch * beams, 1), START, dtype="int32"), ops.zeros((batch, beams), dtype="int32")
    state = (ops.convert_to_tensor(0, dtype="int32"), tokens, parents, alive, ended, cache)
    ended = _loop(unfinished, advance, state, room)[4]
    return ended["ids"][:, :n_best], ops.maximum(ended["scores"][:, :n_best], NEVER)


def _repeated(x, n):
    """Each row `n` times, (b, …) → (b · n, …); `ops.repeat` forgets the shape where the batch has yet to be known."""
    rows, *rest = ops.shape(x)
    return ops.reshape(ops.concatenate([ops.expand_dims(x, 1)] * n, axis=1), (rows * n, *rest))


def check_penalties(penalty="length", length_penalty=0.6, coverage_penalty=0.0):
    """Raises an error unless these can be used by `beam_search`."""
    one_of("penalty", penalty, PENALTIES)
    if not isinstance(length_penalty, (int, float)):
        raise ValueError(f"`length_penalty` must be a number. Received: {length_penalty=}")
    if not isinstance(coverage_penalty, (int, float)) or coverage_penalty < 0:
        raise ValueError(f"`coverage_penalty` must be a number of at least 0. Received: {coverage_penalty=}")


def map_hypotheses(function, cache):
    """`function` of each tensor of a cache that belongs to a hypothesis; what lies under "memory" stays."""
    if isinstance(cache, dict):
        return {key: x if key == "memory" else map_hypotheses(function, x) for key, x in cache.items()}
    if isinstance(cache, (list, tuple)):
        return [map_hypotheses(function, x) for x in cache]
    return function(cache)


def _take_rows(x, places):
    """Of x (b · k, …) the rows that places (b, k) name, in each group of k: (b · k, …)."""
    return kernels.current().take(x, flat_places(places, places.shape[1]), axis=0)


def ensemble(*models):
    """`start` and `step` of several models with one vocabulary: the mean of their probabilities decides."""

    def start(sources, max_length):
        return [model.start(sources, max_length) for model in models]

    def step(tokens, position, cache):
        outputs = [model.step(tokens, position, own) for model, own in zip(models, cache, strict=True)]
        shares = [ops.softmax(ops.cast(logits, "float32")) for logits, _ in outputs]
        return ops.log(sum(shares) / len(shares) + 1e-30), [own for _, own in outputs]

    return start, step
