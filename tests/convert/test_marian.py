"""Marian models in Hugging Face's format, against the model written out in NumPy."""

import json

import numpy as np
import pytest
from conftest import IN_TENSORFLOW, assert_close, refused, run

from keras_tfm import Translator, decoding, text
from keras_tfm.convert import marian

safetensors = pytest.importorskip("safetensors.numpy")
TEXTS = ["the cat sat on the mat", "a dog and a cat", ">>fra<< the dog", "ünknown ☃", "", "  two  spaces "]
SMALL = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 1, "activation_function": "swish"}
SMALL |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
SMALL |= {f"{side}_ffn_dim": 12 for side in ("encoder", "decoder")}
VARIANTS = {
    "swish": {"scale_embedding": True},
    "relu": {"activation_function": "relu", "scale_embedding": False, "decoder_layers": 2},
    "separate": {"share_encoder_decoder_embeddings": False, "scale_embedding": True},
    "untied": {"tie_word_embeddings": False, "scale_embedding": True},
    "normalized": {"normalize_embedding": True, "scale_embedding": True},
}


def write(folder, **changes):
    """A folder with random weights, and its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    model = text.train_tokenizer(TEXTS[:3] * 20, "unigram", 60, add_dummy_prefix=True, byte_fallback=False).model
    pieces = [">>fra<<", *text.SentencePieceTokenizer(model).names()]
    vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model)
    size = len(vocabulary)
    config = {"model_type": "marian", "vocab_size": size, "decoder_vocab_size": size, "eos_token_id": 0, **SMALL}
    config |= {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, **changes}
    for name in ("vocab.json", "target_vocab.json"):
        (folder / name).write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 3, "length_penalty": 0.8}))
    tensors = random_tensors(config)
    safetensors.save_file(tensors, folder / "model.safetensors")
    return config, tensors


def random_tensors(config):
    rng, width, shapes = np.random.default_rng(1), config["d_model"], {}
    size, inner = config["vocab_size"], config["encoder_ffn_dim"]
    shapes["final_logits_bias"] = (1, size)
    shared = config.get("share_encoder_decoder_embeddings", True) and config.get("tie_word_embeddings", True)
    for name in ("shared",) if shared else ("encoder.embed_tokens", "decoder.embed_tokens"):
        shapes[f"model.{name}.weight"] = (size, width)
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (size, width)
    for side in ("encoder", "decoder"):
        attentions = ["self_attn", "encoder_attn"][: 1 + (side == "decoder")]
        dense = {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
        dense |= {"fc1": (inner, width), "fc2": (width, inner)}
        norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
        for number in range(config[f"{side}_layers"]):
            start = f"model.{side}.layers.{number}"
            shapes |= {f"{start}.{name}.weight": shape for name, shape in dense.items()}
            shapes |= {f"{start}.{name}.bias": shape[:1] for name, shape in dense.items()}
            shapes |= {f"{start}.{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}
        if config.get("normalize_embedding"):
            shapes |= {f"model.{side}.layernorm_embedding.{part}": (width,) for part in ("weight", "bias")}
    return {name: rng.normal(0, 0.5, shape).astype("float32") for name, shape in shapes.items()}


class Reference:
    """Marian's logits for one pair of lists of ids, without padding."""

    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors

    def __call__(self, source, target):
        memory = self.stack("encoder", source)
        x = self.stack("decoder", target, memory)
        table = "lm_head.weight" if "lm_head.weight" in self.tensors else "model.decoder.embed_tokens.weight"
        return (
            x @ self.tensors.get(table, self.tensors.get("model.shared.weight")).T + self.tensors["final_logits_bias"]
        )

    def stack(self, side, ids, memory=None):
        width, shared = self.config["d_model"], self.tensors.get("model.shared.weight")
        x = self.tensors.get(f"model.{side}.embed_tokens.weight", shared)[ids]
        x = x * np.sqrt(width) if self.config["scale_embedding"] else x
        angles = np.arange(len(ids))[:, None] / 10000 ** (2 * np.arange(width // 2) / width)
        x = x + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        if self.config.get("normalize_embedding"):
            x = self.norm(f"model.{side}.layernorm_embedding", x)
        causal = np.tril(np.ones((len(ids), len(ids)))) if memory is not None else 1
        for number in range(self.config[f"{side}_layers"]):
            start = f"model.{side}.layers.{number}"
            x = self.norm(f"{start}.self_attn_layer_norm", x + self.attention(f"{start}.self_attn", x, x, causal))
            if memory is not None:
                y = self.attention(f"{start}.encoder_attn", x, memory, 1)
                x = self.norm(f"{start}.encoder_attn_layer_norm", x + y)
            y = self.dense(f"{start}.fc1", x)
            y = np.maximum(y, 0) if self.config["activation_function"] == "relu" else y / (1 + np.exp(-y))
            x = self.norm(f"{start}.final_layer_norm", x + self.dense(f"{start}.fc2", y))
        return x

    def dense(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def attention(self, name, x, memory, mask):
        heads = self.config["encoder_attention_heads"]
        q, k, v = (
            np.stack(np.split(self.dense(f"{name}.{part}_proj", y), heads, axis=-1))
            for part, y in (("q", x), ("k", memory), ("v", memory))
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        weights = np.exp(scores) * mask
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self.dense(f"{name}.out_proj", np.concatenate(list(mixed), axis=-1))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_reference(changes, tmp_path):
    config, tensors = write(tmp_path, **changes)
    translator = Translator.from_marian(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    order = marian.order_of_ids(marian.read_config(tmp_path), vocabulary, len(vocabulary), tmp_path)
    rng = np.random.default_rng(2)
    source, target = rng.integers(2, 20, 7), np.array([config["decoder_start_token_id"], *rng.integers(2, 20, 4)])
    ours = {int(theirs): number for number, theirs in enumerate(order)}
    ids = {"source": [[*map(ours.get, source), 0]], "target": [list(map(ours.get, target))]}  # with padding
    logits = run(lambda: translator.models[0]({name: np.array(row) for name, row in ids.items()}))
    expected = Reference(config, tensors)(source, target)
    assert_close(np.array(logits)[0, :, 1:], expected[:, order[1:]], 1e-4)
    assert np.array(logits)[0, :, 0].max() < -50  # padding
    assert (translator.num_beams, translator.sampler.length_penalty) == (3, 0.8)


def write_generation(folder, **entries):
    (folder / "generation_config.json").write_text(json.dumps(entries))


@pytest.mark.parametrize("forced", [None, 0])
def test_the_search_is_that_of_the_folder_and_is_saved(forced, tmp_path):
    config, _ = write(tmp_path / "given")
    pieces = {number: piece for piece, number in json.loads((tmp_path / "given/vocab.json").read_text()).items()}
    banned = [[config["pad_token_id"]], [0], [1], [7], [7], [9], [5, 6]]
    entries = {"num_beams": 3, "length_penalty": 0.8, "max_length": 20, "forced_eos_token_id": forced}
    entries |= {"min_length": 2, "no_repeat_ngram_size": 4, "early_stopping": "never", "bad_words_ids": banned}
    write_generation(tmp_path / "given", **entries)
    with pytest.warns(UserWarning, match=r"generation_config.json: 1 `bad_words_ids` of several tokens are ignored"):
        translator = Translator.from_marian(tmp_path / "given")
    assert (translator.num_beams, translator.max_length) == (3, 19 if forced is None else 18)
    names = translator.target_tokenizer.names()
    assert [names[number - 4] for number in translator.settings["suppress_tokens"][1:]] == [pieces[7], pieces[9]]
    expected = {"length_penalty": 0.8, "min_length": 2, "no_repeat_ngram_size": 4, "early_stopping": False}
    assert translator.settings["suppress_tokens"][0] == 3 and expected.items() <= translator.settings.items()
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved").settings == translator.settings
    (tmp_path / "given/generation_config.json").unlink()
    (tmp_path / "given/config.json").write_text(json.dumps(config | {"max_length": 20}))  # forced, if it says nothing
    assert Translator.from_marian(tmp_path / "given").max_length == 18


def test_a_wrong_entry_of_the_search_is_named(tmp_path):
    write(tmp_path)
    for name, value in {"max_length": "512", "num_beams": 0, "bad_words_ids": [[9999]], "max_new_tokens": 1.5}.items():
        write_generation(tmp_path, **{name: value})
        with pytest.raises(ValueError, match=rf"generation_config.json: damaged.*`{name}` must be"):
            Translator.from_marian(tmp_path)


def test_tokenizer(tmp_path):
    write(tmp_path)
    translator = Translator.from_marian(tmp_path)
    tokenizer, vocabulary = translator.source_tokenizer, json.loads((tmp_path / "vocab.json").read_text())
    assert tokenizer.pieces(">>fra<< the dog")[0] == ">>fra<<"
    (ids,) = tokenizer.encode([">>fra<< the dog ☃"])
    assert ids[0] == 4 and 3 in ids and vocabulary[">>fra<<"] == 2
    assert tokenizer.decode(tokenizer.encode(TEXTS[:2])) == TEXTS[:2]
    text.save_tokenizer(tokenizer, tmp_path / "saved")
    loaded = text.load_tokenizer(tmp_path / "saved")
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS) and loaded.vocab_size == len(vocabulary) + 1


@IN_TENSORFLOW
def test_tokenizer_in_a_graph(tmp_path):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    write(tmp_path)
    tokenizer = Translator.from_marian(tmp_path).source_tokenizer
    graph, ids = tokenizer.in_graph(), tokenizer.encode(TEXTS)
    assert graph.tokenize(tf.constant(TEXTS)).to_list() == ids
    padded = tf.ragged.constant(ids).to_tensor()
    assert [string.decode() for string in graph.detokenize(padded).numpy()] == tokenizer.decode(ids)


def damaged(folder, name, content):
    (folder / name).write_bytes(content) if content is not None else (folder / name).unlink()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("config.json", b"{", "config.json: damaged"),
        ("config.json", None, "config.json of Hugging Face or an .npz"),
        ("source.spm", None, "source.spm: is missing"),
        ("source.spm", b"\x80\x04K\x01.", "source.spm: damaged"),
        ("vocab.json", b'{"a": 1}', "vocab.json: damaged.*has no <unk>"),
        ("vocab.json", b'{"<unk>": 1, "b": 99999}', "vocab.json: damaged.*has the id 99999"),
        ("model.safetensors", None, "model.safetensors: is missing"),
        ("model.safetensors", b"\x80\x04K\x01.", "model.safetensors: damaged"),
    ],
)
def test_damaged_folders_are_refused(name, content, message, tmp_path):
    write(tmp_path)
    damaged(tmp_path, name, content)
    with pytest.raises((ValueError, OSError), match=message) as error:
        Translator.from_marian(tmp_path)
    assert "\n" not in str(error.value)


def test_declared_sizes_are_checked_against_the_file(tmp_path):
    config, _ = write(tmp_path)
    for name in ("vocab_size", "encoder_layers", "encoder_ffn_dim"):
        other = {"encoder_ffn_dim": {"decoder_ffn_dim": 10**9}, "vocab_size": {"decoder_vocab_size": 10**9}}
        (tmp_path / "config.json").write_text(json.dumps(config | {name: 10**9} | other.get(name, {})))
        with pytest.raises(ValueError, match=r"model.safetensors: damaged.*its configuration describes .* cannot hold"):
            Translator.from_marian(tmp_path)
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"num_beams": 1000000000}')
    with refused("num_beams"):
        Translator.from_marian(tmp_path)


def test_a_truncated_or_wrong_checkpoint_is_refused(tmp_path):
    _, tensors = write(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="model.safetensors: damaged"):
        Translator.from_marian(tmp_path)
    for name, array, message in (
        ("final_logits_bias", None, "has no final_logits_bias"),
        ("model.shared.weight", tensors["model.shared.weight"][:-1], r"model.shared.weight must have the shape"),
    ):
        wrong = {**tensors, name: array}
        safetensors.save_file({key: value for key, value in wrong.items() if value is not None}, path)
        with pytest.raises(ValueError, match=message):
            Translator.from_marian(tmp_path)


@pytest.mark.parametrize(
    "entry, value",
    [
        ("model_type", "bart"),
        ("normalize_before", True),
        ("activation_function", "gelu_new"),
        ("decoder_ffn_dim", 16),
        ("d_model", "8"),
    ],
)
def test_an_entry_that_is_not_supported_is_named(entry, value, tmp_path):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {entry: value}))
    with pytest.raises(ValueError, match=rf"config.json: `{entry}` must be .* Received: {entry}={value!r}"):
        Translator.from_marian(tmp_path)


