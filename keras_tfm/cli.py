"""The command `keras-tfm`: it parses, checks what can be checked at once, calls the library and prints."""

import argparse
import errno
import gzip
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import warnings

import keras_tfm
from keras_tfm import exported, files, logs
from keras_tfm.progress import Progress

# Flags of `train` that are arguments of `transformer`: name → type and help. A test compares them with the builder's.
MODEL_FLAGS = {
    "num_layers": (int, "number of encoder blocks"),
    "num_decoder_layers": (int, "number of decoder blocks, if different"),
    "model_dim": (int, "width of the model"),
    "num_heads": (int, "number of attention heads"),
    "num_kv_heads": (int, "number of key/value heads, for grouped or multi-query attention"),
    "ff_dim": (int, "width of the feed-forward network"),
    "dropout": (float, "dropout rate on sublayers and embeddings (default: 0.1)"),
    "attention_dropout": (float, "dropout rate on attention weights (default: 0)"),
    "positions": (("sinusoidal", "learned", "index", "rotary", "relative", "alibi"), "position scheme"),
    "positions_in": (("input", "every_layer"), "where sinusoidal, learned and index positions enter"),
    "positions_combine": (("add", "concat"), "how they are combined with the features"),
    "max_length": (int, "longest text in tokens, including the end token; longer pairs are left out (default: 512)"),
    "norm": (("layer", "rms"), "kind of normalisation"),
    "norm_first": (bool, "normalise before each sublayer (pre-norm) instead of after"),
    "activation": (str, "of the feed-forward network: glu, reglu, geglu, swiglu or any Keras activation"),
    "score": (("dot", "scaled_dot", "cosine", "bilinear", "additive", "concat"), "how queries and keys are compared"),
    "heads": (("standard", "narrow", "wide"), "what each head sees"),
    "mixing": (("soft", "hard"), "weighted mean of all values, or only the best one"),
    "window": (int, "window size of self-attention, in tokens"),
    "use_bias": (bool, "biases in dense layers (default: yes)"),
    "kernel_initializer": (str, "name of a Keras initializer for kernels"),
    "bias_initializer": (str, "name of a Keras initializer for biases"),
    "tied_output": (bool, "compute logits with the target embeddings (default: yes)"),
    "packed": (bool, "put several pairs into each row, to waste less on padding"),
}
PRESET_SIZES = "tiny: 4+4 layers of width 128; small: 6+6, 256; base: 6+6, 512; big: 6+6, 1024; deep: 12+1, 512"
BACKENDS = ("tensorflow", "jax")
CHUNK = 512  # lines that are translated, and written, together

# What an exported translator is compared on, unless there are other texts.
SENTENCES = (
    "a dog runs over the grass .",
    "two men in hats play chess",
    "3 de mayo de 2023",
    "Mittwoch, 4. Juli 1990",
    "x",
)
# Packages that are not always installed: name → what it is needed for, and the extra that brings it.
EXTRAS = {
    "tensorflow": ("the backend is not installed", "tensorflow"),
    "jax": ("the backend is not installed", "jax"),
    "sentencepiece": ("tokenizers need SentencePiece", "train"),
    "babel": ("the task of dates needs Babel", "train"),
    "sacrebleu": ("scores need sacrebleu", "train"),
    "matplotlib": ("pictures need matplotlib", "plot"),
    "tensorflow_text": ("SavedModels need tensorflow-text", "text"),
    "ai_edge_litert": ("LiteRT files need their runtime", "litert"),
    "ctranslate2": ("this needs CTranslate2", "ctranslate2"),
    "onnxruntime": ("ONNX files need their runtime", "onnx"),
    "tf2onnx": ("the export to ONNX needs tf2onnx", "onnx"),
}
# Form of an export → packages that run it, and that write it beside TensorFlow.
RUNTIMES = {
    "saved_model": (("tensorflow", "tensorflow_text"), ("tensorflow_text",)),
    "litert": (("ai_edge_litert",), ("ai_edge_litert",)),
    "ctranslate2": (("ctranslate2",), ("ctranslate2",)),
    "onnx": (("onnxruntime",), ("onnxruntime", "tf2onnx")),
}


