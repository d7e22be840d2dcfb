"""The command `keras-tfm`."""

import argparse
import functools
import gzip
import itertools
import json
import os
import pathlib
import sys
import warnings

# Flags of `train` that are arguments of `transformer`: name → type and help. A test compares them with the builder's.
MODEL_FLAGS = {
    "num_layers": (int, "blocks of the encoder"),
    "num_decoder_layers": (int, "blocks of the decoder, if not as many"),
    "model_dim": (int, "width of the features"),
    "num_heads": (int, "attention heads"),
    "num_kv_heads": (int, "key/value heads, for grouped or multi-query attention"),
    "ff_dim": (int, "width of the feed-forward network"),
    "dropout": (float, "rate of dropout on sublayers and embeddings"),
    "attention_dropout": (float, "rate of dropout on attention weights"),
    "positions": (("sinusoidal", "learned", "index", "rotary", "relative", "alibi"), "how places are told apart"),
    "positions_in": (("input", "every_layer"), "where the first three of them enter"),
    "positions_combine": (("add", "concat"), "how they do"),
    "max_length": (int, "tokens of the longest text, the end token among them"),
    "norm": (("layer", "rms"), "kind of normalisation"),
    "norm_first": (bool, "normalise before sublayers (pre-norm)"),
    "activation": (("relu", "gelu", "swish", "glu", "reglu", "geglu", "swiglu"), "of the feed-forward network"),
    "score": (("dot", "scaled_dot", "cosine", "bilinear", "additive", "concat"), "how queries and keys are compared"),
    "heads": (("standard", "narrow", "wide"), "what each head sees"),
    "mixing": (("soft", "hard"), "how values are mixed"),
    "window": (int, "self-attention reaches less than so far"),
    "tied_output": (bool, "logits by the embeddings of the target"),
    "packed": (bool, "several pairs in a row"),
}

CHUNK = 512  # lines that are translated, and written, together

# What an exported translator is compared on, unless there are other texts.
SENTENCES = (
    "a dog runs over the grass .",
    "two men in hats play chess",
    "3 de mayo de 2023",
    "Mittwoch, 4. Juli 1990",
    "x",
)


def main():
    """Runs the command line of the process; what it returns would be its exit status."""
    warnings.formatwarning = lambda message, *_: f"keras-tfm: warning: {message}\n"
    run(sys.argv[1:])


