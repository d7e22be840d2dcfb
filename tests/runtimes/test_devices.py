"""Several devices and processes train as one. Each case runs in processes of its own, which see other devices."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from conftest import BACKEND, refused

import keras_tfm
from keras_tfm import models, training
from keras_tfm.runtimes import devices
from keras_tfm.text import ByteTokenizer
from keras_tfm.translator import Translator

ON_JAX = pytest.mark.skipif(BACKEND != "jax", reason="`keras.distribution` is JAX's; replicas of TensorFlow: see below")

# Trains in a folder, and prints the losses of all epochs and a translation.
TRAIN = """
import json, sys
options = json.loads(sys.argv[1])
if logical := options.pop("logical", None):
    import tensorflow as tf
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [one] * logical)
from keras_tfm import train
from keras_tfm.data.tasks import reverse
sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 4, "ff_dim": 32, "max_length": 16}
sizes |= {"use_bias": False}  # the gradient of a key's bias is nothing but rounding errors, which Adam makes large
recipe = {"tokenizer": "char", "batch_tokens": 128, "num_shapes": 2, "steps_per_epoch": 4, "verbose": 0}
recipe |= {"learning_rate": 0.003, "warmup_steps": 2, "dropout": 0.2, "schedule": "inverse_sqrt"}
steps, folder = options.pop("steps"), options.pop("folder")
translator = train(reverse(100), folder, valid=reverse(20, "valid"), say=lambda line: None, steps=steps, **sizes,
                   **recipe | options)
print(json.dumps(translator(["abc"])))
"""


def started(folder, processes=1, devices_each=1, **options):
    """New processes that train together."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices_each}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    if processes > 1:
        environment |= {"KERAS_DISTRIBUTION_JOB_ADDRESSES": f"localhost:{port}"}
        environment |= {"KERAS_DISTRIBUTION_NUM_PROCESSES": str(processes)}
    many = {"devices": "all"} if processes * devices_each > 1 else {}
    command = [sys.executable, "-c", TRAIN, json.dumps({"folder": str(folder), "steps": 8, **many, **options})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(command, env=environment | {"KERAS_DISTRIBUTION_PROCESS_ID": str(n)}, **pipes)
        for n in range(processes)
    ]


def trained(folder, **options):
    """The metrics of a run, and its weights, after training in new processes."""
    running = started(folder, **options)
    try:
        said = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert not any(process.returncode for process in running), said
    assert len({output.splitlines()[-1] for output, _ in said}) == 1  # all processes get the same translator
    rows = np.atleast_1d(np.genfromtxt(folder / "metrics.csv", delimiter=",", names=True))
    weights = keras.models.load_model(folder / "model.keras", compile=False).get_weights()
    return [*rows["loss"], *rows["val_loss"]], weights


def assert_same(actual, expected):
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    for ours, theirs in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


KINDS = {"bucketed": {"r_drop": 3.0}, "packed": {"packed": True}}


def each_kind(name, *cases):
    """Parametrizes with one case for each kind of batches. A worker tests a kind, with one run on one device."""
    pairs = zip(KINDS, cases, strict=True)
    groups = [pytest.param(*pair, marks=pytest.mark.xdist_group(f"devices-{pair[0]}")) for pair in pairs]
    return pytest.mark.parametrize(
        f"kind, {name}", groups, indirect=["kind"], ids=lambda value: str(value).replace(" ", "")
    )


