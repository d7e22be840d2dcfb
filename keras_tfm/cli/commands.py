"""The command `keras-tfm`: parses, checks what it can at once, calls the library and prints."""

import contextlib
import dataclasses
import errno
import functools
import glob
import hashlib
import itertools
import logging
import operator
import os
import re
import sys
import traceback

from keras_tfm import artifacts, data, serving
from keras_tfm.artifacts import SHIPPED
from keras_tfm.cli import developer_notes, flags
from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError
from keras_tfm.common.progress import Progress
from keras_tfm.data import corpus
from keras_tfm.data.tasks import TASKS
from keras_tfm.export import runners
from keras_tfm.runtimes import processes
from keras_tfm.text import KINDS

CHUNK = 512  # lines that are translated and written together
FEW = 64  # up to this many lines are translated sooner by a program that XLA has not optimized
LONGEST_EXPORT = 128  # tokens per text of an export, unless `--max_length` is given or less is saved
EXAMPLES = 12  # texts to click on in an exported page
SAMPLE = 5  # texts of the user's own that are translated at the end of a run
BLANK = "the model has not learned to translate yet: train it for more steps, or on more texts"

# An export is compared with the model on these, unless other texts are given or the run has texts of its own.
SENTENCES = ["a dog runs over the grass .", "two men in hats play chess", "3 de mayo de 2023", "4. Juli 1990", "x"]


class Warnings(logging.Handler):
    """Prints Python's warnings as one line, without the line of code that they come from."""

    def emit(self, record):
        message = re.sub(r"^.*?:\d+: \w+: ", "", record.getMessage()).partition("\n  ")[0]
        print(f"keras-tfm: warning: {message}", file=sys.stderr)


def main():
    """Runs the command line of the process."""
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").addHandler(Warnings())
    try:
        run(sys.argv[1:], developer_notes.without_developer_notes)
    except SystemExit as stop:
        if stop.code not in (130, 143):
            raise
        sys.stdout.flush()
        os._exit(stop.code)  # all is saved; TensorFlow could wait half a minute for the threads that read its data
    except Exception:
        traceback.print_exc()
        sys.exit("keras-tfm: this is a bug of keras_tfm; please report it with the lines above")


