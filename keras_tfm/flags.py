"""The command line of `keras-tfm`: its commands and their flags. The flags of `train` are the fields of `Recipe`."""

import argparse
import dataclasses
import pathlib
import re

import keras_tfm
from keras_tfm.recipes import RECIPES, Recipe, kind, resolve

BACKENDS = ("tensorflow", "jax", "torch")
FORMATS = ("saved_model", "litert", "ctranslate2", "onnx")
OPTIONS = {field.name: field for field in dataclasses.fields(Recipe)}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        self.exit(2, f"keras-tfm: error: {message}; see `{self.prog} --help`\n")


def parse(argv):
    """The arguments of a command line as a dict, with the name of the `command`; those of `train` hold a `Recipe`."""
    arguments = vars(_parser().parse_args([_underscored(word) for word in argv]))
    if arguments["command"] == "train":
        if arguments["task"]:
            arguments.setdefault("tokenizer", "char")
        changes = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        try:
            arguments["recipe"] = resolve(arguments["recipe"], **changes)
        except ValueError as error:
            Parser(prog="keras-tfm train").error(in_terms_of_flags(str(error)))
    return arguments


def in_terms_of_flags(message, names=()):
    """An error message of the library, with the flags of the command for options and other `names`.

    >>> in_terms_of_flags("`steps` must be a positive integer. Received: steps=0")
    '--steps must be a positive integer. Received: steps=0'
    """
    flags = {name: f"--{name}" for name in (*OPTIONS, *names)} | {"folder": "--out", "valid": "--valid_source"}
    return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), message)


def positive(text):
    """A positive integer. Argparse quotes the name of this function when it raises an error."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def _underscored(word):
    """Flags are spelled like arguments, but hyphens work too."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    prefix = "--no-" if flag.startswith("--no-") else "--"
    return prefix + flag.removeprefix(prefix).replace("-", "_") + equals + value


def _parser():
    parser = Parser(prog="keras-tfm", description="Train, use and ship Transformers for translation.")
    parser.add_argument("--version", action="version", version=f"keras-tfm {keras_tfm.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (_add_train, _add_translate, _add_evaluate, _add_plot, _add_export, _add_finish, _add_info):
        add(commands)
    return parser


def _add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a translator on pairs of texts, or on a built-in task",
        description="Train a translator. To resume an interrupted run, give the same command again. Options that are "
        "not given are chosen to suit the texts and the machine.",
    )
    parser.set_defaults(command="train")
    recipes = "default; quick (small, for a first look); small_corpus (best on Multi30k's 29,000 pairs, but slow); "
    recipes += "paper (the base model of Attention Is All You Need)"
    parser.add_argument("--recipe", choices=RECIPES, default="default", help=recipes)
    out = pathlib.Path("runs/latest")
    parser.add_argument("--out", type=pathlib.Path, default=out, help="folder of the run (default: %(default)s)")
    _add_backend(parser)
    groups = {name: parser.add_argument_group(name) for name in ("data", "model", "training")}
    add = groups["data"].add_argument
    add("--source", type=pathlib.Path, help="text file, one text per line, plain or .gz; or a .tsv with both texts")
    add("--target", type=pathlib.Path, help="text file with their translations")
    add("--valid_source", type=pathlib.Path, help="texts to validate on")
    add("--valid_target", type=pathlib.Path, help="their translations")
    add("--task", choices=("dates", "reverse", "copy"), help="a built-in task instead of files, char tokenizer")
    add("--num_examples", type=positive, default=100_000, help="number of pairs of the task (default: %(default)s)")
    for name, field in OPTIONS.items():
        options = {"default": argparse.SUPPRESS, "help": field.metadata["help"]}
        if kind(field) is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = kind(field)
            options["help"] += "" if field.default is None else f" (default: {field.default})"
        if isinstance(field.metadata["allowed"], tuple):
            options["choices"] = field.metadata["allowed"]
        groups[field.metadata["group"]].add_argument(f"--{name}", **options)


