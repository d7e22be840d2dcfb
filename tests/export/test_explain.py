"""What the page that explains a model computes: `explain.tflite` by Python's runtime, and its search in Node.js."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from conftest import BYTES, IN_TENSORFLOW, assert_close, refused, small_translator, spread
from test_runners import empty_runtime

from keras_tfm import artifacts, decoding, ops
from keras_tfm.data import tasks
from keras_tfm.layers.recording import attention_maps
from keras_tfm.models import rnn_attention, transformer
from keras_tfm.text import END, START
from keras_tfm.translator import Translator

pytestmark = [IN_TENSORFLOW, pytest.mark.xdist_group("explained")]

PAGE = pathlib.Path(__file__).parents[2] / "keras_tfm/export/page"
SENTENCES = 20


class Explained:
    """A translator, and its `explain.tflite` in Python's runtime."""

    def __init__(self, translator, folder):
        from ai_edge_litert.interpreter import Interpreter

        from keras_tfm.export import explain

        self.translator, (self.model,) = translator, translator.models
        settings = {"precision": "float32", "max_length": 64, "longest": self.translator.longest(64)}
        self.settings = explain.write(self.translator, folder / "explain.tflite", settings)
        interpreter = Interpreter(str(folder / "explain.tflite"))
        self.encoder, self.decoder, self.step = map(interpreter.get_signature_runner, ("encode", "decode", "step"))
        encoder, decoder = self.settings["layers"]
        self.on = np.ones((encoder, self.settings["heads"]), "float32")
        self.decoder_on = np.ones((2 * decoder, self.settings["heads"]), "float32")

    def padded(self, ids):
        return np.array([[*ids, *[0] * (self.settings["length"] - len(ids))]], "int32")

    def encode(self, source, heads=None, positions=1):
        heads = self.on if heads is None else heads
        return self.encoder(ids=self.padded(source), positions=np.array([positions], "int32"), heads=heads)

    def decode(self, source, target, heads=None):
        heads = self.decoder_on if heads is None else heads
        memory = self.encode(source)["states"][-1:]
        return self.decoder(source=self.padded(source), memory=memory, target=self.padded(target), heads=heads)

    def pairs(self):
        """Ids of sentences, with the end token, and of their translations, with the start token."""
        texts = [source for source, _ in tasks.dates(SENTENCES, "test")]
        sources = self.translator.source_tokenizer.encode(texts)
        targets = self.translator.target_tokenizer.encode(self.translator(texts))
        return [([*a[: self.settings["length"] - 1], END], [START, *b]) for a, b in zip(sources, targets, strict=True)]


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    pytest.importorskip("ai_edge_litert")
    translator = Translator.load(artifacts.SHIPPED, max_length=64)
    translator.widths, translator.jit_compile = [64], False  # XLA would compile for longer than 20 texts take
    return Explained(translator, tmp_path_factory.mktemp("explain"))


@pytest.mark.slow
def test_all_values_are_those_of_the_model(explained):
    assert_values_are_those_of_the_model(explained, explained.pairs())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "rotary", "num_kv_heads": 2, "num_decoder_layers": 1},
        {"positions": "relative", "score": "additive", "norm": "rms", "window": 4},
        {"positions": "learned", "positions_in": "every_layer", "norm_first": True, "tied_output": False},
    ],
    ids=lambda options: options["positions"],
)
def test_other_transformers_are_explained_as_well(options, tmp_path):
    pytest.importorskip("ai_edge_litert")
    model = transformer(BYTES.vocab_size, num_layers=2, model_dim=16, num_heads=4, ff_dim=32, **options)
    translator = Translator(spread(model, 0.2), BYTES, max_length=64)
    pairs = [([9, 40, 50, 60, 70, 80, END], [START, 30, 31, 32, 33]), ([77, END], [START])]
    assert_values_are_those_of_the_model(Explained(translator, tmp_path), pairs)


