"""From pairs of texts to a trained translator, in the folder of a run."""

import contextlib
import dataclasses
import itertools
import math
import pathlib

import keras

from keras_tfm import data, evaluation, files, plots, runs, text, training
from keras_tfm.arguments import check
from keras_tfm.backend import devices, machine
from keras_tfm.batches import BucketedBatches, PackedBatches
from keras_tfm.models import BUILDERS
from keras_tfm.progress import redraws
from keras_tfm.recipes import CHANGEABLE, MODELS, resolve
from keras_tfm.translator import Translator

# Options that a run chooses once, if they are None, and keeps when another machine resumes it.
CHOSEN = ("batch_tokens", "num_shapes", "steps", "steps_per_epoch", "learning_rate", "warmup_steps")
# (limit, value) pairs, of which the first limit above a number decides: number of pairs → vocabulary size; number of
# target tokens → tokens per batch on a CPU and on an accelerator; number of target tokens → passes over the texts.
VOCAB_SIZES = (100_000, 8000), (1_000_000, 16_000), (math.inf, 32_000)
BATCH_TOKENS = (1_000_000, (1024, 4096)), (20_000_000, (2048, 8192)), (math.inf, (4096, 16_384))
PASSES = (1_000_000, 30), (10_000_000, 15), (100_000_000, 8), (math.inf, 4)
MOST_STEPS = 1000  # between two checkpoints
KEEP = 10  # checkpoints
GENTLE = 0.1  # learning rate of a model that has been trained before, as a share of that of a new one
CPU_HINT = (
    'Training will be slow on this CPU. The recipe "quick" trains a smaller model, and fewer `steps` take less time. '
    "Ctrl-C saves the run at any time, and its model can be used."
)


