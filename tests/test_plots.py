import numpy as np
import pytest
from conftest import BYTES, once, refused, spread

from keras_tfm.models import transformer
from keras_tfm.plots import attention_map, translation_map
from keras_tfm.translator import Translator

pytestmark = once


def test_map_is_dark_where_attention_is(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    for name, weights in {"none": np.zeros((1, 4, 4)), "all": np.ones((1, 4, 4))}.items():
        attention_map(weights, "abcd", "efgh", tmp_path / f"{name}.png")
    none, everything = (image.imread(tmp_path / f"{name}.png")[..., :3].mean() for name in ("none", "all"))
    assert none - everything > 0.2


@pytest.mark.parametrize("heads", [1, 6])
def test_every_head_gets_a_panel(tmp_path, heads):
    image = pytest.importorskip("matplotlib.image")

    def light(weights):
        attention_map(weights, list("abcde"), list("fgh"), tmp_path / "map.png", title="heads")
        return image.imread(tmp_path / "map.png")[..., :3].mean()

    blank = light(np.zeros((heads, 5, 3)))
    for head in np.eye(heads)[[0, -1]]:
        assert light(np.ones((heads, 5, 3)) * head[:, None, None]) < blank - 0.01


@pytest.mark.parametrize("heads, queries, keys", [(1, 3, 40), (4, 2, 2), (4, 11, 22), (2, 12, 80)])
def test_a_picture_has_no_empty_band_and_its_colour_bar_is_no_taller_than_a_map(heads, queries, keys, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    attention_map(np.zeros((heads, queries, keys)), "q" * queries, "k" * keys, tmp_path / "map.png", "a title\n→ two")
    pixels = np.round(255 * image.imread(tmp_path / "map.png")[..., :3]).astype(int)
    printed = np.flatnonzero((pixels < 255).any((1, 2)))
    assert np.diff(printed).max() < 0.3 * 150  # inches of white between any two lines, of 150 pixels each
    dark = pixels[..., 2] - pixels[..., 0] > 90  # blue, which is in the bar only
    bar = np.flatnonzero((pixels[:, np.flatnonzero(dark.any(0))[0] + 3] < 250).any(-1))
    unseen = (abs(pixels - (247, 251, 255)) < 3).all(-1)  # the colour of zero
    maps = np.flatnonzero(unseen.sum(1) > 20 * keys)
    assert np.ptp(bar) <= np.ptp(maps[maps < maps[0] + 150 * 0.46 * queries]) + 5
    assert pixels.shape[1] < 3 * 16 * 150 and pixels.shape[0] < 16 * 150


def test_labels_may_hold_anything(tmp_path):
    labels = ["\x14", "$x^", "\n", "a\tb"]
    attention_map(np.ones((1, 4, 4)), labels, labels, tmp_path / "map.png", title="from $5\r to $6\n→ \x00")
    assert (tmp_path / "map.png").stat().st_size > 5000


def test_labels_must_fit(tmp_path):
    with refused("weights"):
        attention_map(np.zeros((1, 3, 3)), "ab", "abc", tmp_path / "map.png")
    with pytest.raises(ValueError, match="with no dimension of size zero"):
        attention_map(np.zeros((0, 3, 3)), "abc", "abc", tmp_path / "map.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_packed_model_has_the_map_of_an_unpacked_one(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    drawn, weights = [], None
    for packed in (False, True):
        model = transformer(BYTES.vocab_size, num_layers=1, model_dim=16, num_heads=2, ff_dim=32, packed=packed)
        weights = weights or spread(model).get_weights()
        model.set_weights(weights)
        translation_map(Translator(model, BYTES, num_beams=1, max_length=20), "a dog", tmp_path / "map.png", mean=True)
        drawn.append(image.imread(tmp_path / "map.png"))
    np.testing.assert_allclose(*drawn, atol=0.02)
