"""What someone writes who knows Keras and has not read our documentation, with the mistakes that they could make."""

import keras
import numpy as np
import pytest
from conftest import BYTES, array, assert_close, normal, run, slow_on_tensorflow
from keras import ops

import keras_tfm
from keras_tfm import Translator, decoding, layers, models, text, training
from keras_tfm.common.arguments import UserError
from keras_tfm.decoding import Beam, Greedy, Sample

SIZES = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "dropout": 0.0}
SOURCES = np.array([[5, 6, 7, 2], [8, 2, 0, 0]])
pytestmark = pytest.mark.usefixtures("one_width")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return models.transformer(20, **SIZES)


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(0)
    return Translator(models.transformer(BYTES.vocab_size, **SIZES), BYTES, num_beams=2, max_length=16)


# ── layers ──


def test_numbers_that_another_package_has_in_another_order_are_refused():
    for make in (
        lambda: layers.TransformerEncoderBlock(64, 8),  # KerasHub: intermediate_dim, num_heads
        lambda: layers.TransformerDecoderBlock(64, 8),
        lambda: layers.TransformerEncoder(6, 8),
        lambda: layers.MultiHeadAttention(8, 4),  # Keras: num_heads, key_dim
    ):
        with pytest.raises(TypeError):
            make()
    attention = layers.MultiHeadAttention(8, head_dim=4, num_kv_heads=2)
    assert (attention.num_heads, attention.head_dim, attention.num_kv_heads) == (8, 4, 2)


