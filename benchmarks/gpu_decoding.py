"""Our decoding beside that of others on a GPU, with random weights: every system takes 32 steps for every source.

python benchmarks/gpu_decoding.py [--systems ours/float32 …] [--batch_sizes 1 64 512] [--beams 1 4]

The model is a Transformer base with a vocabulary of 32,000; sources have 16 to 32 tokens. Times are those of a call
from NumPy ids to NumPy ids.
    ours                `generate` of our model on JAX
    keras_hub           keras-hub's samplers over the `prefill` and `step` of our model, compiled by JAX
    transformers        `generate` of Hugging Face's Marian on PyTorch, with TF32 products in float32
    transformers_static the same with a static cache, which transformers compiles
Each system is a process of its own; they take turns. Systems whose packages are missing are skipped.
"""

import argparse
import json
import pathlib
import statistics
import time

import numpy as np
import turns

NEEDS = {"ours": ["jax"], "keras_hub": ["keras_hub", "jax"]}
NEEDS |= {name: ["transformers", "torch"] for name in ("transformers", "transformers_static")}
SYSTEMS = ["ours/float32", "ours/mixed_bfloat16", "keras_hub/float32", "keras_hub/mixed_bfloat16"]
SYSTEMS += ["transformers/float32", "transformers/bfloat16", "transformers_static/bfloat16"]
VOCABULARY, STEPS, SOURCE = 32_000, 32, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 64, 512])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each system (default: 5)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--child", metavar="SYSTEM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return serve(options.child)
    backends = {system: None if system.startswith("transformers") else "jax" for system in options.systems}
    children = [
        turns.Child(__file__, system, system, needs=NEEDS[system.split("/")[0]], backend=backend)
        for system, backend in backends.items()
    ]
    cases = [[beams, rows] for beams in options.beams for rows in options.batch_sizes]
    results = {}
    for child in turns.take_turns(children, cases * options.rounds):
        of_case = [[answer[1] for answer in child.answers if answer[0] == case] for case in cases]
        results[child.name] = [rows / statistics.median(times) for (_, rows), times in zip(cases, of_case, strict=True)]
    print("\nSentences per second\n\n| system | " + " | ".join(f"beams {k}, batch {rows}" for k, rows in cases) + " |")
    print("| --- |" + " --- |" * len(cases))
    for system, speeds in results.items():
        print(
            f"| {system} | "
            + " | ".join(f"{speed:,.3g}" if speed < 100 else f"{speed:,.0f}" for speed in speeds)
            + " |"
        )
    if options.json:
        options.json.write_text(json.dumps({"cases": cases, "results": results}, indent=1))


# ── in the process of a system ──


def serve(system):
    """Answers each (beams, rows) with the seconds of one call."""
    name, dtype = system.split("/")
    generate = {"ours": ours, "keras_hub": keras_hub}.get(name, transformers)(name, dtype)
    warm = set()

    def work(case):
        beams, rows = case
        rng = np.random.default_rng(0)
        full = np.arange(SOURCE) < rng.integers(SOURCE // 2, SOURCE + 1, (rows, 1))
        ids = np.where(full, rng.integers(4, VOCABULARY, (rows, SOURCE)), 0).astype("int32")
        if tuple(case) not in warm:
            generate(ids, beams)  # compiles
            warm.add(tuple(case))
        start = time.perf_counter()
        found = generate(ids, beams)
        seconds = time.perf_counter() - start
        assert len(found) == rows and found.shape[1] >= STEPS, found.shape
        return [case, seconds]

    turns.serve(0, work, lambda: None)


def our_model(dtype):
    import keras

    from keras_tfm.models import transformer

    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 6, "model_dim": 512, "num_heads": 8, "ff_dim": 2048}
    return transformer(VOCABULARY, **sizes, dtype=dtype)


def ours(_, dtype):
    from keras_tfm.decoding import Beam

    model = our_model(dtype)
    return lambda ids, beams: model.generate(ids, STEPS, Beam(beams, min_length=STEPS))


def keras_hub(_, dtype):
    import keras
    from keras_hub.samplers import BeamSampler, GreedySampler

    from keras_tfm.runtimes import programs
    from keras_tfm.text import START

    model, searches = our_model(dtype), {}

    def search(beams):
        sampler = GreedySampler() if beams == 1 else BeamSampler(num_beams=beams)

        def run(sources, length):
            prompt = keras.ops.full((sources.shape[0], length + 1), START, dtype="int32")

            def following(prompt, cache, index):
                token = keras.ops.slice(prompt, (0, index - 1), (prompt.shape[0], 1))
                logits, cache = model.step(token, index - 1, cache)
                return logits[:, -1], None, cache

            mask = keras.ops.arange(length + 1)[None] < keras.ops.ones_like(sources[:, :1])
            return sampler(following, prompt, cache=model.prefill(sources, length), index=1, mask=mask)[:, 1:]

        return programs.compiled(run, model.variables)

    def generate(ids, beams):
        if beams not in searches:
            searches[beams] = search(beams)
        return keras.ops.convert_to_numpy(searches[beams](ids, STEPS))

    return generate


def transformers(name, dtype):
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    sides = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}
    sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()}
    last = VOCABULARY - 1
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=512, pad_token_id=last, decoder_start_token_id=last, eos_token_id=0, **sides
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = MarianMTModel(config).to(device, getattr(torch, dtype)).eval()
    search = {"min_new_tokens": STEPS, "max_new_tokens": STEPS, "do_sample": False}
    search |= {"cache_implementation": "static"} if name == "transformers_static" else {}

    def generate(ids, beams):
        mask = torch.tensor(ids > 0, device=device).long()
        ids = torch.tensor(np.where(ids > 0, ids, last), device=device).long()
        with torch.inference_mode():
            return model.generate(input_ids=ids, attention_mask=mask, num_beams=beams, **search)[:, 1:].cpu().numpy()

    return generate


if __name__ == "__main__":
    main()
