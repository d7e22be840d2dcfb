"""From pairs of texts to a trained translator, in the folder of a run."""

import dataclasses
import itertools
import math
import os
import pathlib
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_tfm import artifacts, data, plots, text
from keras_tfm.common import files
from keras_tfm.common.arguments import UserError, check
from keras_tfm.common.progress import redraws
from keras_tfm.data import corpus
from keras_tfm.data.batches import BucketedBatches, PackedBatches
from keras_tfm.models import loading
from keras_tfm.models.builders import BUILDERS
from keras_tfm.models.encoder_decoder import EncoderDecoder
from keras_tfm.options import CHANGEABLE, TOKENIZER_OPTIONS, ModelOptions, Recipe, resolve
from keras_tfm.runtimes import devices, machine
from keras_tfm.sizes import MODELS
from keras_tfm.training import callbacks, encoding, evaluation, losses, runs
from keras_tfm.translator import Translator

# Options that a run chooses once, if they are None, and keeps when another machine resumes it.
AUTO_OPTIONS = ("batch_tokens", "num_shapes", "steps", "steps_per_epoch", "learning_rate", "warmup_steps")
# (limit, value) pairs, of which the first limit above a number decides: number of target tokens → tokens per batch on a
# CPU and on an accelerator; number of target tokens → passes over the texts.
BATCH_TOKENS = (1_000_000, (1024, 4096)), (20_000_000, (2048, 8192)), (math.inf, (4096, 16_384))
PASSES = (1_000_000, 30), (10_000_000, 15), (100_000_000, 8), (math.inf, 4)
MAX_STEPS_PER_EPOCH = 1000  # by default; an epoch ends with a checkpoint, and need not be a pass over the texts
KEEP = 10  # checkpoints
# Options that may not be given together with such an object, which already fixes them.
CONFLICTING_OPTIONS = {
    "model": {field.name for field in dataclasses.fields(ModelOptions)} - {"max_length"} | {"precision", "start_from"},
    "tokenizer": {*TOKENIZER_OPTIONS, "start_from"},
    "optimizer": {"learning_rate", "warmup_steps", "schedule", "clipnorm", "accumulate", "ema"},
}
FINETUNE_LEARNING_RATE_SCALE = 0.1  # relative to training from scratch
CPU_HINT = (
    'Training will be slow on this CPU. The recipe "quick" trains a smaller model, and fewer `steps` take less time. '
    "Ctrl-C saves the run at any time, and its model can be used."
)


def train(
    pairs: Iterable[tuple[str, ...]],
    folder: str | os.PathLike[str],
    recipe: str | Recipe = "default",
    valid: Iterable[tuple[str, ...]] | None = None,
    say: Callable[[str], object] = print,
    *,
    model: str | EncoderDecoder | None = None,
    tokenizer: str | text.Tokenizer | Sequence[text.Tokenizer] | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **changes: Any,
) -> Translator:
    """Trains a translator in a folder, or resumes the run that was interrupted there.

    Args:
        pairs: (source, target) strings: a list, `ParallelFiles`, or anything else that can be iterated over repeatedly;
            for a multilingual model (source, target, language), such as ("yes", "oui", "fr").
        folder: the folder of the run, which is created if it does not exist.
        recipe: a key of `keras_tfm.training.RECIPES`, or a `keras_tfm.Recipe`.
        valid: validation pairs, scored after each epoch, or None.
        say: function that receives each progress message.
        model: a word of `keras_tfm.models.BUILDERS`, or a model, with the `tokenizer` whose ids it reads.
        tokenizer: a word of `keras_tfm.text.KINDS`, or a `keras_tfm.text.Tokenizer`, or one for each side.
        optimizer: a Keras optimizer, instead of Adam with the schedule of the recipe.
        callbacks: Keras callbacks.
        **changes: options of `Recipe` that replace those of the recipe.

    Ctrl-C and SIGTERM save the run and raise `keras_tfm.training.Interrupted`. The same call, with the same objects,
    resumes it; other texts, or options that would make it another run, are refused.

    >>> import tempfile
    >>> from keras_tfm.data import tasks
    >>> sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "max_length": 32}
    >>> quick = {"tokenizer": "char", "steps": 4, "batch_tokens": 512, "num_shapes": 1, "verbose": 0}
    >>> translator = train(tasks.reverse(200), tempfile.mkdtemp(), say=lambda line: None, **sizes, **quick)
    """
    objects = {"model": model, "tokenizer": tokenizer, "optimizer": optimizer}
    objects = {name: value for name, value in objects.items() if value is not None}
    changes |= {name: objects.pop(name) for name in ("model", "tokenizer") if isinstance(objects.get(name), str)}
    recipe = check_objects(objects, changes, resolve(recipe, **changes))
    check_arguments(pairs, pathlib.Path(folder), valid, recipe)
    devices.join_processes()
    if not devices.is_main_process():
        quiet = dataclasses.replace(recipe, verbose=0)
        return _train(artifacts.Run(folder), pairs, quiet, valid, lambda message: None, objects, callbacks)
    with files.locked(folder):
        return _train(artifacts.Run(folder), pairs, recipe, valid, say, objects, callbacks)


