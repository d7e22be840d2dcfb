"""The command line of `keras-tfm`: its commands and their flags."""

import argparse
import pathlib

import keras_tfm

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
FORMATS = ("saved_model", "litert", "ctranslate2", "onnx")


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


def parse(argv):
    """The arguments of a command line as a dict, the name of the `command` among them."""
    return vars(_parser().parse_args([_underscored(word) for word in argv]))


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
    _command(commands, "info", "say what a run, a model or an export is", optional=True)
    return parser


def _command(commands, name, text, optional=False, **options):
    """A command for a trained model."""
    parser = commands.add_parser(name, help=text, **{"description": f"{text.capitalize()}.", **options})
    parser.set_defaults(command=name)
    more = "; without one, the translator of dates that comes with the package" if optional else ""
    exports = name in ("translate", "evaluate", "info")
    what = "folder of a run (`keras-tfm train`, finished or not) or of a saved translator" + ", or an export" * exports
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
    parser.set_defaults(command="train")
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
    add(
        "--samples",
        type=positive,
        help="with --sampling: how many differently split copies of the corpus to make (default: 10)",
    )
    add("--batch_tokens", type=positive, help="most tokens per batch and side, with padding (default: by corpus)")
    add("--num_shapes", type=positive, help="most different batch shapes; XLA compiles each (default: by machine)")
    add = parser.add_argument_group("model").add_argument
    add("--preset", choices=("tiny", "small", "base", "big", "deep"), help=f"sizes (default: tiny). {PRESET_SIZES}")
    for name, (kind, text) in MODEL_FLAGS.items():
        action = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        add(f"--{name}", help=text, **({"choices": kind} if isinstance(kind, tuple) else action))
    add = parser.add_argument_group("training").add_argument
    add(
        "--steps",
        type=positive,
        help="number of updates, rounded up to whole epochs, see --steps_per_epoch (default: by corpus)",
    )
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
    parser = _command(commands, "translate", "translate files or standard input, line by line", True, description=again)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="text files, plain or .gz; none: standard input")
    parser.add_argument("--text", action="append", help="a text to translate; may be given several times")
    parser.add_argument("--out", type=pathlib.Path, help="file for the translations instead of standard output")
    add_decoding(parser)


def add_evaluate(commands):
    parser = _command(commands, "evaluate", "score a translator: BLEU, chrF, exact match, perplexity, speed")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="text file, plain or .gz")
    parser.add_argument("--reference", type=pathlib.Path, required=True, help="their translations")
    parser.add_argument(
        "--tokenize", default="13a", help="sacreBLEU's tokenizer; none for tokenised text (default: 13a)"
    )
    add_decoding(parser)


def add_plot(commands):
    parser = _command(commands, "plot", "draw what each token of a translation attends to")
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
    parser = _command(commands, "export", "write a translator in a form to ship, and compare it with the model")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
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
    parser = _command(commands, "finish", text)
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
