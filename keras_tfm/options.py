"""Recipes for training: every option with its default, its help text and its allowed values.

Nothing here imports Keras, so that the command can show help and check flags at once.
"""

import dataclasses
import functools
import math
import typing

from keras_tfm.common import source
from keras_tfm.common.arguments import check, did_you_mean, one_of, positive, positive_number, rate
from keras_tfm.sizes import MODELS, SIZES
from keras_tfm.text.masking import MAX_SLOTS
from keras_tfm.text.subwords import KINDS

PRE_TRANSFORMER_DEFAULTS = {"clipnorm": 1.0, "dropout": 0.2}  # for models older than the Transformer
# Options that may differ when a run is resumed: how long and how fast it trains, and what it reports.
CHANGEABLE = {"steps", "passes", "patience", "average", "learning_rate", "warmup_steps", "clipnorm", "save_minutes"}
CHANGEABLE |= {"bleu", "verbose", "devices", "model_parallel"}
TOKENIZER_OPTIONS = ("vocab_size", "separate", "placeholders")
KEPT = {"dropout", "attention_dropout", "max_length"}  # options of the model that `start_from` does not decide


class Words:
    """A check, like those of `arguments`, for one of the words of tables: dicts, tuples or names for `source.words`.

    They are read when they are asked for, so that a word added to a table is an option like any other.
    """

    def __init__(self, *tables):
        self.tables = tables

    def __iter__(self):
        for table in self.tables:
            yield from source.words(table) if isinstance(table, str) else table

    def __call__(self, name, value):
        return one_of(name, value, self)


def from_0(name, value):
    return check(name, value, type(value) is int and value >= 0, "an integer of at least 0")


def from_1(name, value):
    return check(name, value, type(value) in (int, float) and 1 <= value < math.inf, "a number of at least 1")


def slot_count(name, value):
    return check(name, value, type(value) is int and 0 <= value <= MAX_SLOTS, f"an integer from 0 to {MAX_SLOTS}")


def device_count(name, value):
    fine = value == "all" or str(value).isdigit() and int(value) > 0
    return check(name, value, fine, 'a positive integer or "all"')


def number(name, value):
    return check(name, value, type(value) in (int, float) and 0 <= value < math.inf, "a number of at least 0")


# Type of an option → its check, unless it has another.
CHECKS = {
    int: positive,
    float: number,
    bool: lambda name, value: check(name, value, type(value) is bool, "True or False"),
    str: lambda name, value: check(name, value, type(value) is str, "a string"),
}


def _option(default, text, allowed=None):
    """A field. `allowed` are its `Words` or another check; by default, that of the field's type."""
    return dataclasses.field(default=default, metadata={"help": text, "allowed": allowed})


