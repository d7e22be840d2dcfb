"""Trains one model in several processes that Ray starts, on one machine or on a cluster.

    pip install '.[ray,train]'
    python examples/ray_train.py --workers 2 --out runs/ray --steps 200

Every worker runs `keras_tfm.train` in the same folder, which all machines must see. On GPUs or TPUs, change
`JAX_PLATFORMS` and the `ScalingConfig`, as Ray's documentation says.
"""

import argparse
import json
import os
import pathlib
import socket

import keras_tfm
from keras_tfm.common import extras

ENVIRONMENT = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def work(options):
    """What each worker runs. JAX is imported only here, since the process that starts the workers must not use it."""
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    job = {"JOB_ADDRESSES": broadcast_from_rank_zero(address() if rank == 0 else None)}
    job |= {"NUM_PROCESSES": str(workers), "PROCESS_ID": str(rank)}
    os.environ.update({f"KERAS_DISTRIBUTION_{name}": value for name, value in job.items()})
    joined = keras_tfm.join_processes()  # Ray does it on GPUs and TPUs only
    assert joined == workers, "each would train a model of its own"
    keras_tfm.train(
        keras_tfm.data.tasks.reverse(20_000),
        options["out"],
        valid=keras_tfm.data.tasks.reverse(200, "valid"),
        devices="all",
        tokenizer="char",
        num_layers=1,
        batch_tokens=1024,
        num_shapes=2,
        steps=options["steps"],
    )
    if rank == 0:
        pathlib.Path(options["out"], "result.json").write_text(json.dumps({"joined": joined}))


def address():
    """A free address of this machine, at which the other workers find the first."""
    import ray.util

    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/ray"))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    extras.require_or_exit("ray")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    out = options.out.resolve()
    JaxTrainer(
        work,
        train_loop_config={"out": str(out), "steps": options.steps},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(storage_path=str(out.parent), worker_runtime_env={"env_vars": ENVIRONMENT}),
    ).fit()
    print((out / "result.json").read_text())


if __name__ == "__main__":
    main()
