"""The command line of `keras-tfm`: its commands and their flags. Most flags of `train` are the fields of `Recipe`."""

import argparse
import dataclasses
import pathlib

import keras_tfm
from keras_tfm import documents
from keras_tfm.artifacts import FORMATS
from keras_tfm.common import source
from keras_tfm.common.arguments import UserError, did_you_mean
from keras_tfm.common.extras import BACKENDS
from keras_tfm.data.tasks import TASKS
from keras_tfm.export.runners import MIN_AGREEMENT
from keras_tfm.options import GROUPS, RECIPES, Recipe, Words, default_text, description, differences, kind, resolve
from keras_tfm.serving import Settings


def positive(text):
    """A positive integer."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {text}")
    return int(text)


def fraction(text):
    """A number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1. Received: {text}")
    return number


OPTIONS = {field.name: field for field in dataclasses.fields(Recipe)}
SERVING = {field.name: field for field in dataclasses.fields(Settings)}
PATH = {"type": pathlib.Path}
PATHS = {**PATH, "nargs": "+"}
DOCUMENTS = " ".join(suffix[1:] for suffix in documents.FORMATS)
PAIRS = "PO, MO, TMX, XLIFF, or TSV of two columns, or three with the language"
BY_FILE = " (default: what a file declares, or its name, as in app.de.po)"
BACKEND = {"choices": BACKENDS, "help": "Keras backend (default: that of KERAS_BACKEND)"}
RUN = "folder of a run (`keras-tfm train`, finished or not) or of a saved translator"
MODEL = {**PATH, "help": RUN}
MODEL_OR_EXPORT = {**PATH, "help": f"{RUN}, or of an export"}
SHIPPED = "; by default, the date translator that comes with the package"
OPTIONAL_MODEL = {**PATH, "nargs": "?", "help": f"{RUN}, or of an export{SHIPPED}"}
DEFAULT_LANGUAGE = {
    "default": argparse.SUPPRESS,  # as saved
    "help": "for a multilingual model: language to translate into if a text or request names none, such as de",
}
PRECISIONS = tuple(dict.fromkeys(precision for format in FORMATS.values() for precision in format.precisions))
BY_FORMAT = "; ".join(f"{name}: {', '.join(format.precisions)}" for name, format in FORMATS.items())
# Command → what it does, and its arguments.
COMMANDS = {
    "train": "train a translator on pairs of texts or on a built-in task; the same command resumes an interrupted run",
    "translate": "translate documents, or text line by line, which the same command resumes with --out",
    "evaluate": "score a translator: BLEU, chrF, exact match, perplexity, speed",
    "plot": "plot what each token of a translation attends to",
    "export": "export a translator to ship, and compare it with the model",
    "import": "read a translator of OPUS-MT, in the format of Hugging Face or of Marian",
    "serve": "serve a translator over HTTP, with TensorFlow Serving's REST API",
    "finish": "write model.keras of an interrupted run, from what it has saved",
    "info": "describe a run, a saved translator or an export",
}
ARGUMENTS = {
    "train": {
        "--recipe": {
            "choices": tuple(RECIPES),
            "default": "default",
            "help": "; ".join(f"{name}: {', '.join(differences(RECIPES[name]))}" for name in RECIPES),
        },
        "--out": {**PATH, "default": "runs/latest", "help": "folder of the run (default: %(default)s)"},
        "--source": {**PATHS, "help": f"text files, one text per line, plain or .gz; or with both texts: {PAIRS}"},
        "--target": {
            **PATHS,
            "help": "files with the translations, one for each source; also JSON, Fluent, properties",
        },
        "--target_language": {
            "nargs": "+",
            "help": f"languages of the translations, one for all files or one each{BY_FILE}",
        },
        "--valid_source": {**PATHS, "help": "validation texts"},
        "--valid_target": {**PATHS, "help": "translations of the validation texts"},
        "--task": {"choices": tuple(TASKS), "help": "a built-in task instead of files"},
        "--num_examples": {"type": positive, "default": 100_000, "help": "number of pairs (default: %(default)s)"},
    },
    "translate": {
        "model": OPTIONAL_MODEL,
        "files": {
            **PATH,
            "nargs": "*",
            "help": f"text files, plain or .gz, or a document: {DOCUMENTS}; none: standard input",
        },
        "--text": {"action": "append", "help": "a text to translate; can be given several times"},
        "--out": {**PATH, "help": "new file for the translations, instead of standard output"},
        "--overwrite": {"action": "store_true", "help": "replace the file if it exists, once all is translated"},
        "--target_language": {
            "help": "language to translate into, such as de (default: what a document declares, or the name of --out, "
            "as in app.de.po)"
        },
        "--glossary": {**PATH, "help": "file with a term, a tab and its translation on each line"},
        "--format": {"choices": DOCUMENTS.split(), "help": "format of a file with another suffix; txt: lines"},
        "--all": {"action": "store_true", "help": "translate texts of a document that have a translation, too"},
        "--source_language": {
            "default": "en",
            "help": "language of a document, by whose rules it is split into sentences (default: %(default)s)",
        },
        "--report": {**PATH, "help": "new file that lists the texts of a document that need attention"},
    },
    "evaluate": {
        "model": MODEL_OR_EXPORT,
        "file": {**PATH, "nargs": "?", "help": f"texts with reference translations: {PAIRS}"},
        "--source": {**PATH, "help": "text file, plain or .gz"},
        "--reference": {**PATH, "help": "text file with the reference translations"},
        "--target_language": {"help": f"code of the language to translate into{BY_FILE}"},
        "--tokenize": {"default": "13a", "help": "sacreBLEU's tokenizer, or none (default: %(default)s)"},
    },
    "plot": {
        "model": MODEL,
        "text": {"help": "a sentence"},
        "--layer": {"type": int, "default": -1, "help": "decoder block, counted from 0; -1 is the last (default)"},
        "--mean": {"action": "store_true", "help": "plot the mean of the heads instead of each head"},
        "--out": {**PATH, "default": "attention.png", "help": "image to write (default: %(default)s)"},
    },
    "export": {
        "model": MODEL,
        "--format": {"choices": tuple(FORMATS), "required": True},
        "--out": {**PATH, "required": True, "help": "folder to write; an earlier export there is replaced"},
        "--precision": {"choices": PRECISIONS, "help": f"of the weights, default first. {BY_FORMAT}"},
        "--texts": {**PATH, "help": "sentences to compare on, one per line (default: texts of the run)"},
        "--min_agreement": {
            "type": fraction,
            "help": "minimum similarity of its translations to the model's, from 0 (accept any export) to 1 (default: "
            f"{MIN_AGREEMENT['float32']}, for int8 {MIN_AGREEMENT['int8']})",
        },
        "--jit_compile": {
            "action": "store_true",
            "help": "let XLA compile the search of a SavedModel for single texts, when it is first used",
        },
        "--title": {"help": "title of a page (default: Translator)"},
        "--runtime": {**PATH, "help": "folder with LiteRT.js, for a page (default: node_modules)"},
        "--explain": {
            "action": "store_true",
            "help": "add a page that shows how a Transformer translates, step by step",
        },
        "--target_language": DEFAULT_LANGUAGE,
    },
    "import": {
        "folder": {**PATH, "help": "its files: model.safetensors, *.json, *.spm; or Marian's own .npz, .yml, .spm"},
        "--out": {**PATH, "required": True, "help": "folder to write, for `keras-tfm translate`, `export` and others"},
    },
    "serve": {"model": OPTIONAL_MODEL, "--target_language": DEFAULT_LANGUAGE},
    "finish": {
        "model": {**PATH, "help": "folder of the run"},
        "--average": {"type": positive, "help": "number of checkpoints to average (default: the run's setting)"},
    },
    "info": {"model": OPTIONAL_MODEL},
}
AS_SAVED = "fixed in an export; by default, as saved with the translator"
DECODES = ("translate", "evaluate", "export", "serve")  # commands with the next flags, arguments of `Translator`
# Name → type and help; the library has the defaults.
DECODING = {
    "num_beams": (positive, "number of hypotheses kept; 1 is greedy search"),
    "length_penalty": (float, "divide scores by the length to this power"),
    "early_stopping": (bool, "stop once no hypothesis would be the best if it ended now, even if one could become it"),
    "batch_size": (positive, "number of texts translated together"),
    "max_length": (positive, "maximum tokens per text; for exports at most 128 by default"),
    "no_repeat_ngram_size": (int, "never repeat a sequence of this many tokens, unless it is 0"),
}
SAMPLING = {  # of `translate`, instead of a beam search
    "temperature": (float, "draw tokens by their probability; above 1 for more variety"),
    "top_k": (positive, "draw from this many most probable tokens only"),
    "top_p": (fraction, "draw from the fewest tokens that together have this probability"),
    "min_p": (fraction, "draw from tokens with at least this fraction of the highest probability"),
    "seed": (int, "draw the same tokens each time"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        self.exit(2, f"keras-tfm: error: {message}; see `{self.prog} --help`\n")


def parse(argv):
    """The arguments of a command line as a dict, with the name of the `command`; those of `train` hold a `Recipe`."""
    namespace, unknown = _parser().parse_known_args([_underscored(word) for word in argv])
    arguments = vars(namespace)
    if unknown:
        hint = did_you_mean(unknown[0].partition("=")[0], names(arguments["command"]).values())
        Parser(prog=f"keras-tfm {arguments['command']}").error(f"unknown arguments: {' '.join(unknown)}{hint}")
    if arguments["command"] == "train":
        changes = {"tokenizer": "char"} if arguments["task"] else {}
        changes |= {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        try:
            arguments["recipe"] = resolve(arguments["recipe"], **changes)
        except UserError as error:
            Parser(prog="keras-tfm train").error(error.naming(names("train")))
    return arguments


def names(command):
    """What a command calls the arguments of the library: name → flag, or name of a positional argument.

    >>> names("translate")["folder"], names("export")["folder"]
    ('`model`', '--out')
    """
    flags = [flag for flag in ARGUMENTS[command] if flag.startswith("--")]
    derived = {"train": OPTIONS, "serve": SERVING, "translate": SAMPLING}.get(command, {})
    flags += [f"--{name}" for name in (*derived, *(DECODING if command in DECODES else ()))]
    flags = {flag.removeprefix("--"): flag for flag in flags}
    others = {"valid": "valid_source", "compare_on": "texts", "languages": "target_language"}
    others |= {"sources": "source", "targets": "target" if command == "train" else "reference"}
    others |= {"folder": "out"} if command in ("train", "export", "import") else {}
    return {"folder": "`model`"} | flags | {name: flags[flag] for name, flag in others.items() if flag in flags}


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
    for name, text in COMMANDS.items():
        about = {"help": text, "description": f"{text[0].upper()}{text[1:]}."}
        command = commands.add_parser(name, allow_abbrev=False, **about)
        command.set_defaults(command=name)
        for flag, options in ARGUMENTS[name].items():
            command.add_argument(flag, **options)
        if name not in ("export", "info"):  # exports need TensorFlow, and information needs no backend
            command.add_argument("--backend", **BACKEND)
        for group, fields in GROUPS.items() if name == "train" else ():
            _add_fields(command.add_argument_group(group), dataclasses.fields(fields))
        if name == "serve":
            _add_fields(command, dataclasses.fields(Settings))
        if name in DECODES:
            without = {"batch_size"} if name == "serve" else ()  # which is `--max_batch` there
            _add_options(command.add_argument_group(f"decoding ({AS_SAVED})"), DECODING, without)
        if name == "translate":
            _add_options(command.add_argument_group("sampling"), SAMPLING)
    return parser


def _add_fields(group, fields):
    """Adds the flags of a dataclass. Unless a flag is given, there is no argument, and the default holds."""
    for field in fields:
        flag = {"type": kind(field)}
        if kind(field) is bool:
            flag = {"action": argparse.BooleanOptionalAction}
        elif isinstance(field.metadata["allowed"], Words):
            flag["choices"] = [*field.metadata["allowed"]]
        also = ["--from"] if field.name == "start_from" else []
        group.add_argument(f"--{field.name}", *also, default=argparse.SUPPRESS, help=description(field), **flag)


def _add_options(group, options, without=()):
    """Adds flags for arguments of `Translator` and of its samplers."""
    defaults = source.parameters("translator.Translator")
    defaults = defaults | source.parameters("decoding.samplers.Sample") | source.parameters("decoding.samplers.Beam")
    for name in (name for name in options if name not in without):
        type, text = options[name]
        flag = {"action": argparse.BooleanOptionalAction} if type is bool else {"type": type}
        text += "" if defaults[name] is None else f" (default: {default_text(defaults[name])})"
        group.add_argument(f"--{name}", default=argparse.SUPPRESS, help=text, **flag)
