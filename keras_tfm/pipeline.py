"""From texts to a translator, in the folder of a run: what `keras-tfm train` does."""

import itertools
import math
import pathlib

import keras

from keras_tfm import data, evaluation, files, plots, runs, tasks, text, training
from keras_tfm.arguments import one_of
from keras_tfm.backend import machine
from keras_tfm.batches import BucketedBatches, PackedBatches
from keras_tfm.models import PRESETS, transformer
from keras_tfm.translator import Translator

# Options of training; what is None depends on the texts and the machine, see `automatic`. All others are the model's.
DEFAULTS = {
    "task": None,
    "num_examples": 100_000,
    "source": None,
    "target": None,
    "valid_source": None,
    "valid_target": None,
    "tokenizer": None,
    "vocab_size": None,
    "separate": False,
    "sampling": 0.0,
    "samples": 10,
    "batch_tokens": None,
    "num_shapes": None,
    "preset": "tiny",
    "passes": None,
    "steps": None,
    "steps_per_epoch": None,
    "learning_rate": None,
    "warmup_steps": None,
    "schedule": "cosine",
    "smoothing": 0.1,
    "r_drop": 0.0,
    "clipnorm": None,
    "accumulate": None,
    "ema": None,
    "average": 1,
    "patience": None,
    "bleu": None,
    "precision": "float32",
    "jit_compile": None,
    "seed": 1,
    "save_minutes": 3.0,
    "verbose": 1,
}
# Word → options in place of those above.
RECIPES = {
    "default": {},
    "quick": {"num_layers": 2, "vocab_size": 4000, "passes": 8, "learning_rate": 0.003},
    # what does best on Multi30k, 29,000 short pairs: see benchmarks/multi30k.py
    "small_corpus": {
        "norm_first": True,
        "dropout": 0.3,
        "vocab_size": 12_000,
        "r_drop": 3.0,
        "batch_tokens": 8192,
        "num_shapes": 3,
        "passes": 240,
        "learning_rate": 0.005,
        "warmup_steps": 2000,
        "average": 10,
    },
    # https://arxiv.org/abs/1706.03762
    "paper": {"preset": "base", "schedule": "inverse_sqrt", "warmup_steps": 4000, "average": 5},
}
# Options that may differ when a run goes on: how long and how fast it trains, and what it shows.
CHANGEABLE = {"steps", "passes", "patience", "average", "learning_rate", "warmup_steps", "clipnorm", "verbose"}
CHANGEABLE |= {"save_minutes", "bleu"}
# Options that a run chooses once, also if another machine goes on with it.
CHOSEN = {"batch_tokens", "num_shapes", "steps", "steps_per_epoch", "learning_rate", "warmup_steps"}
PATHS = {"source", "target", "valid_source", "valid_target"}  # what matters is what is in the files
# Number of pairs → size of the vocabulary; number of target tokens → tokens of a batch on a processor and on an
# accelerator, and passes over the texts. Each rule is for fewer than so many.
VOCAB_SIZES = (100_000, 8000), (1_000_000, 16_000), (math.inf, 32_000)
BATCH_TOKENS = (1_000_000, (1024, 4096)), (20_000_000, (2048, 8192)), (math.inf, (4096, 16_384))
PASSES = (1_000_000, 30), (10_000_000, 15), (100_000_000, 8), (math.inf, 4)
MOST_STEPS = 1000  # between two checkpoints
KEEP = 10  # checkpoints
CPU_HINT = (
    "That is long for a processor. `--recipe quick` trains a smaller model, `--steps N` less of it. "
    "Ctrl-C saves at any time, and the model so far can be used."
)


def train(out, recipe="default", say=print, **given):
    """Trains a translator in a folder, or goes on with one that was interrupted there.

    Args:
        out: folder of the run.
        recipe: a word of `RECIPES`.
        say: called with each line that tells what is going on.
        **given: names of `DEFAULTS`, and options of `transformer`.

    Returns:
        model and tokenizers, one for both sides or one for each.
    """
    out, options = pathlib.Path(out), all_options(recipe, given)
    with files.locked(out):
        pairs, valid = read_texts(options)
        texts = getattr(pairs, "fingerprint", None)
        options |= chosen_before(out, options, texts)
        keras.utils.set_random_seed(options["seed"])
        tokenizers = make_tokenizers(out, pairs, texts, options)
        encoded, valid_encoded = encode(out / "data", pairs, valid, tokenizers, options)
        options = suited_batches(options, encoded[0], machine.current())
        batches = serve(encoded, options, copies=2 if options["r_drop"] else 1)
        valid_batches = None if valid is None else serve(valid_encoded, options, shuffle=False)
        options = suited_schedule(options, len(batches), encoded[0])
        model = build(tokenizers, options)
        compile_model(model, options)
        run = new_run(out, options)
        config = {"options": plain({"recipe": recipe, **given}), "texts": texts, "model": model.get_config()}
        config |= {"tokenizers": [text.fingerprint(tokenizer) for tokenizer in tokenizers]}
        config |= {"average": options["average"]}
        config |= {name: options[name] for name in sorted(CHOSEN)}
        epochs = options["steps"] // options["steps_per_epoch"]
        check_average(out, options)
        callbacks = watching(out, run, model, valid, tokenizers, batches, options, say)
        files.write_json(out / "config.json", config)  # now that all options have proved to be possible
        say(describe(model, batches, options))
        say(progress_so_far(runs.saved_step(out), options))
        run.fit(
            model,
            batches,
            epochs,
            options["steps_per_epoch"],
            callbacks,
            validation_data=valid_batches,
            verbose=options["verbose"],
        )
        model, what = runs.finish(out, options["average"])
    say(f"wrote {out / 'model.keras'}: {what}")
    try:
        with files.whole(out / "learning_curve.png") as new:
            plots.learning_curve(run.history, new)
        say(f"wrote {out / 'learning_curve.png'} and {out / 'metrics.csv'}")
    except ImportError as error:
        say(f"no learning curve: {error}")
    return model, tokenizers