def test_errors_for_names_of_other_packages_suggest_ours():
    x, attention = normal(2, 5, 8), layers.MultiHeadAttention(2)
    for call, name, ours in (
        (lambda: layers.MultiHeadAttention(8, key_dim=4), "key_dim", "head_dim"),
        (lambda: layers.TransformerEncoderBlock(intermediate_dim=64, num_heads=8), "intermediate_dim", "ff_dim"),
        (lambda: layers.TransformerEncoder(normalize_first=True), "normalize_first", "norm_first"),
        (lambda: layers.FeedForward(8, activatoin="gelu"), "activatoin", "activation"),
        (lambda: models.transformer(20, d_model=32), "d_model", "model_dim"),
        (lambda: attention(query=x, value=x), "query", "inputs"),
        (lambda: attention(x, x, value_mask=x[..., 0] > 0), "value_mask", "memory_mask"),
        (lambda: layers.TransformerEncoder(num_layers=1)(x, padding_mask=x[..., 0] > 0), "padding_mask", "mask"),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert name in str(error.value) and f"did you mean {ours}?" in str(error.value)
    with pytest.raises(TypeError, match="inputs, memory"):
        attention(x, x, x)  # Keras' third is the keys


def test_options_are_attributes_and_in_the_config():
    block = layers.TransformerEncoderBlock(num_heads=2, ff_dim=16, dropout=0.3, norm_epsilon=1e-4)
    assert (block.num_heads, block.ff_dim, block.dropout, block.norm_epsilon) == (2, 16, 0.3, 1e-4)
    config = block.get_config()
    assert (config["num_heads"], config["dropout"], config["norm_first"]) == (2, 0.3, False)
    assert {"kernel_initializer", "positions", "activation", "use_bias"} <= {*config}
    stack = layers.TransformerDecoder(num_layers=3, num_heads=2, ff_dim=16, max_wavelength=500.0)
    assert (stack.num_layers, stack.max_wavelength) == (3, 500.0) and len(stack.blocks) == 3


@keras.saving.register_keras_serializable(package="test_keras_user")
class Gated(layers.TransformerEncoderBlock):
    """A block of one's own: an argument and a layer of its own, and another name for the inputs."""

    def __init__(self, gate, strength=1.0, **kwargs):
        super().__init__(**kwargs)
        self.gate, self.strength = gate, strength

    def build(self, inputs_shape):
        super().build(inputs_shape)
        if not self.gate.built:
            self.gate.build(inputs_shape)

    def call(self, inputs, **kwargs):
        return super().call(inputs, **kwargs) * self.strength * ops.sigmoid(self.gate(inputs))

    def get_config(self):
        return super().get_config() | {"gate": keras.layers.serialize(self.gate), "strength": self.strength}

    @classmethod
    def from_config(cls, config):
        return cls(keras.layers.deserialize(config.pop("gate")), **config)


def test_a_subclass_with_arguments_of_its_own_survives_saving(tmp_path):
    inputs = keras.Input((5, 8))
    block = Gated(keras.layers.Dense(8), strength=0.5, num_heads=2, ff_dim=16)
    whole, x = keras.Model(inputs, block(inputs)), normal(2, 5, 8)
    whole.save(tmp_path / "model.keras")
    assert_close(keras_tfm.load_model(tmp_path / "model.keras")(x), whole(x))


@keras.saving.register_keras_serializable(package="test_keras_user")
class Louder(layers.TransformerEncoderBlock):
    """Calls its `**kwargs` something else."""

    def __init__(self, gain=1.0, **options):
        super().__init__(**options)
        self.gain = gain

    def call(self, inputs, **others):
        return self.gain * super().call(inputs, **others)


def test_a_subclass_may_call_its_arguments_as_it_likes(tmp_path):
    inputs, x = keras.Input((5, 8)), normal(2, 5, 8)
    whole = keras.Model(inputs, Louder(2.0, num_heads=2, ff_dim=16, name="louder")(inputs))
    assert whole.get_layer("louder").get_config()["num_heads"] == 2
    whole.save(tmp_path / "model.keras")
    assert_close(keras_tfm.load_model(tmp_path / "model.keras")(x), whole(x))


def test_masks_of_another_meaning_are_refused():
    block, x = layers.TransformerEncoderBlock(num_heads=2, ff_dim=16), normal(4, 4, 8)
    padding = np.array([[True] * 3 + [False]] * 4)  # (batch, length), which could be (query, key)
    with pytest.raises(UserError, match="pass a .* mask as `mask`") as error:
        block(x, attention_mask=padding)
    assert error.value.argument == "attention_mask"
    assert_close(block(x, mask=padding)[:, :3], block(x[:, :3]))
    with pytest.raises(UserError):
        block(x, mask=padding.astype("float32"))


def test_positions_are_applied_or_refused():
    x, ids = normal(2, 4, 8), np.array([[5, 6, 7, 8]] * 2)
    shifted = layers.TransformerEncoder(num_layers=1, num_heads=2, ff_dim=16)
    assert not np.allclose(array(shifted(x)), array(shifted(x, position_ids=ids)))
    with pytest.raises(UserError) as error:
        layers.TransformerEncoder(num_layers=1, num_heads=2, ff_dim=16, positions="rotary")(x, position_ids=ids)
    assert error.value.argument == "position_ids"


def test_attention_scores_are_returned_as_by_keras():
    inputs = keras.Input((5, 8))
    y, scores = layers.MultiHeadSelfAttention(2)(inputs, return_attention_scores=True)
    actual = keras.Model(inputs, [y, scores]).predict(normal(3, 5, 8), verbose=0)
    assert actual[1].shape == (3, 2, 5, 5)
    assert_close(actual[1].sum(-1), np.ones((3, 2, 5)))


def test_training_is_an_argument_of_every_block():
    x = normal(2, 5, 8)
    for layer in (
        layers.TransformerEncoderBlock(num_heads=2, ff_dim=16, dropout=0.5),
        layers.TransformerDecoderBlock(num_heads=2, ff_dim=16, dropout=0.5),
        layers.TransformerEncoder(num_layers=1, num_heads=2, ff_dim=16, dropout=0.5),
    ):
        assert not np.allclose(array(layer(x, training=True)), array(layer(x, training=False)))


# ── models ──


@slow_on_tensorflow
def test_any_loss_of_keras_leaves_padding_out(model):
    target = np.array([[1, 7, 8], [1, 9, 0]])
    labels = np.array([[7, 8, 2], [9, 2, 0]])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    wide = [np.pad(x, ((0, 0), (0, 20))) for x in (SOURCES, target, labels)]
    losses = [model.evaluate({"source": x, "target": y}, z, verbose=0) for x, y, z in ((SOURCES, target, labels), wide)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@slow_on_tensorflow
def test_a_model_generates_with_any_sampler(model):
    greedy = model.generate(SOURCES, max_length=6)
    assert (
        greedy.shape == (2, 6) and greedy.tolist() == model.generate(SOURCES, max_length=6, sampler=Greedy()).tolist()
    )
    sampler = Sample(temperature=2.0, top_k=10, top_p=0.9, min_p=0.01, seed=1)
    assert model.generate(SOURCES, 6, sampler).tolist() == model.generate(SOURCES, 6, sampler).tolist()
    generator = Sample(temperature=3.0, seed=keras.random.SeedGenerator(1))
    assert model.generate(SOURCES, 6, generator).tolist() != model.generate(SOURCES, 6, generator).tolist()
    beam = Beam(num_beams=3, length_penalty=1.0, no_repeat_ngram_size=2, suppress_tokens=[5], early_stopping=True)
    assert not (model.generate(SOURCES, 6, beam) == 5).any()


def test_the_seed_of_each_call_counts():
    keras.utils.set_random_seed(0)
    lm, prompts = models.decoder_lm(20, **SIZES), [[5, 6], [7, 0]]

    def draw(seed):
        return lm.generate(prompts, 12, Sample(temperature=3.0, seed=seed)).tolist()

    draw(None)
    first = draw(1)
    assert draw(1) == first != draw(2) and draw(None) != draw(None)


def test_what_a_model_cannot_generate_from_is_named(model):
    lm = models.decoder_lm(20, **SIZES)
    for ids in ([7, 8], [[7, 8], [9]], [[7, 99]], [[0.5]], [[0, 8]], [[5] * 9], [[-1, 3]]):
        with pytest.raises(UserError) as error:
            lm.generate(ids, max_length=8)
        assert error.value.argument == "ids"
    for sampler in ("beam", Beam):
        with pytest.raises(UserError) as error:
            model.generate(SOURCES, 6, sampler)
        assert error.value.argument == "sampler"


def test_a_language_model_continues_a_prompt():
    keras.utils.set_random_seed(0)
    lm, prompt = models.decoder_lm(20, **SIZES), np.array([[7, 8, 9]])
    actual = array(run(decoding.greedy, lm.prefill, lm.step, prompt, 5))
    assert actual[0, :3].tolist() == [7, 8, 9] and actual.tolist() == lm.generate(prompt, max_length=5).tolist()


def test_a_step_of_the_wrong_shape_is_named():
    def step(tokens, position, cache):
        return ops.zeros((ops.shape(tokens)[0], 9)), cache  # without the axis of tokens

    with pytest.raises(UserError, match=r"logits \(rows, n, vocabulary\).*Received: shape \(2, 9\)"):
        decoding.greedy(lambda sources, max_length: {}, step, SOURCES, 5)


def test_special_tokens_are_arguments():
    table = np.full((6, 6), -9.0, "float32")
    table[4, 5] = table[5, 3] = 0.0  # 4 starts, 3 ends

    def step(tokens, position, cache):
        return ops.take(table, tokens, axis=0), cache

    ids = run(decoding.greedy, lambda sources, max_length: {}, step, SOURCES, 4, start_id=4, end_id=3, pad_id=1)
    assert array(ids).tolist() == [[5, 3, 1, 1]] * 2


# ── training ──


def test_the_loss_has_the_arguments_of_a_loss_of_keras():
    loss = training.SmoothedCrossentropy(label_smoothing=0.0, ignore_class=0, reduction="sum", dtype="float32")
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0, reduction="sum")
    labels, logits = np.array([[3, 1, 0]]), normal(1, 3, 8)
    assert_close(loss(labels, logits), theirs(labels, logits), 1e-4)
    with pytest.raises(UserError):
        loss(np.array([0, 1]), normal(2, 3))  # classes, of which 0 would be dropped


def test_an_unknown_option_names_the_closest(tmp_path):
    with pytest.raises(UserError, match="did you mean num_layers"):
        keras_tfm.train([("a", "b")], tmp_path, num_layer=2)


@slow_on_tensorflow
def test_callbacks_work_in_fit(model, tmp_path):
    target, labels = np.array([[1, 7], [1, 9]], "int32"), np.array([[7, 2], [9, 2]], "int32")
    model.compile("adam", training.SmoothedCrossentropy())
    logs = []
    callbacks = [
        training.TokensPerSecond(4),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda e, x: logs.append({**x})),
    ]
    x = {"source": SOURCES.astype("int32"), "target": target}
    model.fit(x, labels, epochs=2, verbose=0, callbacks=[training.TensorBoardScalars(tmp_path), *callbacks])
    assert len(logs) == 2 and np.isfinite(logs[-1]["loss"])


