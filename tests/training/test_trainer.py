import csv
import dataclasses
import itertools
import operator
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from conftest import BACKEND, SLOW_OFF_JAX, array, eagerly, once, refused, slow_on_tensorflow

from keras_tfm import artifacts, data, text
from keras_tfm.cli import commands
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError
from keras_tfm.data import tasks
from keras_tfm.models import loading, transformer
from keras_tfm.runtimes import machine
from keras_tfm.training import Recipe, encoding, evaluation, runs, trainer
from keras_tfm.translator import Translator

pytestmark = pytest.mark.xdist_group("pipeline")  # one run for most of these tests

BYTES = text.ByteTokenizer()
OPTIONS = {
    "tokenizer": "bytes",
    "num_layers": 1,
    "model_dim": 16,
    "num_heads": 2,
    "ff_dim": 32,
    "dropout": 0.2,
    "seed": 3,
    "batch_tokens": 256,
    "max_length": 32,
    "num_shapes": 1,
    "steps": 12,
    "steps_per_epoch": 4,
    "warmup_steps": 4,
    "average": 2,
    "verbose": 0,
    "jit_compile": BACKEND == "jax",  # the quicker start
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "pairs.tsv"
    path.write_text("".join(f"{number}\t{str(number)[::-1]}\n" for number in range(1000, 1300)))
    return path


def train(out, texts, **options):
    """The translator of a run, and what was said about it."""
    said = []
    return trainer.train(data.ParallelFiles(texts), out, say=said.append, **{**OPTIONS, **options}), "\n".join(said)


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "finished"
    with eagerly():
        train(out, texts)
    return out


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run, to do with as one likes."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture(scope="module")
def interrupted(texts, tmp_path_factory):
    """A run that was stopped after six steps of twelve, in its second epoch."""
    out = tmp_path_factory.mktemp("run") / "interrupted"
    on_train_batch_begin = runs.TrainingRun._on_train_batch_begin

    def stopped(self, batch, logs=None):
        if self.step == 5:
            self.signal = signal.SIGINT
        on_train_batch_begin(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.TrainingRun, "_on_train_batch_begin", stopped)
        with eagerly(), pytest.raises(runs.Interrupted, match="SIGINT after step 6"):
            train(out, texts)
    return out


def weights(folder):
    return [array(weight) for weight in loading.load_keras(folder / "model.keras").weights]


def saved_weights(path):
    return [value for name, value in files.read_arrays(path).items() if name.startswith("weights/")]


@slow_on_tensorflow
def test_a_resumed_run_has_the_same_result(interrupted, finished, texts, tmp_path, monkeypatch):
    out, save, origins = shutil.copytree(interrupted, tmp_path / "run"), runs.TrainingRun._save, {}
    loading.finish(out)

    def watched(self, arrays, **options):
        save(self, arrays, **options)
        self._wait()
        if self.step in (7, 11):
            origins[self.step] = Translator.load(out).origin

    monkeypatch.setattr(runs.TrainingRun, "_save", watched)
    with eagerly():  # as the other two; `test_runs` has graphs
        _, said = train(out, texts, save_minutes=1e-9)
    assert "resuming after step 6 of 12" in said
    for step, origin in origins.items():  # a newer state is preferred to the older result
        assert f"step {step} of 12" in origin
    assert len(origins) == 2 and Translator.load(out).origin == ""
    for ours, theirs in zip(weights(out), weights(finished), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = ((folder / "metrics.csv").read_text().splitlines() for folder in (out, finished))
    assert len(ours) == len(theirs) == 4
    _, said = train(out, texts)
    assert "already trained for 12 steps" in said


@once
def test_an_interrupted_run_can_be_used_and_finished(interrupted, tmp_path, capsys):
    out = shutil.copytree(interrupted, tmp_path / "run")
    assert not (out / "model.keras").exists()
    translator = Translator.load(out, num_beams=1, max_length=16)
    assert "state.npz, step 6 of 12" in translator.origin and "keras-tfm finish" in translator.origin
    state = saved_weights(out / "state.npz")
    for weight, expected in zip(translator.models[0].weights, state, strict=True):
        np.testing.assert_array_equal(array(weight), expected)
    commands.run(["translate", str(out), "--text", "1234", "--num_beams", "1", "--max-length", "16"])
    captured = capsys.readouterr()
    assert (
        captured.out == translator(["1234"])[0] + "\n" and "using " in captured.err and "step 6 of 12" in captured.err
    )
    commands.run(["info", str(out)])
    said = capsys.readouterr().out
    assert "6 of 12 steps" in said and "none yet" in said and "ByteTokenizer" in said
    commands.run(["finish", str(out)])
    assert "the mean of the last 2 checkpoints, after step 6 of 12" in capsys.readouterr().out
    checkpoint = saved_weights(loading.checkpoints(out)[-1])
    for weight, *both in zip(weights(out), state, checkpoint, strict=True):
        np.testing.assert_allclose(weight, sum(both) / 2, atol=1e-6)
    assert "not finished" in Translator.load(out).origin


@once
def test_a_run_does_not_get_the_tokenizer_of_a_failed_start_nor_of_another_run(run, texts, tmp_path):
    other = tmp_path / "other"
    with refused("average"):
        train(other, texts, average=99)
    assert not (other / "tokenizer").exists()  # no long work, since the number of epochs is known
    with refused("average"):
        train(other, texts, average=99, steps_per_epoch=None)
    assert (other / "tokenizer").exists() and not (other / "config.json").exists()
    with eagerly():
        translator, _ = train(other, texts, tokenizer="char", steps=2, steps_per_epoch=2, average=1)
    assert type(translator.source_tokenizer).__name__ == "SentencePieceTokenizer"
    assert artifacts.Run(other).read_config()["options"]["tokenizer"] == "char"

    shutil.rmtree(run / "tokenizer")
    shutil.copytree(other / "tokenizer", run / "tokenizer")
    with pytest.raises(SystemExit, match="tokenizers must be those that the model was trained with"):
        commands.run(["translate", str(run), "--text", "1234"])
    with pytest.raises(ValueError, match="tokenizers must be those"):
        Translator(loading.load_keras(run / "model.keras"), translator.source_tokenizer)


@pytest.mark.slow
@once
def test_tokenizers_that_are_deleted_or_replaced_while_training_are_written_again(texts, tmp_path):
    def damage(message):
        if "parameters" in message:  # just before the first step
            shutil.rmtree(tmp_path / "source_tokenizer")
            text.save_tokenizer(text.ByteTokenizer(), tmp_path / "target_tokenizer")

    options = OPTIONS | {"tokenizer": "char", "separate": True, "steps": 2, "steps_per_epoch": 2, "average": 1}
    with eagerly():
        trained = trainer.train(data.ParallelFiles(texts), tmp_path, say=damage, **options)
    loaded = Translator.load(tmp_path)
    assert [*map(text.saving.fingerprint, loaded.tokenizers)] == [*map(text.saving.fingerprint, trained.tokenizers)]


@once
def test_a_run_without_its_own_tokenizer_is_not_finished_but_resumed(run, texts):
    shutil.rmtree(run / "tokenizer")
    with pytest.raises(SystemExit, match=r"tokenizer: is missing or incomplete; the same `keras-tfm train`"):
        commands.run(["finish", str(run)])
    train(run, texts)  # learns the same tokenizer from the same texts
    assert Translator.load(run).origin == ""
    before = (run / "model.keras").read_bytes()
    text.save_tokenizer(text.train_tokenizer(["abc"], "char", 300), run / "tokenizer")
    for command in (lambda: loading.finish(run), lambda: train(run, texts)):
        with pytest.raises(ValueError, match="must have the tokenizers .* with. Received: another tokenizer"):
            command()
    assert (run / "model.keras").read_bytes() == before


@pytest.mark.slow
def test_training_starts_from_a_translator(finished, tmp_path):
    """It starts from the trained weights and tokenizers, and gets better at once."""
    pairs = [(str(number), str(number)[::-1]) for number in range(1300, 1500)]
    kept = {name: OPTIONS[name] for name in ("batch_tokens", "max_length", "num_shapes", "verbose", "jit_compile")}
    changes = {"start_from": str(finished), "steps": 12, "steps_per_epoch": 4, "learning_rate": 0.01, "dropout": 0.0}
    said = []
    translator = trainer.train(pairs, tmp_path / "run", "quick", pairs, said.append, **kept | changes)
    assert translator.models[0].arguments["model_dim"] == 16 and translator.models[0].arguments["dropout"] == 0
    before = Translator.load(finished).models[0]
    recipe = Recipe(tokenizer="bytes", verbose=0)
    prepared = data.PreparedPairs(pairs, 0)
    encoded, _ = encoding.encode(artifacts.Run(tmp_path / "data"), prepared, None, translator.tokenizers, recipe)
    batches = trainer.make_batches(encoded, Recipe(batch_tokens=256, num_shapes=1), shuffle=False)
    trainer.compile_model(before, Recipe(learning_rate=1.0, warmup_steps=1, steps=1), machine.current())
    losses = [
        float(row["val_loss"]) for row in csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines())
    ]
    assert before.evaluate(batches, verbose=0, return_dict=True)["loss"] > losses[0] > losses[-1]
    with pytest.raises(ValueError, match="a run with other start_from"):
        trainer.train(
            pairs, tmp_path / "run", "quick", pairs, said.append, **kept | changes | {"start_from": str(tmp_path)}
        )


def test_what_the_translator_to_start_from_decides_is_refused():
    for name, value in {"num_layers": 2, "vocab_size": 100, "norm": "rms"}.items():
        with pytest.raises(ValueError, match=f"`{name}` must be left out with `start_from`, which decides it"):
            Recipe(start_from="folder", **{name: value})


class Epochs(keras.callbacks.Callback):
    """Counts epochs."""

    count = 0

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1


@pytest.mark.skipif(
    BACKEND == "tensorflow", reason="the same on each backend; TensorFlow traces for longer than it trains"
)
def test_objects_are_accepted_wherever_words_are(texts, tmp_path):
    def objects():
        sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "max_length": 32}
        model, optimizer = transformer(BYTES.vocab_size, **sizes), keras.optimizers.SGD(0.1, momentum=0.9)
        return {"model": model, "tokenizer": BYTES, "optimizer": optimizer}

    decided = trainer.CONFLICTING_OPTIONS["model"] | trainer.CONFLICTING_OPTIONS["optimizer"] | {"tokenizer"}
    options = {name: value for name, value in OPTIONS.items() if name not in decided}

    def run(**changes):
        return trainer.train(data.ParallelFiles(texts), tmp_path / "run", say=[].append, **options | changes)

    given, epochs = objects(), Epochs()
    before = given["model"].get_weights()
    translator = run(**given, callbacks=[epochs])
    assert epochs.count == 3 and type(translator.source_tokenizer) is type(BYTES)
    assert given["optimizer"].iterations == 12 and given["model"].optimizer is given["optimizer"]
    assert not all(map(np.array_equal, before, given["model"].get_weights()))
    for missing in given:
        with pytest.raises(UserError, match="an object again, as when the run in .* was started") as error:
            run(**{name: value for name, value in objects().items() if name != missing and missing != "tokenizer"})
        assert error.value.argument in given
    again = objects()
    run(**again, callbacks=[epochs], steps=16)
    assert epochs.count == 4 and again["optimizer"].iterations == 16


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"tokenizer": BYTES, "vocab_size": 300}, "vocab_size"),
        ({"tokenizer": [BYTES] * 3}, "tokenizer"),
        ({"model": transformer}, "model"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"optimizer": keras.optimizers.Adam(), "ema": 0.9}, "ema"),
    ],
)
def test_what_an_object_decides_or_cannot_be_is_refused(options, argument, tmp_path):
    with pytest.raises(UserError) as error:
        trainer.train([("a", "b")], tmp_path, **options)
    assert error.value.argument == argument


