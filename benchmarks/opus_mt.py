"""A model of OPUS-MT's size: how long import and exports take, and how fast LiteRT int8 and CTranslate2 int8 run it.

python benchmarks/opus_mt.py [--out runs/opus_mt]

The weights are random, so nothing is downloaded; translations mean nothing, but cost as much as real ones. Each step
is a process of its own. Needs the extras tensorflow, text, litert, ctranslate2 and huggingface.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

SIZES = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "vocab_size": 58_101}
SIZES |= {f"{side}_attention_heads": 8 for side in ("encoder", "decoder")}
SIZES |= {f"{side}_ffn_dim": 2048 for side in ("encoder", "decoder")}
SENTENCE = "a man and a woman are walking along the beach with their dog in the evening"
FORMATS = {"SavedModel": ("saved_model", "float32"), "LiteRT int8": ("litert", "int8")}
FORMATS |= {"CTranslate2 int8": ("ctranslate2", "int8")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/opus_mt"))
    parser.add_argument("--time", type=pathlib.Path, help=argparse.SUPPRESS)  # what this program asks of itself
    options = parser.parse_args()
    if options.time:
        return print(json.dumps(speed(options.time)))
    write_checkpoint(options.out / "checkpoint")
    run = options.out / "imported"
    rows = [("import", *step("import", options.out / "checkpoint", "--out", run), size(run), "", "")]
    for name, (form, precision) in FORMATS.items():
        out = options.out / form
        flags = ["--format", form, "--precision", precision, "--num_beams", "4", "--max_length", "64", "--out", out]
        flags += ["--min_agreement", "0"]  # with random weights, the smallest rounding difference changes the output
        seconds, memory = step("export", run, *flags)
        speeds = ("", "")
        if form != "saved_model":
            child = subprocess.run(
                [sys.executable, __file__, "--time", out], capture_output=True, text=True, check=True
            )
            speeds = [f"{value:.2f}" for value in json.loads(child.stdout)]
        rows.append((name, seconds, memory, size(out), *speeds))
    print("| step | seconds | peak GiB | MB on disk | s to load | ms per token, beam 4 |\n| --- |" + " --- |" * 5)
    for name, seconds, memory, megabytes, *speeds in rows:
        print(f"| {name} | {seconds:.0f} | {memory:.1f} | {megabytes:.0f} | {' | '.join(speeds)} |")


def step(*command):
    """Seconds and peak memory in GiB of a command of `keras-tfm`."""
    print("keras-tfm", *command, flush=True)
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "keras_tfm", *map(str, command)], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"failed: {command}")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20


def speed(folder):
    """Seconds to load an export, and milliseconds per token, the median of 5 sentences with one thread."""
    from keras_tfm.export import runners

    start = time.perf_counter()
    translator = runners.load(folder)
    loaded = time.perf_counter() - start
    (row,) = translator.source_tokenizer.encode([SENTENCE])
    times = []
    for _ in range(6):
        start = time.perf_counter()
        (ids,) = translator._search([[*row, 2]])
        times.append((time.perf_counter() - start) / np.count_nonzero(ids))
    return loaded, 1000 * statistics.median(times[1:])


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def write_checkpoint(folder):
    """Random weights and a vocabulary in the format of Hugging Face."""
    from safetensors.numpy import save_file

    from keras_tfm.text import SentencePieceTokenizer, train_tokenizer

    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    count, width, inner = SIZES["vocab_size"], SIZES["d_model"], SIZES["encoder_ffn_dim"]
    model = train_tokenizer([SENTENCE] * 10, "bpe", 400).model
    pieces = SentencePieceTokenizer(model).names()
    pieces += [f"piece{number}" for number in range(count - 3 - len(pieces))]
    vocabulary = {piece: number for number, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model)
    specials = {"eos_token_id": 0, "pad_token_id": count - 1, "decoder_start_token_id": count - 1}
    config = {"model_type": "marian", "activation_function": "swish", "scale_embedding": True, **SIZES, **specials}
    shapes = {"model.shared.weight": (count, width), "final_logits_bias": (1, count)}
    for side, attentions in {"encoder": ["self_attn"], "decoder": ["self_attn", "encoder_attn"]}.items():
        dense = {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
        dense |= {"fc1": (inner, width), "fc2": (width, inner)}
        for number in range(SIZES[f"{side}_layers"]):
            start = f"model.{side}.layers.{number}"
            for name, shape in dense.items():
                shapes |= {f"{start}.{name}.weight": shape, f"{start}.{name}.bias": shape[:1]}
            for name in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
                shapes |= {f"{start}.{name}.weight": (width,), f"{start}.{name}.bias": (width,)}
    rng = np.random.default_rng(1)
    tensors = {name: rng.normal(0, shape[-1] ** -0.5, shape).astype("float32") for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