# ── translators and files ──


@slow_on_tensorflow
def test_a_string_is_a_string_and_a_list_a_list(translator):
    assert isinstance(translator("a"), str) and translator(["a", "b"])[0] == translator("a")
    assert translator("a", num_beams=1) == translator("a", sampler=Greedy())
    assert translator("a", prefix="xy").startswith("xy")
    assert len(translator.score(["a"], ["b"])) == 1 and "Beam(" in repr(translator)


def test_load_takes_a_folder_and_load_model_a_file(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"")
    with pytest.raises(UserError, match="keras_tfm.load_model"):
        keras_tfm.load(tmp_path / "model.keras")
    with pytest.raises(UserError, match="`keras_tfm.load`"):
        keras_tfm.load_model(tmp_path)


def test_a_preset_is_something_trained():
    assert Translator.from_preset("dates", num_beams=1, max_length=16)("3. Mai 2023") == "2023-05-03"
    with pytest.raises(UserError) as error:
        Translator.from_preset("tiny")  # which is a size
    assert error.value.argument == "preset"


def test_what_is_saved_is_what_is_loaded(translator, tmp_path):
    changed = translator.with_settings(num_beams=3, length_penalty=1.5, min_length=2, batch_size=5)
    changed.save(tmp_path / "saved")
    loaded = keras_tfm.load(tmp_path / "saved")
    assert loaded.settings == changed.settings and loaded.sampler == changed.sampler
    assert keras_tfm.load(tmp_path / "saved", num_beams=1).num_beams == 1