@once
def test_other_options_and_other_texts_are_refused(run, texts, tmp_path):
    with pytest.raises(ValueError, match="with other ff_dim, seed$"):
        train(run, texts, ff_dim=64, seed=4)
    moved = shutil.copy(texts, tmp_path / "moved.tsv")  # which changes nothing
    assert "already trained for 12 steps" in train(run, moved)[1]
    with open(moved, "a") as file:
        file.write("one\tmore\n")
    with pytest.raises(ValueError, match="with other training texts$"):
        train(run, moved)


@once
@pytest.mark.parametrize("name", ["model.keras", "metrics.csv", "config.json", "data/train.en", "learning_curve.png"])
def test_files_of_others_are_not_replaced(name, texts, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"name": "mine"}')
    with refused("folder") as error:
        train(tmp_path, texts)
    assert f"which has another {name.split('/')[0]}" in str(error.value)
    assert path.read_text() == '{"name": "mine"}' and [*tmp_path.iterdir()] == [tmp_path / name.split("/")[0]]


@pytest.mark.slow
@once
def test_another_machine_resumes_with_the_same_batches(texts, tmp_path, monkeypatch):
    chosen = {"batch_tokens": None, "steps_per_epoch": None, "num_shapes": None, "steps": None, "warmup_steps": None}
    with eagerly():
        train(tmp_path, texts, **{**chosen, "passes": 2, "average": 1})
    before = artifacts.Run(tmp_path).read_config()
    monkeypatch.setattr(machine, "current", lambda: machine.Machine(True, 8, OPTIONS["jit_compile"]))
    with eagerly():
        train(tmp_path, texts, **{**chosen, "passes": 4, "average": 1})
    after = artifacts.Run(tmp_path).read_config()
    assert {**before, "steps": after["steps"], "options": after["options"]} == after
    assert after["steps"] == 2 * before["steps"] and after["batch_tokens"] == 1024 and after["num_shapes"] < 15