def assert_values_are_those_of_the_model(explained, pairs):
    model = explained.model
    for source, target in pairs:
        inputs = {"source": np.array([source]), "target": np.array([target])}
        maps, logits = attention_maps(model, inputs), ops.convert_to_numpy(model(inputs))[0]
        s, t = len(source), len(target)
        encoded, decoded = explained.encode(source), explained.decode(source, target)
        expected = [maps[block.attention.path][0] for block in model.encoder.blocks]
        assert_close(encoded["weights"][:, :, :s, :s], np.stack(expected), 1e-4)
        assert not encoded["weights"][:, :, :s, s:].any()  # padding
        assert_close(encoded["states"][-1, :s], ops.convert_to_numpy(model.encode(inputs["source"]))[0], 1e-3)
        scores = encoded["scores"][:, :, :s, :s]
        if not model.encoder.window:
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            assert_close(shares / shares.sum(-1, keepdims=True), np.stack(expected), 1e-4)
        expected = [maps[block.attention.path][0] for block in model.decoder.blocks]
        assert_close(decoded["self_weights"][:, :, :t, :t], np.stack(expected), 1e-4)
        expected = [maps[layer.path][0] for layer in model.decoder.memory_attentions]
        assert_close(decoded["memory_weights"][:, :, :t, :s], np.stack(expected), 1e-4)
        assert_close(decoded["logits"][:t], logits, 1e-3)


def test_queries_and_keys_give_the_scores(explained):
    source, _ = explained.pairs()[0]
    found = explained.encode(source)
    q, k = found["query"], found["key"]
    assert_close(np.einsum("lqhd,lkhd->lhqk", q, k) / np.sqrt(q.shape[-1]), found["scores"], 1e-3)


def test_steps_of_a_beam_are_those_of_the_model(explained):
    source, target = explained.pairs()[1]
    beams, model = explained.settings["beams"], explained.model
    cache = model.decoder.init_cache(
        beams, explained.settings["length"], model.encode(np.array([source])), masked=False
    )
    found = {"memory_cache": explained.encode(source)["memory_cache"]}
    found["self_cache"] = np.zeros(explained.settings["self_cache"], "float32")
    rng, parents = np.random.default_rng(0), np.zeros(beams, "int32")
    for position, token in enumerate(target):
        tokens = np.full((beams, 1), token, "int32")
        tokens[1:, 0] += position  # other hypotheses
        for block in cache:
            block["self"] = {name: ops.take(x, parents, axis=0) for name, x in block["self"].items()}
        logits, cache = model.step(tokens, position, cache)
        inputs = {"tokens": tokens, "position": np.array([position], "int32"), "parents": parents}
        found |= explained.step(**inputs, **found, heads=explained.decoder_on, source=explained.padded(source))
        assert_close(found.pop("logits"), ops.convert_to_numpy(logits)[:, 0], 1e-3)
        parents = np.sort(rng.integers(0, beams, beams)).astype("int32")


def test_a_head_that_is_switched_off_is_one_without_output_weights(explained):
    source, target = explained.pairs()[2]
    model, inputs = explained.model, {"source": np.array([source]), "target": np.array([target])}
    attentions = [block.attention for block in model.decoder.blocks] + model.decoder.memory_attentions
    before = ops.convert_to_numpy(model(inputs))[0]
    for row, head in ((0, 1), (len(attentions) - 1, 2)):
        kernel = attentions[row].output_dense.kernel
        kept, heads = ops.convert_to_numpy(kernel), explained.decoder_on.copy()
        heads[row, head] = 0
        try:
            kernel.assign(np.where(np.arange(len(kept))[:, None, None] == head, 0, kept))
            expected = ops.convert_to_numpy(model(inputs))[0]
        finally:
            kernel.assign(kept)
        assert_close(explained.decode(source, target, heads)["logits"][: len(target)], expected, 1e-3)
        assert np.abs(expected - before).max() > 0.01


def test_without_positions_the_encoder_cannot_tell_the_order(explained):
    source, _ = explained.pairs()[3]
    order = np.random.default_rng(0).permutation(len(source))
    moved = [source[place] for place in order]
    one, other = explained.encode(source, positions=0), explained.encode(moved, positions=0)
    assert_close(one["states"][-1][order], other["states"][-1][: len(source)], 1e-3)
    ordered = explained.encode(moved)["states"][-1][: len(source)]
    assert np.abs(explained.encode(source)["states"][-1][order] - ordered).max() > 0.1


