"""The command `keras-tfm`: it parses, checks what can be checked at once, calls the library and prints."""

import errno
import gzip
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import warnings
import zlib

from keras_tfm import exported, files, flags, logs
from keras_tfm.files import DATES
from keras_tfm.progress import Progress

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
    """Runs the command line of the process."""
    warnings.formatwarning = lambda message, *_: f"keras-tfm: warning: {message}\n"
    try:
        run(sys.argv[1:], logs.without_developer_notes)
    except SystemExit as stop:
        if stop.code not in (130, 143):
            raise
        sys.stdout.flush()
        os._exit(stop.code)  # all is saved; TensorFlow may wait half a minute for the threads that read its data


def run(argv, prepare=lambda: None):
    """Runs a command line; returns what its command does. `prepare` is called once the line has been understood."""
    arguments = flags.parse(argv)
    backend, command = arguments.pop("backend", None), COMMANDS[arguments.pop("command")]
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
    if command is translate and arguments["out"] and arguments["files"]:
        return "; the same command goes on where it stopped"
    if command is not train or "keras_tfm.runs" not in sys.modules:
        return ""
    from keras_tfm import runs

    try:
        step = runs.saved_step(arguments["out"])
    except ValueError as error:
        return f"; {error}"
    if not step:
        return " before anything was saved"
    return (
        f"; step {step:,} is saved in {arguments['out']}. Now\n"
        f"  the same command again goes on with the training,\n"
        f"  keras-tfm translate {arguments['out']} uses the model as it is,\n"
        f"  keras-tfm finish {arguments['out']} writes it as model.keras."
    )


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


def check_files(*paths, hint=""):
    for path in paths:
        if path is not None and path.is_dir():
            raise ValueError(f"{path}: must be a file. Received: a folder")
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file{hint}")


def check_not_in_use(folder):
    """Raises an error now, rather than after Keras has been imported, if another process trains in a folder."""
    if folder.is_dir():
        with files.locked(folder):
            pass


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
    for source, target in (("source", "target"), ("valid_source", "valid_target")):
        if given.get(source) and not given.get(target) and ".tsv" not in given[source].suffixes:
            raise ValueError(f"`{target}` must be given, unless {source} is a .tsv. Received: {source}={given[source]}")
    check_not_in_use(out)
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
    check_not_in_use(model)
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
    if model is not None and model.is_file():
        raise ValueError(f"`model` must be a folder, and comes before the files. Received: {model}")
    check_files(*files, hint="; a text goes to --text")
    if out is not None and any(out.exists() and file.samefile(out) for file in files):
        raise ValueError(f"`out` must be another file than those to translate. Received: {out}")
    if text and files:
        raise ValueError(f"`text` must not be given beside files. Received: both, {text} and {list(map(str, files))}")
    if model is None:
        model = DATES
        print("no MODEL given: using the package's translator of dates (3. Mai 2023 → 2023-05-03)", file=sys.stderr)
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
    if total is not None and partial.is_file() and not partial.is_symlink() and _holds(record, task):
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
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(out)) from error
    os.replace(partial, out)
    record.unlink()
    print(f"wrote {out}", file=sys.stderr)


def _holds(record, task):
    try:
        return files.read_json(record) == task
    except (files.DamagedFile, FileNotFoundError):  # then all lines are translated anew
        return False


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

    for name, value in describe(DATES if model is None else model):
        print(f"{name:14} {value}")


# ── lines ──


def _lines(path):
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            yield from _decoded(file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: must be a whole .gz file. Received: {error}") from error


def _decoded(file):
    """Lines of a binary file; what is no UTF-8 becomes U+FFFD, and is said."""
    for number, line in enumerate(file, 1):
        line = line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
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
    found = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    return {
        str(name): files.checksum(file)
        for name, file in found.items()
        if name.parts[0] not in ignored and not name.parts[0].endswith(".unfinished")
    }


COMMANDS = {command.__name__: command for command in (train, translate, evaluate, plot, export, finish, info)}