@text.register_tokenizer
class OwnLetters(text.Tokenizer):
    """A tokenizer of one's own."""

    files = ("letters.txt",)

    def __init__(self, letters):
        self.letters, self.vocab_size = letters, 4 + len(letters)

    def _encode(self, texts):
        return [[4 + self.letters.index(letter) for letter in each] for each in texts]

    def _decode(self, ids):
        return "".join(self.letters[number - 4] for number in ids if number > 3)

    def save(self, folder):
        (folder / "letters.txt").write_text(self.letters)

    @classmethod
    def load(cls, folder):
        return cls((folder / "letters.txt").read_text())


def test_a_custom_tokenizer_is_saved(tmp_path):
    letters = OwnLetters("abc")
    assert letters.tokenize("cab") == [6, 4, 5] and letters.detokenize([6, 4, 5]) == "cab"
    Translator(models.transformer(letters.vocab_size, **SIZES), letters, max_length=16).save(tmp_path / "saved")
    assert keras_tfm.load(tmp_path / "saved").source_tokenizer.letters == "abc"
    text.base.TOKENIZERS.pop("OwnLetters")
    try:
        with pytest.raises(UserError, match="register_tokenizer.*'OwnLetters'"):  # which is not damage
            keras_tfm.load(tmp_path / "saved")
    finally:
        text.register_tokenizer(OwnLetters)
