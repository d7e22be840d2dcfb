"""Trains one model in several processes that Ray starts, on one machine or on a cluster.

    pip install '.[ray,train]'
    python examples/ray_train.py --workers 2 --out runs/ray --steps 200

Every worker runs `keras_tfm.train` in the same folder, which all machines must see. On GPUs or TPUs, change
`JAX_PLATFORMS` and the `ScalingConfig`, as Ray's documentation says.
"""

import argparse
import json
import pathlib

ENVIRONMENT = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def work(options):
    """What each worker runs. JAX is imported only here, since the process that starts the workers must not use it."""
    import ray.train

    import keras_tfm

    joined, workers = keras_tfm.join_processes(), ray.train.get_context().get_world_size()
    if joined != workers:  # otherwise each would train a model of its own, without an error
        raise RuntimeError(f"{joined} of {workers} workers train together; is JAX_PLATFORMS one that Ray knows?")
    translator = keras_tfm.train(
        keras_tfm.tasks.reverse(20_000),
        options["out"],
        valid=keras_tfm.tasks.reverse(200, "valid"),
        devices="all",
        tokenizer="char",
        num_layers=1,
        batch_tokens=1024,
        num_shapes=2,
        steps=options["steps"],
    )
    ray.train.report({"joined": joined, "translation": translator(["abc"])[0]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/ray"))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    out = options.out.resolve()
    trainer = JaxTrainer(
        work,
        train_loop_config={"out": str(out), "steps": options.steps},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(storage_path=str(out.parent), worker_runtime_env={"env_vars": ENVIRONMENT}),
    )
    print(json.dumps(trainer.fit().metrics))


if __name__ == "__main__":
    main()
