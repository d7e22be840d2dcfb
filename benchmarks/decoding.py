"""Compares our decoding with that of others: same weights, same sentences, taking turns in one process.

python benchmarks/decoding.py MODEL DATA [--peers naive keras_hub marian]    KERAS_BACKEND selects the backend

MODEL is a folder that `keras-tfm train` wrote. DATA contains `tok/` of Multi30k, of which val is translated.
naive:     greedy search, batch 8, 32 tokens: our cached loop, and a loop that runs the model on all tokens at each step
keras_hub: beam search by keras-hub's `BeamSampler`, over our `start` and `step`
marian:    beam search by `generate` of Hugging Face's Marian with our weights; needs a post-norm model and the packages
           `torch` and `transformers`
"""

import argparse
import os
import pathlib
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import ops

from keras_tfm import decoding, evaluation, kernels
from keras_tfm.data import read_lines
from keras_tfm.layers import sinusoids
from keras_tfm.text import END, PAD, START
from keras_tfm.translator import Translator


def longest(width):
    """Maximum length of a translation for sources of this width, as in `Translator`."""
    return 2 * width + 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=pathlib.Path)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["naive", "keras_hub"])
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--length_penalty", type=float, default=0.6)
    parser.add_argument("--batch_size", type=int, default=64)
    options = parser.parse_args()
    translator = Translator.load(options.model)
    for peer in options.peers:
        PEERS[peer](translator, options)


def val(options):
    """The sentences of val and their references."""
    return [list(read_lines(options.data / f"tok/val.lc.norm.tok.{side}.gz")) for side in ("en", "de")]


# ── greedy decoding with and without a cache ──


def beside_naive(translator, options, batch=8, steps=32):
    (model,), sentences = translator.models, val(options)[0]
    rows = [ids for ids in translator.source_tokenizer.encode(sentences) if 20 <= len(ids) < 32][:batch]
    sources = padded(rows, batch, 32)
    cached = kernels.compiled(
        lambda sources, length: decoding.greedy(model.start, model.step, sources, length, min_length=length),
        model.variables,
    )
    forward = kernels.compiled(lambda inputs, length: model(inputs), model.variables)

    def naive(call):  # as in many tutorials: the model sees all previous tokens again at each step
        target = np.full((batch, steps + 1), PAD, "int32")
        target[:, 0] = START
        for position in range(steps):
            logits = ops.convert_to_numpy(call({"source": sources, "target": target[:, :-1]}))[:, position]
            logits[:, [PAD, START, END]] = -1e9
            target[:, position + 1] = logits.argmax(-1)
        return target[:, 1:]

    ways = {
        "cached, compiled": lambda: ops.convert_to_numpy(cached(sources, steps)),
        "without cache, compiled": lambda: naive(lambda inputs: forward(inputs, 0)),
        "without cache, eager": lambda: naive(model),
    }
    outputs, times = {name: way() for name, way in ways.items()}, {name: [] for name in ways}
    assert all((ids[:, :-1] == outputs["without cache, eager"][:, :-1]).all() for ids in outputs.values())
    for _ in range(5):  # in turns, since machines are noisy; several calls each, to warm up caches again
        for name, way in ways.items():
            for _ in range(1 if name.endswith("eager") else 3):
                start = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - start)
    best = statistics.median(times["cached, compiled"])
    print(f"\ngreedy, {batch} sentences, {steps} tokens, {keras.backend.backend()}\n")
    print("| loop | seconds | ratio |\n| --- | --- | --- |")
    for name in ways:
        print(f"| {name} | {statistics.median(times[name]):.3f} | {statistics.median(times[name]) / best:.1f} |")


# ── beam search beside others ──


def beside_keras_hub(translator, options):
    from keras_hub.samplers import BeamSampler

    (model,) = translator.models
    sampler = BeamSampler(num_beams=options.beams)

    def search(sources, width):
        batch = ops.shape(sources)[0]
        prompt = ops.concatenate(
            [ops.full((batch, 1), START, dtype="int32"), ops.zeros((batch, longest(width)), dtype="int32")], axis=1
        )

        def following(prompt, cache, index):
            token = ops.slice(prompt, (0, index - 1), (prompt.shape[0], 1))
            logits, cache = model.step(token, index - 1, cache)
            return logits[:, -1], None, cache

        mask = ops.not_equal(prompt, PAD)
        ids = sampler(
            following,
            prompt,
            cache=model.start(sources, longest(width)),
            index=1,
            mask=mask,
            stop_token_ids=(END,),
        )
        return ids[:, 1:]

    compare("keras-hub BeamSampler", kernels.compiled(search, model.variables), translator, options)


def beside_marian(translator, options):
    import torch

    marian = as_marian(translator.models[0])

    def search(sources, width):
        with torch.no_grad():
            return marian.generate(
                torch.tensor(sources).long(),
                attention_mask=torch.tensor(sources != PAD).long(),
                num_beams=options.beams,
                length_penalty=options.length_penalty,
                max_new_tokens=longest(width),
                bad_words_ids=[[PAD], [START]],
            )[:, 1:].numpy()

    compare("Hugging Face Marian", search, translator, options)