def all_options(recipe, given):
    """Options of a recipe and those given, over the defaults."""
    options = {**DEFAULTS, **RECIPES[one_of("recipe", recipe, RECIPES)], **given}
    if (options["task"] is None) == (options["source"] is None):
        received = "both" if options["task"] else "neither"
        raise ValueError(f"`task` or `source` must be given, one of them. Received: {received}")
    validated = options["task"] or options["valid_source"]
    for name in ("patience", "bleu"):
        if options[name] and not validated:
            raise ValueError(f"`{name}` must come with texts to validate on. Received: {name}={options[name]}")
    one_of("preset", options["preset"], PRESETS)
    if options["task"]:
        one_of("task", options["task"], tasks.TASKS)
    return options


def chosen_before(out, options, texts):
    """What the run in a folder has chosen by itself, for options that are None; refuses other options or texts."""
    if not runs.is_run(out):
        return {}
    config = runs.read_config(out)
    given = dict(config["options"])
    before, now = plain(all_options(given.pop("recipe"), given)), plain(options)
    changed = {name for name in {**before, **now} if before.get(name) != now.get(name)} - CHANGEABLE - PATHS
    if config["texts"] != texts:
        changed.add("texts to train on")
    if changed:
        raise ValueError(
            "`out` must be a new folder, or that of a run with the same options. "
            f"Received: {out} with other {', '.join(sorted(changed))}"
        )
    kept = CHOSEN - {"steps"} if before["passes"] != now["passes"] else CHOSEN
    return {name: config[name] for name in kept if now[name] is None}


