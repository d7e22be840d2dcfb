"""Samplers, small objects that hold the options of a search, and compiled searches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.decoding.beam import beam_search
from keras_tfm.decoding.search import greedy, sample
from keras_tfm.runtimes import programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy:
    """Writes the most probable token at each position.

    Args:
        min_length, no_repeat_ngram_size, suppress_tokens: see `Constraints`.

    >>> Greedy(min_length=3)
    Greedy(min_length=3, no_repeat_ngram_size=0, suppress_tokens=())
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "suppress_tokens", tuple(map(int, self.suppress_tokens)))

    def uniforms(self, batch_size: int, max_length: int) -> Any:
        """The random numbers that a search takes, (batch, max_length) in [0, 1), or None."""
        return None

    def search(
        self, start: Callable, step: Callable, sources: Any, max_length: int, uniforms: Any = None, prefix: Any = None
    ) -> Any:
        """Ids (batch, max_length), zeros after the end token; see `greedy` for the arguments."""
        return greedy(start, step, sources, max_length, prefix=prefix, **self._options())

    def _options(self):
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self) if x.name != "seed"}


@dataclasses.dataclass(frozen=True)
class Sample(Greedy):
    """Draws each token by its probability.

    Args:
        temperature, top_k, top_p, min_p: see `sample`.
        seed: None for other tokens in each call, an integer for the same ones, or a `keras.random.SeedGenerator`.
        min_length, no_repeat_ngram_size, suppress_tokens: see `Constraints`.

    >>> Sample(temperature=0.7, top_p=0.9, seed=1).top_p
    0.9
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: object = dataclasses.field(default=None, compare=False)  # no part of a program

    def uniforms(self, batch_size: int, max_length: int) -> Any:
        return ops.convert_to_numpy(keras.random.uniform((batch_size, max_length), seed=self.seed))

    def search(
        self, start: Callable, step: Callable, sources: Any, max_length: int, uniforms: Any = None, prefix: Any = None
    ) -> Any:
        """See `Greedy.search`; `uniforms` are the random numbers, by default drawn here."""
        if uniforms is None:
            uniforms = self.uniforms(ops.shape(sources)[0], max_length)
        return sample(start, step, sources, max_length, uniforms, prefix=prefix, **self._options())


@dataclasses.dataclass(frozen=True)
class Beam(Greedy):
    """Finds the best hypothesis with a beam.

    Args:
        num_beams, penalty, length_penalty, early_stopping: see `beam_search`.
        min_length, no_repeat_ngram_size, suppress_tokens: see `Constraints`.

    >>> Beam(5, length_penalty=1.0).num_beams
    5
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    penalty: str = "length"
    early_stopping: bool = False

    def search(
        self, start: Callable, step: Callable, sources: Any, max_length: int, uniforms: Any = None, prefix: Any = None
    ) -> Any:
        """See `Greedy.search`."""
        return beam_search(start, step, sources, max_length, prefix=prefix, **self._options())[0][:, 0]


def compiled(sampler: Greedy, start: Callable, step: Callable, variables: Any = (), locks: Any = ()) -> Callable:
    """A search as one compiled program for each shape, for any number of rows; several threads may call it.

    Args:
        sampler: `Greedy()`, `Sample()` or `Beam()`.
        start, step: of a model, see `keras_tfm.decoding.search`.
        variables: those that `start` and `step` use. Each call sees their current values.
        locks: those that must be held meanwhile on JAX, see `SequenceModel.running`.

    Returns:
        a function of sources (batch, source length), `max_length` and, as an option, a `prefix` (batch, n), which
        returns ids (batch, max_length), a NumPy array with zeros after the end token.

    >>> def start(sources, max_length):
    ...     return {"memory": ops.convert_to_tensor(sources)}
    >>> def step(tokens, position, cache):  # writes 3, 4, 5 and the end token
    ...     return ops.one_hot(ops.where(tokens == 5, 2, ops.maximum(tokens, 2) + 1), 7), cache
    >>> compiled(Greedy(), start, step)(np.ones((1, 1), "int32"), max_length=6).tolist()
    [[3, 4, 5, 2, 0, 0]]
    """

    def search(inputs, max_length):
        return sampler.search(start, step, inputs["sources"], max_length, inputs.get("uniforms"), inputs.get("prefix"))

    program = programs.compiled(search, list(variables), locks)

    def run(sources, max_length, prefix=None):
        inputs = {"sources": sources, "prefix": prefix, "uniforms": sampler.uniforms(len(sources), max_length)}
        inputs = {name: np.asarray(x) for name, x in inputs.items() if x is not None}
        return ops.convert_to_numpy(program(inputs, max_length))

    return run