@pytest.fixture(scope="module")
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def one_device(kind, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one"), **kind)


@ON_JAX
@pytest.mark.slow
@each_kind("model_parallel", 4, 1)
def test_eight_devices_train_as_one(kind, one_device, model_parallel, tmp_path):
    assert_same(trained(tmp_path, devices_each=8, model_parallel=model_parallel, **kind), one_device)


@ON_JAX
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bucketed"], indirect=True)
@pytest.mark.xdist_group("devices-bucketed")
def test_two_processes_train_as_one(kind, one_device, tmp_path):
    assert_same(trained(tmp_path, processes=2, **kind), one_device)


@ON_JAX
@pytest.mark.slow
@each_kind("processes", (1, 2), (2, 1))
def test_a_run_resumes_with_another_number_of_processes(kind, one_device, processes, tmp_path):
    before, after = processes
    trained(tmp_path, processes=before, steps=4, **kind)
    assert_same(trained(tmp_path, processes=after, **kind), one_device)


@ON_JAX
@pytest.mark.slow
def test_a_kill_of_one_process_ends_the_others_and_the_run_resumes(tmp_path):
    expected = trained(tmp_path / "whole", steps=16)
    running = started(tmp_path / "run", processes=2, steps=16)
    try:
        deadline = time.monotonic() + 200
        while not list((tmp_path / "run").glob("checkpoints/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.02)
        running[0].kill()
        assert running[1].wait(timeout=200) != 0  # rather than go on alone
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert not (tmp_path / "run/model.keras").exists()
    assert_same(trained(tmp_path / "run", processes=2, steps=16), expected)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="`tf.distribute` is TensorFlow's")
@pytest.mark.slow
def test_two_replicas_of_tensorflow_train_as_one(tmp_path):
    options = {"dropout": 0.0}  # replicas drop other features than one device does
    alone = trained(tmp_path / "one", **options)
    assert_same(trained(tmp_path / "two", logical=2, devices=2, **options), alone)


ODD_ROWS = """
import tempfile
import keras
import numpy as np
import keras_tfm
from keras_tfm.text import ByteTokenizer
from keras_tfm.training import SmoothedCrossentropy, trainer

SIZES = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8, "dropout": 0.0}
rng = np.random.default_rng(0)
texts, classes, weights = rng.integers(1, 12, (7, 3)), rng.integers(0, 3, 7), rng.uniform(size=7)
pairs = keras_tfm.data.encode_pairs([("ab", "c")] * 5, tempfile.mkdtemp(), ByteTokenizer(), verbose=0)

def with_known_weights(model):
    values = np.random.default_rng(1)
    model.set_weights([values.normal(size=weight.shape) for weight in model.weights])
    return model

def classifier(pooling):
    model = with_known_weights(keras_tfm.encoder_classifier(12, 3, pooling=pooling, **SIZES))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # a mean over the rows of a batch
    model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=["sparse_categorical_crossentropy"])
    return model

def by_mean():
    model, options = classifier("mean"), {"batch_size": 4, "verbose": 0}  # which two devices divide, unlike the rest
    valid = texts, classes, weights
    history = model.fit(*valid[:2], sample_weight=weights, validation_data=valid, shuffle=False, **options).history
    scores = model.evaluate(texts, classes, sample_weight=weights, **options)
    return [*history.values(), *model.get_weights(), *scores, model.predict(texts, **options)]

def by_max():
    model = classifier("max")
    return [*model.fit(texts, classes, verbose=0).history.values(), *model.get_weights()]

def by_first():
    model = classifier("first")
    return [*model.train_on_batch(texts, classes), *model.get_weights()]

def translated():
    model = with_known_weights(keras_tfm.transformer(260, **SIZES))
    model.compile("sgd", SmoothedCrossentropy())
    batches = keras_tfm.data.batches.BucketedBatches(pairs, batch_tokens=15, num_shapes=1)
    print("rows", len(batches[0][1]))
    return [model.fit(batches, verbose=0).history["loss"]]

cases = [translated, by_mean, by_max, by_first]
with keras_tfm.distributed(2):
    found = [case() for case in cases]
for case, ours in zip(cases, found, strict=True):
    for own, alone in zip(ours, case(), strict=True):
        np.testing.assert_allclose(own, alone, atol=1e-5, rtol=1e-5)
"""


def output_with_two_devices(program, *arguments):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@ON_JAX
def test_two_devices_train_on_and_predict_any_number_of_rows():
    assert output_with_two_devices(ODD_ROWS).split() == ["rows", "6", "rows", "5"]


# Two steps of each kind of model whose weights two devices share, and of the same model on one device.
DIVIDED = """
import dataclasses, sys, tempfile
import numpy as np
import keras_tfm
from keras_tfm import models
from keras_tfm.runtimes import devices
from keras_tfm.text import ByteTokenizer
from keras_tfm.training import SmoothedCrossentropy, trainer

SIZES = {"model_dim": 32, "num_layers": 1, "dropout": 0.0}
OPTIONS = {"transformer": {"num_heads": 2, "ff_dim": 64, "activation": "swiglu", "tied_output": False}}
OPTIONS |= {"gnmt": {"num_layers": 2}, "conv": {"max_length": 8}, "bytenet": {"dilations": 2}}
rng = np.random.default_rng(0)
ids = {"source": rng.integers(1, 64, (4, 5)), "target": rng.integers(1, 64, (4, 3))}

def trained(kind):
    model, values = models.BUILDERS[kind](64, **SIZES | OPTIONS.get(kind, {})), np.random.default_rng(1)
    model.set_weights([values.normal(size=weight.shape) / weight.shape[0] ** 0.5 for weight in model.weights])
    model.compile("sgd", SmoothedCrossentropy())
    return model, [model.train_on_batch(ids, ids["target"]) for _ in range(2)]

with keras_tfm.distributed(2, model_parallel=2):
    found = {kind: trained(kind) for kind in sys.argv[1:]}
    pairs = keras_tfm.data.encode_pairs([("ab", "c")] * 5, tempfile.mkdtemp(), ByteTokenizer(), verbose=0)
    batches = keras_tfm.data.batches.BucketedBatches(pairs, batch_tokens=15, num_shapes=1)
    recipe = dataclasses.replace(keras_tfm.Recipe(), steps=9, batch_tokens=15, model_parallel=2)
    print(trainer.announcement(found[sys.argv[1]][0], batches, recipe, 0))
for kind, (model, losses) in found.items():
    assert devices.sharded_fraction(model) >= 0.9, (kind, devices.sharded_fraction(model))
    whole = [w.path for w in model.weights if "kernel" in w.path and w.value.sharding.is_fully_replicated]
    assert not whole, whole
    np.testing.assert_allclose(losses, trained(kind)[1], rtol=1e-5)
"""


OLDER = "rnn", "rnn_attention", "gnmt", "bytenet"


@ON_JAX
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("transformer", "conv"), OLDER])
def test_two_devices_share_the_weights_of_every_model(kinds):
    said = output_with_two_devices(DIVIDED, *kinds)
    assert re.search(r"\n2 devices share (9\d|100)% of the weights, and each holds the rest\n", said), said