def test_models_that_the_page_cannot_show_are_refused(tmp_path):
    runtime = empty_runtime(tmp_path / "node_modules")
    attention = Translator(rnn_attention(BYTES.vocab_size, units=8, model_dim=8), BYTES)
    sizes = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8}
    models = [transformer(BYTES.vocab_size, **sizes) for _ in range(2)]
    narrow = Translator(transformer(BYTES.vocab_size, **sizes, heads="narrow"), BYTES)
    covering = Translator(models[0], BYTES, num_beams=2, coverage_penalty=0.2)
    for translator in (attention, Translator(models, BYTES), narrow, covering):
        with refused("explain"):
            translator.export(tmp_path / "site", "web", runtime=runtime, explain=True)
    (runtime / "d3/LICENSE").unlink()
    with refused("runtime"):
        small_translator("bytes", num_beams=1).export(tmp_path / "site", "web", runtime=runtime, explain=True)
    with refused("explain"):
        small_translator("bytes", num_beams=1).export(tmp_path / "site", "litert", explain=True)


# ── the search in JavaScript ──

# Reads tables of logits (position, token, token), sources and options; the logits of a step depend on the last token.
PROGRAM = """
import { readFileSync } from "node:fs";
import { beamSearch, Rules } from "SEARCH";
const results = [];
for (const { table, source, longest, settings, options } of JSON.parse(readFileSync(0, "utf-8"))) {
  const step = async (tokens, position) => tokens.map((token) => Float32Array.from(table[position][token]));
  const { nodes, ended } = await beamSearch(step, new Rules(settings, source, longest), options);
  results.push(ended.map((number) => [nodes[number].ids, nodes[number].final, nodes[number].cut]));
}
console.log(JSON.stringify(results));
"""


def cases():
    """Searches of all kinds over random tables."""
    rng = np.random.default_rng(0)
    for number in range(60):
        size, longest = int(rng.integers(8, 14)), int(rng.integers(3, 9))
        settings = {"min_length": int(rng.integers(0, 3)), "suppress_tokens": [5] if number % 3 == 0 else []}
        settings["no_repeat_ngram_size"] = int(rng.integers(0, 3)) if number % 2 else 0
        settings["copied_tokens"] = [6, 7] if number % 4 == 0 else []
        options = {"numBeams": int(rng.integers(1, 5)), "lengthPenalty": float(rng.choice([0, 0.6, 1.5]))}
        options |= {"penalty": ["length", "gnmt"][number % 2], "earlyStopping": bool(number % 3)}
        table = rng.normal(0, 2, (longest, size, size)).astype("float32")
        source = [*rng.integers(4, 8, 3).tolist(), END]
        yield {"table": table.tolist(), "source": source, "longest": longest, "settings": settings, "options": options}


def found_by_python(case):
    table, options = ops.convert_to_tensor(np.array(case["table"], "float32")), case["options"]

    def prefill(sources, max_length):
        return {"state": ops.zeros((len(sources), 1))}

    def step(tokens, position, cache):
        return ops.take(ops.take(table, position, axis=0), tokens, axis=0), cache

    names = {"num_beams": "numBeams", "length_penalty": "lengthPenalty", "early_stopping": "earlyStopping"}
    given = {name: options[theirs] for name, theirs in names.items()} | {"penalty": options["penalty"]}
    sources, beams = np.array([case["source"]]), options["numBeams"]
    search = decoding.beam_search(prefill, step, sources, case["longest"], n_best=beams, **given, **case["settings"])
    ids, scores = (ops.convert_to_numpy(x)[0] for x in search)
    return [([n for n in row.tolist() if n], float(x)) for row, x in zip(ids, scores, strict=True) if x > -1e8]


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed: search.js cannot run")
@pytest.mark.slow
def test_javascript_finds_what_python_finds():
    program = PROGRAM.replace("SEARCH", (PAGE / "explain/search.js").as_uri())
    command, every = ["node", "--input-type=module", "--eval", program], list(cases())
    run = subprocess.run(command, input=json.dumps(every), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for case, found in zip(every, json.loads(run.stdout), strict=True):
        expected = found_by_python(case)
        assert [ids for ids, *_ in found] == [ids for ids, _ in expected], case["options"]
        assert_close([score for _, score, _ in found], [score for _, score in expected], 1e-3)
        assert [cut for *_, cut in found] == [ids[-1] != END for ids, *_ in found]