def run(argv):
    """Runs a command line; returns what its command does."""
    parser = argparse.ArgumentParser(prog="keras-tfm", description="Transformers for Keras.")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_train(commands)
    add_translate(commands)
    add_evaluate(commands)
    add_plot(commands)
    add_export(commands)
    arguments = vars(parser.parse_args([_underscored(word) for word in argv]))
    backend, command = arguments.pop("backend"), arguments.pop("command")
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # read when Keras is imported, below
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return command(**arguments)
    except KeyboardInterrupt:
        print("keras-tfm: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        sys.exit(f"keras-tfm: error: {error}")
    except ImportError as error:
        if error.name in ("jax", "tensorflow"):
            sys.exit(f"keras-tfm: error: the backend is not installed: pip install 'keras_tfm[{error.name}]'")
        if "pip install" not in str(error):
            raise
        sys.exit(f"keras-tfm: error: {error}")


def _underscored(word):
    """Flags are spelled like arguments; hyphens do as well."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    prefix = "--no-" if flag.startswith("--no-") else "--"
    return prefix + flag.removeprefix(prefix).replace("-", "_") + equals + value


def positive(text):
    """A positive integer, for argparse, which names the option and this function in its error."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a translator on pairs of texts, or on a built-in task",
        description="Train a translator. The same command again goes on where the last one was stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(command=train)
    add = parser.add_argument_group("data").add_argument
    add("--task", choices=("dates", "reverse", "copy"), help="a built-in task, in place of files")
    add("--num_examples", type=positive, default=100_000, help="pairs of the built-in task")
    add("--source", type=pathlib.Path, help="a text on each line, plain or .gz; or a .tsv with both texts")
    add("--target", type=pathlib.Path, help="their translations")
    add("--valid_source", type=pathlib.Path, help="texts to validate on")
    add("--valid_target", type=pathlib.Path, help="their translations")
    add("--tokenizer", choices=("bpe", "unigram", "char", "word", "bytes"), help="default: bpe, for tasks char")
    add("--vocab_size", type=positive, default=8000, help="tokens, at most")
    add("--separate", action="store_true", help="a vocabulary for each side, in place of one for both")
    add("--sampling", type=float, default=0.0, help="subword sampling: share of BPE's merges left out")
    add("--samples", type=positive, default=10, help="how many samples of the corpus are made")
    add("--batch_tokens", type=positive, default=4096, help="tokens of a batch, on each side, with padding")
    add("--num_shapes", type=positive, default=14, help="shapes of batches, at most; XLA compiles each")
    add = parser.add_argument_group("model").add_argument
    add("--preset", choices=("tiny", "small", "base", "big", "deep"), default="tiny", help="sizes of the model")
    for name, (kind, text) in MODEL_FLAGS.items():
        action = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        action = {"choices": kind} if isinstance(kind, tuple) else action
        add(f"--{name}", default=argparse.SUPPRESS, help=text, **action)
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=positive, default=10_000, help="updates in all, rounded up to whole epochs")
    add("--steps_per_epoch", type=positive, help="updates between checkpoints; default: one pass over the data")
    add("--learning_rate", type=float, default=0.002, help="peak of the schedule")
    add("--warmup_steps", type=positive, help="updates until the peak; default: a tenth of all, at most 1000")
    add("--schedule", choices=("inverse_sqrt", "cosine"), default="inverse_sqrt", help="what comes after the peak")
    add("--smoothing", type=float, default=0.1, help="label smoothing")
    add("--r_drop", type=float, default=0.0, help="weight of R-Drop, which passes every batch twice")
    add("--clipnorm", type=float, help="norm that gradients are clipped to")
    add("--accumulate", type=positive, help="batches for an update")
    add("--ema", type=float, help="momentum of a moving average of the weights, which is then the result")
    add("--average", type=positive, default=1, help="last checkpoints of which the result is the mean")
    add("--patience", type=positive, help="stop after so many epochs without a better validation loss")
    add("--bleu", type=positive, help="translate so many validation texts after each epoch, and log BLEU and chrF")
    add("--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32", help="of the layers")
    add("--jit_compile", action=argparse.BooleanOptionalAction, help="by XLA; default: Keras decides")
    add("--seed", type=int, default=1, help="of weights, dropout, order and samples")
    add("--verbose", type=int, choices=(0, 1, 2), default=1, help="silence, progress bar, a line for each epoch")
    add("--out", type=pathlib.Path, default=pathlib.Path("runs/latest"), help="folder of the run")
    add("--backend", choices=("tensorflow", "jax"), help="in place of KERAS_BACKEND")