def main():
    """Runs the command line of the process; what it returns would be its exit status."""
    warnings.formatwarning = lambda message, *_: f"keras-tfm: warning: {message}\n"
    run(sys.argv[1:], logs.without_developer_notes)


def run(argv, prepare=lambda: None):
    """Runs a command line; returns what its command does. `prepare` is called once the line has been understood."""
    arguments = vars(_parser().parse_args([_underscored(word) for word in argv]))
    backend, command = arguments.pop("backend", None), arguments.pop("command")
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # read when Keras is imported, below
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        prepare()
        return command(**arguments)
    except KeyboardInterrupt as error:
        print(f"keras-tfm: interrupted{_afterwards(command, arguments)}", file=sys.stderr)
        sys.exit(128 + getattr(error, "signal", 2))
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        full = "; what was written before is intact: make room and run the same command again"
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        sys.exit(f"keras-tfm: error: {what}{full if error.errno == errno.ENOSPC else ''}")
    except (ValueError, FloatingPointError) as error:
        sys.exit(f"keras-tfm: error: {error}")
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        sys.exit(f"keras-tfm: error: {error}")


def _afterwards(command, arguments):
    """What an interrupted command has left behind, and how to go on."""
    if command is translate and arguments["out"]:
        return "; the same command goes on where it stopped"
    if command is not train or "keras_tfm.runs" not in sys.modules:
        return ""
    from keras_tfm import runs

    step = runs.saved_step(arguments["out"])
    if not step:
        return " before anything was saved"
    return (
        f"; step {step:,} is saved in {arguments['out']}. Now\n"
        f"  the same command again goes on with the training,\n"
        f"  keras-tfm translate {arguments['out']} uses the model as it is,\n"
        f"  keras-tfm finish {arguments['out']} writes it as model.keras."
    )


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


# ── the command line ──