# ── against Hugging Face's own implementation ──

PEERS = {
    "swish, shared": {"activation_function": "swish", "scale_embedding": True},
    "gelu, unscaled": {"activation_function": "gelu", "scale_embedding": False},
    "relu, deep encoder": {"activation_function": "relu", "scale_embedding": True, "encoder_layers": 3},
    "separate": {"activation_function": "swish", "scale_embedding": True, "share_encoder_decoder_embeddings": False},
    "untied": {"activation_function": "swish", "scale_embedding": True, "tie_word_embeddings": False},
}


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def save_peer(peers, folder, **changes):
    """A random model of Hugging Face whose translations end now and then, and its tokenizer."""
    import torch

    config, _ = write(folder, **changes)
    torch.manual_seed(1)
    model = peers.MarianMTModel(peers.MarianConfig(**config, init_std=0.3, forced_eos_token_id=None)).eval()
    with torch.no_grad():
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, 0] += 2.5
    model.save_pretrained(folder)
    names = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    separate = not config.get("share_encoder_decoder_embeddings", True)
    names |= {"target_vocab_file": "target_vocab.json"} if separate else {}
    paths = {name: str(folder / file) for name, file in names.items()}
    return model, peers.MarianTokenizer(**paths, separate_vocabs=separate)


def sentences(count=100):
    rng, words = np.random.default_rng(3), ["the", "cat", "sat", "on", "mat", "a", "dog", "and", ">>fra<<", "☃"]
    return [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(count)]


