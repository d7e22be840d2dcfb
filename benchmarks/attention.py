"""Compares attention layers; ratios are always between measurements of the same run.

python benchmarks/attention.py [local] [layers]      KERAS_BACKEND selects the backend

local:  attention over 8,192 tokens, 8 heads of 64: a window of 128 compared with all keys. Times are measured in turns
        in one process; peak memory is measured in a process of its own, minus what it held before the call.
layers: a whole layer with its projections, forward and backward, compared with Keras' layer on 2,048 tokens (on a GPU
        16,384), with padding.
"""

import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import ops

from keras_tfm.layers import MultiHeadSelfAttention
from keras_tfm.layers.attention import attend, local_attention

BACKEND = keras.backend.backend()


def on_gpu():
    if BACKEND != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def compiled(function, backward=False):
    """Compiles `function`; with `backward`, the gradient of its sum with respect to its first argument."""
    if BACKEND == "jax":
        import jax

        total = lambda *xs: function(*xs).astype("float32").sum()  # noqa: E731
        step = jax.jit(jax.grad(total, argnums=(0,)) if backward else function)
        return lambda *xs: jax.block_until_ready(step(*xs))
    import tensorflow as tf

    @tf.function
    def step(*xs):
        if not backward:
            return function(*xs)
        with tf.GradientTape() as tape:
            tape.watch(xs[0])
            total = tf.reduce_sum(tf.cast(function(*xs), "float32"))
        return tape.gradient(total, xs[0])

    return lambda *xs: step(*xs).numpy()


def seconds(functions, inputs, repeats):
    """Median seconds of each function. They take turns, and the first turn does not count."""
    times = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            if sys.stderr.isatty():
                print(f"\r  turn {turn}/{repeats}: {name:<40}", end="\r", file=sys.stderr, flush=True)
            start = time.perf_counter()
            function(*inputs)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def table(title, header, rows):
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


# ── local ──

LENGTH, WINDOW = 8192, 128
ATTENTIONS = {
    "all keys": lambda q, k, v: attend(q, k, v)[0],
    "window": lambda q, k, v: local_attention(lambda *args: attend(*args[:3], mask=args[3])[0], q, k, v, WINDOW),
}


def queries_keys_values():
    rng = np.random.default_rng(0)
    return [ops.convert_to_tensor(rng.normal(size=(1, LENGTH, 8, 64)).astype("float32")) for _ in range(3)]


def peak_megabytes(name, backward):
    """Peak memory of a compiled call in a new process, minus what the process held before the call."""
    here = os.path.dirname(os.path.abspath(__file__))
    program = f"import sys; sys.path.insert(0, {here!r}); import attention; attention.print_peak({name!r}, {backward})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return float(run.stdout.split()[-1])


def print_peak(name, backward):
    step, inputs = compiled(ATTENTIONS[name], backward), queries_keys_values()
    step(*inputs)
    if on_gpu():
        import jax

        stats = jax.devices()[0].memory_stats()
        print((stats["peak_bytes_in_use"] - sum(x.nbytes for x in inputs)) / 2**20)
        return

    def status(field):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak, on Linux
    before = status("VmRSS")
    step(*inputs)
    print(status("VmHWM") - before)


def local():
    rows = []
    for backward in (False, True):
        functions = {name: compiled(function, backward) for name, function in ATTENTIONS.items()}
        times = {name: 1000 * t for name, t in seconds(functions, queries_keys_values(), repeats=5).items()}
        peaks = {name: peak_megabytes(name, backward) for name in ATTENTIONS}
        cells = [BACKEND, "forward + backward" if backward else "forward"]
        for figures, form in ((times, "{:,.2f} ms"), (peaks, "{:,.0f} MB")):
            full, near = (figures[name] for name in ATTENTIONS)
            cells += [form.format(full), form.format(near), f"{near / full:.3f}"]
        rows.append(cells)
    figures = [part for what in ("time", "peak memory") for part in (*ATTENTIONS, f"ratio of {what}")]
    table(f"attention over {LENGTH:,} tokens, batch 1, 8 heads of 64", ("backend", "pass", *figures), rows)


# ── layers ──


def layers():
    if on_gpu():
        keras.config.set_dtype_policy("mixed_bfloat16")
    rows, width = [], 512
    for length in (128, 512, 1024 if on_gpu() else 2048):
        batch = (16384 if on_gpu() else 2048) // length
        x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(batch, length, width)).astype("float32"))
        mask = ops.convert_to_tensor(np.arange(length) < np.linspace(length // 2, length, batch)[:, None])
        ours, theirs = MultiHeadSelfAttention(8, causal=True), keras.layers.MultiHeadAttention(8, width // 8)
        near = MultiHeadSelfAttention(8, causal=True, window=64)
        functions = {
            "Keras": lambda x, mask, f=theirs: f(x, x, attention_mask=mask[:, None, :], use_causal_mask=True),
            "ours": lambda x, mask, f=ours: f(x, mask=mask),
            "ours, window 64": lambda x, mask, f=near: f(x, mask=mask),
        }
        for function in functions.values():
            function(x, mask)
        steps = {name: compiled(function, backward=True) for name, function in functions.items()}
        times = seconds(steps, (x, mask), repeats=9)
        cells = [BACKEND, f"{batch} × {length:,}", f"{times['Keras'] * 1e3:.2f} ms"]
        for name in list(functions)[1:]:
            cells += [f"{times[name] * 1e3:.2f} ms", f"{times[name] / times['Keras']:.2f}"]
        rows.append(cells)
    header = ("backend", "batch × length", "Keras", "ours", "ratio", "ours, `window=64`", "ratio")
    table(f"one causal layer, padded batch, width {width}, 8 heads, forward + backward", header, rows)


if __name__ == "__main__":
    for section in sys.argv[1:] or ("local", "layers"):
        {"local": local, "layers": layers}[section]()
