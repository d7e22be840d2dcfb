import keras
import numpy as np
import pytest
from conftest import BYTES, array, assert_close, normal
from keras import ops

from keras_tfm.minimum_risk import MinimumRisk, sample_hypotheses
from keras_tfm.models import transformer
from keras_tfm.translator import Translator

SOURCES, REFERENCES = ["ab", "ba", "a", "bb"], ["AB", "BA", "A", "BB"]


def test_loss_is_the_expected_cost_by_the_models_own_probabilities():
    ids, logits = np.array([[4, 2, 0], [5, 5, 2], [3, 2, 0], [2, 0, 0]]), normal(4, 3, 6)
    costs = np.array([0.1, 0.9, 0.4, 0.7], "float32")
    shares = array(ops.log_softmax(logits))
    scores = np.array(
        [sum(shares[row, place, token] for place, token in enumerate(ids[row]) if token) for row in range(4)]
    )
    weights = np.exp(0.5 * scores.reshape(2, 2))
    expected = (weights / weights.sum(1, keepdims=True) * costs.reshape(2, 2)).sum(1).mean()
    assert_close(MinimumRisk(2, sharpness=0.5)(ids, logits, costs), expected)
    loss = MinimumRisk(2, 0.5)
    assert MinimumRisk.from_config(loss.get_config()).get_config() == loss.get_config()


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(1)
    model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32, dropout=0.0)
    return Translator(model, BYTES, beams=1, max_length=12)


def test_hypotheses_come_in_groups_that_begin_with_the_reference(translator):
    draw = lambda seed: sample_hypotheses(translator, SOURCES, REFERENCES, 3, batch_size=3, seed=seed, verbose=0)  # noqa: E731
    inputs, labels, costs = draw(0)
    texts = BYTES.decode(labels)
    assert texts[::3] == REFERENCES and BYTES.decode(inputs["source"])[1::3] == SOURCES
    assert inputs["target"].shape == labels.shape == (12, 12) and costs.shape == (12,)
    assert_close(costs[::3], np.zeros(4))
    assert (costs[1::3] > 0).all()
    assert (draw(0)[1] == labels).all() and (draw(1)[1] != labels).any()


def test_training_lowers_the_risk(translator):
    (model,) = translator.models
    inputs, labels, costs = sample_hypotheses(translator, SOURCES, REFERENCES, 4, verbose=0)
    model.compile(keras.optimizers.Adam(0.01), MinimumRisk(4, sharpness=0.1))
    losses = model.fit(inputs, labels, sample_weight=costs, batch_size=16, epochs=8, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize(
    "options, words",
    [
        ({"samples": 1}, "`samples` must be at least 2"),
        ({"max_length": 1}, "`sources` must hold texts of fewer than 1"),
    ],
)
def test_bad_arguments(options, words, translator):
    with pytest.raises(ValueError, match=words):
        sample_hypotheses(translator, SOURCES, REFERENCES, **options)
