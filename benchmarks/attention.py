"""One attention layer by length, beside those of Keras and PyTorch: time and memory of a forward and backward pass.

python benchmarks/attention.py [--backends tensorflow jax] [--lengths 128 … 8192] [--rounds 3] [--picture FILE.svg]

    keras    `keras.layers.MultiHeadAttention` with `use_causal_mask=True`
    ours     `MultiHeadSelfAttention(causal=True)`: exact, without holding all weights where the backend can
    local    `MultiHeadSelfAttention(causal=True, window=128)`: linear in the length, and not the same function
    torch    PyTorch's `scaled_dot_product_attention(is_causal=True)` between four linear layers

All have width 512, 8 heads and the same weights. A batch has `--tokens` tokens (8192 suits a GPU), but at least one
row; rows are 75 to 100 % full. The loss is half the sum of the squared outputs that are not padding, and the gradients
are those of the input and of all weights. Since padding is at the end and the layer is causal, no token sees any, so
PyTorch needs no padding mask, which would keep it from its fastest kernel. The program is compiled, PyTorch's eager;
on a GPU in bfloat16. Some entries of the input's gradient are compared at the end.

Extra memory is the peak during the first call at a length, above what the process held before: the program has been
compiled, and has run on a few tokens only. Each figure is from a new process. Then the systems take turns for the
times, each in a process of its own. Systems whose packages are missing are skipped.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import time

import numpy as np
import turns

WIDTH, HEADS, WINDOW = 512, 8, 128
LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192]
KINDS = {"keras": "Keras", "ours": "ours, exact", "local": f"ours, window {WINDOW}", "torch": "PyTorch"}
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[*BACKENDS], metavar="BACKEND")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--longest", type=int, help="a length for `ours` alone, for example 16384")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a batch (default: 2048)")
    parser.add_argument("--rounds", type=int, default=3, help="number of turns of each system (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    parser.add_argument("--picture", type=pathlib.Path, help="file to draw the curves to")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)  # system, tokens, lengths
    options = parser.parse_args()
    if options.child:
        system, tokens, *lengths = options.child
        return serve(system, int(tokens), [*map(int, lengths)])
    results = measure(options)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.picture:
        draw(results, options.picture)


def measure(options):
    """Figures of each system and length: {system: {length: {"milliseconds", "extra_megabytes", …}}}."""
    lengths = sorted({*options.lengths, *filter(None, [options.longest])})
    memory, children = {}, []
    for kind in options.kinds:
        for backend in [kind] if kind == "torch" else options.backends:
            system = kind if kind == "torch" else f"{kind}/{backend}"
            own = lengths if kind == "ours" else options.lengths
            memory[system] = extra_memory(system, backend, options.tokens, own)
            ran = [length for length, megabytes in memory[system].items() if megabytes is not None]
            if ran:
                children.append(child(system, backend, options.tokens, ran))
    results = {}
    for found in turns.take_turns(children, lengths * options.rounds):
        results[found.name] = {}
        for length in lengths:
            answers = [answer for answer in found.answers if answer and answer["length"] == length]
            if answers:
                times = [1000 * answer["seconds"] for answer in answers]
                results[found.name][length] = {
                    "batch": max(1, options.tokens // length),
                    "milliseconds": statistics.median(times),
                    "extra_megabytes": memory[found.name][length],
                    "times": times,
                    "gradient": answers[0]["gradient"],
                }
    return results


def child(system, backend, tokens, lengths):
    return turns.Child(__file__, system, system, tokens, *lengths, needs=[backend], backend=backend)


def extra_memory(system, backend, tokens, lengths):
    """Megabytes by length, None where the system failed, for example for want of memory."""
    found = {}
    for length in lengths:
        new = child(system, backend, tokens, [length])
        try:
            found[length] = new.ask("memory")
        except RuntimeError as error:
            print(error, flush=True)
            found[length] = None
            continue
        if found[length] is None:  # not installed
            return {}
        print(f"{system}: {length:,} tokens in a row, {found[length]:,.0f} MB", flush=True)
    return found


def show(results):
    lengths = sorted({length for row in results.values() for length in row})
    for name, unit in {"milliseconds": "ms", "extra_megabytes": "extra MB"}.items():
        print(f"\nForward and backward, {unit} (and ratio to Keras on the same backend)\n")
        print("| system | " + " | ".join(f"{length:,}" for length in lengths) + " |\n| --- |" + " --- |" * len(lengths))
        for system, row in results.items():
            base, cells = results.get(f"keras/{system.split('/')[-1]}", {}), []
            for length in lengths:
                value, ratio = row[length][name] if length in row else None, ""
                if length in base and base is not row and value is not None:
                    ratio = f" ({value / max(base[length][name], 1e-9):.2f})"
                cells.append("" if value is None else f"{value:,.0f}{ratio}" if value > 20 else f"{value:.1f}{ratio}")
            print(f"| {system} | {' | '.join(cells)} |")
    exact = [row for system, row in results.items() if not system.startswith("local")]
    print()
    for length in lengths:
        found = np.array([row[length]["gradient"] for row in exact if length in row])  # (systems, entries)
        if len(found) > 1:
            difference = np.ptp(found, axis=0).max() / np.abs(found).max()
            print(f"{length:,}: gradients of exact layers differ by {difference:.0e} of the largest")


def draw(results, file):
    """The curves: colours are layers, lines are backends."""
    from matplotlib.figure import Figure

    colours = dict(zip(KINDS, ("#999999", "#1f5fbf", "#2a9d57", "#d9822b"), strict=True))
    styles = {"tensorflow": "-", "jax": "--", "torch": "-"}
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = {"milliseconds": "time, ms", "extra_megabytes": "extra memory, MB"}
    ticks = sorted({length for row in results.values() for length in row})
    for axis, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for system, row in results.items():
            kind, backend = system.split("/")[0], system.split("/")[-1]
            label = KINDS[kind] + ("" if kind == "torch" else f", {BACKENDS[backend]}")
            points = [(length, figures[name]) for length, figures in row.items()]
            marks = {"color": colours[kind], "linestyle": styles[backend], "marker": "o", "markersize": 3.5}
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.6, **marks)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_xlabel("tokens per row")
        axis.set_title(title, fontsize=11, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9, handlelength=3)
    figure.savefig(file)


# ── in the process of a system ──


def serve(system, tokens, lengths):
    """Answers "memory" with the extra megabytes at the only length, and a length with the seconds of a call."""
    prepared = (torch_layer if system == "torch" else keras_layer)(system)
    calls = {}

    def prepare(rows, length):
        return prepared(*batch(rows, length))

    def work(request):
        if request == "memory":
            prepare(1, 16)()
            return peak_above(prepare(max(1, tokens // lengths[0]), lengths[0]))
        if request not in lengths:
            return None
        times, gradient = [], None
        if request not in calls:
            calls[request] = prepare(max(1, tokens // request), request)
            seconds, gradient = timed(calls[request])
            gradient = some_entries(gradient)
            times += [seconds] if seconds > 2 else []  # a short one would still be slower than those that follow
        if not times:
            times.append(timed(calls[request])[0])
            times += [timed(calls[request])[0] for _ in range(min(int(0.5 / times[0]), 9))]
        return {"length": request, "seconds": statistics.median(times), "gradient": gradient}

    turns.serve("ready", work, lambda: "")


def batch(rows, length):
    """Inputs (rows, length, width), and which of them are not padding (rows, length)."""
    x = np.random.default_rng(0).normal(size=(rows, length, WIDTH)).astype("float32")
    return x, np.arange(length) < np.linspace(0.75 * length, length, rows)[:, None]


def weights():
    """Kernels and biases of queries, keys, values (width, heads, head_dim) and the output (heads, head_dim, width)."""
    rng, head = np.random.default_rng(1), (HEADS, WIDTH // HEADS)
    shapes = [(WIDTH, *head), head] * 3 + [(*head, WIDTH), (WIDTH,)]
    return [rng.normal(0, WIDTH**-0.5, shape).astype("float32") for shape in shapes]


def timed(call):
    """The seconds of a call, and what it returns."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def some_entries(x, count=256):
    """A few entries of an array, which are the same for every array of its size."""
    x = np.asarray(x, "float32").ravel()
    return x[np.random.default_rng(2).integers(x.size, size=count)].tolist()


