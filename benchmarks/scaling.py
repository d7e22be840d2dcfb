"""Steps and tokens per second on 1 to 1,024 GPUs, on paper: from the measured time of one, and published rates.

python benchmarks/scaling.py [--json FILE]

Nothing here was run on more than one GPU. Each trains on 128 × 128 target tokens per step, then all add up their
gradients: over NVLink among the 8 GPUs of a host, then each its eighth with its peers on the other hosts, then back.
The slower estimate has no overlap with the backward pass, the faster one a complete one.
"""

import argparse
import json
import math
import pathlib

# Size → milliseconds per step of `training.py` on one H200, and millions of weights.
MODELS = {"base": (20.6, 60.5), "big": (49.7, 209.2)}
TOKENS = 128 * 128
HOST = 8  # GPUs
NVLINK = 450e9  # bytes per second and direction, of each GPU: half of the 900 GB/s that NVIDIA gives for the H200
NETWORK = 50e9  # of each GPU: InfiniBand NDR, 400 Gbit/s, one adapter per GPU
LATENCY = 10e-6  # seconds per message, of which there are two for each doubling of the hosts
BYTES = 4  # of a gradient, in float32


def communication(weights, gpus):
    """Seconds to add up the gradients of all GPUs."""
    size, local, hosts = weights * BYTES, min(gpus, HOST), math.ceil(gpus / HOST)
    inside = 2 * (local - 1) / local * size / NVLINK
    between = 2 * (hosts - 1) / hosts * size / local / NETWORK
    return inside + between + 2 * math.log2(hosts) * LATENCY


def estimate(milliseconds, millions, gpus):
    """Steps per second without and with overlap, and the tokens per GPU below which communication takes longer."""
    compute, adding = milliseconds / 1e3, communication(millions * 1e6, gpus)
    return 1 / (compute + adding), 1 / max(compute, adding), adding / compute * TOKENS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    options, rows = parser.parse_args(), []
    print(
        "| model | GPUs | ms to add up | steps/s | million tokens/s | efficiency | tokens per GPU if both are equal |"
    )
    print("| --- |" + " --- |" * 6)
    for name, (milliseconds, millions) in MODELS.items():
        for gpus in (1, 2, 8, 16, 64, 256, 1024):
            slow, fast, equal = estimate(milliseconds, millions, gpus)
            adding = 1e3 * communication(millions * 1e6, gpus)
            rows.append({"model": name, "gpus": gpus, "ms": adding, "steps": [slow, fast], "equal_tokens": equal})
            million = gpus * TOKENS / 1e6
            steps, tokens = (f"{x * slow:.1f} to {x * fast:.1f}" for x in (1, million))
            efficiency = f"{slow * milliseconds / 1e3:.0%} to {fast * milliseconds / 1e3:.0%}"
            print(f"| {name} | {gpus:,} | {adding:.2f} | {steps} | {tokens} | {efficiency} | {equal:,.0f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