def translations_of_peer(model, tokenizer, texts, num_beams):
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    options = {"num_beams": num_beams, "max_new_tokens": 24, "length_penalty": 0.6, "do_sample": False}
    ids = model.generate(**inputs, **options, bad_words_ids=[[model.config.pad_token_id]])
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("changes", PEERS.values(), ids=PEERS)
def test_translations_are_those_of_transformers(changes, peers, tmp_path):
    import torch

    model, tokenizer = save_peer(peers, tmp_path, **changes)
    translator = Translator.from_marian(tmp_path)
    order = marian.order_of_ids(marian.read_config(tmp_path), tokenizer.encoder, tokenizer.vocab_size, tmp_path)
    ours = {int(theirs): number for number, theirs in enumerate(order) if number}
    texts = sentences()
    given = tokenizer(texts)["input_ids"]
    assert [[ours[number] for number in row[:-1]] for row in given] == translator.source_tokenizer.encode(texts)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    target = torch.randint(2, tokenizer.vocab_size - 1, (len(texts), 6))
    target[:, 0] = model.config.decoder_start_token_id
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=target).logits.numpy()
    source = np.where(inputs["attention_mask"], np.vectorize(ours.get)(inputs["input_ids"]), 0)
    logits = run(lambda: translator.models[0]({"source": source, "target": np.vectorize(ours.get)(target)}))
    assert_close(np.array(logits)[:, :, 1:], expected[:, :, order[1:]], 1e-4)
    for num_beams in (1, 4):
        theirs = translations_of_peer(model, tokenizer, texts, num_beams)
        steps = translator.models[0].prefill, translator.models[0].step
        if num_beams == 1:
            actual = decoding.greedy(*steps, source, 24)
        else:
            actual = decoding.beam_search(*steps, source, 24, num_beams=num_beams, length_penalty=0.6)[0][:, 0]
        assert [text.strip() for text in translator.target_tokenizer.decode(np.array(actual))] == theirs


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("forced", [None, 0])
def test_a_translation_without_an_end_stops_where_that_of_transformers_does(forced, peers, tmp_path):
    model, tokenizer = save_peer(peers, tmp_path, **PEERS["swish, shared"])
    model.final_logits_bias[0, 0] = -50  # never ends by itself
    model.save_pretrained(tmp_path)
    names = {"pad_token_id": "pad_token_id", "decoder_start_token_id": "pad_token_id", "eos_token_id": "eos_token_id"}
    search = {"num_beams": 1, "max_length": 24, "forced_eos_token_id": forced}
    search["bad_words_ids"] = [[model.config.pad_token_id], [4], [6]]
    write_generation(tmp_path, **search, **{name: getattr(model.config, of) for name, of in names.items()})
    peer = peers.MarianMTModel.from_pretrained(tmp_path).eval()
    # of fewer tokens than `max_length`, but enough that a translation may be as long
    texts = [text for text in sentences(50) if 5 < len(tokenizer(text)["input_ids"]) < 20][:8]
    ids = peer.generate(**tokenizer(texts, return_tensors="pt", padding=True))
    assert ids.shape == (8, 24)
    translator = Translator.from_marian(tmp_path)
    assert [text.strip() for text in translator(texts)] == tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_transformers_loads_what_is_exported(peers, tmp_path):
    model, tokenizer = save_peer(peers, tmp_path / "given", **PEERS["swish, shared"])
    Translator.from_marian(tmp_path / "given", max_length=64).export(tmp_path / "exported", format="huggingface")
    loaded = peers.MarianMTModel.from_pretrained(tmp_path / "exported").eval()
    reader = peers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    for num_beams in (1, 4):
        theirs = translations_of_peer(model, tokenizer, sentences(), num_beams)
        assert translations_of_peer(loaded, reader, sentences(), num_beams) == theirs
