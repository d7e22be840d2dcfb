"""The command line of `keras-tfm`: its commands and their flags. Most flags of `train` are the fields of `Recipe`."""

import argparse
import dataclasses
import pathlib

import keras_tfm
from keras_tfm.artifacts import FORMATS
from keras_tfm.common.arguments import UserError, closest
from keras_tfm.common.extras import BACKENDS
from keras_tfm.data.tasks import TASKS
from keras_tfm.export.runners import MIN_AGREEMENT
from keras_tfm.options import GROUPS, RECIPES, Recipe, Words, description, differences, kind, resolve
from keras_tfm.serving import Settings


def positive(text):
    """A positive integer. Argparse quotes the name of this function if it raises an error."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def share(text):
    """A number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError
    return number


OPTIONS = {field.name: field for field in dataclasses.fields(Recipe)}
SERVING = {field.name: field for field in dataclasses.fields(Settings)}
PATH = {"type": pathlib.Path}
BACKEND = {"choices": BACKENDS, "help": "Keras backend (default: that of KERAS_BACKEND)"}
MODEL = "folder of a run (`keras-tfm train`, finished or not) or of a saved translator"
SHIPPED = "; by default, the date translator that comes with the package"
# Command → what it does, and its arguments.
COMMANDS = {
    "train": "train a translator on pairs of texts or on a built-in task; the same command resumes an interrupted run",
    "translate": "translate files or standard input, line by line; with --out, the same command resumes",
    "evaluate": "score a translator: BLEU, chrF, exact match, perplexity, speed",
    "plot": "plot what each token of a translation attends to",
    "export": "export a translator to ship, and compare it with the model",
    "import": "read a translator of OPUS-MT, in the format of Hugging Face or of Marian",
    "serve": "serve a translator over HTTP, with the requests and answers of TensorFlow Serving's REST API",
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
        "--source": {**PATH, "help": "text file, one text per line, plain or .gz; or a .tsv with both texts"},
        "--target": {**PATH, "help": "text file with the translations of the source"},
        "--valid_source": {**PATH, "help": "texts to validate on"},
        "--valid_target": {**PATH, "help": "translations of the texts to validate on"},
        "--task": {"choices": tuple(TASKS), "help": "a built-in task instead of files"},
        "--num_examples": {"type": positive, "default": 100_000, "help": "number of pairs (default: %(default)s)"},
    },
    "translate": {
        "model": {**PATH, "nargs": "?", "help": f"{MODEL}, or of an export{SHIPPED}"},
        "files": {**PATH, "nargs": "*", "help": "text files, plain or .gz; none: standard input"},
        "--text": {"action": "append", "help": "a text to translate; can be given several times"},
        "--out": {**PATH, "help": "new file for the translations, instead of standard output"},
        "--overwrite": {"action": "store_true", "help": "replace the file if it exists, once all is translated"},
    },
    "evaluate": {
        "model": {**PATH, "help": f"{MODEL}, or of an export"},
        "--source": {**PATH, "required": True, "help": "text file, plain or .gz"},
        "--reference": {**PATH, "required": True, "help": "text file with the reference translations"},
        "--tokenize": {"default": "13a", "help": "sacreBLEU's tokenizer, or none (default: %(default)s)"},
    },
    "plot": {
        "model": {**PATH, "help": MODEL},
        "text": {"help": "a sentence"},
        "--layer": {"type": int, "default": -1, "help": "decoder block, counted from 0; -1 is the last (default)"},
        "--mean": {"action": "store_true", "help": "plot the mean of the heads instead of each head"},
        "--out": {**PATH, "default": "attention.png", "help": "image to write (default: %(default)s)"},
    },
    "export": {
        "model": {**PATH, "help": MODEL},
        "--format": {"choices": tuple(FORMATS), "required": True},
        "--out": {**PATH, "required": True, "help": "folder to write; an earlier export there is replaced"},
        "--precision": {
            "choices": tuple(dict.fromkeys(name for format in FORMATS.values() for name in format.precisions)),
            "help": "precision of the weights (default: int8 for web, float32 for all others); LiteRT and web have "
            "float16, which makes files smaller, not faster, and int8; CTranslate2 has all",
        },
        "--texts": {
            **PATH,
            "help": "sentences to compare on, one per line (default: some that the run was trained or validated on); a "
            "page shows the first twelve",
        },
        "--min_agreement": {
            "type": share,
            "help": "least similarity of its translations to the model's, from 0, which accepts any export, to 1 "
            f"(default: {MIN_AGREEMENT['float32']}, for int8 {MIN_AGREEMENT['int8']})",
        },
        "--title": {"help": "title of a page (default: Translator)"},
        "--runtime": {**PATH, "help": "folder with LiteRT.js, for a page (default: node_modules)"},
    },
    "import": {
        "folder": {
            **PATH,
            "help": "folder with config.json, model.safetensors, vocab.json, source.spm and target.spm, or with the "
            ".npz, .yml and .spm files of Marian's own format",
        },
        "--out": {**PATH, "required": True, "help": "folder to write, for `keras-tfm translate`, `export` and others"},
    },
    "serve": {"model": {**PATH, "nargs": "?", "help": f"{MODEL}, or of an export{SHIPPED}"}},
    "finish": {
        "model": {**PATH, "help": "folder of the run"},
        "--average": {"type": positive, "help": "number of checkpoints to average (default: the run's setting)"},
    },
    "info": {"model": {**PATH, "nargs": "?", "help": f"{MODEL}, or of an export{SHIPPED}"}},
}
AS_SAVED = "fixed in an export; without a flag, as a saved translator says, or by default"
DECODES = ("translate", "evaluate", "export", "serve")  # commands with the next flags, arguments of `Translator`
DECODING = {
    "--num_beams": {"type": positive, "help": "number of hypotheses kept; 1 is greedy search (default: 4)"},
    "--length_penalty": {"type": float, "help": "divide scores by the length to this power (default: 0.6)"},
    "--early_stopping": {
        "action": argparse.BooleanOptionalAction,
        "help": "stop when no hypothesis would be the best if it ended now (default); without, when none can become it",
    },
    "--batch_size": {"type": positive, "help": "number of texts translated together (default: 64)"},
    "--max_length": {"type": positive, "help": "maximum tokens per text (default: 512; for exports at most 128)"},
    "--no_repeat_ngram_size": {"type": int, "help": "never repeat a sequence of this many tokens (default: 0, off)"},
}
SAMPLING = {  # of `translate`, instead of a beam search
    "--temperature": {"type": float, "help": "draw tokens by their probability; above 1 for more variety (default: 1)"},
    "--top_k": {"type": positive, "help": "draw from this many most probable tokens only"},
    "--top_p": {"type": share, "help": "draw from the fewest tokens that together have this probability"},
    "--min_p": {"type": share, "help": "draw from tokens with this fraction of the highest probability"},
    "--seed": {"type": int, "help": "draw the same tokens each time (default: others)"},
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
        hint = closest(unknown[0].partition("=")[0], names(arguments["command"]).values())
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
    flags = [*ARGUMENTS[command], *(DECODING if command in DECODES else ())]
    flags += SAMPLING if command == "translate" else ()
    flags += [f"--{name}" for name in {"train": OPTIONS, "serve": SERVING}.get(command, ())]
    flags = {flag.removeprefix("--"): flag for flag in flags if flag.startswith("--")}
    others = {"valid": "valid_source", "compare_on": "texts"}
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
        if name == "train":
            for group, options in GROUPS.items():
                group = command.add_argument_group(group)
                for field in dataclasses.fields(options):
                    also = ["--from"] if field.name == "start_from" else []
                    group.add_argument(f"--{field.name}", *also, **_derived(field))
        if name == "serve":
            for flag, field in SERVING.items():
                command.add_argument(f"--{flag}", **_derived(field))
        if name in DECODES:
            group = command.add_argument_group(f"decoding ({AS_SAVED})", argument_default=argparse.SUPPRESS)
            for flag, options in DECODING.items():
                if (name, flag) != ("serve", "--batch_size"):  # which is `--max_batch` there
                    group.add_argument(flag, **options)
        if name == "translate":
            group = command.add_argument_group("sampling", argument_default=argparse.SUPPRESS)
            for flag, options in SAMPLING.items():
                group.add_argument(flag, **options)
    return parser


def _derived(field):
    """The flag of a field. Unless it is given, there is no argument, and the recipe's value is used."""
    flag = {"default": argparse.SUPPRESS, "help": description(field)}
    if kind(field) is bool:
        return {**flag, "action": argparse.BooleanOptionalAction}
    allowed = field.metadata["allowed"]
    return {**flag, "type": kind(field), **({"choices": [*allowed]} if isinstance(allowed, Words) else {})}
