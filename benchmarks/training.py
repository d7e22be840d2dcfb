"""Training steps of ours beside those of keras-hub and PyTorch: same sizes, same batch, taking turns.

python benchmarks/training.py [--sizes tiny base] [--systems ours/jax keras_hub/jax …] [--rounds 5] [--json FILE]

Each system is a process of its own that waits for its turn. A step is one of `fit`: dropout 0.1, cross-entropy with
label smoothing 0.1 over the tokens that are not padding, Adam. keras-hub has the loss that its users would take, Keras'
own without smoothing; "keras_hub_same_loss" has ours, so that only layers are compared. Rows are 75 to 100 % full, and
ids are as frequent as words are, by Zipf's law. Systems whose packages are missing are skipped.

"of the limit" is the share of the floating-point operations per second of a large matrix product in the same run.
"compilations" are the programs that XLA compiles for the steps on JAX (small ones that fill variables included), and
the graphs that are traced on TensorFlow.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import time

import numpy as np
import turns

# Layers, width, heads, feed-forward width, vocabulary, rows, tokens per row (source and target alike), type.
SIZES = {
    "tiny": (4, 128, 4, 256, 10_000, 64, 32, "float32"),
    "base": (6, 512, 8, 2048, 32_000, 16, 64, "float32"),
    "base_128": (6, 512, 8, 2048, 32_000, 128, 128, "mixed_bfloat16"),
    "big_128": (6, 1024, 16, 4096, 32_000, 128, 128, "mixed_bfloat16"),
    "base_1024": (6, 512, 8, 2048, 32_000, 16, 1024, "mixed_bfloat16"),
    "base_4096": (6, 512, 8, 2048, 32_000, 4, 4096, "mixed_bfloat16"),
}
DROPOUT, SMOOTHING = 0.1, 0.1
PACKAGES = {"ours": [], "keras_hub": ["keras_hub"], "keras_hub_same_loss": ["keras_hub"], "torch": ["torch"]}
BACKENDS = {"tensorflow": "tensorflow", "xla": "tensorflow", "jax": "jax", "eager": "torch", "compiled": "torch"}
SYSTEMS = [f"{name}/{way}" for name in PACKAGES if name != "torch" for way in ("tensorflow", "xla", "jax")]
SYSTEMS += ["torch/eager", "torch/compiled"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "base"], metavar="SIZE")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each system (default: 5)")
    parser.add_argument("--steps", type=int, default=4, help="steps per turn (default: 4)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return serve(*options.child)
    results = {}
    for size in options.sizes:
        results[size] = measure(size, options)
        show(size, results[size])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measure(size, options):
    """Figures of each system, as a dict."""
    children = []
    for system in options.systems:
        backend = BACKENDS[system.split("/")[1]]
        needs = [*PACKAGES[system.split("/")[0]], backend]
        children.append(turns.Child(__file__, system, system, size, needs=needs, backend=backend))
    found, results = turns.take_turns(children, [options.steps] * options.rounds), {}
    rate = max([matrix_rate(), *(child.last["matrix_rate"] for child in found)])
    for child in found:
        seconds, (*_, rows, length, _) = statistics.median(child.answers), SIZES[size]
        results[child.name] = {
            "milliseconds": 1000 * seconds,
            "tokens_per_second": rows * length / seconds,
            "of_the_limit": operations(size) / seconds / rate,
            "peak_gigabytes": child.last["peak_gigabytes"],
            "seconds_to_first_step": child.first,
            "compilations": child.last["compilations"],
            "times": child.answers,
        }
    return results


def operations(size):
    """Floating-point operations of a step: 6 for each weight and token, and those of attention."""
    layers, width, _, inner, vocabulary, rows, length, _ = SIZES[size]
    weights = layers * (12 * width**2 + 4 * width * inner) + vocabulary * width  # encoder 4, decoder 8 square matrices
    return 6 * rows * length * weights + 3 * 12 * layers * rows * length**2 * width


def matrix_rate(size=2048):
    """Floating-point operations per second of a matrix product by NumPy."""
    x = np.ones((size, size), "float32")
    times = []
    for _ in range(3):
        start = time.perf_counter()
        x @ x
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def show(size, results):
    peers = [row["tokens_per_second"] for name, row in results.items() if not name.startswith("ours")]
    best = max(peers, default=None)
    print(f"\n{size}\n\n| system | ms per step | target tokens/s | ratio to the best peer |", end="")
    print(" of the limit | peak GB | s to the first step | compilations |")
    print("| --- |" + " --- |" * 7)
    for name, row in sorted(results.items(), key=lambda item: item[1]["milliseconds"]):
        ratio = f"{row['tokens_per_second'] / best:.2f}" if best else ""
        limit = f"{row['of_the_limit']:.0%}" if row["of_the_limit"] else ""
        start = f"{row['seconds_to_first_step']:.0f} | {'' if row['compilations'] is None else row['compilations']}"
        figures = f"{row['milliseconds']:.0f} | {row['tokens_per_second']:,.0f} | {ratio} | {limit}"
        print(f"| {name} | {figures} | {row['peak_gigabytes']:.1f} | {start} |")
    print(flush=True)


# ── in the process of a system ──


def serve(system, size):
    """Answers each number of steps with the seconds per step."""
    start = time.perf_counter()
    run, compilations = (torch_steps if system.startswith("torch") else keras_steps)(system, size)
    run(1)
    first = time.perf_counter() - start

    def work(steps):
        start = time.perf_counter()
        run(steps)
        return (time.perf_counter() - start) / steps

    work(2)

    def last():
        found = {"compilations": compilations(), "peak_gigabytes": peak_memory()}  # before the matrix product
        return found | {"matrix_rate": accelerator_rate()}

    turns.serve(first, work, last)


def batch(size):
    """Source and label ids, with zeros at the end of rows, and the labels moved to the right by a start token."""
    *_, vocabulary, rows, length, _ = SIZES[size]
    rng, ranks = np.random.default_rng(0), np.arange(1, vocabulary - 3)
    shares = 1 / ranks / np.sum(1 / ranks)

    def ids():
        full = np.arange(length) < rng.integers(3 * length // 4, length + 1, (rows, 1))
        return np.where(full, rng.choice(ranks + 3, (rows, length), p=shares), 0).astype("int32")

    source, labels = ids(), ids()
    return source, np.concatenate([np.ones((rows, 1), "int32"), labels[:, :-1]], axis=1), labels


def keras_steps(system, size):
    import keras

    name, way = system.split("/")
    layers, width, heads, inner, vocabulary, rows, length, dtype = SIZES[size]
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    model, loss = (our_model if name == "ours" else keras_hub_model)(size)
    loss = our_loss() if name == "keras_hub_same_loss" else loss
    jit = {"tensorflow": False, "xla": True, "jax": "auto"}[way]
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=jit)
    source, target, labels = batch(size)

    def run(steps):
        xs = {"source": np.tile(source, (steps, 1)), "target": np.tile(target, (steps, 1))}
        ys = np.tile(labels, (steps, 1))
        if keras.backend.backend() == "tensorflow":
            model.fit(without_autotuning(xs, ys, rows), verbose=0)
        else:
            model.fit(xs, ys, batch_size=rows, shuffle=False, verbose=0)

    return run, turns.compilations(model)


def without_autotuning(xs, ys, rows):
    """Batches for TensorFlow. With autotuning, the end of `fit` waits until 1.3, 2.6, 5.1, … seconds have passed."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((xs, ys)).batch(rows).prefetch(2).with_options(options)