def train(out, seed, precision, average, verbose, **options):
    """Trains a translator, see `keras-tfm train --help`; returns the model."""
    import keras

    from keras_tfm import plots, text, training

    config = json.loads(json.dumps({"seed": seed, "precision": precision, **options}, default=str))
    check_same_run(out, config)
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(precision)
    batches, valid, tokenizers = prepare(out / "data", seed=seed, verbose=verbose, **options)
    model = build(tokenizers, **options)
    compile_model(model, **options)
    (out / "config.json").write_text(json.dumps(config, indent=1))  # now that all options have proved to be possible
    print(f"{keras.backend.backend()}, {model.count_params():,} parameters, {len(batches)} batches of {batches.shapes}")

    steps_per_epoch = min(options["steps_per_epoch"] or len(batches), options["steps"])
    epochs = -(-options["steps"] // steps_per_epoch)
    if options["patience"] and valid is None:
        raise ValueError(f"`patience` must come with texts to validate on. Received: patience={options['patience']}")
    stopping = [keras.callbacks.EarlyStopping("val_loss", patience=options["patience"])] if options["patience"] else []
    run = training.Run(out, keep=average, siblings=stopping)
    first = run.restore(model)
    if first:
        print(f"going on after epoch {first} of {epochs}" if first < epochs else f"trained for {epochs} epochs before")
    callbacks = [training.TokensPerSecond(batches.mean_tokens()), *watch(model, tokenizers, **options), *stopping, run]
    try:
        callbacks.append(training.TensorBoardScalars(out / "tensorboard"))
    except ImportError as error:
        print(f"no events for TensorBoard: {error}")
    if options["ema"]:
        callbacks.insert(0, keras.callbacks.SwapEMAWeights())
    model.fit(
        batches.repeat(first * steps_per_epoch),
        steps_per_epoch=steps_per_epoch,
        initial_epoch=first,
        epochs=epochs,
        validation_data=valid,
        callbacks=callbacks,
        shuffle=False,
        verbose=verbose,
    )
    if average > 1 and not options["ema"]:
        training.average_checkpoints(model, training.checkpoints(out)[-average:])
    trained, model = model, type(model).from_config(model.get_config())  # without optimizer: a third of the size
    model.set_weights(trained.get_weights())
    model.save(out / "model.keras")
    for name, tokenizer in tokenizers.items():
        text.save_tokenizer(tokenizer, out / name)
    print(f"wrote {out / 'model.keras'} and {out / 'metrics.csv'}")
    try:
        plots.learning_curve(run.history, out / "learning_curve.png")
        print(f"wrote {out / 'learning_curve.png'}")
    except ImportError as error:
        print(f"no learning curve: {error}")
    if options["task"]:
        show(options["task"], model, tokenizers, verbose)
    return model, tokenizers


def watch(model, tokenizers, bleu, task, valid_source, valid_target, **options):
    """A callback that translates validation texts, in a list that is empty if there is to be none."""
    from keras_tfm import data, evaluation, tasks
    from keras_tfm.translator import Translator

    if not bleu:
        return []
    if not task and not valid_source:
        raise ValueError(f"`bleu` must come with texts to validate on. Received: {bleu=}")
    pairs = tasks.TASKS[task](bleu, "valid") if task else data.ParallelFiles(valid_source, valid_target)
    sources, references = zip(*itertools.islice(pairs, bleu), strict=True)
    translator = Translator(model, *tokenizers.values(), beams=1)
    return [evaluation.TranslationScores(translator, sources, references)]


def show(task, model, tokenizers, verbose, count=1000):
    """Prints how many texts of the test split come out exactly right, and twenty of them."""
    from keras_tfm import tasks
    from keras_tfm.translator import Translator

    pairs = tasks.TASKS[task](count, "test")
    translate = Translator(model, *tokenizers.values(), beams=1, batch_size=128)
    answers = translate([source for source, _ in pairs], verbose)
    right = [answer == target for answer, (_, target) in zip(answers, pairs, strict=True)]
    for (source, target), answer in zip(pairs[:20], answers, strict=False):
        print(f"  {source} → {answer}" + ("" if answer == target else f"   (wrong: {target})"))
    print(f"{sum(right) / count:.1%} of {count:,} unseen texts exactly right")


def add_command(commands, command, text, models=None, **options):
    """A command of the function's name, for a trained model, or with models="?" for that of dates if none is named."""
    options["formatter_class"] = argparse.ArgumentDefaultsHelpFormatter
    parser = commands.add_parser(command.__name__, help=text, **options)
    parser.set_defaults(command=command)
    more = "; none: the translator of dates that comes with the package" if models else ""
    parser.add_argument("model", nargs=models, type=pathlib.Path, help="folder that `keras-tfm train` wrote" + more)
    return parser


def add_translate(commands):
    again = "Translate texts line by line. With --out, the same command again goes on where that file ends."
    parser = add_command(commands, translate, "translate files or standard input, line by line", "?", description=again)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="texts, plain or .gz; none: standard input")
    parser.add_argument("--out", type=pathlib.Path, help="file for the translations, in place of standard output")
    add_decoding(parser)


def add_evaluate(commands):
    parser = add_command(commands, evaluate, "score a translator: BLEU, chrF, exact match, perplexity, speed")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="texts, plain or .gz")
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="their translations")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's tokeniser; none for text that is tokens already")
    add_decoding(parser)


def add_plot(commands):
    parser = add_command(commands, plot, "draw what a translation attends to")
    parser.add_argument("text", help="a sentence")
    parser.add_argument("--layer", type=int, default=-1, help="block of the decoder, from 0; -1 is the last")
    parser.add_argument("--mean", action="store_true", help="the mean of the heads, in place of each")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("attention.png"), help="file to write")
    parser.add_argument("--backend", choices=("tensorflow", "jax"), help="in place of KERAS_BACKEND")


def add_export(commands):
    parser = add_command(commands, export, "write a translator in a form to ship, and compare it with the model")
    parser.add_argument(
        "--format", choices=("saved_model", "litert", "ctranslate2", "onnx"), required=True, help="what to write"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="folder to write; an earlier export is replaced"
    )
    parser.add_argument(
        "--precision", choices=("float32", "float16", "int8"), default="float32", help="of LiteRT and CTranslate2"
    )
    parser.add_argument("--texts", type=pathlib.Path, help="sentences to compare on, a line each; default: a few")
    add_decoding(parser, max_length=128, backends=("tensorflow",))