def check_average(out, options):
    """Refuses to average more checkpoints than there can be."""
    average, per_epoch = options["average"], options["steps_per_epoch"]
    most = len(runs.checkpoints(out)) + max(options["steps"] // per_epoch - runs.saved_step(out) // per_epoch, 0)
    if average > most:
        raise ValueError(
            f"`average` must be at most {most}, the checkpoints that this run has kept and has yet to write, one for "
            f"each epoch. Received: {average=}"
        )


def plain(options):
    """Options as JSON has them."""
    return {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in options.items()}


def read_texts(options):
    """Pairs to train on, and pairs to validate on or None."""
    if options["task"]:
        task = tasks.TASKS[options["task"]]
        return task(options["num_examples"]), task(1000, "valid")
    pairs = data.ParallelFiles(options["source"], options["target"])
    if options["valid_source"] is None:
        return pairs, None
    return pairs, data.ParallelFiles(options["valid_source"], options["valid_target"])


def make_tokenizers(out, pairs, texts, options):
    """The tokenizers of a run, learned from its texts unless they are there."""
    kind = options["tokenizer"] or ("char" if options["task"] else "bpe")
    size = options["vocab_size"] or next(size for most, size in VOCAB_SIZES if len(pairs) < most)
    sides = {"source_tokenizer": 0, "target_tokenizer": 1} if options["separate"] else {"tokenizer": None}
    source = {"kind": kind, "vocab_size": size, "texts": texts, "task": options["task"], "names": list(sides)}
    source["num_examples"] = options["num_examples"] if options["task"] else None
    record = out / "data" / "tokenizers.json"
    if not record.exists() or files.read_json(record) != source:
        for name, side in sides.items():
            sentences = (line for pair in pairs for line in (pair if side is None else pair[side : side + 1]))
            text.save_tokenizer(text.train_tokenizer(sentences, kind, size), out / name)
        files.write_json(record, source)
    return [text.load_tokenizer(out / name) for name in sides]


def encode(folder, pairs, valid, tokenizers, options):
    """Token files of the texts to train on, several if they are sampled, and of those to validate on."""
    settings = {"max_length": options.get("max_length", 512) - 1, "verbose": options["verbose"]}
    encoded = [
        data.encode_pairs(
            pairs,
            folder / f"train-{n}",
            *tokenizers,
            sampling=options["sampling"],
            seed=options["seed"] + n,
            **settings,
        )
        for n in range(options["samples"] if options["sampling"] else 1)
    ]
    return encoded, None if valid is None else data.encode_pairs(valid, folder / "valid", *tokenizers, **settings)


def suited_batches(options, encoded, machine):
    """Options with the size and the shapes of batches that suit the texts and the machine."""
    tokens, longest = len(encoded.targets.tokens), options.get("max_length", 512)
    size = next(sizes[machine.accelerated] for most, sizes in BATCH_TOKENS if tokens < most)
    chosen = {"batch_tokens": max(size, longest), "num_shapes": machine.shapes, "jit_compile": machine.jit_compile}
    return {**options, **{name: value for name, value in chosen.items() if options[name] is None}}


def suited_schedule(options, steps_per_pass, encoded):
    """Options with steps and learning rates that suit the texts and the model."""
    tokens = len(encoded.targets.tokens)
    passes = options["passes"] or next(passes for most, passes in PASSES if tokens < most)
    width = options.get("model_dim", PRESETS[options["preset"]]["model_dim"])
    steps = options["steps"] or passes * steps_per_pass
    per_epoch = min(options["steps_per_epoch"] or min(steps_per_pass, MOST_STEPS), steps)
    chosen = {
        "learning_rate": (width * 2000) ** -0.5,
        "warmup_steps": max(1, min(4000, steps // 10)),
        "steps_per_epoch": per_epoch,
    }
    options = {**options, **{name: value for name, value in chosen.items() if options[name] is None}}
    return {**options, "steps_per_epoch": per_epoch, "steps": -(-steps // per_epoch) * per_epoch}


def serve(encoded, options, **how):
    """Batches of token files."""
    how |= {"batch_tokens": options["batch_tokens"], "seed": options["seed"]}
    if options.get("packed"):
        return PackedBatches(encoded, length=options.get("max_length", 512), **how)
    return BucketedBatches(encoded, num_shapes=options["num_shapes"], **how)


def build(tokenizers, options):
    """The Transformer that the options describe, for these tokenizers."""
    sizes = [tokenizer.vocab_size for tokenizer in tokenizers]
    chosen = {name: value for name, value in options.items() if name not in DEFAULTS}
    return transformer(*sizes, dtype=options["precision"], **{**PRESETS[options["preset"]], **chosen})


def compile_model(model, options):
    """Compiles with the paper's optimizer, a smoothed loss and metrics that leave padding out."""
    schedule = training.SCHEDULES[options["schedule"]]
    ema = {"use_ema": True, "ema_momentum": options["ema"]} if options["ema"] else {}
    optimizer = keras.optimizers.Adam(
        schedule(options["learning_rate"], options["warmup_steps"], options["steps"]),
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        clipnorm=options["clipnorm"],
        gradient_accumulation_steps=options["accumulate"],
        **ema,
    )
    model.compile(
        optimizer,
        training.SmoothedCrossentropy(options["smoothing"], options["r_drop"]),
        metrics=[training.TokenAccuracy(), training.Perplexity()],
        jit_compile=options["jit_compile"],
    )


def new_run(out, options):
    stopping = runs.EarlyStopping("val_loss", patience=options["patience"]) if options["patience"] else None
    return runs.TrainingRun(out, max(KEEP, options["average"]), stopping, options["save_minutes"])


def watching(out, run, model, valid, tokenizers, batches, options, say):
    """Callbacks that tell how training goes."""
    hint = "" if machine.current().accelerated else CPU_HINT
    callbacks = [keras.callbacks.SwapEMAWeights()] if options["ema"] else []
    callbacks += [training.TokensPerSecond(batches.mean_tokens())]
    if options["verbose"]:
        callbacks.append(runs.TimeEstimate(run, options["steps"], hint))
    if options["bleu"]:
        sources, references = zip(*itertools.islice(valid, options["bleu"]), strict=True)
        translator = Translator(model, *tokenizers, beams=1)
        callbacks.append(evaluation.TranslationScores(translator, sources, references))
    try:
        callbacks.append(training.TensorBoardScalars(out / "tensorboard"))
    except ImportError as error:
        say(f"no events for TensorBoard: {error}")
    return callbacks


def describe(model, batches, options):
    """A line about what is about to be trained."""
    shapes = f"{len(batches.shapes)} shapes" if len(batches.shapes) > 1 else "1 shape"
    return (
        f"{keras.backend.backend()}, {model.count_params():,} parameters, {options['steps']:,} steps of up to "
        f"{options['batch_tokens']:,} tokens in {shapes}, {options['steps'] / len(batches):.1f} passes over the texts"
    )


def progress_so_far(step, options):
    if not step:
        return f"saving every {options['save_minutes']:g} minutes; the same command goes on after Ctrl-C or a kill"
    if step >= options["steps"]:
        return f"trained for {options['steps']:,} steps before"
    return f"going on after step {step:,} of {options['steps']:,}"