def run(argv, prepare=lambda: None):
    """Runs a command line, and returns what its command returns. `prepare` is called once the line is parsed."""
    arguments = flags.parse(argv)
    backend, name = arguments.pop("backend", None), arguments.pop("command")
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # read when a command imports Keras
    elif (backend := os.environ.get("KERAS_BACKEND") or extras.BACKENDS[0]) not in extras.BACKENDS:
        sys.exit(f"keras-tfm: error: KERAS_BACKEND must be one of {', '.join(extras.BACKENDS)}. Received: {backend}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        prepare()
        return COMMANDS[name](**arguments)
    except KeyboardInterrupt as error:
        print("".join(["keras-tfm: interrupted", *getattr(error, "__notes__", [])]), file=sys.stderr)
        sys.exit(128 + getattr(error, "signal", 2))
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        full = "; what was written before is intact: make room and run the same command again"
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        sys.exit(f"keras-tfm: error: {what}{full if error.errno == errno.ENOSPC else ''}")
    except UserError as error:
        sys.exit(f"keras-tfm: error: {error.naming(flags.names(name))}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in extras.PACKAGES:
            raise
        others = extras.other_backends(package) if name != "export" and "pip install" not in str(error) else []
        offer = "; or use {0}, which is installed: --backend {0}, or KERAS_BACKEND={0}" if others else ""
        sys.exit(f"keras-tfm: error: {extras.missing(package)}{offer.format(*others)}")


def check_model(model, exports=True, hint=""):
    """Returns the format of an export, or None for a run or a saved translator; raises an error for anything else."""
    if model.is_file():
        raise UserError(f"`model` must be a folder, given before the files. Received: {model}")
    format = artifacts.format_of(model)
    if format == "huggingface":  # which is read as a model
        extras.require("safetensors", "sentencepiece")
        return None
    if format is not None and not exports:
        raise UserError(f"`model` must be a run or a saved translator. Received: {model}, an export ({format})")
    if format is not None:
        extras.require(*artifacts.FORMATS[format].packages)
    elif not model.is_dir():
        raise FileNotFoundError(f"{model}: there is no such folder{hint}")
    elif not artifacts.Run(model).config.exists() and not artifacts.models_of(model):
        raise FileNotFoundError(f"{model}: must contain a run, a {artifacts.MODEL} or an export")
    return format


# ── the commands ──


def train(out, recipe, source, target, valid_source, valid_target, task, num_examples):
    """Trains a translator, see `keras-tfm train --help`, and returns it."""
    if (task is None) == (source is None):
        raise UserError(f"`task` or `source` must be given. Received: {'both' if task else 'neither'}")
    if out.exists() and not out.is_dir():
        raise UserError(f"`out` must be a folder. Received: {out}, a file")
    if out.is_dir() and processes.expected() == 1:
        with files.locked(out):
            pass  # if another process trains in it, the error comes now rather than after importing Keras
    needed = {"sacrebleu": recipe.bleu, "babel": task == "dates"}
    extras.require(*KINDS[recipe.tokenizer].packages, *(name for name, needs in needed.items() if needs))
    if task:
        pairs, valid = TASKS[task](num_examples), TASKS[task](1000, "valid")
    else:
        pairs = data.ParallelFiles(source, target)
        valid = data.ParallelFiles(valid_source, valid_target) if valid_source else None
    from keras_tfm.models import loading
    from keras_tfm.runtimes import devices
    from keras_tfm.training import trainer

    try:
        translator = trainer.train(pairs, out, recipe, valid, functools.partial(print, flush=True))
    except KeyboardInterrupt as error:
        with contextlib.suppress(files.DamagedFile):  # the next command reports it
            step = loading.saved_step(out)
            saved = f"""; step {step:,} is saved in {out}. Now
  the same command resumes the training,
  keras-tfm translate {out} uses the model as it is,
  keras-tfm finish {out} writes it as model.keras."""
            error.add_note(saved if step else " before anything was saved")
        raise
    if task and devices.is_main_process():
        test = TASKS[task](1000, "test")
        right = show(translator, test, recipe.verbose)
        print(f"{right / len(test):.1%} of {len(test):,} unseen texts exactly right (greedy)")
    elif recipe.verbose and devices.is_main_process():
        not_blank = (pair for pair in valid or pairs if all(map(str.strip, pair)))
        show(translator, list(itertools.islice(not_blank, SAMPLE)), 0)
    return translator


def show(translator, pairs, verbose):
    """Prints up to twenty greedy translations with their references; returns how many of all are exactly right."""
    sources, references = zip(*pairs, strict=True)
    greedy = translator.with_settings(num_beams=1, batch_size=128)
    greedy.jit_compile = len(pairs) > FEW
    # an untrained model would write until it may not write more
    greedy.longest_target = 1 + max(map(len, greedy.target_tokenizer.encode(references)))
    answers = greedy(sources, verbose)
    print("greedy translations (`keras-tfm translate` uses a beam):")
    for (source, reference), answer in zip(pairs[:20], answers, strict=False):
        print(f"  {source} → {answer}" + ("" if answer == reference else f"   (reference: {reference})"))
    if not any(map(str.strip, answers)):
        note(f"all {len(answers):,} translations are blank: {BLANK}")
    return sum(map(operator.eq, answers, references))


def note(message):
    """Prints what the user should know about the figures of a command."""
    print(f"keras-tfm: note: {message}", file=sys.stderr)


def finish(model, average):
    """Writes `model.keras` of an interrupted run, see `keras-tfm finish --help`."""
    run = artifacts.Run(model)
    if not run.config.exists():
        raise FileNotFoundError(f"{model}: must be the folder of a run, made by `keras-tfm train`")
    with files.locked(model):
        from keras_tfm.models import loading

        _, what = loading.finish(model, average or run.read_config()["average"])
    print(f"wrote {run.model}: {what}")


def load_translator(model, **options):
    """The translator of a run, a saved translator or an export."""
    translator = artifacts.load(model, **options)
    if getattr(translator, "origin", ""):
        print(f"using {translator.origin}", file=sys.stderr)
    return translator


def check_new(out, overwrite):
    """Raises an error if a file must not be written, or holds something that would be lost."""
    if out.exists() and not out.is_file():
        what = "a folder" if out.is_dir() else "which is not a regular one"
        raise UserError(f"`out` must be a file. Received: {out}, {what}")
    if not out.parent.is_dir():
        raise UserError(f"`out` must be in a folder that exists. Received: {out}")
    if not overwrite and out.exists() and out.stat().st_size:
        raise UserError(f"`out` must be a new file, unless `overwrite` is given. Received: {out}, which exists")


def translate(model, files, text, out, overwrite, **options):
    """Translates lines of files or of standard input, see `keras-tfm translate --help`."""
    format = check_model(model or SHIPPED, hint="; a text to translate comes after --text, or on standard input")
    for file in files:
        if not file.is_file():
            what = "a folder" if file.is_dir() else "no such file"
            raise UserError(f"{file}: must be a text file; pass text with --text. Received: {what}")
    if text and files:
        raise UserError(f"`text` and files must not both be given. Received: {text} and {list(map(str, files))}")
    if out is not None and any(out.exists() and file.samefile(out) for file in files):
        raise UserError(f"`out` must not be one of the files to translate. Received: {out}")
    if out is not None:
        check_new(out, overwrite)
    if model is None:
        print("no MODEL given: using the package's date translator (3. Mai 2023 → 2023-05-03)", file=sys.stderr)
    translator = load_translator(model or SHIPPED, **options)
    lines = text or (_lines(files) if files else corpus.decode_lines(sys.stdin.buffer, "standard input", "replace"))
    if out is not None:
        total = sum(1 for _ in _lines(files)) if files else None
        task = repr([options, *map(_checksums, [model or SHIPPED, *files])])
        write_translations(translator, lines, out, total, hashlib.sha256(task.encode()).hexdigest()[:16], overwrite)
        return
    typing = not files and not text and sys.stdin.isatty()
    lines = iter(lines)
    first = [] if typing else list(itertools.islice(lines, FEW + 1))
    if format is None and len(first) <= FEW:
        translator.jit_compile = False
    lines = itertools.chain(first, lines)
    with Progress(None, "translating", "line", verbose=not sys.stdout.isatty() and not typing) as bar:
        for translation in translator.stream(lines, chunk=1 if typing else CHUNK):
            print(" ".join(translation.splitlines()), flush=True)
            bar.add()


def write_translations(translator, lines, out, total, task, overwrite):
    """Writes translations into a file beside `out`, which becomes `out` when it is complete.

    An interrupted command leaves that file behind. The same `task`, a hash of model, options and input files, resumes
    it, unless `total`, the number of lines, is None.
    """
    partial = out.with_name(f".{out.name}.{task}.partial")
    for other in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        if other != partial or other.is_symlink() or total is None:
            other.unlink()
    try:
        with (
            open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb+") as file,
            Progress(total, "translating", "line") as bar,
        ):
            complete = [len(line) for line in file if line.endswith(b"\n")]
            file.seek(sum(complete))
            file.truncate()
            if complete:
                print(f"resuming after line {len(complete):,}", file=sys.stderr)
            bar.add(len(complete))
            translations = translator.stream(itertools.islice(lines, len(complete), None), CHUNK)
            while chunk := list(itertools.islice(translations, CHUNK)):
                file.write("".join(" ".join(text.splitlines()) + "\n" for text in chunk).encode())
                file.flush()  # an interruption loses none of it
                bar.add(len(chunk))
            os.fsync(file.fileno())
    except KeyboardInterrupt as error:
        error.add_note("; the same command resumes where it stopped" if total is not None else "")
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(out)) from error
    check_new(out, overwrite)  # again, since hours may have passed
    os.replace(partial, out)
    print(f"wrote {out}", file=sys.stderr)


def evaluate(model, source, reference, tokenize, **options):
    """Prints and returns the scores of a translator, see `keras-tfm evaluate --help`."""
    sources, references = zip(*data.ParallelFiles(source, reference), strict=True)
    check_model(model)
    extras.require("sacrebleu")
    if source.samefile(reference):
        raise UserError(f"`reference` must not be the source. Received: {reference}")
    from keras_tfm.training import evaluation

    translator = load_translator(model, **options)
    result = evaluation.evaluate(translator, sources, references, tokenize, verbose=1)
    signatures = result.pop("signatures")
    for name, value in result.items():
        print(f"{name:12} {value:10,.2f}  {evaluation.UNITS[name]:12} {signatures.get(name, '')}".rstrip())
    if sources == references:
        note(f"the references equal the sources: is {reference} the right file?")
    if result["exact"] == 100:
        note(f"all {len(sources):,} translations equal their references: was {reference} written by this translator?")
    if result["blank"] == 100:
        note(f"all {len(sources):,} translations are blank: {BLANK}")
    return result


def plot(model, text, layer, mean, out):
    """Plots the attention of each target token to the source, see `keras-tfm plot --help`."""
    check_model(model, exports=False)
    extras.require("matplotlib")
    from keras_tfm import plots

    out.parent.mkdir(parents=True, exist_ok=True)
    translation = plots.translation_map(load_translator(model, num_beams=1), text, out, layer, mean)
    print(f"{text} → {translation}\nwrote {out}")


def export(model, format, out, precision, texts, min_agreement, title, runtime, **options):
    """Exports a translator and compares it with the model, see `keras-tfm export --help`."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    check_model(model, exports=False)
    artifacts.check_precision(format, precision)
    kind = artifacts.FORMATS[format]
    extras.require(*kind.packages, *kind.writing_packages)
    page = {"title": title, "runtime": runtime}
    if format == "web":
        extras.npm_files(runtime)
        page["examples"] = list(itertools.islice(_lines([texts]), EXAMPLES)) if texts else None
    texts = list(_lines([texts])) if texts else sample_sources(model) or SENTENCES
    artifacts.new_export(out)  # raises an error if it must not be replaced
    translator = load_translator(model, **options)
    if "max_length" not in options:
        translator = translator.with_settings(max_length=min(translator.max_length, LONGEST_EXPORT))
    print(f"writing {out} and comparing it with the model, which takes a minute or two …", file=sys.stderr)
    agreement = {"compare_on": texts, "min_agreement": min_agreement}
    verdict = translator.export(out, format, precision, translator.max_length, **agreement, **page)
    print(f"wrote {out}: {verdict}")
    if verdict.blank == verdict.texts:
        note(BLANK)


def sample_sources(folder, count=20):
    """Some sources that a run validates or trains on, as strings; [] if the folder has no texts, or damaged ones."""
    run = artifacts.Run(folder)
    for path in (run.valid_data, run.train_data(0)):
        with contextlib.suppress(ValueError, OSError):
            pairs = data.TokenPairs(path)
            places = [place * (len(pairs) - 1) // (count - 1) for place in range(count)]
            sources = [pairs.sources[place] for place in dict.fromkeys(places)]
            return artifacts.load_tokenizers(run.folder)[0].decode(sources)
    return []


def import_(folder, out):
    """Writes a translator of another package as one of this package, see `keras-tfm import --help`."""
    extras.require("safetensors", "sentencepiece")
    from keras_tfm.translator import Translator

    translator = Translator.from_marian(folder)
    translator.save(out)
    print(f"wrote {out}: {translator.models[0].count_params():,} parameters")


def serve(model, **options):
    """Serves a translator over HTTP, see `keras-tfm serve --help`."""
    names = [field.name for field in dataclasses.fields(serving.Settings)]
    settings = serving.Settings(**{name: options.pop(name) for name in names if name in options})
    format = check_model(model or SHIPPED)
    if format is not None:
        runners.check_no_options(format, options)
    extras.require(*serving.server.PACKAGES)
    serving.serve(model or SHIPPED, settings, **options)


def info(model):
    """Prints what a folder contains, see `keras-tfm info --help`."""
    for name, value in artifacts.describe(model or SHIPPED):
        print(f"{name:14} {value}")


def _lines(paths):
    return itertools.chain.from_iterable(data.read_lines(path, "replace") for path in paths)


def _checksums(path):
    """Checksums of a file, or of the files directly in a folder: the model, or a manifest that covers all others."""
    paths = [path] if path.is_file() else sorted(path.glob("[!.]*"))
    return [files.checksum(path) for path in paths if path.is_file()]


COMMANDS = (train, translate, evaluate, plot, export, import_, serve, finish, info)
COMMANDS = {command.__name__.rstrip("_"): command for command in COMMANDS}