def _add_translate(commands):
    parser = _command(commands, "translate", "translate files or standard input, line by line", model_optional=True)
    parser.description += " With --out, the same command again resumes an interrupted translation."
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="text files, plain or .gz; none: standard input")
    parser.add_argument("--text", action="append", help="a text to translate; can be given several times")
    parser.add_argument("--out", type=pathlib.Path, help="file for the translations instead of standard output")
    _add_backend(parser)
    _add_decoding(parser)


def _add_evaluate(commands):
    parser = _command(commands, "evaluate", "score a translator: BLEU, chrF, exact match, perplexity, speed")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="text file, plain or .gz")
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="text file with their translations")
    tokenize = "sacreBLEU's tokenizer; none for text that is already tokenized (default: %(default)s)"
    parser.add_argument("--tokenize", default="13a", help=tokenize)
    _add_backend(parser)
    _add_decoding(parser)


def _add_plot(commands):
    parser = _command(commands, "plot", "plot what each token of a translation attends to")
    parser.add_argument("text", help="a sentence")
    layer = "decoder block, counted from 0; -1 is the last (default: %(default)s)"
    parser.add_argument("--layer", type=int, default=-1, help=layer)
    parser.add_argument("--mean", action="store_true", help="plot the mean of the heads instead of each head")
    out = pathlib.Path("attention.png")
    parser.add_argument("--out", type=pathlib.Path, default=out, help="image to write (default: %(default)s)")
    _add_backend(parser)


def _add_export(commands):
    parser = _command(commands, "export", "export a translator to ship, and compare it with the model")
    add = parser.add_argument
    add("--format", choices=FORMATS, required=True, help="what to write")
    add("--out", type=pathlib.Path, required=True, help="folder to write; an earlier export there is replaced")
    precisions = ("float32", "float16", "int8")
    add("--precision", choices=precisions, default="float32", help="for LiteRT and CTranslate2 (default: %(default)s)")
    add("--texts", type=pathlib.Path, help="sentences to compare on, one per line (default: five sentences)")
    _add_decoding(parser, max_length=128)


def _add_finish(commands):
    parser = _command(commands, "finish", "write model.keras of an interrupted run, from what it has saved")
    average = "use the mean of this many last checkpoints (default: the run's own setting)"
    parser.add_argument("--average", type=positive, help=average)
    _add_backend(parser)


def _add_info(commands):
    _command(commands, "info", "describe a run, a saved translator or an export", model_optional=True)


def _command(commands, name, text, model_optional=False):
    """A command for a trained model."""
    parser = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(command=name)
    model = "folder of a run (`keras-tfm train`, finished or not) or of a saved translator"
    model += ", or of an export" if name in ("translate", "evaluate", "info") else ""
    model += "; by default, the date translator that comes with the package" if model_optional else ""
    parser.add_argument("model", nargs="?" if model_optional else None, type=pathlib.Path, help=model)
    return parser


def _add_backend(parser):
    parser.add_argument("--backend", choices=BACKENDS, help="Keras backend (default: that of KERAS_BACKEND)")


def _add_decoding(parser, max_length=512):
    """Flags that are arguments of `Translator`. Only those given on the command line become arguments."""
    group = parser.add_argument_group("decoding (fixed in an export)", argument_default=argparse.SUPPRESS)
    add = group.add_argument
    add("--beams", type=positive, help="number of hypotheses kept; 1 is greedy search (default: 4)")
    add("--length_penalty", type=float, help="divide scores by the length to this power (default: 0.6)")
    add("--batch_size", type=positive, help="number of texts translated together (default: 64)")
    add("--max_length", type=positive, help=f"maximum tokens per text (default: {max_length})")
    add("--no_repeat_ngram", type=int, help="never repeat a sequence of this many tokens (default: 0, off)")