def add_decoding(parser, max_length=512, backends=("tensorflow", "jax")):
    """Flags that are arguments of `Translator` and of what it hands on."""
    add = parser.add_argument_group("decoding").add_argument
    add("--beams", type=positive, default=4, help="hypotheses that are kept; 1 is greedy")
    add("--length_penalty", type=float, default=0.6, help="exponent of the length that scores are divided by")
    add("--batch_size", type=positive, default=64, help="texts that are translated together")
    add("--max_length", type=positive, default=max_length, help="tokens of the longest text")
    add("--no_repeat_ngram", type=int, default=0, help="so many tokens in a row never come twice; 0: no such rule")
    add("--backend", choices=backends, help="in place of KERAS_BACKEND")


def load_translator(model, **options):
    from keras_tfm.translator import Translator

    return Translator.load(model, **options)


def dates_model():
    """The folder of the translator of dates that comes with the package, in a checkout or installed."""
    for root in (pathlib.Path(__file__).parent.parent / "saved_models", pathlib.Path(sys.prefix) / "share/keras_tfm"):
        if (root / "dates/keras/model.keras").exists():
            return root / "dates/keras"
    raise FileNotFoundError("no MODEL was given, and the translator of dates is not installed")


def translate(model, files, out, **options):
    """Translates lines of files or of standard input, see `keras-tfm translate --help`."""
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: there is no such file")
    if model is not None and model.is_file():
        raise ValueError(f"`model` must be a folder, and comes before the files. Received: {model}")
    if model is None:
        model = dates_model()
        print("no MODEL: dates in 10 languages, a line each, as 3. Mai 2023 → 2023-05-03", file=sys.stderr)
    translator = load_translator(model, **options)
    lines = itertools.chain.from_iterable(map(_lines, files)) if files else _decoded(sys.stdin.buffer)
    if out is None:
        typing = not files and sys.stdin.isatty()
        for translation in translator.stream(lines, chunk=1 if typing else CHUNK):
            print(_one_line(translation), flush=True)
        return
    done = _whole_lines(out)
    if done:
        print(f"going on after line {done:,} of {out}", file=sys.stderr)
    with open(out, "a", encoding="utf-8") as file:
        translations = translator.stream(itertools.islice(lines, done, None), CHUNK)
        for number, translation in enumerate(translations, 1):
            file.write(_one_line(translation) + "\n")
            if number % CHUNK == 0:  # what is written is not lost if this is interrupted
                file.flush()
                print(f"\r{done + number:,} lines", end="", file=sys.stderr, flush=True)
    print(f"\rwrote {out}", file=sys.stderr)