def _parser():
    parser = argparse.ArgumentParser(prog="keras-tfm", description="Train, use and ship Transformers for translation.")
    parser.add_argument("--version", action="version", version=f"keras-tfm {keras_tfm.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_train(commands)
    add_translate(commands)
    add_evaluate(commands)
    add_plot(commands)
    add_export(commands)
    add_finish(commands)
    _command(commands, info, "say what a run, a model or an export is", optional=True)
    return parser


def _command(commands, function, text, optional=False, **options):
    """A command of the function's name, for a trained model."""
    parser = commands.add_parser(function.__name__, help=text, **{"description": f"{text.capitalize()}.", **options})
    parser.set_defaults(command=function)
    more = "; without one, the translator of dates that comes with the package" if optional else ""
    what = "folder of a run (`keras-tfm train`, finished or not), of a saved translator or of an export"
    parser.add_argument("model", nargs="?" if optional else None, type=pathlib.Path, help=what + more)
    return parser


def add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a translator on pairs of texts, or on a built-in task",
        description="Train a translator. The same command again goes on where the last one was stopped. What is not "
        "given is chosen to suit the texts and the machine.",
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(command=train)
    recipes = "default; quick (small, for a first look); small_corpus (does best on Multi30k's 29,000 pairs; long); "
    recipes += "paper (the base model of Attention Is All You Need)"
    parser.add_argument(
        "--recipe", choices=("default", "quick", "small_corpus", "paper"), default="default", help=recipes
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/latest"), help="folder of the run (default: %(default)s)"
    )
    parser.add_argument("--backend", choices=BACKENDS, help="Keras backend (default: that of KERAS_BACKEND)")
    add = parser.add_argument_group("data").add_argument
    add("--source", type=pathlib.Path, help="text file, one text per line, plain or .gz; or a .tsv with both texts")
    add("--target", type=pathlib.Path, help="their translations")
    add("--valid_source", type=pathlib.Path, help="texts to validate on")
    add("--valid_target", type=pathlib.Path, help="their translations")
    add("--task", choices=("dates", "reverse", "copy"), help="a built-in task instead of files")
    add("--num_examples", type=positive, help="number of pairs of the built-in task (default: 100,000)")
    add("--tokenizer", choices=("bpe", "unigram", "char", "word", "bytes"), help="default: bpe; for tasks char")
    add("--vocab_size", type=positive, help="most tokens in a vocabulary (default: by corpus, 8,000 to 32,000)")
    add("--separate", action="store_true", help="a vocabulary for each side instead of one for both")
    add("--sampling", type=float, help="subword sampling: share of BPE merges left out (default: 0)")
    add("--samples", type=positive, help="number of samples of the corpus that are made for it (default: 10)")
    add("--batch_tokens", type=positive, help="most tokens per batch and side, with padding (default: by corpus)")
    add("--num_shapes", type=positive, help="most different batch shapes; XLA compiles each (default: by machine)")
    add = parser.add_argument_group("model").add_argument
    add("--preset", choices=("tiny", "small", "base", "big", "deep"), help=f"sizes (default: tiny). {PRESET_SIZES}")
    for name, (kind, text) in MODEL_FLAGS.items():
        action = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        add(f"--{name}", help=text, **({"choices": kind} if isinstance(kind, tuple) else action))
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=positive, help="number of updates, rounded up to whole epochs (default: by corpus)")
    add("--passes", type=positive, help="how often to go over the texts, if --steps is not given")
    add("--steps_per_epoch", type=positive, help="updates between checkpoints (default: one pass, at most 1,000)")
    add("--save_minutes", type=float, help="how often the state is saved between checkpoints (default: 3)")
    add("--learning_rate", type=float, help="peak of the schedule (default: by width, 0.002 for tiny)")
    add("--warmup_steps", type=positive, help="updates until the peak (default: a tenth of all, at most 4,000)")
    add("--schedule", choices=("cosine", "inverse_sqrt"), help="how the rate falls after the peak (default: cosine)")
    add("--smoothing", type=float, help="label smoothing (default: 0.1)")
    add("--r_drop", type=float, help="weight of R-Drop, which doubles the work of a step (default: 0)")
    add("--clipnorm", type=float, help="clip gradients to this norm (default: no clipping)")
    add("--accumulate", type=positive, help="number of batches per update (default: 1)")
    add("--ema", type=float, help="use a moving average of the weights with this momentum as the result")
    add("--average", type=positive, help="use the mean of this many last checkpoints as the result (default: 1)")
    add("--patience", type=positive, help="stop after this many epochs without a better validation loss")
    add("--bleu", type=positive, help="translate this many validation texts after each epoch, and log BLEU and chrF")
    add("--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), help="of training (default: float32)")
    add("--jit_compile", action=argparse.BooleanOptionalAction, help="compile with XLA (default: where it is faster)")
    add("--seed", type=int, help="of weights, dropout, order and samples (default: 1)")
    add("--verbose", type=int, choices=(0, 1, 2), help="0 silence, 1 progress bar (default), 2 a line per epoch")


def add_translate(commands):
    again = "Translate texts line by line. With --out, the same command again goes on where it was interrupted."
    parser = _command(commands, translate, "translate files or standard input, line by line", True, description=again)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="text files, plain or .gz; none: standard input")
    parser.add_argument("--text", action="append", help="a text to translate; may be given several times")
    parser.add_argument("--out", type=pathlib.Path, help="file for the translations instead of standard output")
    add_decoding(parser)


def add_evaluate(commands):
    parser = _command(commands, evaluate, "score a translator: BLEU, chrF, exact match, perplexity, speed")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="text file, plain or .gz")
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="their translations")
    parser.add_argument(
        "--tokenize", default="13a", help="sacreBLEU's tokenizer; none for tokenised text (default: 13a)"
    )
    add_decoding(parser)