@once
def test_more_checkpoints_than_there_are_are_not_averaged(run, texts):
    with refused("average"):
        train(run, texts, average=4)
    train(run, texts, average=3)
    model, what = loading.finish(run, 9)
    assert "the mean of the last 3 checkpoints (9 were requested)" in what
    expected = np.mean([saved_weights(path)[0] for path in loading.checkpoints(run)], axis=0)
    np.testing.assert_allclose(array(model.weights[0]), expected, atol=1e-6)


def test_two_runs_in_one_folder_are_refused(run, texts):
    with files.locked(run), pytest.raises(ValueError, match="another process is using this folder"):
        train(run, texts)


@once
def test_training_that_diverges_ends_with_an_error(texts, tmp_path):
    command = [f"--{name}={value}" for name, value in OPTIONS.items() if name not in ("jit_compile", "average")]
    command += ["--learning_rate=1e30", "--jit-compile" if BACKEND == "jax" else "--no-jit-compile"]
    message = r"^keras-tfm: error: .*(nan|NaN|inf).* Try a lower learning rate"
    with eagerly(), pytest.raises(SystemExit, match=message):
        commands.run(["train", f"--source={texts}", f"--out={tmp_path}", *command])


@pytest.mark.parametrize("accelerated", [False, True])
def test_defaults_suit_the_texts_and_the_machine(accelerated):
    """More texts: larger batches, fewer passes; a processor has smaller batches than an accelerator."""
    actual = []
    for pairs in (10_000, 100_000, 1_000_000):
        encoded = SimpleNamespace(targets=SimpleNamespace(tokens=range(20 * pairs)))
        options = trainer.resolve_batches(Recipe(), encoded, machine.Machine(accelerated, 4, "auto"))
        actual.append(trainer.resolve_schedule(options, 20 * pairs // options.batch_tokens, encoded))
        assert actual[-1].steps % actual[-1].steps_per_epoch == 0
        assert actual[-1].steps_per_epoch <= 1000 and actual[-1].warmup_steps < actual[-1].steps / 5
        assert None not in [getattr(actual[-1], name) for name in trainer.AUTO_OPTIONS]
    sizes, steps = ([getattr(options, name) for options in actual] for name in ("batch_tokens", "steps"))
    assert sizes == sorted(sizes) and steps == sorted(steps) and sizes[0] >= (4096 if accelerated else 1024)
    wide = trainer.resolve_schedule(dataclasses.replace(options, size="big"), 100, encoded)
    assert wide.learning_rate < actual[0].learning_rate
    short = trainer.resolve_schedule(dataclasses.replace(options, steps=60), 38, encoded)
    assert (short.steps, short.steps_per_epoch) == (60, 30)  # rather than two whole passes


def test_early_stopping_and_scores_need_validation_texts(tmp_path):
    for name in ("patience", "bleu"):
        with pytest.raises(ValueError, match=f"`{name}` requires validation texts: `valid` must be given"):
            trainer.train([("a", "b")], tmp_path, **{name: 3})


@pytest.mark.parametrize(
    "pairs, message",
    [
        (iter([("a", "b")]), "`pairs` must be a list, or anything else that can be iterated over several times"),
        ([("a", "b"), ("c",)], r"`pairs` must be .*\('c',\) among them"),
        (["ab"], "`pairs` must be pairs of strings"),
        ([("a", None)], "`pairs` must be pairs of strings"),
        ([], "`pairs` must not be empty"),
    ],
)
def test_anything_but_pairs_is_refused(pairs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        trainer.train(pairs, tmp_path)


PACKED = {"packed": True, "separate": True, "ema": 0.5, "average": 1, "patience": 1, "bleu": 4}
SAMPLED = {"tokenizer": "bpe", "vocab_size": 300, "sampling": 0.1, "samples": 2, "r_drop": 1.0}
SAMPLED |= {"accumulate": 2, "clipnorm": 1.0, "schedule": "inverse_sqrt"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(PACKED | SAMPLED, marks=SLOW_OFF_JAX),
        pytest.param(PACKED, marks=pytest.mark.slow),
        pytest.param(SAMPLED, marks=pytest.mark.slow),
    ],
    ids=["all", "packed", "sampled"],
)
@pytest.mark.usefixtures("one_width")
def test_every_option_trains(options, texts, tmp_path):
    """The run ends in a result that loads, and the same call again gives the same result."""
    options = {"steps": 8, "average": 2, **options}
    options |= {"valid": data.ParallelFiles(texts)} if "patience" in options else {}
    translator, _ = train(tmp_path, texts, **options)
    assert Translator.load(tmp_path).origin == ""  # early stopping, too, is an end
    again, said = train(tmp_path, texts, **options)
    assert "already trained" in said or "resuming" in said
    for weight, expected in zip(again.models[0].weights, translator.models[0].weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(expected))


@pytest.fixture(scope="module")
def trajectory(texts, tmp_path_factory):
    """A function: the weights after each of four steps, of a run with some options."""

    def weights_after_each_step(**options):
        folder = tmp_path_factory.mktemp("run")
        with eagerly():
            train(folder, texts, steps=4, steps_per_epoch=1, average=1, **options)
        return [files.read_arrays(path) for path in loading.checkpoints(folder)]

    return weights_after_each_step


@pytest.mark.slow
def test_the_result_may_be_a_moving_average_of_the_weights(trajectory):
    plain, averaged = trajectory(), trajectory(ema=0.75)
    assert len(plain) == len(averaged) == 4
    expected = plain[0]
    for step, weights in enumerate(plain):
        if step:
            expected = {name: 0.75 * expected[name] + 0.25 * weight for name, weight in weights.items()}
        for name, weight in averaged[step].items():
            np.testing.assert_allclose(weight, expected[name], atol=1e-6)


@slow_on_tensorflow
def test_gradients_of_several_batches_make_one_update(trajectory):
    steps = trajectory(accumulate=2, dropout=0.0)

    def moved(before, after):
        return any((before[name] != after[name]).any() for name in before)

    assert [moved(*pair) for pair in itertools.pairwise(steps)] == [True, False, True]


# In `make test`, JAX learns by the function and TensorFlow by the command, in `test_cli`.
LEARNING = [pytest.param(True, marks=[] if BACKEND == "jax" else pytest.mark.slow)]
LEARNING += [pytest.param(False, marks=pytest.mark.slow)]


@pytest.mark.parametrize("packed", LEARNING, ids=["packed", "plain"])
def test_training_learns(packed, tmp_path):
    sizes = {"num_layers": 1, "model_dim": 32, "num_heads": 2, "ff_dim": 64, "dropout": 0.0, "label_smoothing": 0.0}
    batches = {"tokenizer": "word", "max_length": 16, "batch_tokens": 1024, "num_shapes": 1, "packed": packed}
    training = {"learning_rate": 0.01, "steps": 300, "steps_per_epoch": 300, "verbose": 0, "say": lambda line: None}
    task = {"max_length": 5, "symbols": "abcdefgh"}
    translator = trainer.train(tasks.reverse(20_000, **task), tmp_path, **sizes, **batches, **training)
    sources, targets = zip(*tasks.reverse(500, "test", **task), strict=True)
    answers = Translator(translator.models, *translator.tokenizers, num_beams=1, batch_size=128, max_length=16)(sources)
    assert sum(map(operator.eq, answers, targets)) > 0.95 * len(targets)


@pytest.mark.slow
@once
def test_a_short_run_of_the_default_recipe_learns(tmp_path):
    """Post-norm stays at the perplexity of single characters; only its form makes the difference."""
    train, held_out = tasks.dates(8000), zip(*tasks.dates(200, "valid"), strict=True)
    options = {"steps": 200, "tokenizer": "char", "batch_tokens": 1024, "num_shapes": 1, "max_length": 64, "verbose": 0}
    translator = trainer.train(train, tmp_path, say=lambda line: None, **options)
    assert evaluation.perplexity(translator, *held_out) < 2.5


def command(out, texts):
    flags = [f"--{name}={value}" for name, value in OPTIONS.items() if name != "jit_compile"]
    flags += [f"--source={texts}", f"--out={out}", "--steps=40", "--backend", BACKEND]
    return ["train", *flags, "--jit_compile" if BACKEND == "jax" else "--no-jit_compile"]


@pytest.mark.slow
def test_killed_and_started_again_equals_uninterrupted(texts, tmp_path, capsys):
    killed = subprocess.Popen(
        [sys.executable, "-m", "keras_tfm", *command(tmp_path / "killed", texts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 240
    while not (loading.saved_step(tmp_path / "killed") and len(loading.checkpoints(tmp_path / "killed")) > 1):
        assert killed.poll() is None and time.monotonic() < deadline, killed.communicate()[0]
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    commands.run(command(tmp_path / "killed", texts))
    assert "resuming after step" in capsys.readouterr().out
    commands.run(command(tmp_path / "whole", texts))
    assert "resuming after step" not in capsys.readouterr().out
    for ours, theirs in zip(weights(tmp_path / "killed"), weights(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "killed/metrics.csv").read_text().count("\n") == 11
    assert artifacts.Run(tmp_path / "killed").read_config()["steps"] == 40


@once
def test_wrong_options_are_named_before_any_long_work(tmp_path):
    for options, name in (({"num_heads": 5}, "num_heads"), ({"activation": "rleu"}, "activation")):
        with pytest.raises(ValueError, match=name):
            trainer.train([("a", "b")] * 9, tmp_path / "runs" / "new", **options, verbose=0)
        assert not [*tmp_path.iterdir()]
