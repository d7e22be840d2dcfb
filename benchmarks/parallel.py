"""Lecture 3 on a GPU: the time of a training step against the length of the sequences, for an RNN and Transformers.

KERAS_BACKEND=jax python benchmarks/parallel.py [--seeds 5] [--repeats 5] [--longest 1024]

Encoders, lengths and the drawn order of the calls are those of examples/lectures/03_parallel.py: the same setting, and
a larger one. All is in float32, whose matrix products JAX rounds to TF32 on such GPUs.

A call trains for STEPS steps of gradient descent. Weights and batch stay on the device, and the host starts one step
after the other and waits only for the last one: what is timed is the training step, not copies of batches or losses.
Times are those of one call, divided by STEPS. They are written to examples/lectures/parallel.json, setting by setting.
"""

import argparse
import concurrent.futures
import datetime
import importlib
import json
import os
import pathlib
import re
import sys
import time

import numpy as np

STEPS = 5
# Tokens in a batch, width, number of heads.
SETTINGS = {"same": (2048, 64, 4), "larger": (16_384, 512, 8)}
LECTURES = pathlib.Path(__file__).parent.parent / "examples" / "lectures"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="rounds of timing")
    parser.add_argument("--repeats", type=int, default=5, help="calls in each round")
    parser.add_argument("--longest", type=int, default=1024, help="tokens in a sequence (default: %(default)s)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--out", type=pathlib.Path, default=LECTURES / "parallel.json")
    options = parser.parse_args()
    import jax

    lecture, start = importlib.import_module("03_parallel"), time.perf_counter()
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    lengths = [2**power for power in range(3, options.longest.bit_length())]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        builders = [Builder(lecture, pool, *SETTINGS[name]) for name in options.settings]
        for builder in builders:  # all programs are compiled at the same time
            builder.start(lengths)
            print(f"{builder}: traced after {time.perf_counter() - start:.0f} s", flush=True)
        for _, _, compiled in [program for builder in builders for program in builder.programs.values()]:
            compiled.result()  # nothing is timed while the processor compiles
        for builder in builders:
            times = lecture.measure(lengths, options.seeds, options.repeats, builder, STEPS)
            row = {"tokens": builder.tokens, "width": builder.width, "device": jax.devices()[0].device_kind}
            row |= {"date": str(datetime.date.today()), "libraries": builder.libraries(lengths[-1]), "lengths": lengths}
            rows = [other for other in rows if (other["tokens"], other["width"]) != (builder.tokens, builder.width)]
            rows.append(row | {"times": {name: np.round(values, 4).tolist() for name, values in times.items()}})
            rows.sort(key=lambda row: row["tokens"])
            options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
            means = {name: values.mean(0).round(2).tolist() for name, values in times.items()}
            print(f"{builder}: timed after {time.perf_counter() - start:.0f} s, ms {means}", flush=True)


class Builder:
    """Makes the functions that train encoders of one setting; `pool` compiles their programs in the background."""

    def __init__(self, lecture, pool, tokens, width, heads):
        self.lecture, self.pool, self.tokens, self.width, self.heads = lecture, pool, tokens, width, heads
        self.programs = {}

    def __str__(self):
        return f"{self.tokens:,} tokens, width {self.width}"

    def start(self, lengths):
        """Puts weights and batches on the device, and starts to compile the program of each encoder and length."""
        import jax
        import keras

        numbers = np.random.default_rng(0).normal(size=(self.tokens, self.width)).astype("float32")
        batches = [jax.device_put(numbers.reshape(-1, length, self.width)) for length in lengths]
        for name in self.lecture.ENCODERS:
            keras.utils.set_random_seed(0)
            layer = self.lecture.encoder(name, self.width, self.heads)
            layer.build((None, None, self.width))
            weights = [variable.value for variable in layer.trainable_variables]
            for length, x in zip(lengths, batches, strict=True):
                lowered = jax.jit(gradient_descent(layer)).lower(weights, x)
                self.programs[name, length] = weights, x, self.pool.submit(lowered.compile)

    def __call__(self, name, length):
        import jax

        weights, x, compiled = self.programs[name, length]

        def train():
            step, new = compiled.result(), weights
            for _ in range(STEPS):
                new = step(new, x)
            jax.block_until_ready(new)

        return train

    def libraries(self, length):
        """The functions of libraries that the programs of a length call, by the name of the encoder."""
        texts = {name: self.programs[name, length][2].result().as_text() for name in self.lecture.ENCODERS}
        return {name: sorted({*re.findall('custom_call_target="([^"]*)"', text)}) for name, text in texts.items()}


def gradient_descent(layer):
    """`step(weights, x)`: the weights after a step that makes the outputs more like the inputs."""
    import jax

    def loss(weights, x):
        others = [variable.value for variable in layer.non_trainable_variables]
        y, _ = layer.stateless_call(weights, others, x)
        return ((y - x) ** 2).mean()

    def step(weights, x):
        return [weight - 1e-3 * slope for weight, slope in zip(weights, jax.grad(loss)(weights, x), strict=True)]

    return step


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "jax")
    sys.path.insert(0, str(LECTURES))
    main()