def add_plot(commands):
    parser = _command(commands, plot, "draw what each token of a translation attends to")
    parser.add_argument("text", help="a sentence")
    parser.add_argument("--layer", type=int, default=-1, help="decoder block, from 0; -1 is the last (default: -1)")
    parser.add_argument("--mean", action="store_true", help="draw the mean of the heads instead of each head")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("attention.png"),
        help="picture to write (default: %(default)s)",
    )
    parser.add_argument("--backend", choices=BACKENDS, help="Keras backend (default: that of KERAS_BACKEND)")


def add_export(commands):
    parser = _command(commands, export, "write a translator in a form to ship, and compare it with the model")
    parser.add_argument("--format", choices=RUNTIMES, required=True, help="what to write")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="folder to write; an earlier export is replaced"
    )
    parser.add_argument(
        "--precision", choices=("float32", "float16", "int8"), default="float32", help="of LiteRT and CTranslate2"
    )
    parser.add_argument("--texts", type=pathlib.Path, help="sentences to compare on, one per line (default: five)")
    add_decoding(parser, max_length=128, backends=("tensorflow",))


def add_finish(commands):
    text = "write model.keras of a run that was interrupted, from what it has saved"
    parser = _command(commands, finish, text)
    parser.add_argument("--average", type=positive, help="mean of this many last checkpoints (default: as the run)")
    parser.add_argument("--backend", choices=BACKENDS, help="Keras backend (default: that of KERAS_BACKEND)")


def add_decoding(parser, max_length=512, backends=BACKENDS):
    """Flags that are arguments of `Translator` and of what it hands on; only those given arrive."""
    group = parser.add_argument_group("decoding (fixed in an export)")

    def add(flag, **options):
        group.add_argument(flag, default=argparse.SUPPRESS, **options)

    add("--beams", type=positive, help="number of hypotheses kept; 1 is greedy search (default: 4)")
    add("--length_penalty", type=float, help="scores are divided by length to this power (default: 0.6)")
    add("--batch_size", type=positive, help="texts translated together (default: 64)")
    add("--max_length", type=positive, help=f"longest text in tokens (default: {max_length})")
    add("--no_repeat_ngram", type=int, help="never write this many tokens in a row twice (default: 0, no such rule)")
    parser.add_argument("--backend", choices=backends, help="Keras backend (default: that of KERAS_BACKEND)")


# ── checks that need neither Keras nor its backend ──


def require(*packages):
    """Raises an error unless all of these packages are installed."""
    for name in packages:
        try:
            found = importlib.util.find_spec(name) is not None
        except ValueError:  # what `find_spec` raises for a module that is blocked
            found = False
        if not found:
            why, extra = EXTRAS[name]
            raise ImportError(f"{why}: pip install 'keras_tfm[{extra}]'", name=name)