def as_marian(model):
    """Hugging Face's Marian with the weights of our post-norm `transformer`."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    sizes = model.arguments
    if sizes.get("norm_first"):
        raise ValueError("Marian is a post-norm model. Received: a pre-norm model; train one without --norm_first")
    layers, dim = sizes["num_layers"], sizes["model_dim"]
    config = MarianConfig(
        vocab_size=sizes["vocab_size"],
        d_model=dim,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["ff_dim"],
        decoder_ffn_dim=sizes["ff_dim"],
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        max_position_embeddings=512,
    )
    marian = MarianMTModel(config).eval()
    state = dict(marian.state_dict())

    def put(name, value, transpose=False):
        value = torch.tensor(np.array(ops.convert_to_numpy(value)))
        value = value.T if transpose else value
        assert state[name].shape == value.shape, (name, state[name].shape, value.shape)
        state[name] = value.contiguous()

    def dense(name, layer, kernel, bias):
        put(f"{name}.weight", ops.reshape(layer.kernel, kernel), transpose=True)
        put(f"{name}.bias", ops.reshape(layer.bias, bias))

    def attention(name, layer):
        for side in ("query", "key", "value"):
            dense(f"{name}.{side[0]}_proj", getattr(layer, f"{side}_dense"), (dim, dim), (dim,))
        dense(f"{name}.out_proj", layer.output_dense, (dim, dim), (dim,))

    def norm(name, residual):
        put(f"{name}.weight", residual.norm.gamma)
        put(f"{name}.bias", residual.norm.beta)

    for side in ("encoder", "decoder"):
        for number in range(layers):
            block, name = getattr(model, side).blocks[number], f"model.{side}.layers.{number}"
            attention(f"{name}.self_attn", block.attention)
            norm(f"{name}.self_attn_layer_norm", block.attention_residual)
            if side == "decoder":
                attention(f"{name}.encoder_attn", block.memory_attention)
                norm(f"{name}.encoder_attn_layer_norm", block.memory_residual)
            dense(f"{name}.fc1", block.feed_forward.inner, (dim, -1), (-1,))
            dense(f"{name}.fc2", block.feed_forward.outer, (-1, dim), (-1,))
            norm(f"{name}.final_layer_norm", block.feed_forward_residual)
        put(f"model.{side}.embed_positions.weight", sinusoids(np.arange(512), dim))
        put(f"model.{side}.embed_tokens.weight", model.source_embedding.embeddings)
    for name in ("model.shared.weight", "lm_head.weight"):
        put(name, model.target_embedding.embeddings)
    marian.load_state_dict(state)
    return marian


def compare(peer, search, translator, options):
    """Prints BLEU and tokens/s of our search and of a peer's, `search(sources, width)` → ids; they take turns."""
    (model,), (sentences, references) = translator.models, val(options)

    def ours(sources, width):
        limits = longest(ops.sum(ops.cast(sources != PAD, "int32"), axis=1))  # one for each sentence
        search = {"max_length": longest(width), "limits": limits, "length_penalty": options.length_penalty}
        return decoding.beam_search(model.start, model.step, sources, beams=options.beams, **search)[0][:, 0]

    ways = {"ours": kernels.compiled(ours, model.variables), peer: search}
    rows = translator.source_tokenizer.encode(sentences)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    ids, seconds = {name: [None] * len(rows) for name in ways}, dict.fromkeys(ways, 0.0)
    seen = set()
    bar = keras.utils.Progbar(len(order), unit_name="sentence")
    for first in range(0, len(order), options.batch_size):
        members = order[first : first + options.batch_size]
        width = next(width for width in (16, 32, 64, 128) if width > len(rows[members[-1]]))
        sources = padded([rows[number] for number in members], options.batch_size, width)
        for name, way in ways.items():
            if (name, width) not in seen:  # compiles
                ops.convert_to_numpy(way(sources, width))
                seen.add((name, width))
            start = time.perf_counter()
            found = np.array(ops.convert_to_numpy(way(sources, width)))
            seconds[name] += time.perf_counter() - start
            for line, number in enumerate(members):
                ids[name][number] = found[line]
        bar.add(len(members))
    print(f"\nMulti30k val, beam {options.beams}, batches of {options.batch_size}, {keras.backend.backend()}\n")
    print("| search | BLEU | tokens/s | ratio |\n| --- | --- | --- | --- |")
    speeds = {}
    for name in ways:
        texts = translator.target_tokenizer.decode(ids[name])
        tokens = sum(map(len, translator.target_tokenizer.encode(texts)))
        speeds[name] = tokens / seconds[name]
        bleu = evaluation.scores(texts, references, "none")["bleu"]
        print(f"| {name} | {bleu:.2f} | {speeds[name]:,.0f} | {speeds['ours'] / speeds[name]:.2f} |")


def padded(rows, count, width):
    """Pads lists of ids, each with its end token, to (count, width); missing rows have only an end token."""
    ids = np.full((count, width), PAD, "int32")
    ids[:, 0] = END
    for number, row in enumerate(rows):
        ids[number, : len(row) + 1] = [*row, END]
    return ids


PEERS = {"naive": beside_naive, "keras_hub": beside_keras_hub, "marian": beside_marian}

if __name__ == "__main__":
    main()