def our_model(size):
    from keras_tfm.models import transformer

    layers, width, heads, inner, vocabulary, *_ = SIZES[size]
    sizes = {"num_layers": layers, "model_dim": width, "num_heads": heads, "ff_dim": inner}
    return transformer(vocabulary, **sizes, dropout=DROPOUT), our_loss()


def our_loss():
    from keras_tfm.training import SmoothedCrossentropy

    return SmoothedCrossentropy(SMOOTHING)


def keras_hub_model(size):
    import keras
    from keras_hub import layers as hub

    layers, width, heads, inner, vocabulary, _, length, _ = SIZES[size]
    source, target = (keras.Input((length,), dtype="int32", name=name) for name in ("source", "target"))
    embed = hub.TokenAndPositionEmbedding(vocabulary, length, width, tie_weights=True, mask_zero=True)
    options = {"intermediate_dim": inner, "num_heads": heads, "dropout": DROPOUT, "normalize_first": True}
    x = embed(source)
    for _ in range(layers):
        x = hub.TransformerEncoder(**options)(x)
    y = embed(target)
    for _ in range(layers):
        y = hub.TransformerDecoder(**options)(y, x)
    logits = embed.token_embedding(keras.layers.LayerNormalization()(y), reverse=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return keras.Model({"source": source, "target": target}, logits), loss


def torch_steps(system, size):
    import torch

    layers, width, heads, inner, vocabulary, rows, length, dtype = SIZES[size]
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source, target, labels = (torch.tensor(x, dtype=torch.long, device=device) for x in batch(size))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary, width)
            self.positions = torch.nn.Embedding(length, width)
            options = {"dim_feedforward": inner, "dropout": DROPOUT, "batch_first": True, "norm_first": True}
            self.transformer = torch.nn.Transformer(width, heads, layers, layers, **options)

        def forward(self, source, target):
            x, y = (self.embedding(ids) * width**0.5 + self.positions.weight for ids in (source, target))
            future = torch.nn.Transformer.generate_square_subsequent_mask(length, device=device).isinf()
            padding = {"src_key_padding_mask": source == 0, "memory_key_padding_mask": source == 0}
            y = self.transformer(x, y, tgt_mask=future, tgt_key_padding_mask=target == 0, tgt_is_causal=True, **padding)
            return y @ self.embedding.weight.T

    model = Model().to(device)
    compiled = torch.compile(model) if system.endswith("compiled") else model
    loss = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING, ignore_index=0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=dtype != "float32"):
                value = loss(compiled(source, target).flatten(0, 1), labels.flatten())
            value.backward()
            optimizer.step()
        return float(value.detach())  # waits for the device

    return run, lambda: None


def peak_memory():
    """In GB: of the accelerator if there is one, otherwise of the process."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        if found := jax.devices()[0].memory_stats():
            return found["peak_bytes_in_use"] / 1e9
    if os.environ["KERAS_BACKEND"] == "torch" and sys.modules["torch"].cuda.is_available():
        return sys.modules["torch"].cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def accelerator_rate(size=8192):
    """Floating-point operations per second of a bfloat16 matrix product on the accelerator; 0 if there is none."""
    if os.environ["KERAS_BACKEND"] != "jax":
        return 0
    import jax
    from jax import numpy as jnp

    if jax.default_backend() == "cpu":
        return 0
    x, product = jnp.ones((size, size), "bfloat16"), jax.jit(lambda x: x @ x)
    product(x).block_until_ready()
    start = time.perf_counter()
    for _ in range(10):
        y = product(x)
    y.block_until_ready()
    return 10 * 2 * size**3 / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