def backend_package():
    """The package of Keras' backend."""
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"]
    settings = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "keras.json"
    try:
        return json.loads(settings.read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow"


def require_backend():
    if backend_package() in EXTRAS:
        require(backend_package())


def check_files(*paths):
    for path in paths:
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")


def check_model(model):
    """The form of an export, or None for a run or a saved translator; an error for anything else."""
    if model.is_file():
        raise ValueError(f"`model` must be a folder, and comes before the files. Received: {model}")
    form = exported.form(model)
    if form is not None:
        require(*RUNTIMES[form][0])
    elif not model.is_dir():
        raise ValueError(
            f"`model` must be a folder. Received: {str(model)!r}, which does not exist. Text goes to standard input or "
            "to --text: keras-tfm translate MODEL --text 'some text'"
        )
    elif not (model / "config.json").exists() and not [*model.glob("model*.keras")]:
        raise FileNotFoundError(
            f"{model}: must hold a model.keras, as `keras-tfm train` writes it, or what `keras-tfm export` writes"
        )
    else:
        require_backend()
    return form


# ── the commands ──


def train(out, recipe, **given):
    """Trains a translator, see `keras-tfm train --help`; returns the model and its tokenizers."""
    if (given.get("task") is None) == (given.get("source") is None):
        received = "both" if given.get("task") else "neither"
        raise ValueError(f"`task` or `source` must be given, one of them. Received: {received}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"`out` must be a folder. Received: {out}, a file")
    check_files(*(given.get(name) for name in ("source", "target", "valid_source", "valid_target")))
    require_backend()
    require(*["sentencepiece"] * (given.get("tokenizer") != "bytes"), *["sacrebleu"] * ("bleu" in given))
    require(*["babel"] * (given.get("task") == "dates"))
    from keras_tfm import pipeline

    def say(line):
        print(line, flush=True)

    model, tokenizers = pipeline.train(out, recipe, say, **given)
    if given.get("task"):
        show(given["task"], model, tokenizers, given.get("verbose", 1))
    return model, tokenizers


def show(task, model, tokenizers, verbose, count=1000):
    """Prints how many texts of the test split come out exactly right, and twenty of them."""
    from keras_tfm import tasks
    from keras_tfm.translator import Translator

    pairs = tasks.TASKS[task](count, "test")
    translate = Translator(model, *tokenizers, beams=1, batch_size=128)
    answers = translate([source for source, _ in pairs], verbose)
    right = [answer == target for answer, (_, target) in zip(answers, pairs, strict=True)]
    for (source, target), answer in zip(pairs[:20], answers, strict=False):
        print(f"  {source} → {answer}" + ("" if answer == target else f"   (wrong: {target})"))
    print(f"{sum(right) / count:.1%} of {count:,} unseen texts exactly right")


def finish(model, average):
    """Writes `model.keras` of an interrupted run, see `keras-tfm finish --help`."""
    if not (model / "config.json").exists():
        raise FileNotFoundError(f"{model}: must be the folder of a run, as `keras-tfm train` makes it")
    require_backend()
    from keras_tfm import runs

    with files.locked(model):
        _, what = runs.finish(model, average or runs.read_config(model)["average"])
    print(f"wrote {model / 'model.keras'}: {what}")


def load_translator(model, form=None, **options):
    """The translator of a run, a saved translator or an export."""
    if form is not None:
        if options:
            raise ValueError(f"`{next(iter(options))}` is fixed in an export, here {form}. Received: {options}")
        return exported.load(model)
    from keras_tfm.translator import Translator

    translator = Translator.load(model, **options)
    if translator.origin:
        print(f"using {translator.origin}", file=sys.stderr)
    return translator


def translate(model, files, text, out, **options):
    """Translates lines of files or of standard input, see `keras-tfm translate --help`."""
    check_files(*files)
    if text and files:
        raise ValueError(f"`text` must not be given beside files. Received: both, {text} and {list(map(str, files))}")
    if model is None:
        model = dates_model()
        print("no MODEL: dates in 10 languages, a line each, as 3. Mai 2023 → 2023-05-03", file=sys.stderr)
    if out is not None and out.is_dir():
        raise ValueError(f"`out` must be a file. Received: {out}, a folder")
    translator = load_translator(model, check_model(model), **options)
    lines = text or (itertools.chain.from_iterable(map(_lines, files)) if files else _decoded(sys.stdin.buffer))
    if out is not None:
        total = sum(1 for _ in itertools.chain.from_iterable(map(_lines, files))) if files else None
        write_translations(translator, lines, out, total, [_identity(model), options, [_identity(f) for f in files]])
        return
    typing = not files and not text and sys.stdin.isatty()
    with Progress(None, "translating", "line", verbose=not sys.stdout.isatty() and not typing) as bar:
        for translation in translator.stream(lines, chunk=1 if typing else CHUNK):
            print(_one_line(translation), flush=True)
            bar.add()


def write_translations(translator, lines, out, total, task):
    """Writes translations into a file beside `out`, which takes its place when all are there.

    What an interrupted command has written stays there for the same `task`: model, options and files.
    """
    partial, record = (out.with_name(f".{out.name}.{end}") for end in ("partial", "partial.json"))
    task, done = {"task": task}, 0
    if total is not None and partial.exists() and record.exists() and files.read_json(record) == task:
        done = _whole_lines(partial)
        print(f"going on after line {done:,}", file=sys.stderr)
    else:
        partial.unlink(missing_ok=True)
        files.write_json(record, task)
    try:
        with (
            open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "ab") as file,
            Progress(total, "translating", "line") as bar,
        ):
            bar.add(done)
            translations = translator.stream(itertools.islice(lines, done, None), CHUNK)
            while chunk := list(itertools.islice(translations, CHUNK)):
                file.write("".join(_one_line(line) + "\n" for line in chunk).encode())
                file.flush()  # what is written is not lost if this is interrupted
                bar.add(len(chunk))
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error
    os.replace(partial, out)
    record.unlink()
    print(f"wrote {out}", file=sys.stderr)


def dates_model():
    """The folder of the translator of dates that comes with the package."""
    return pathlib.Path(__file__).parent / "shipped" / "dates"


def evaluate(model, source, reference, tokenize, **options):
    """Prints and returns the scores of a translator, see `keras-tfm evaluate --help`."""
    check_files(source, reference)
    form = check_model(model)
    require("sacrebleu")
    from keras_tfm import data

    sources, references = zip(*data.ParallelFiles(source, reference), strict=True)
    from keras_tfm import evaluation

    translator = load_translator(model, form, **options)
    result = evaluation.evaluate(translator, sources, references, tokenize, verbose=1)
    signatures = result.pop("signatures")
    for name, value in result.items():
        print(f"{name:12} {value:10,.2f}  {evaluation.UNITS[name]:12} {signatures.get(name, '')}".rstrip())
    return result


def plot(model, text, layer, mean, out):
    """Draws the attention of each target token to the source, see `keras-tfm plot --help`."""
    form = check_model(model)
    if form is not None:
        raise ValueError(f"`model` must be a run or a saved translator. Received: {model}, an export ({form})")
    require("matplotlib")
    from keras_tfm import plots

    out.parent.mkdir(parents=True, exist_ok=True)
    translation = plots.translation_map(load_translator(model, beams=1), text, out, layer, mean)
    print(f"{text} → {translation}\nwrote {out}")


def export(model, format, out, precision, texts, **options):
    """Writes a translator in a form to ship, see `keras-tfm export --help`; leaves nothing behind that does not run."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if format in ("saved_model", "onnx") and precision != "float32":
        raise ValueError(f"`precision` of {format} must be float32. Received: precision={precision!r}")
    if check_model(model) is not None:
        raise ValueError(f"`model` must be a run or a saved translator. Received: {model}, an export")
    check_files(texts)
    require(*RUNTIMES[format][1])
    exported.NewFolder(out)  # or an error before all the work
    texts = list(_lines(texts)) if texts else list(SENTENCES)
    from keras_tfm import export

    translator = load_translator(model, **{"max_length": 128, **options})
    print(f"writing {out} and comparing it with the model, which takes a minute or two …", file=sys.stderr)
    if format in ("saved_model", "onnx"):
        verdict = getattr(export, format)(translator, out, compare_on=texts)
    elif format == "litert":
        verdict = export.litert(translator, out, precision, compare_on=texts)
    else:
        verdict = export.ctranslate2(translator, out, None if precision == "float32" else precision, compare_on=texts)
    print(f"wrote {out}: {verdict}")


def info(model):
    """Prints what a folder holds, see `keras-tfm info --help`."""
    from keras_tfm.information import describe

    for name, value in describe(dates_model() if model is None else model):
        print(f"{name:14} {value}")


# ── lines ──


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
    count = end = 0
    with open(path, "rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count


def _identity(path):
    """Checksums of a file, or of what a folder's translations depend on."""
    if path.is_file():
        return files.checksum(path)
    ignored = {"data", "checkpoints", "tensorboard", "metrics.csv", "learning_curve.png", ".lock"}
    found = sorted(file for file in path.rglob("*") if file.is_file())
    inside = {str(file.relative_to(path)): file for file in found if file.relative_to(path).parts[0] not in ignored}
    return {name: files.checksum(file) for name, file in inside.items()}