def test_every_model_is_among_those_whose_weights_are_shared():
    assert {"transformer", "conv", *OLDER} == {*models.BUILDERS}


@ON_JAX
def test_training_and_search_lower_for_tpus():
    import jax

    model = keras_tfm.transformer(260, num_layers=2, model_dim=8, num_heads=2, ff_dim=8, dropout=0.1)
    model.compile(
        keras.optimizers.Adam(0.1), training.SmoothedCrossentropy(r_drop=1.0), metrics=[training.TokenAccuracy()]
    )
    ids = np.ones((8, 16), "int32")
    inputs = {"source": ids, "target": ids}
    model.train_on_batch(inputs, ids)  # makes the variables of the optimizer and of the metrics
    kinds = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables
    state = tuple([variable.value for variable in variables] for variables in kinds)
    translator = Translator(model, ByteTokenizer())

    def search(values, sources):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return translator.search(sources, 16, n=4)

    step = jax.export.export(jax.jit(model.train_step), platforms=["tpu"])(state, (inputs, ids))
    program = jax.export.export(jax.jit(search), platforms=["tpu"])([v.value for v in model.variables], ids)
    for exported in (step, program):
        assert exported.platforms == ("tpu",) and "cudnn" not in exported.mlir_module()
        assert all(isinstance(size, int) for aval in exported.out_avals for size in aval.shape)  # no dynamic shapes


def test_one_device_is_no_distribution():
    with devices.distributed(1):
        assert devices.batch_shard() == (0, 1, 1) and devices.is_main_process()


@pytest.mark.parametrize(
    "arguments, words",
    [((10_000,), "`devices` must be at most"), ((1, 3), "`model_parallel` must be a divisor of 1")],
)
def test_what_cannot_be_divided_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        devices.distributed(*arguments)


@pytest.mark.skipif(BACKEND != "torch", reason="the others list their devices")
def test_pytorch_trains_on_one_device():
    assert isinstance(devices.distributed("all"), contextlib.nullcontext)
    with refused("devices"):
        devices.distributed(2)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX trains in several processes")
def test_other_backends_refuse_several_processes(monkeypatch):
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    with pytest.raises(ValueError, match='`backend` must be "jax" for several processes'):
        devices.join_processes()