def train(pairs, folder, recipe="default", valid=None, say=print, **changes):
    """Trains a translator in a folder, or resumes the run that was interrupted there.

    Args:
        pairs: (source, target) strings to train on: a list, `keras_tfm.data.ParallelFiles`, or anything else that can
            be iterated over several times.
        folder: the folder of the run, which is created if it does not exist.
        recipe: a key of `keras_tfm.recipes.RECIPES`, or a `keras_tfm.Recipe`.
        valid: pairs to validate on after each epoch, or None.
        say: function that receives each progress message.
        **changes: options of `Recipe` that replace those of the recipe.

    Returns:
        `keras_tfm.Translator` of the trained model.

    Ctrl-C and SIGTERM save the run and raise `keras_tfm.runs.Interrupted`. The same call resumes it; other texts, or
    options that would make it another run, are refused.

    >>> import tempfile
    >>> from keras_tfm import tasks
    >>> sizes = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "ff_dim": 32, "max_length": 32}
    >>> quick = {"tokenizer": "char", "steps": 4, "batch_tokens": 512, "num_shapes": 1, "verbose": 0}
    >>> lines = []
    >>> translator = train(tasks.reverse(200), tempfile.mkdtemp(), say=lines.append, **sizes, **quick)
    >>> print(type(translator).__name__, lines[-1][:5])
    Translator wrote
    """
    folder, recipe = pathlib.Path(folder), resolve(recipe, **changes)
    check_arguments(pairs, folder, valid, recipe)
    devices.join_processes()
    if not devices.is_first():
        say, recipe = (lambda message: None), dataclasses.replace(recipe, verbose=0)
    with files.locked(folder) if devices.is_first() else contextlib.nullcontext():
        keras.utils.set_random_seed(recipe.seed)
        with devices.first_before_others():
            texts = data.fingerprint(pairs)
            settled = dataclasses.replace(recipe, **earlier_choices(folder, recipe, texts))
            start = Translator.load(settled.start_from) if settled.start_from else None
            new = start is None
            tokenizers = make_tokenizers(folder, pairs, texts, settled) if new else start.tokenizers
            if runs.is_run(folder):
                runs.check_tokenizers(folder, tokenizers)
            runs.write_tokenizers(folder, tokenizers)
            encoded, valid_encoded = encode(folder / "data", pairs, valid, tokenizers, settled)
        with devices.distributed(settled.devices, settled.model_parallel):
            settled = suited_batches(settled, encoded[0], machine.current())
            batches = serve(encoded, settled, copies=2 if settled.r_drop else 1)
            valid_batches = None if valid is None else serve_valid(valid_encoded, settled, machine.current())
            settled = suited_schedule(settled, len(batches), encoded[0], start)
            model = new_model(settled, tokenizers) if new else copy_model(start, settled)
            compile_model(model, settled, machine.current())
            stop = keras.callbacks.EarlyStopping("val_loss", patience=settled.patience) if settled.patience else None
            run = runs.TrainingRun(folder, max(KEEP, settled.average), stop, settled.save_minutes)
            callbacks = reporting(run, Translator(model, *tokenizers, beams=1), batches, valid, settled, say)
            check_average(folder, settled)
            if devices.is_first():  # only now, when all options have been checked
                write_config(folder, recipe, settled, texts, model, tokenizers)
            say(announcement(model, batches, settled, runs.saved_step(folder)))
            # Keras would redraw its bar in a log file, too
            verbose = settled.verbose if redraws() else 2 * bool(settled.verbose)
            fitting = {"validation_data": valid_batches, "verbose": verbose, "callbacks": callbacks}
            run.fit(model, batches, settled.steps // settled.steps_per_epoch, settled.steps_per_epoch, **fitting)
        with devices.first_before_others():
            if devices.is_first():
                runs.write_tokenizers(folder, tokenizers)  # in case they were deleted or replaced in the meantime
                say(write_result(folder, settled.average, run.history))
    return Translator(runs.load_keras(folder / "model.keras"), *tokenizers)


def write_result(folder, average, history):
    """Writes the model of a finished run and its learning curve; returns what to say about it."""
    _, what = runs.finish(folder, average)
    said = f"wrote {folder / 'model.keras'}: {what}"
    try:
        with files.whole(folder / "learning_curve.png") as new:
            plots.learning_curve(history, new)
        return f"{said}\nwrote {folder / 'learning_curve.png'} and {folder / 'metrics.csv'}"
    except ImportError as error:
        return f"{said}\nno learning curve: {error}"


def check_arguments(pairs, folder, valid, recipe):
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`folder` must be a folder. Received: {folder}, a file")
    exists = recipe.start_from is None or pathlib.Path(recipe.start_from).is_dir()
    check(
        "start_from", recipe.start_from, exists, "the folder of a translator; `keras-tfm import` makes one of OPUS-MT's"
    )
    for name, texts in {"pairs": pairs, "valid": valid}.items():
        if texts is not None and iter(texts) is texts:
            check(name, texts, False, "a list, or anything else that can be iterated over several times")
        if texts is not None and next(iter(texts), None) is None:
            raise ValueError(f"`{name}` must not be empty. Received: no pairs")
    for name in ("patience", "bleu"):
        if getattr(recipe, name) and valid is None:
            raise ValueError(f"`{name}` requires texts to validate on: `valid` must be given. Received: valid=None")


def earlier_choices(folder, recipe, texts):
    """What the run in a folder has chosen for options that are None; refuses another run's options or texts."""
    if not runs.is_run(folder):
        return {}
    config, now = runs.read_config(folder), dataclasses.asdict(recipe)
    before = dataclasses.asdict(resolve("default")) | config["options"]
    changed = {name for name in now if before[name] != now[name]} - CHANGEABLE
    if config["texts"] != texts:
        changed.add("texts to train on")
    if changed:
        raise ValueError(
            "`folder` must be a new folder, or that of a run with the same texts and options. "
            f"Received: {folder}, a run with other {', '.join(sorted(changed))}"
        )
    kept = {*CHOSEN} - {"steps"} if before["passes"] != now["passes"] else CHOSEN
    return {name: config[name] for name in kept if now[name] is None}


def check_average(folder, recipe):
    """Refuses to average more checkpoints than there can be."""
    epochs, epoch = recipe.steps // recipe.steps_per_epoch, runs.saved_step(folder) // recipe.steps_per_epoch
    most = len(runs.checkpoints(folder)) + max(epochs - epoch, 0)
    rule = f"at most {most}, the number of checkpoints that this run has kept or has yet to write, one per epoch"
    check("average", recipe.average, recipe.average <= most, rule)


def make_tokenizers(folder, pairs, texts, recipe):
    """The tokenizers of a run; learned from its texts, unless that was done before."""
    size = recipe.vocab_size or _below(VOCAB_SIZES, sum(1 for _ in pairs))
    sides = {"source_tokenizer": 0, "target_tokenizer": 1} if recipe.separate else {"tokenizer": None}
    wanted = {"kind": recipe.tokenizer, "vocab_size": size, "texts": texts, "names": list(sides)}
    record = folder / "data" / "tokenizers.json"
    there = record.exists() and all((folder / name / "tokenizer.json").exists() for name in sides)
    if not there or files.read_json(record) != wanted:
        for name, side in sides.items():
            sentences = (line for pair in pairs for line in (pair if side is None else pair[side : side + 1]))
            text.save_tokenizer(text.train_tokenizer(sentences, recipe.tokenizer, size), folder / name)
        files.write_json(record, wanted)
    return [text.load_tokenizer(folder / name) for name in sides]


def new_model(recipe, tokenizers):
    """A model with new weights."""
    sizes = dict(zip(("vocab_size", "target_vocab_size"), [each.vocab_size for each in tokenizers], strict=False))
    return BUILDERS[recipe.model](preset=recipe.preset, dtype=recipe.precision, **sizes, **recipe.model_options)


def copy_model(translator, recipe):
    """A model with the weights of a translator, and with the recipe's precision and dropout rates, if it has such."""
    check("start_from", recipe.start_from, len(translator.models) == 1, "a translator with one model")
    (model,) = translator.models
    rates = {name: getattr(recipe, name) for name in ("dropout", "attention_dropout")}
    given = {name: rate for name, rate in rates.items() if rate is not None}
    copy = type(model)(**model.arguments | given | {"dtype": recipe.precision})
    copy.set_weights(model.get_weights())
    return copy


def encode(folder, pairs, valid, tokenizers, recipe):
    """Token files of the texts to train on, several with subword sampling, and of those to validate on."""
    settings = {"max_length": recipe.max_length - 1, "verbose": recipe.verbose}
    encoded = []
    for n in range(recipe.samples if recipe.sampling else 1):
        sampling = {"sampling": recipe.sampling, "seed": recipe.seed + n}
        encoded.append(data.encode_pairs(pairs, folder / f"train-{n}", *tokenizers, **sampling, **settings))
    return encoded, None if valid is None else data.encode_pairs(valid, folder / "valid", *tokenizers, **settings)


def suited_batches(recipe, encoded, machine):
    """The recipe, with a batch size and shapes that suit the texts and the machine."""
    size = _below(BATCH_TOKENS, len(encoded.targets.tokens))[machine.accelerated]
    chosen = {"batch_tokens": max(size, recipe.max_length), "num_shapes": machine.shapes}
    return dataclasses.replace(recipe, **{name: getattr(recipe, name) or chosen[name] for name in chosen})


def suited_schedule(recipe, steps_per_pass, encoded, start=None):
    """The recipe, with steps in whole epochs, and a learning rate, that suit the texts and the model."""
    steps = recipe.steps or steps_per_pass * (recipe.passes or _below(PASSES, len(encoded.targets.tokens)))
    epochs = -(-steps // (recipe.steps_per_epoch or min(steps_per_pass, MOST_STEPS)))
    per_epoch = min(recipe.steps_per_epoch or -(-steps // epochs), steps)
    width = recipe.model_dim or MODELS[recipe.model].presets[recipe.preset]["model_dim"]
    width, share = (width, 1) if start is None else (start.models[0].arguments["model_dim"], GENTLE)
    chosen = {"learning_rate": recipe.learning_rate or share * (width * 2000) ** -0.5}
    chosen |= {"warmup_steps": recipe.warmup_steps or suited_warmup(steps)}
    chosen |= {"steps_per_epoch": per_epoch, "steps": epochs * per_epoch}
    return dataclasses.replace(recipe, **chosen)


def suited_warmup(steps):
    """Steps until the peak: a tenth of all, but at least 100 (or a quarter of a run that is shorter than 400 steps)."""
    return max(1, min(4000, max(steps // 10, min(100, steps // 4))))


def serve(encoded, recipe, **options):
    """Batches of token files."""
    options |= {"batch_tokens": recipe.batch_tokens, "seed": recipe.seed}
    if recipe.packed:
        return PackedBatches(encoded, length=recipe.max_length, **options)
    return BucketedBatches(encoded, num_shapes=recipe.num_shapes, **options)


def serve_valid(encoded, recipe, machine):
    """Batches to validate on, of one shape on an accelerator, where padding costs less than compiling another one."""
    one_shape = {"num_shapes": 1} if machine.accelerated else {}
    return serve(encoded, dataclasses.replace(recipe, **one_shape), shuffle=False)


def compile_model(model, recipe, machine):
    """Compiles with the paper's optimizer, a smoothed loss, and metrics that ignore padding."""
    rate = training.SCHEDULES[recipe.schedule](recipe.learning_rate, recipe.warmup_steps, recipe.steps)
    options = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9, "clipnorm": recipe.clipnorm}
    options |= {"use_ema": bool(recipe.ema), "ema_momentum": recipe.ema or 0.99}
    options |= {"gradient_accumulation_steps": recipe.accumulate if recipe.accumulate > 1 else None}
    loss = training.SmoothedCrossentropy(recipe.smoothing, recipe.r_drop)
    metrics = [training.TokenAccuracy(), training.Perplexity()]
    jit_compile = machine.jit_compile if recipe.jit_compile is None else recipe.jit_compile
    model.compile(keras.optimizers.Adam(rate, **options), loss, metrics=metrics, jit_compile=jit_compile)


def reporting(run, translator, batches, valid, recipe, say):
    """Callbacks that report how training is going."""
    callbacks = [keras.callbacks.SwapEMAWeights()] if recipe.ema else []
    callbacks.append(training.TokensPerSecond(batches.mean_tokens()))
    if recipe.verbose:
        callbacks.append(runs.TimeEstimate(run, recipe.steps, "" if machine.current().accelerated else CPU_HINT))
    if recipe.bleu:
        sources, references = zip(*itertools.islice(valid, recipe.bleu), strict=True)
        callbacks.append(evaluation.TranslationScores(translator, sources, references))
    if not devices.is_first():
        return callbacks
    try:
        callbacks.append(training.TensorBoardScalars(run.folder / "tensorboard"))
    except ImportError as error:
        say(f"no events for TensorBoard: {error}")
    return callbacks


def write_config(folder, recipe, settled, texts, model, tokenizers):
    """Writes config.json: the options as given, what was chosen for them, and what the model is made from."""
    config = {"options": dataclasses.asdict(recipe), "texts": texts, "model": runs.model_config(model)}
    config |= {"tokenizers": [text.fingerprint(tokenizer) for tokenizer in tokenizers]}
    config |= {name: getattr(settled, name) for name in ("average", *CHOSEN)}
    files.write_json(folder / "config.json", config)


def announcement(model, batches, recipe, step):
    """What is going to be trained, and what was trained before."""
    progress = f"saving every {recipe.save_minutes:g} minutes; after an interruption, the same command or call resumes"
    if step:
        progress = f"resuming after step {step:,} of {recipe.steps:,}"
    if step >= recipe.steps:
        progress = f"already trained for {recipe.steps:,} steps"
    if recipe.model_parallel > 1:
        share = f"{devices.divided_share(model):.0%} of the weights"
        progress = f"{recipe.model_parallel} devices share {share}, and each holds the rest\n{progress}"
    return (
        f"{keras.backend.backend()}, {model.count_params():,} parameters, {recipe.steps:,} steps of up to "
        f"{recipe.batch_tokens:,} tokens in {len(batches.shapes)} shape{'s' * (len(batches.shapes) > 1)}, "
        f"{recipe.steps / len(batches):.1f} passes over the texts\n{progress}"
    )


def _below(rules, number):
    """The value of the first limit that a number is below."""
    return next(value for limit, value in rules if number < limit)
