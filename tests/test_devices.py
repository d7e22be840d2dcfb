"""Several devices and processes train as one. Each case runs in processes of its own, which see other devices."""

import json
import os
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from conftest import BACKEND

import keras_tfm
from keras_tfm import training
from keras_tfm.backend import devices
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
from keras_tfm.tasks import reverse
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
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_each}"}
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


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


KINDS = {"bucketed": {"r_drop": 3.0}, "packed": {"packed": True}}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def one_device(kind, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one"), **kind)


@ON_JAX
@pytest.mark.slow
@pytest.mark.parametrize("model_parallel", [1, 4])
def test_eight_devices_train_as_one(kind, one_device, model_parallel, tmp_path):
    assert_same(trained(tmp_path, devices_each=8, model_parallel=model_parallel, **kind), one_device)


@ON_JAX
@pytest.mark.slow
def test_two_processes_train_as_one(kind, one_device, tmp_path):
    assert_same(trained(tmp_path, processes=2, **kind), one_device)


@ON_JAX
@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(1, 2), (2, 1)])
def test_a_run_goes_on_with_another_number_of_processes(kind, one_device, before, after, tmp_path):
    trained(tmp_path, processes=before, steps=4, **kind)
    assert_same(trained(tmp_path, processes=after, **kind), one_device)


@ON_JAX
@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_kill_of_one_process_ends_the_others_and_all_go_on(killed, tmp_path):
    expected = trained(tmp_path / "whole", steps=32)
    running = started(tmp_path / "run", processes=2, steps=32)
    try:
        deadline = time.monotonic() + 200
        while not list((tmp_path / "run").glob("checkpoints/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.02)
        running[killed].kill()
        assert running[1 - killed].wait(timeout=200) != 0  # rather than go on alone
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert not (tmp_path / "run/model.keras").exists()
    assert_same(trained(tmp_path / "run", processes=2, steps=32), expected)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="`tf.distribute` is TensorFlow's")
@pytest.mark.slow
def test_two_replicas_of_tensorflow_train_as_one(tmp_path):
    options = {"dropout": 0.0}  # replicas drop other features than one device does
    alone = trained(tmp_path / "one", **options)
    assert_same(trained(tmp_path / "two", logical=2, devices=2, **options), alone)


FIVE_ROWS = """
import tempfile
import numpy as np
import keras_tfm
from keras_tfm.text import ByteTokenizer
pairs = keras_tfm.data.encode_pairs([("ab", "c")] * 5, tempfile.mkdtemp(), ByteTokenizer(), verbose=0)

def loss():
    model = keras_tfm.transformer(260, num_layers=1, model_dim=8, num_heads=2, ff_dim=8, dropout=0.0)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 0.1))
    model.compile("sgd", keras_tfm.training.SmoothedCrossentropy())
    batches = keras_tfm.batches.BucketedBatches(pairs, batch_tokens=15, num_shapes=1)
    assert batches.rows == [5]
    return model.fit(batches, verbose=0).history["loss"]

with keras_tfm.distributed("all"):
    found = loss()
    print("rows", len(keras_tfm.batches.BucketedBatches(pairs, batch_tokens=15, num_shapes=1)[0][1]))
    model = keras_tfm.transformer(16, num_layers=1, model_dim=8, num_heads=2, ff_dim=8, dropout=0)
    ids = np.arange(1, 16).reshape(5, 3)
    logits = model.predict({"source": ids, "target": ids}, verbose=0)
    model.compile("sgd", keras_tfm.training.SmoothedCrossentropy(), metrics=[keras_tfm.training.TokenAccuracy()])
    weights = model.get_weights()
    arrays = model.fit({"source": ids, "target": ids}, ids, verbose=0, shuffle=False).history
    model.set_weights(weights)
    scores = model.evaluate({"source": ids, "target": ids}, ids, return_dict=True, verbose=0)
    try:
        model.fit({"source": ids, "target": ids}, ids, batch_size=5, verbose=0)
    except ValueError as error:
        print(error)
alone = keras_tfm.transformer(16, num_layers=1, model_dim=8, num_heads=2, ff_dim=8, dropout=0)
alone.set_weights(weights)
alone.compile("sgd", keras_tfm.training.SmoothedCrossentropy(), metrics=[keras_tfm.training.TokenAccuracy()])
expected = alone.evaluate({"source": ids, "target": ids}, ids, return_dict=True, verbose=0)
for name, value in expected.items():
    np.testing.assert_allclose([scores[name], arrays[name][0]], value, rtol=1e-5)
model.set_weights(weights)
np.testing.assert_allclose(logits, model({"source": ids, "target": ids}), atol=1e-5)
np.testing.assert_allclose(found, loss(), rtol=1e-5)
"""


@ON_JAX
def test_eight_devices_train_on_and_predict_five_rows():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run([sys.executable, "-c", FIVE_ROWS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "rows 8" in done.stdout, done.stderr
    assert "`batch_size` must be a multiple of 8, the devices that share a batch. Received: batch_size=5" in done.stdout


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
        assert devices.share() == (0, 1, 1) and devices.is_first()


@pytest.mark.parametrize(
    "arguments, words",
    [((10_000,), "`devices` must be at most"), ((1, 3), "`model_parallel` must be a divisor of 1")],
)
def test_what_cannot_be_divided_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        devices.distributed(*arguments)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX trains in several processes")
def test_other_backends_refuse_several_processes(monkeypatch):
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", "2")
    with pytest.raises(ValueError, match='`backend` must be "jax" for several processes'):
        devices.join_processes()