def export(model, format, out, precision, texts, **options):
    """Writes a translator in a form to ship, see `keras-tfm export --help`; leaves nothing behind that does not run."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from keras_tfm import export

    if format in ("saved_model", "onnx") and precision != "float32":
        raise ValueError(f"`precision` of {format} must be float32. Received: precision={precision!r}")
    export.NewFolder(out)  # or an error before all the work
    translator = load_translator(model, **options)
    texts = list(_lines(texts)) if texts else list(SENTENCES)
    print(f"writing {out} and comparing it with the model, which takes a minute or two …", file=sys.stderr)
    if format in ("saved_model", "onnx"):
        verdict = getattr(export, format)(translator, out, compare_on=texts)
    elif format == "litert":
        verdict = export.litert(translator, out, precision, compare_on=texts)
    else:
        verdict = export.ctranslate2(translator, out, None if precision == "float32" else precision, compare_on=texts)
    print(f"wrote {out}: {verdict}")


def _lines(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield from _decoded(file)


def _decoded(file):
    """Lines of a binary file; what is no UTF-8 becomes U+FFFD, and is said."""
    for number, line in enumerate(file, 1):
        line = line.rstrip(b"\r\n")
        text = line.decode("utf-8", "replace")
        if "\ufffd" in text and text.encode() != line:
            print(f"line {number}: not UTF-8, and read with \ufffd in its place", file=sys.stderr)
        yield text


def _one_line(text):
    return " ".join(text.splitlines()) if text else text


def _whole_lines(path):
    """How many whole lines a file has; cuts off what comes behind them."""
    if not path.exists():
        return 0
    count = end = 0
    with open(path, "rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count


def evaluate(model, source, reference, tokenize, **options):
    """Prints and returns the scores of a translator, see `keras-tfm evaluate --help`."""
    from keras_tfm import data, evaluation

    pairs = data.ParallelFiles(source, reference)
    translator = load_translator(model, **options)
    sources, references = zip(*pairs, strict=True)
    result = evaluation.evaluate(translator, sources, references, tokenize, verbose=int(sys.stdout.isatty()))
    signatures = result.pop("signatures")
    for name, value in result.items():
        print(f"{name:12} {value:10,.2f}  {signatures.get(name, '')}")
    return result


def plot(model, text, layer, mean, out):
    """Draws the attention of each target token to the source, see `keras-tfm plot --help`."""
    from keras_tfm import plots

    out.parent.mkdir(parents=True, exist_ok=True)
    translation = plots.translation_map(load_translator(model, beams=1), text, out, layer, mean)
    print(f"{text} → {translation}\nwrote {out}")


def check_same_run(out, config):
    """Refuses to go on in a folder with other options than before; only how long it trains may change."""
    if not (out / "config.json").exists():
        return
    before = json.loads((out / "config.json").read_text())
    changed = {name for name in {**before, **config} if before.get(name) != config.get(name)} - {"steps", "patience"}
    if changed:
        raise ValueError(
            "`out` must be a new folder, or that of a run with the same options. "
            f"Received: {out} with other {', '.join(sorted(changed))}"
        )


def prepare(folder, task, num_examples, source, target, valid_source, valid_target, tokenizer, vocab_size, **options):
    """Reads, learns tokenizers, encodes: batches for training, batches for validation or None, tokenizers."""
    from keras_tfm import data, tasks, text
    from keras_tfm.batches import Batches, PackedBatches

    if (task is None) == (source is None):
        received = "both" if task else "neither"
        raise ValueError(f"`task` or `source` must be given, one of them. Received: {received}")
    if task:
        pairs, valid = (tasks.TASKS[task](n, split) for split, n in (("train", num_examples), ("valid", 1000)))
    else:
        pairs = data.ParallelFiles(source, target)
        valid = data.ParallelFiles(valid_source, valid_target) if valid_source else None
    kind = tokenizer or ("char" if task else "bpe")
    sides = {"source_tokenizer": 0, "target_tokenizer": 1} if options["separate"] else {"tokenizer": None}
    tokenizers = {}
    for name, side in sides.items():
        if not (folder / name).exists():
            texts = (line for pair in pairs for line in (pair if side is None else pair[side : side + 1]))
            text.save_tokenizer(text.train_tokenizer(texts, kind, vocab_size), folder / name)
        tokenizers[name] = text.load_tokenizer(folder / name)
    encode = {"max_length": options.get("max_length", 512) - 1, "verbose": options["verbose"]}
    both = tuple(tokenizers.values())
    samples = range(options["samples"] if options["sampling"] else 1)
    encoded = [
        data.encode_pairs(
            pairs, folder / f"train-{n}", *both, sampling=options["sampling"], seed=options["seed"] + n, **encode
        )
        for n in samples
    ]
    if options.get("packed"):
        serve = functools.partial(PackedBatches, length=options.get("max_length", 512))
    else:
        serve = functools.partial(Batches, num_shapes=options["num_shapes"])
    serve = functools.partial(serve, batch_tokens=options["batch_tokens"], seed=options["seed"])
    batches = serve(encoded, copies=2 if options["r_drop"] else 1)
    if valid is not None:
        valid = serve(data.encode_pairs(valid, folder / "valid", *both, **encode), shuffle=False)
    return batches, valid, tokenizers


def build(tokenizers, preset, **options):
    """The Transformer that the options describe, for these tokenizers."""
    from keras_tfm.models import PRESETS, transformer

    sizes = [tokenizer.vocab_size for tokenizer in tokenizers.values()]
    chosen = {name: value for name, value in options.items() if name in MODEL_FLAGS}
    return transformer(*sizes, **{**PRESETS[preset], **chosen})


def compile_model(model, learning_rate, warmup_steps, schedule, smoothing, r_drop, steps, **options):
    """Compiles with the paper's optimizer, a smoothed loss and metrics that leave padding out."""
    import keras

    from keras_tfm import training

    rates = training.SCHEDULES[schedule](learning_rate, warmup_steps or max(1, min(1000, steps // 10)), steps)
    ema = {"use_ema": True, "ema_momentum": options["ema"]} if options["ema"] else {}
    optimizer = keras.optimizers.Adam(
        rates,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        clipnorm=options["clipnorm"],
        gradient_accumulation_steps=options["accumulate"],
        **ema,
    )
    model.compile(
        optimizer,
        training.SmoothedCrossentropy(smoothing, r_drop),
        metrics=[training.TokenAccuracy(), training.Perplexity()],
        jit_compile="auto" if options["jit_compile"] is None else options["jit_compile"],
    )
