"""Samplers, small objects that hold the options of a search, and compiled searches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import MAX_BEAMS, UserError, check, did_you_mean, positive
from keras_tfm.decoding.beam import beam_search, check_search
from keras_tfm.decoding.constraints import Constraints
from keras_tfm.decoding.search import check_sampling, greedy, sample
from keras_tfm.ops.runtime import NEVER
from keras_tfm.runtimes import programs
from keras_tfm.text import END


@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy:
    """Writes the most probable token at each position.

    Args:
        min_length, no_repeat_ngram_size, suppress_tokens, copied_tokens: see `Constraints`.

    >>> Greedy(min_length=3)
    Greedy(min_length=3, no_repeat_ngram_size=0, suppress_tokens=(), copied_tokens=())
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple = ()
    copied_tokens: tuple = ()

    def __post_init__(self):
        for name in ("suppress_tokens", "copied_tokens"):
            ids = tuple(getattr(self, name))
            check(name, ids, all(isinstance(number, (int, np.integer)) for number in ids), "integers")
            object.__setattr__(self, name, tuple(sorted({*map(int, ids)})))

    def check(self, max_length: int) -> None:
        """Raises an error if the options do not suit a maximum number of tokens."""
        Constraints(max_length, **_shared(self, Greedy))

    def decode(
        self,
        prefill: Callable,
        step: Callable,
        sources: Any,
        max_length: int,
        n_best: int | None = None,
        uniforms: Any = None,
        **constraints: Any,
    ) -> tuple[Any, Any]:
        """Decodes a batch, eagerly or inside a graph.

        Args:
            prefill, step, sources, max_length: see `greedy`.
            n_best: number of hypotheses to return, which only a `Beam` can do; by default the best one.
            uniforms: the random numbers of a `Sample`, by default drawn here.
            **constraints: those that belong to the rows: `prefix`, `limits`, `capacity`; see `greedy`.

        Returns:
            ids (batch, n, max_length), zeros after the end token, and scores (batch, n), which are 0 unless a beam
            search computes them; n is `n_best`, or 1.
        """
        if self.has_scores(n_best):
            return self._several(prefill, step, sources, max_length, n_best or 1, **constraints)
        check("n_best", n_best, n_best in (None, 1), f"1 for {type(self).__name__}; use a `Beam` for more")
        ids = self._one_by_one(prefill, step, sources, max_length, uniforms, **constraints)
        return ids[:, None], ops.zeros((ops.shape(ids)[0], 1))

    def _one_by_one(self, prefill, step, sources, max_length, uniforms, **constraints):
        """Ids (batch, max_length), of which each token is chosen before the next."""
        return greedy(prefill, step, sources, max_length, **_shared(self, Greedy), **constraints)

    def uniforms(self, batch_size: int, max_length: int) -> Any:
        """The random numbers that `decode` takes, (batch, max_length) in [0, 1), or None."""
        return None

    def has_scores(self, n_best: int | None = None) -> bool:
        """Whether `decode` computes scores."""
        return False

    def looks_finite(self, ids: np.ndarray, scores: np.ndarray, n_best: int | None = None) -> bool:
        """Whether `decode` can have found the best ids (batch, length) with a model whose logits are numbers.

        If they are NaN, a beam search finds no hypothesis. Without scores, the same token is written again and again,
        so that a row ends at once, or never.
        """
        if self.has_scores(n_best):
            return bool((scores > NEVER / 2).all())
        return bool(((ids[:, 0] > END) & (ids == END).any(axis=1)).all())

    def needs_attention(self, n_best: int | None = None) -> bool:
        """Whether `step` has to return attention, too."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The options as JSON values, of which `with_options` makes an equivalent sampler."""
        lists = {"suppress_tokens": list(self.suppress_tokens), "copied_tokens": list(self.copied_tokens)}
        return self._options() | lists | {"num_beams": 1}

    def _options(self):
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self) if x.name != "seed"}


