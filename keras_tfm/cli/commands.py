"""The command `keras-tfm`: parses, checks what it can at once, calls the library and prints."""

import contextlib
import dataclasses
import errno
import functools
import itertools
import logging
import operator
import os
import re
import sys
import traceback

from keras_tfm import artifacts, data, serving
from keras_tfm.artifacts import SHIPPED
from keras_tfm.cli import developer_notes, flags, inputs
from keras_tfm.cli.translate import MAX_UNOPTIMIZED, translate
from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError
from keras_tfm.data.tasks import TASKS
from keras_tfm.export import runners
from keras_tfm.runtimes import compilation_cache, processes
from keras_tfm.text import KINDS

LONGEST_EXPORT = 128  # tokens per text of an export, unless `--max_length` is given or less is saved
EXAMPLES = 12  # texts to click on in an exported page
SAMPLE = 5  # texts that are translated at the end of a run, unless it is on a built-in task
BLANK = "the model has not learned to translate yet: train it for more steps, or on more texts"

# An export is compared with the model on these, unless `--texts` is given or the run still has its texts.
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


@contextlib.contextmanager
def hidden_packages(*packages):
    """Hides packages that Keras would import if they are installed but no command needs: that takes 2 of 6 seconds."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def run(argv, prepare=lambda: None):
    """Runs a command line, and returns what its command returns. `prepare` is called once the line is parsed."""
    arguments = flags.parse(argv)
    backend, name = arguments.pop("backend", None), arguments.pop("command")
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # read when a command imports Keras
    elif (backend := os.environ.get("KERAS_BACKEND") or extras.BACKENDS[0]) not in extras.BACKENDS:
        sys.exit(f"keras-tfm: error: KERAS_BACKEND must be one of {', '.join(extras.BACKENDS)}. Received: {backend}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if backend == "jax":
        with contextlib.suppress(OSError, UserError, ModuleNotFoundError):  # it works without a cache, too
            compilation_cache.cache_compilations()
    try:
        prepare()
        with hidden_packages("sklearn", *["matplotlib"] * (name == "translate")):
            return COMMANDS[name](**arguments)
    except KeyboardInterrupt as error:
        print("".join(["keras-tfm: interrupted", *getattr(error, "__notes__", [])]), file=sys.stderr)
        sys.exit(128 + getattr(error, "signal", 2))
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        full = "; what was written before is intact: free some space and run the same command again"
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        sys.exit(f"keras-tfm: error: {what}{full if error.errno == errno.ENOSPC else ''}")
    except UserError as error:
        sys.exit(f"keras-tfm: error: {error.naming(flags.names(name))}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in extras.PACKAGES:
            raise
        if "pip install" in str(error):
            sys.exit(f"keras-tfm: error: {error}")
        others = extras.other_backends(package) if name != "export" else []
        offer = "; or use {0}, which is installed: --backend {0}, or KERAS_BACKEND={0}" if others else ""
        sys.exit(f"keras-tfm: error: {extras.missing(package)}{offer.format(*others)}")


# ── the commands ──


def train(out, recipe, source, target, valid_source, valid_target, target_language, task, num_examples):
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
        pairs, valid = inputs.training_pairs(source, target, valid_source, valid_target, target_language)
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
        right = print_samples(translator, test, recipe.verbose)
        print(f"{right / len(test):.1%} of {len(test):,} unseen texts exactly right (greedy)")
    elif recipe.verbose and devices.is_main_process():
        not_blank = (pair for pair in valid or pairs if all(map(str.strip, pair)))
        print_samples(translator, list(itertools.islice(not_blank, SAMPLE)), 0)
    return translator


def print_samples(translator, pairs, verbose):
    """Prints up to twenty greedy translations with their references; returns how many of all are exactly right."""
    sources, references, *languages = zip(*pairs, strict=True)
    greedy = translator.with_settings(num_beams=1, batch_size=128)
    greedy.jit_compile = len(pairs) > MAX_UNOPTIMIZED
    # an untrained model would write until it may not write more
    greedy.longest_target = 1 + max(map(len, greedy.target_tokenizer.encode(references)))
    translations = greedy(sources, verbose, target_language=languages[0] if languages else None)
    print("greedy translations (`keras-tfm translate` uses a beam):")
    for (source, reference, *_), translation in zip(pairs[:20], translations, strict=False):
        print(f"  {source} → {translation}" + ("" if translation == reference else f"   (reference: {reference})"))
    if not any(map(str.strip, translations)):
        note(f"all {len(translations):,} translations are blank: {BLANK}")
    return sum(map(operator.eq, translations, references))


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


def evaluate(model, file, source, reference, target_language, tokenize, **options):
    """Prints and returns the scores of a translator, see `keras-tfm evaluate --help`."""
    if source is not None and reference is None:
        raise UserError(f"`reference` must be given with `source`. Received: {source} alone")
    if (file is None) == (source is None) or (source is None) != (reference is None):
        received = [str(path) for path in (file, source, reference) if path]
        raise UserError(f"a document, or `source` and `reference`, must be given. Received: {received or 'neither'}")
    pairs = data.ParallelFiles(file or source, reference, target_language)
    inputs.check_model(model)
    extras.require("sacrebleu")
    if reference and source.samefile(reference):
        raise UserError(f"`reference` must not be the source. Received: {reference}")
    from keras_tfm.training import evaluation

    translator = inputs.load_translator(model, **options)
    if translator.languages and not pairs.languages and not translator.target_language:
        pairs = data.ParallelFiles(file or source, reference, target_language, with_languages=True)
    sources, references, call = inputs.evaluation_texts(pairs, translator.languages)
    result = evaluation.evaluate(translator, sources, references, tokenize, verbose=1, **call)
    signatures = result.pop("signatures")
    for name, value in result.items():
        print(f"{name:12} {value:10,.2f}  {evaluation.UNITS[name]:12} {signatures.get(name, '')}".rstrip())
    if sources == references:
        note(f"the references equal the sources: is {reference or file} the right file?")
    if result["exact"] == 100:
        question = f"was {reference or file} written by this translator?"
        note(f"all {len(sources):,} translations equal their references: {question}")
    if result["blank"] == 100:
        note(f"all {len(sources):,} translations are blank: {BLANK}")
    return result


def plot(model, text, layer, mean, out):
    """Plots the attention of each target token to the source, see `keras-tfm plot --help`."""
    inputs.check_model(model, exports=False)
    extras.require("matplotlib")
    from keras_tfm import plots

    out.parent.mkdir(parents=True, exist_ok=True)
    translation = plots.translation_map(inputs.load_translator(model, num_beams=1), text, out, layer, mean)
    print(f"{text} → {translation}\nwrote {out}")


def export(model, format, out, precision, texts, min_agreement, jit_compile, title, runtime, explain, **options):
    """Exports a translator and compares it with the model, see `keras-tfm export --help`."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    inputs.check_model(model, exports=False)
    artifacts.check_precision(format, precision)
    kind = artifacts.FORMATS[format]
    extras.require(*kind.packages, *kind.writing_packages)
    own = {"title": title, "runtime": runtime, "explain": explain or None, "jit_compile": jit_compile}
    if format == "web":
        extras.npm_files(runtime, explain)
        own["examples"] = list(itertools.islice(inputs.lines_of([texts]), EXAMPLES)) if texts else None
    texts = list(inputs.lines_of([texts])) if texts else sample_sources(model) or SENTENCES
    artifacts.new_export(out)  # raises an error if it must not be replaced
    translator = inputs.load_translator(model, **options)
    if "max_length" not in options:
        translator = translator.with_settings(max_length=min(translator.max_length, LONGEST_EXPORT))
    print(f"writing {out} and comparing it with the model, which takes a minute or two …", file=sys.stderr)
    agreement = {"compare_on": texts, "min_agreement": min_agreement}
    verdict = translator.export(out, format, precision, translator.max_length, **agreement, **own)
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
    format = inputs.check_model(model or SHIPPED)
    if format is not None:
        runners.check_no_options(format, options)
    extras.require(*serving.server.PACKAGES)
    serving.serve(model or SHIPPED, settings, **options)


def info(model):
    """Prints what a folder contains, see `keras-tfm info --help`."""
    for name, value in artifacts.describe(model or SHIPPED):
        print(f"{name:14} {value}")


COMMANDS = (train, translate, evaluate, plot, export, import_, serve, finish, info)
COMMANDS = {command.__name__.rstrip("_"): command for command in COMMANDS}