def keras_layer(system):
    """A function of a batch that returns a compiled call, which returns the gradient of the input."""
    import keras
    from keras import ops

    from keras_tfm.layers import MultiHeadSelfAttention

    kind, backend = system.split("/")
    if on_gpu():
        keras.config.set_dtype_policy("mixed_bfloat16")
    if kind == "keras":
        layer = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        layer.build((None, None, WIDTH), (None, None, WIDTH))
    else:
        layer = MultiHeadSelfAttention(HEADS, causal=True, window=WINDOW if kind == "local" else None)
        layer.build((None, None, WIDTH))
    layer.set_weights(weights())

    def arguments(x, mask):
        if kind == "keras":
            return (x, x), {"attention_mask": mask[:, None, :], "use_causal_mask": True}
        return (x,), {"mask": mask}

    def loss(y, mask):
        return ops.sum(ops.square(ops.where(mask[..., None], ops.cast(y, "float32"), 0.0))) / 2

    def with_tensorflow(x, mask):
        import tensorflow as tf

        @tf.function
        def step(x, mask):
            with tf.GradientTape() as tape:
                tape.watch(x)
                inputs, options = arguments(x, mask)
                total = loss(layer(*inputs, **options), mask)
            return tape.gradient(total, [x, *layer.trainable_variables])

        step.get_concrete_function(x, mask)

        def call():
            found = step(x, mask)
            tf.test.experimental.sync_devices()
            return found[0]

        return call

    def with_jax(x, mask):
        import jax

        values = [variable.value for variable in layer.trainable_variables]

        def total(x, values, mask):
            inputs, options = arguments(x, mask)
            return loss(layer.stateless_call(values, [], *inputs, **options)[0], mask)

        program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(x, values, mask).compile()
        return lambda: jax.block_until_ready(program(x, values, mask))[0]

    prepare = {"tensorflow": with_tensorflow, "jax": with_jax}[backend]
    return lambda x, mask: prepare(ops.convert_to_tensor(x), ops.convert_to_tensor(mask))