@dataclasses.dataclass(frozen=True)
class Sample(Greedy):
    """Draws each token by its probability.

    Args:
        temperature, top_k, top_p, min_p: see `sample`.
        seed: None for other tokens in each call, an integer for the same ones, or a `keras.random.SeedGenerator`.
        min_length, no_repeat_ngram_size, suppress_tokens, copied_tokens: see `Constraints`.

    >>> Sample(temperature=0.7, top_p=0.9, seed=1).top_p
    0.9
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: object = dataclasses.field(default=None, compare=False)  # no part of a program

    def __post_init__(self):
        super().__post_init__()
        check_sampling(self.temperature, self.top_k, self.top_p, self.min_p)
        fine = self.seed is None or isinstance(self.seed, (int, np.integer, keras.random.SeedGenerator))
        check("seed", self.seed, fine, "None, an integer or a `keras.random.SeedGenerator`")

    def _one_by_one(self, prefill, step, sources, max_length, uniforms, **constraints):
        uniforms = self.uniforms(ops.shape(sources)[0], max_length) if uniforms is None else uniforms
        return sample(prefill, step, sources, max_length, uniforms, **self._options(), **constraints)

    def uniforms(self, batch_size: int, max_length: int) -> Any:
        return ops.convert_to_numpy(keras.random.uniform((batch_size, max_length), seed=self.seed))

    @property
    def settings(self) -> dict[str, Any]:  # of a generator, nothing is left
        settings = {name: value for name, value in super().settings.items() if name != "num_beams"}
        return settings | {"seed": int(self.seed) if isinstance(self.seed, (int, np.integer)) else None}


@dataclasses.dataclass(frozen=True)
class Beam(Greedy):
    """Finds the best hypotheses with a beam; one of a single hypothesis is greedy, unless several are asked for.

    Args:
        num_beams, length_penalty, penalty, early_stopping, coverage_penalty: see `beam_search`.
        min_length, no_repeat_ngram_size, suppress_tokens, copied_tokens: see `Constraints`.

    >>> Beam(5, length_penalty=1.0).num_beams
    5
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    penalty: str = "length"
    early_stopping: bool = True
    coverage_penalty: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        fine = positive("num_beams", self.num_beams) <= MAX_BEAMS
        check("num_beams", self.num_beams, fine, f"at most {MAX_BEAMS:,}")
        check_search(self.penalty, self.length_penalty, self.coverage_penalty, self.early_stopping)

    def _several(self, prefill, step, sources, max_length, n_best, **constraints):
        """Ids (batch, n_best, max_length) and scores (batch, n_best)."""
        sizes = {"num_beams": max(self.num_beams, n_best), "n_best": n_best}
        return beam_search(prefill, step, sources, max_length, **self._options() | sizes, **constraints)

    def has_scores(self, n_best: int | None = None) -> bool:
        return self.num_beams > 1 or n_best is not None

    def needs_attention(self, n_best: int | None = None) -> bool:
        return self.coverage_penalty > 0 and self.has_scores(n_best)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"num_beams": self.num_beams}


def with_options(sampler: Greedy, **options: Any) -> Greedy:
    """A sampler with other options; if it lacks one of them, a sampler that has it.

    >>> with_options(Beam(), num_beams=2).num_beams, with_options(Beam(min_length=3), temperature=0.7).min_length
    (2, 3)
    """
    if not isinstance(sampler, Greedy):
        raise UserError(f"`sampler` must be a `Greedy`, `Sample` or `Beam`. Received: {sampler!r}")
    for kind in (type(sampler), Beam, Sample):
        if options.keys() <= {field.name for field in dataclasses.fields(kind)}:
            return kind(**_shared(sampler, kind) | options)
    known = dict.fromkeys(field.name for kind in (Beam, Sample) for field in dataclasses.fields(kind))
    for name in options:
        if name not in known:
            raise UserError(f"`option` must be one of {[*known]}{did_you_mean(name, known)}. Received: option={name!r}")
    raise UserError(f"options must belong to one of `Beam` and `Sample`. Received: {', '.join(options)}")


def _shared(sampler, kind):
    """The options of a sampler that another kind has, too."""
    return {x.name: getattr(sampler, x.name) for x in dataclasses.fields(kind) if hasattr(sampler, x.name)}


def compiled(sampler: Greedy, prefill: Callable, step: Callable, variables: Any = (), locks: Any = ()) -> Callable:
    """A search as one compiled program for each shape, for any number of rows; several threads may call it.

    Args:
        sampler: `Greedy()`, `Sample()` or `Beam()`.
        prefill, step: of a model, see `keras_tfm.decoding.search`.
        variables: those that `prefill` and `step` use. Each call sees their current values.
        locks: those that must be held meanwhile on JAX, see `SequenceModel.running`.

    Returns:
        a function of sources (batch, source length), `max_length` and, as options, a `prefix` (batch, n) and
        `uniforms` (batch, max_length), the random numbers of a `Sample`, by default drawn with its seed. It returns ids
        (batch, max_length), a NumPy array with zeros after the end token.

    >>> def prefill(sources, max_length):
    ...     return {"memory": ops.convert_to_tensor(sources)}
    >>> def step(tokens, position, cache):  # writes 3, 4, 5 and the end token
    ...     return ops.one_hot(ops.where(tokens == 5, 2, ops.maximum(tokens, 2) + 1), 7), cache
    >>> compiled(Greedy(), prefill, step)(np.ones((1, 1), "int32"), max_length=6).tolist()
    [[3, 4, 5, 2, 0, 0]]
    """

    def search(inputs, max_length):
        return sampler.decode(prefill, step, max_length=max_length, **inputs)[0][:, 0]

    program = programs.compiled(search, list(variables), locks)

    def run(sources, max_length, prefix=None, uniforms=None):
        uniforms = sampler.uniforms(len(sources), max_length) if uniforms is None else uniforms
        inputs = {"sources": sources, "prefix": prefix, "uniforms": uniforms}
        inputs = {name: np.asarray(x) for name, x in inputs.items() if x is not None}
        return ops.convert_to_numpy(program(inputs, max_length))

    return run