def _train(paths, pairs, given, valid, say, objects, more_callbacks):
    """`train` with arguments that have been checked. `given` is the recipe before anything was chosen."""
    texts_fingerprint = corpus.fingerprint(pairs)
    with devices.main_process_first():
        recipe = dataclasses.replace(given, **earlier_choices(paths, given, texts_fingerprint, objects))
        start = load_start(recipe.start_from)
        if start is None and "model" not in objects and not paths.exists():
            new_model(recipe, [types.SimpleNamespace(vocab_size=8)])  # wrong options fail before any long work
        if recipe.steps and recipe.steps_per_epoch:  # else the number of epochs depends on the texts
            check_average(paths.folder, recipe)
        existing = encoding.as_list(objects["tokenizer"]) if "tokenizer" in objects else start and start.tokenizers
        placeholders = encoding.resolve_placeholders(recipe, pairs, existing)
        prepared = data.PreparedPairs(pairs, placeholders, recipe.language_temperature)
        valid_prepared = encoding.prepare_validation(valid, prepared, existing)
        tokenizers = encoding.prepare_tokenizers(paths, prepared, recipe, existing)
        encoded, valid_encoded = encoding.encode(paths, prepared, valid_prepared, tokenizers, recipe)
        if prepared.left_out and recipe.verbose:
            say(f"left out {prepared.left_out:,} pairs whose sides do not have the same placeholders")
    with devices.distributed(recipe.devices, recipe.model_parallel):
        recipe = resolve_batches(recipe, encoded[0], machine.current())
        batches = make_batches(encoded, recipe, copies=2 if recipe.r_drop else 1)
        validation = make_validation_batches(valid_encoded, recipe, machine.current()) if valid is not None else None
        recipe = resolve_schedule(recipe, len(batches), encoded[0], start)
        keras.utils.set_random_seed(recipe.seed)  # whatever was drawn before: a resumed run skips some of it
        model = objects.get("model") or (copy_model(start, recipe) if start else new_model(recipe, tokenizers))
        compile_model(model, recipe, machine.current(), objects.get("optimizer"))
        stop = keras.callbacks.EarlyStopping("val_loss", patience=recipe.patience) if recipe.patience else None
        run = runs.TrainingRun(paths.folder, max(KEEP, recipe.average), stop, recipe.save_minutes)
        reports = reporting(run, Translator(model, *tokenizers, num_beams=1), batches, valid, recipe, say)
        check_average(paths.folder, recipe)
        if devices.is_main_process():  # only now, when all options have been checked
            write_config(paths, given, recipe, texts_fingerprint, model, tokenizers, objects)
        say(announcement(model, batches, recipe, loading.saved_step(paths.folder)))
        verbose = recipe.verbose if redraws() else 2 * bool(recipe.verbose)  # Keras would redraw its bar in a log, too
        options = {"validation_data": validation, "verbose": verbose, "callbacks": [*reports, *more_callbacks]}
        run.fit(model, batches, recipe.steps // recipe.steps_per_epoch, recipe.steps_per_epoch, **options)
    with devices.main_process_first():
        if devices.is_main_process():
            artifacts.write_tokenizers(paths.folder, tokenizers)  # in case they were deleted or replaced
            say(write_result(paths, recipe.average, run.history))
    return Translator(loading.load_keras(paths.model), *tokenizers)


def load_start(folder):
    """The translator that `start_from` names, if any."""
    try:
        return Translator.load(folder) if folder else None
    except UserError as error:
        raise UserError(error.naming({"folder": "`start_from`"})) from error


def write_result(run, average, history):
    """Writes the model of a finished run and its learning curve; returns a message about it."""
    _, what = loading.finish(run.folder, average)
    message = f"wrote {run.model}: {what}"
    try:
        with files.atomic_write(run.learning_curve) as new:
            plots.learning_curve(history, new)
    except ImportError as error:
        return f"{message}\nno learning curve: {error}"
    return f"{message}\nwrote {run.learning_curve} and {run.metrics}"


def check_arguments(pairs, folder, valid, recipe):
    if folder.exists() and not folder.is_dir():
        raise UserError(f"`folder` must be a folder. Received: {folder}, a file")
    artifacts.Run(folder).check_free()
    start, rule = recipe.start_from, "the folder of a translator; `keras-tfm import` makes one of OPUS-MT's"
    check("start_from", start, start is None or pathlib.Path(start).is_dir(), rule)
    for name, texts in {"pairs": pairs, "valid": valid}.items():
        if texts is not None and iter(texts) is texts:
            check(name, texts, False, "a list, or anything else that can be iterated over several times")
        if texts is not None and next(iter(texts), None) is None:
            raise UserError(f"`{name}` must not be empty. Received: no pairs")
    for name in ("patience", "bleu"):
        if getattr(recipe, name) and valid is None:
            raise UserError(f"`{name}` requires validation texts: `valid` must be given. Received: valid=None")


def check_objects(objects, changes, recipe):
    """Refuses objects of other classes and options that conflict with them; takes width and packing from a model."""
    model, tokenizers = objects.get("model"), encoding.as_list(objects.get("tokenizer", []))
    for name in objects:
        for option in sorted(CONFLICTING_OPTIONS[name] & {*changes} - {name}):
            check(option, changes[option], False, f"left out with a `{name}` of your own, which decides it")
    check("model", model, model is None or isinstance(model, EncoderDecoder), "a word, or a model of keras_tfm.models")
    fine = len(tokenizers) < 3 and all(isinstance(tokenizer, text.Tokenizer) for tokenizer in tokenizers)
    check("tokenizer", objects.get("tokenizer"), fine, "a word, a `keras_tfm.text.Tokenizer`, or one for each side")
    fine = "optimizer" not in objects or isinstance(objects["optimizer"], keras.optimizers.Optimizer)
    check("optimizer", objects.get("optimizer"), fine, "a Keras optimizer")
    if model is None:
        return recipe
    check("tokenizer", None, tokenizers, "an object, too, with a `model` of your own: the one whose ids it reads")
    check("devices", recipe.devices, recipe.devices == "1", "1 with a `model` of your own, which is on one device")
    return dataclasses.replace(recipe, **{name: model.arguments.get(name) for name in ("model_dim", "packed")})


def earlier_choices(run, recipe, texts_fingerprint, objects):
    """What the run in a folder has chosen for options that are None; refuses another run's options or texts."""
    if not run.exists():
        return {}
    config, now = run.read_config(), dataclasses.asdict(recipe)
    for name in sorted({*config.get("objects", [])} ^ {*objects}):
        rule = "left out" if name in objects else "an object again"
        check(name, objects.get(name), False, f"{rule}, as when the run in {run.folder} was started")
    before = dataclasses.asdict(resolve("default")) | config["options"]
    changed = {name for name in {*before, *now} if before.get(name) != now.get(name)} - CHANGEABLE
    if config["texts"] != texts_fingerprint:
        changed.add("training texts")
    if changed:
        raise UserError(
            "`folder` must be a new folder, or that of a run with the same texts and options. "
            f"Received: {run.folder}, a run with other {', '.join(sorted(changed))}"
        )
    kept = {*AUTO_OPTIONS} - {"steps"} if before["passes"] != now["passes"] else AUTO_OPTIONS
    return {name: config[name] for name in kept if now[name] is None}


def check_average(folder, recipe):
    """Refuses to average more checkpoints than there can be."""
    epochs, epoch = -(-recipe.steps // recipe.steps_per_epoch), loading.saved_step(folder) // recipe.steps_per_epoch
    most = len(loading.checkpoints(folder)) + max(epochs - epoch, 0)
    rule = f"at most {most}, the number of checkpoints that this run has kept or has yet to write, one per epoch"
    check("average", recipe.average, recipe.average <= most, rule)


def new_model(recipe, tokenizers):
    """A model with new weights."""
    sizes = dict(zip(("vocab_size", "target_vocab_size"), [each.vocab_size for each in tokenizers], strict=False))
    return BUILDERS[recipe.model](size=recipe.size, dtype=recipe.precision, **sizes, **recipe.model_options)


def copy_model(translator, recipe):
    """A model with the weights of a translator, and the recipe's precision and dropout rates, where they are set."""
    check("start_from", recipe.start_from, len(translator.models) == 1, "a translator with one model")
    (model,) = translator.models
    rates = {name: getattr(recipe, name) for name in ("dropout", "attention_dropout")}
    given = {name: rate for name, rate in rates.items() if rate is not None}
    others = {"dtype": recipe.precision, "metadata": {}, "quantization": None}
    copy = type(model).from_config(model.get_config() | given | others)
    copy.set_weights(model.get_weights())
    return copy


def resolve_batches(recipe, encoded, machine):
    """The recipe, with a batch size and shapes that suit the texts and the machine."""
    size = encoding.first_above(BATCH_TOKENS, len(encoded.targets.tokens))[machine.accelerated]
    chosen = {"batch_tokens": max(size, recipe.max_length), "num_shapes": machine.shapes}
    return dataclasses.replace(recipe, **{name: getattr(recipe, name) or chosen[name] for name in chosen})


def resolve_schedule(recipe, steps_per_pass, encoded, start=None):
    """The recipe, with steps in whole epochs, and a learning rate, that suit the texts and the model."""
    passes = recipe.passes or encoding.first_above(PASSES, len(encoded.targets.tokens))
    steps = recipe.steps or steps_per_pass * passes
    epochs = -(-steps // (recipe.steps_per_epoch or min(steps_per_pass, MAX_STEPS_PER_EPOCH)))
    per_epoch = min(recipe.steps_per_epoch or -(-steps // epochs), steps)
    if start is None:
        scale, width = 1, recipe.model_dim or MODELS[recipe.model].sizes[recipe.size]["model_dim"]
    else:
        scale, width = FINETUNE_LEARNING_RATE_SCALE, start.models[0].arguments["model_dim"]
    return dataclasses.replace(
        recipe,
        learning_rate=recipe.learning_rate or scale * (width * 2000) ** -0.5,
        warmup_steps=recipe.warmup_steps or default_warmup(steps),
        steps_per_epoch=per_epoch,
        steps=epochs * per_epoch,
    )


def default_warmup(steps):
    """Steps until the peak: a tenth of all, from 100 (or a quarter of a run of less than 400 steps) to 4,000."""
    return max(1, min(4000, max(steps // 10, min(100, steps // 4))))


def make_batches(encoded, recipe, **options):
    """Batches of token files."""
    options |= {"batch_tokens": recipe.batch_tokens, "seed": recipe.seed}
    if recipe.packed:
        return PackedBatches(encoded, length=recipe.max_length, **options)
    return BucketedBatches(encoded, num_shapes=recipe.num_shapes, **options)


def make_validation_batches(encoded, recipe, machine):
    """Validation batches, of one shape on an accelerator, where padding costs less than compiling another one."""
    one_shape = {"num_shapes": 1} if machine.accelerated else {}
    return make_batches(encoded, dataclasses.replace(recipe, **one_shape), shuffle=False)


def compile_model(model, recipe, machine, optimizer=None):
    """Compiles with Adam as in https://arxiv.org/abs/1706.03762, or another optimizer; metrics ignore padding."""
    optimizer = optimizer or keras.optimizers.Adam(
        losses.SCHEDULES[recipe.schedule](recipe.learning_rate, recipe.warmup_steps, recipe.steps),
        beta_2=0.98,
        epsilon=1e-9,
        clipnorm=recipe.clipnorm,
        use_ema=bool(recipe.ema),
        ema_momentum=recipe.ema or 0.99,
        gradient_accumulation_steps=recipe.accumulate if recipe.accumulate > 1 else None,
    )
    loss = losses.SmoothedCrossentropy(recipe.label_smoothing, r_drop=recipe.r_drop)
    metrics = [losses.TokenAccuracy(), losses.Perplexity()]
    jit_compile = machine.jit_compile if recipe.jit_compile is None else recipe.jit_compile
    model.compile(optimizer, loss, metrics=metrics, jit_compile=jit_compile)


def reporting(run, translator, batches, valid, recipe, say):
    """Callbacks that report how training is going."""
    reports = [keras.callbacks.SwapEMAWeights()] if recipe.ema else []
    reports.append(callbacks.TokensPerSecond(batches.mean_tokens()))
    if recipe.verbose:
        reports.append(callbacks.TimeEstimate(run, recipe.steps, "" if machine.current().accelerated else CPU_HINT))
    if recipe.bleu:
        sources, references, *languages = zip(*itertools.islice(valid, recipe.bleu), strict=True)
        options = {"target_language": languages[0]} if languages else {}
        reports.append(evaluation.TranslationScores(translator, sources, references, **options))
    if not devices.is_main_process():
        return reports
    try:
        reports.append(callbacks.TensorBoardScalars(run.files.tensorboard))
    except ImportError as error:
        say(f"no events for TensorBoard: {error}")
    return reports


def write_config(run, given, resolved, texts_fingerprint, model, tokenizers, objects):
    """Writes config.json: the options as given, what was chosen for them, and what the model is made from."""
    config = {
        "options": dataclasses.asdict(given),
        "texts": texts_fingerprint,
        "model": loading.model_config(model),
        "tokenizers": [text.saving.fingerprint(tokenizer) for tokenizer in tokenizers],
        "objects": sorted(objects),
    }
    files.write_json(run.config, config | {name: getattr(resolved, name) for name in ("average", *AUTO_OPTIONS)})


def announcement(model, batches, recipe, step):
    """What is going to be trained, and what was trained before."""
    progress = f"saving every {recipe.save_minutes:g} minutes; after an interruption, the same command or call resumes"
    if step:
        progress = f"resuming after step {step:,} of {recipe.steps:,}"
    if step >= recipe.steps:
        progress = f"already trained for {recipe.steps:,} steps"
    if recipe.model_parallel > 1:
        share = f"{devices.sharded_fraction(model):.0%} of the weights"
        progress = f"{recipe.model_parallel} devices share {share}, and each holds the rest\n{progress}"
    return (
        f"{keras.backend.backend()}, {model.count_params():,} parameters, {recipe.steps:,} steps of up to "
        f"{recipe.batch_tokens:,} tokens in {len(batches.shapes)} shape{'s' * (len(batches.shapes) > 1)}, "
        f"{recipe.steps / len(batches):.1f} passes over the texts\n{progress}"
    )