_unset = functools.partial(_option, None)
_SIZES = "; ".join(
    f"{name}: {sizes['num_layers']}+{sizes.get('num_decoder_layers', sizes['num_layers'])} layers of "
    f"width {sizes['model_dim']}"
    for name, sizes in SIZES.items()
)
_GATES = ", ".join(source.words("layers.blocks.GATES"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of tokenizers and batches."""

    tokenizer: str = _option("bpe", "kind of tokenizer", Words(KINDS))
    vocab_size: int | None = _unset("maximum size of a vocabulary (default: depends on the corpus, 8,000 to 32,000)")
    separate: bool = _option(False, "learn a vocabulary for each side instead of one for both")
    sampling: float = _option(0.0, "subword sampling: share of BPE merges left out", rate)
    placeholders: int | None = _unset(
        "number of placeholders, tags and addresses in a text that translations keep unchanged; 0: none (default: 16, "
        "if one in a hundred texts has some, not counting entities)",
        slot_count,
    )
    language_temperature: float = _option(
        1.0, "sample languages by their number of pairs to the power of 1/temperature: 5 repeats rare ones", from_1
    )
    samples: int = _option(10, "with subword sampling, number of differently split copies of the corpus")
    batch_tokens: int | None = _unset("maximum tokens per batch and side, with padding (default: by the corpus)")
    num_shapes: int | None = _unset("maximum number of batch shapes; each is compiled (default: by the machine)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of the model: arguments of its classes, whose defaults they take if they and its size are None."""

    model: str = _option(
        "transformer",
        f"kind of model. {'; '.join(f'{name}: {model.about}' for name, model in MODELS.items())}",
        Words(MODELS),
    )
    size: str = _option("tiny", f"model size. {_SIZES}", Words(SIZES))
    num_layers: int | None = _unset("number of encoder blocks or layers")
    num_decoder_layers: int | None = _unset("number of decoder blocks or layers, if different")
    model_dim: int | None = _unset("width of the model, or only of its embeddings if it has units")
    units: int | None = _unset("width of the layers")
    cell: str | None = _unset("kind of recurrent layer", Words("models.recurrent_layers.CELLS"))
    bidirectional_layers: int | None = _unset("number of encoder layers that read in both directions", from_0)
    residual: bool | None = _unset("add the input of each layer but the first to its output")
    attention: str | None = _unset("attention of the decoder", Words("models.recurrent_layers.DECODERS"))
    kernel_size: int | None = _unset("width of the convolutions")
    dilations: int | None = _unset("number of blocks per layer, with dilations 1, 2, 4, …")
    num_heads: int | None = _unset("number of attention heads")
    head_dim: int | None = _unset("width of a head, if it is not model_dim / num_heads")
    num_kv_heads: int | None = _unset("number of key/value heads, for grouped or multi-query attention")
    ff_dim: int | None = _unset("width of the feed-forward networks")
    dropout: float | None = _unset("dropout rate of sublayers and embeddings", rate)
    attention_dropout: float | None = _unset("dropout rate of attention weights", rate)
    positions: str | None = _unset("position scheme", Words("layers.positions.ENCODINGS", "layers.positions.SCHEMES"))
    positions_in: str | None = _unset("where absolute positions enter", Words("layers.stacks.PLACES"))
    positions_combine: str | None = _unset(
        "how absolute positions join features", Words("layers.positions.COMBINATIONS")
    )
    max_wavelength: float | None = _unset("longest wavelength of sinusoidal and rotary positions", positive_number)
    max_length: int = _option(512, "maximum tokens per text, including the end token; longer pairs are left out")
    norm: str | None = _unset("kind of normalization", Words("layers.blocks.NORMS"))
    norm_epsilon: float | None = _unset("epsilon of the norms", positive_number)
    norm_first: bool | None = _unset("normalize before each sublayer, not after it: pre-norm; in all recipes but paper")
    activation: str | None = _unset(f"feed-forward activation: {_GATES} or Keras'")
    score: str | None = _unset("attention score: how queries and keys are compared", Words("layers.scores.SCORES"))
    heads: str | None = _unset("what each head sees", Words("layers.attention.HEADS"))
    mixing: str | None = _unset("weighted mean of the values, or only the best one", Words("layers.scores.MIXINGS"))
    window: int | None = _unset("window size of self-attention, in tokens")
    use_bias: bool | None = _unset("use biases in dense layers")
    kernel_initializer: str | None = _unset("Keras initializer of kernels")
    bias_initializer: str | None = _unset("Keras initializer of biases")
    tied_output: bool | None = _unset("compute the logits with the target embeddings")
    output_bias: bool | None = _unset("add a bias to the logits")
    scaled_embeddings: bool | None = _unset("multiply embeddings by √model_dim")
    embedding_norm: bool | None = _unset("normalize embeddings, after positions have joined them")
    packed: bool | None = _unset("put several pairs into each row, to waste less on padding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of training."""

    start_from: str | None = _unset(
        "folder of a trained or imported translator to start from, instead of new weights; it decides on tokenizers "
        "and on all options of the model but dropout and precision"
    )
    steps: int | None = _unset("number of updates, rounded up to whole epochs (default: depends on the corpus)")
    passes: int | None = _unset("number of passes over the texts, if the steps are not given")
    steps_per_epoch: int | None = _unset("updates between checkpoints (default: one pass, at most 1,000)")
    save_minutes: float = _option(3.0, "how often the state is saved between checkpoints", positive_number)
    learning_rate: float | None = _unset("peak learning rate (default: by the width, 0.002 for tiny)", positive_number)
    warmup_steps: int | None = _unset("updates until the peak (default: a tenth of all, from 100 to 4,000)")
    schedule: str = _option("cosine", "how the learning rate falls after its peak", Words("training.losses.SCHEDULES"))
    label_smoothing: float = _option(0.1, "share of the probability that is spread over the vocabulary", rate)
    r_drop: float = _option(0.0, "weight of R-Drop, which doubles the work of a step")
    clipnorm: float | None = _unset("clip gradients to this norm (default: none)", positive_number)
    accumulate: int = _option(1, "gradient accumulation: number of batches per update")
    ema: float | None = _unset(
        "use an exponential moving average of the weights, with this momentum, as the result", rate
    )
    average: int = _option(1, "average this many of the last checkpoints for the result")
    patience: int | None = _unset("stop after this many epochs without a better validation loss")
    bleu: int | None = _unset("translate this many validation texts after each epoch, and log BLEU and chrF")
    precision: str = _option("float32", "training precision", Words(("float32", "mixed_bfloat16", "mixed_float16")))
    jit_compile: bool | None = _unset("compile with XLA (default: where that is faster)")
    devices: str = _option("1", 'number of devices on all hosts that share the rows of a batch, or "all"', device_count)
    model_parallel: int = _option(1, "number of devices that share one copy of the weights of a large model; JAX only")
    seed: int = _option(1, "seed of weights, dropout, batch order and subword sampling", from_0)
    verbose: int = _option(1, "0: silent; 1: progress bar, on a terminal; 2: one line per epoch", Words((0, 1, 2)))


GROUPS = {"data": DataOptions, "model": ModelOptions, "training": TrainingOptions}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(TrainingOptions, ModelOptions, DataOptions):  # whose fields come in the order of GROUPS
    """The options of `keras_tfm.train`; `keras-tfm train --help` describes them.

    A model option that is None takes the size's value, or else the model's default. Any other option that is None is
    chosen to suit the texts and the machine.

    >>> Recipe(size="small", dropout=0.2).dropout
    0.2
    >>> Recipe(norm="batch")
    Traceback (most recent call last):
    keras_tfm.common.arguments.UserError: `norm` must be one of ['layer', 'rms']. Received: norm='batch'
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                (field.metadata["allowed"] or CHECKS[kind(field)])(field.name, value)
        one_of("size", self.size, MODELS[self.model].sizes)
        for name, value in self._given_model_options().items():
            rule = f"left out for model={self.model!r}, which has no such option"
            check(name, value, name in MODELS[self.model].options or name == "max_length", rule)
        if self.start_from is not None:
            given = {*self._given_model_options(), *(name for name in TOKENIZER_OPTIONS if getattr(self, name))}
            for name in sorted(given - KEPT):
                check(name, getattr(self, name), False, "left out with `start_from`, which decides it")
        able = " or ".join(kind for kind in KINDS if KINDS[kind].samples)
        rule = f"0 unless the tokenizer is {able}, not {self.tokenizer}"
        check("sampling", self.sampling, not self.sampling or KINDS[self.tokenizer].samples, rule)

    @property
    def model_options(self) -> dict[str, typing.Any]:
        """Arguments of the function that builds the model, without those left to the size or to the model."""
        options = MODELS[self.model].options
        return {name: value for name, value in self._given_model_options().items() if name in options}

    def _given_model_options(self):
        _, _, *names = [field.name for field in dataclasses.fields(ModelOptions)]  # without its kind and its size
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def kind(field):
    """The type of a field, leaving None aside."""
    return (typing.get_args(field.type) or (field.type,))[0]


def description(field):
    """The help of an option: the models that have it, unless the Transformer does; what it does; its default.

    >>> description(next(field for field in dataclasses.fields(Recipe) if field.name == "cell"))
    'rnn, rnn_attention, gnmt: kind of recurrent layer (default: lstm)'
    """
    having = {
        name: default_text(model.options[field.name]) for name, model in MODELS.items() if field.name in model.options
    }
    defaults = {} if field.name in SIZES["tiny"] else having
    if field.default is not None or not having:
        defaults = {"": default_text(field.default)}
    first, *others = dict.fromkeys(defaults.values()) or ["None"]
    others = [f"{word} for {', '.join(name for name in defaults if defaults[name] == word)}" for word in others]
    only = f"{', '.join(having)}: " if having and Recipe.model not in having else ""
    default = f" (default: {'; '.join([first, *others])})" if others or first not in ("None", "no") else ""
    return f"{only}{field.metadata['help']}{default}"


def default_text(default):
    """A default as help texts show it."""
    return {"True": "yes", "False": "no"}.get(str(default), str(default))


# Pre-norm: post-norm learns next to nothing in short runs on small corpora, see benchmarks/short_runs.py.
RECIPES = {
    "default": Recipe(norm_first=True),
    "quick": Recipe(norm_first=True, num_layers=2, vocab_size=4000, steps=1500, batch_tokens=1024, learning_rate=0.003),
    # best on Multi30k, 29,000 short pairs: see benchmarks/multi30k.py
    "small_corpus": Recipe(
        norm_first=True,
        dropout=0.3,
        vocab_size=12_000,
        r_drop=3.0,
        average=10,
        passes=240,
        batch_tokens=8192,
        num_shapes=3,
        learning_rate=0.005,
        warmup_steps=2000,
    ),
    # https://arxiv.org/abs/1706.03762
    "paper": Recipe(size="base", schedule="inverse_sqrt", warmup_steps=4000, average=5),
}


def differences(recipe):
    """What a recipe changes, in words.

    >>> print(*differences(RECIPES["paper"]))
    size=base warmup_steps=4000 schedule=inverse_sqrt average=5
    """
    defaults = dataclasses.asdict(Recipe())
    return [f"{name}={value}" for name, value in dataclasses.asdict(recipe).items() if value != defaults[name]]


def resolve(recipe: str | Recipe, **changes: typing.Any) -> Recipe:
    """A word of `RECIPES`, or a `Recipe`, with some options changed.

    A recipe for a Transformer becomes one for an older kind of model by leaving out the options that this kind does not
    have, and by those of `PRE_TRANSFORMER_DEFAULTS`, unless they are among the changes. If the changes have
    `start_from`, what the recipe says about model and tokenizers is left out.

    >>> resolve("paper", dropout=0.3).schedule
    'inverse_sqrt'
    >>> resolve("small_corpus", model="rnn").dropout
    0.2
    """
    recipe = recipe if isinstance(recipe, Recipe) else RECIPES[one_of("recipe", recipe, RECIPES)]
    names = [field.name for field in dataclasses.fields(Recipe)]
    for name in changes:
        check(name, changes[name], name in names, f"an option of a recipe{did_you_mean(name, names)}")
    model = one_of("model", changes.get("model", recipe.model), MODELS)
    if model != recipe.model:
        absent = {*MODELS[recipe.model].options} - {*MODELS[model].options, "max_length"}
        changes = dict.fromkeys(absent) | PRE_TRANSFORMER_DEFAULTS | changes
    if changes.get("start_from"):
        decided = {*MODELS[model].options, *TOKENIZER_OPTIONS} - KEPT
        changes = {field.name: field.default for field in dataclasses.fields(Recipe) if field.name in decided} | changes
    return dataclasses.replace(recipe, **changes)
