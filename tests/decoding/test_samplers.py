import json

import keras
import numpy as np
import pytest
from conftest import SLOW_ON_TENSORFLOW, array, refused, run, slow_on_tensorflow, spread
from test_search import STATES, TABLE, TEXTS, VOCABULARY, Language

from keras_tfm import ops
from keras_tfm.common.arguments import UserError
from keras_tfm.decoding import Beam, Ensemble, Greedy, Sample, beam_search, compiled, greedy, with_options
from keras_tfm.decoding.search import MIN_SIZE_TO_COMPACT
from keras_tfm.models import decoder_lm, transformer
from keras_tfm.text import END, START

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "dropout": 0.0}
LANGUAGE = Language(TABLE + 2.0 * (np.arange(VOCABULARY) == END))  # ends now and then


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(Greedy(min_length=3), marks=SLOW_ON_TENSORFLOW),
        Sample(0.7, top_k=4, seed=3),
        Beam(2, suppress_tokens=[5], copied_tokens=[3]),
    ],
)
def test_a_compiled_search_equals_an_eager_one_for_every_batch_size(sampler):
    program = compiled(sampler, LANGUAGE.prefill, LANGUAGE.step)
    rng, used = np.random.default_rng(0), set()
    for rows in (1, MIN_SIZE_TO_COMPACT - 1, MIN_SIZE_TO_COMPACT, 2 * MIN_SIZE_TO_COMPACT + 1):
        sources, prefix = rng.integers(0, STATES, (rows, 3)), rng.integers(0, 2, (rows, 2)) * 6
        actual, scores = sampler.decode(
            LANGUAGE.prefill, LANGUAGE.step, sources, MIN_SIZE_TO_COMPACT + 1, prefix=prefix
        )
        expected = array(actual)[:, 0]
        assert scores.shape == (rows, 1) and (array(scores) < 0).all() == sampler.has_scores()
        assert program(sources, MIN_SIZE_TO_COMPACT + 1, prefix).tolist() == expected.tolist()
        used |= {*np.count_nonzero(expected, axis=1).tolist()}
    assert len(used) > 3  # rows end one after the other


def test_a_seed_is_none_an_integer_or_a_generator():
    sources = np.ones((8, 3), "int32")

    def drawn(seed, times=2):
        program = compiled(Sample(seed=seed), LANGUAGE.prefill, LANGUAGE.step)
        return [program(sources, 6).tolist() for _ in range(times)]

    first, second = drawn(1)
    assert first == second
    first, second = drawn(None)
    assert first != second
    (first, second), again = drawn(keras.random.SeedGenerator(1)), drawn(keras.random.SeedGenerator(1))
    assert first != second and [first, second] == again


def test_options_choose_the_sampler():
    assert with_options(Beam(3, min_length=2), length_penalty=1.0) == Beam(3, min_length=2, length_penalty=1.0)
    assert with_options(Greedy(min_length=2), num_beams=3) == Beam(3, min_length=2)
    assert with_options(Beam(3, min_length=2), top_k=4, seed=1) == Sample(top_k=4, min_length=2)
    for sampler in (Beam(3, suppress_tokens=(9, 7), copied_tokens=(4, 5)), Sample(0.7, seed=2), Beam(1)):
        settings = json.loads(json.dumps(sampler.settings))
        assert with_options(Beam(), **settings) == sampler and "settings" not in settings
    assert with_options(Beam(), **Greedy(min_length=2).settings) == Beam(1, min_length=2)
    assert Sample(seed=keras.random.SeedGenerator(1)).settings["seed"] is None
    with pytest.raises(ValueError, match="did you mean num_beams"):
        with_options(Beam(), num_beam=2)
    with pytest.raises(ValueError, match="must belong to one of `Beam` and `Sample`. Received: num_beams, top_k"):
        with_options(Beam(), num_beams=2, top_k=3)


@pytest.mark.parametrize(
    "sampler, name, value",
    [
        (Beam, "num_beams", 0),
        (Beam, "num_beams", 10**9),
        (Beam, "early_stopping", "never"),
        (Sample, "temperature", 0),
        (Sample, "top_p", 1.5),
        (Sample, "seed", "x"),
        (Greedy, "suppress_tokens", ["x"]),
        (Greedy, "copied_tokens", [0.5]),
    ],
)
def test_a_wrong_option_of_a_sampler_is_named_at_once(sampler, name, value):
    with pytest.raises(UserError) as error:
        sampler(**{name: value})
    assert error.value.argument == name


def test_only_a_beam_has_several_hypotheses():
    arguments = LANGUAGE.prefill, LANGUAGE.step, np.ones((2, 3), "int32"), 6
    ids, scores = run(lambda: Beam(1).decode(*arguments, n_best=3))
    assert ids.shape == (2, 3, 6) and (np.diff(array(scores)) <= 0).all()
    with refused("n_best"):
        Sample().decode(*arguments, n_best=3)


def test_generate_equals_the_searches():
    keras.utils.set_random_seed(3)
    model = spread(transformer(10, **SIZES), 0.3)
    assert model.generate(TEXTS, 6).tolist() == array(run(greedy, model.prefill, model.step, TEXTS, 6)).tolist()
    assert model.generate(TEXTS, 6, Sample(top_k=1)).tolist() == model.generate(TEXTS, 6).tolist()
    expected = array(run(beam_search, model.prefill, model.step, TEXTS, 6, num_beams=3)[0])[:, 0]
    assert model.generate(TEXTS, 6, Beam(3)).tolist() == expected.tolist()
    for variable in model.variables:  # a program sees the weights of the moment
        variable.assign(-variable.value)
    assert model.generate(TEXTS, 6).tolist() == array(run(greedy, model.prefill, model.step, TEXTS, 6)).tolist()


@slow_on_tensorflow
def test_a_language_model_continues_its_prompt():
    keras.utils.set_random_seed(5)
    model, prompts = spread(decoder_lm(12, **SIZES), 0.3), [[5, 6, 7], [8], [4, 9]]
    ids = np.array([prompt + [0] * (3 - len(prompt)) for prompt in prompts])
    for prompt, row in zip(prompts, model.generate(ids, max_length=7).tolist(), strict=True):
        expected = list(prompt)
        while len(expected) < 7 and expected[-1] != END:
            logits = array(run(model, ops.convert_to_tensor([[START, *expected]])))[0, -1]
            logits[[0, START]] = -np.inf
            expected.append(int(logits.argmax()))
        assert row == expected + [0] * (7 - len(expected))
    assert array(run(greedy, model.prefill, model.step, ids, 7)).tolist() == model.generate(ids, max_length=7).tolist()
    longer = np.resize(ids[:1], (MIN_SIZE_TO_COMPACT, 14))  # half of the positions do not hold the prompts of many rows
    assert model.generate(longer, MIN_SIZE_TO_COMPACT)[:, :14].tolist() == longer.tolist()
    both = Ensemble([model, model])
    assert array(run(greedy, both.prefill, both.step, ids, 7)).tolist() == model.generate(ids, max_length=7).tolist()