def torch_layer(system):
    """As `keras_layer`, but not compiled: its time is spent inside a few large kernels."""
    import torch

    device = "cuda" if on_gpu() else "cpu"
    linears = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    with torch.no_grad():
        for linear, kernel, bias in zip(linears, weights()[::2], weights()[1::2], strict=True):
            linear.weight.copy_(torch.tensor(kernel.reshape(WIDTH, WIDTH).T))
            linear.bias.copy_(torch.tensor(bias.reshape(WIDTH)))
    query, key, value, output = (linear.to(device) for linear in linears)

    def prepare(x, mask):
        x = torch.tensor(x, device=device).requires_grad_()
        padding = ~torch.tensor(mask, device=device)[..., None]

        def call():
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (query, key, value))
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                y = output(y.transpose(1, 2).flatten(2))
            total = y.float().masked_fill(padding, 0).square().sum() / 2
            found = torch.autograd.grad(total, [x, *(p for linear in linears for p in linear.parameters())])
            if device == "cuda":
                torch.cuda.synchronize()
            return found[0].cpu()

        return call

    return prepare


def on_gpu():
    return memory_of_accelerator() is not None


def memory_of_accelerator(reset=False):
    """Bytes of the GPU that are in use, and the peak so far; None without a GPU."""
    backend = os.environ["KERAS_BACKEND"]
    if backend == "jax":  # whose peak cannot be reset
        import jax

        found = jax.devices()[0].memory_stats() or {}
        return (found["bytes_in_use"], found["peak_bytes_in_use"]) if "peak_bytes_in_use" in found else None
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            return None
        if reset:
            tf.config.experimental.reset_memory_stats("GPU:0")
        found = tf.config.experimental.get_memory_info("GPU:0")
        return found["current"], found["peak"]
    import torch

    if not torch.cuda.is_available():
        return None
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def memory_of_process(reset=False):
    """Bytes of memory that are in use, and the peak so far; on Linux with the GNU C library."""
    if reset:
        ctypes.CDLL(None).malloc_trim(0)  # gives back what is free, which the call could use unseen
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return tuple(int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


def peak_above(call):
    """Megabytes at the peak of a call, above what was in use before."""
    memory = memory_of_accelerator if on_gpu() else memory_of_process
    before = memory(reset=True)[0]
    found = call()  # held while the peak is read
    peak = memory()[1]
    del found
    return (peak - before) / 1e6


if __name__ == "__main__":
    main()
