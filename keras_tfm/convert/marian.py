"""Marian's translators, such as those of OPUS-MT (https://opus.nlpl.eu/opus-mt), in the format of Hugging Face.

A folder holds config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and vocab.json; or it is in
Marian's own format, see `keras_tfm.convert.marian_archive`. Two things are put into this package's order when it is
read, so that nothing else needs to know of them:

ids       0 to 3 are padding, start, end and unknown here. There, the decoder starts with the token of padding.
features  sines and cosines of positions alternate here. There, all sines come first. A Transformer computes the same
          whatever the order of its features, as long as all weights agree on it.
"""

import os
import pathlib
import warnings
import zipfile

import numpy as np

from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError, check, one_of, positive
from keras_tfm.convert.marian_archive import Archive
from keras_tfm.models import transformer
from keras_tfm.models.loading import check_capacity
from keras_tfm.models.marian_layout import counterpart
from keras_tfm.text import END, PAD, START, MarianTokenizer

# Entries of config.json: the value that is assumed if there is none, and the values that this package supports.
ENTRIES = {
    "model_type": ("marian", ("marian",)),
    "activation_function": ("gelu", ("relu", "gelu", "swish", "silu")),
    "static_position_embeddings": (True, (True,)),
    "normalize_before": (False, (False,)),
    "add_final_layer_norm": (False, (False,)),
    "extra_pos_embeddings": (0, (0,)),
    "normalize_embedding": (False, (False, True)),
    "scale_embedding": (False, (False, True)),
    "share_encoder_decoder_embeddings": (True, (False, True)),
    "tie_word_embeddings": (True, (False, True)),
}
SIZES = ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
SPECIALS = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
SAME = {"encoder_attention_heads": "decoder_attention_heads", "encoder_ffn_dim": "decoder_ffn_dim"}
IMPOSSIBLE = -100.0  # bias of the logit of padding, which is no token there; label smoothing counts it, so not too low


def read(folder):
    """Reads the model and the tokenizers of a folder, and how it searches, as arguments of `Translator`."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: must be a folder that was downloaded before. Received: no such folder")
    huggingface, marian = (folder / "config.json").exists(), [*folder.glob("*.npz")]
    if not huggingface and not marian:
        raise UserError(f"{folder}: must be a folder with config.json of Hugging Face or an .npz of Marian")
    archive = None if huggingface else Archive(folder)
    config = read_config(folder, archive)
    arguments, tensors = arguments_of(config), archive or Tensors(folder)
    with files.reading(tensors.path):
        check_capacity(arguments, *tensors.size)
    names = ["vocab.json", "vocab.json" if config["share_encoder_decoder_embeddings"] else "target_vocab.json"]
    orders, tokenizers = [], []
    for side, name, entry in zip(("source", "target"), names, ("vocab_size", "decoder_vocab_size"), strict=True):
        vocabulary = archive.vocabulary if archive else read_vocabulary(folder / name)
        orders.append(order_of_ids(config, vocabulary, config[entry], folder / name))
        with files.reading(folder / f"{side}.spm"):
            model = files.read_bytes(folder / f"{side}.spm")
            tokenizers.append(MarianTokenizer(model, names_in_order(vocabulary, orders[-1])))
    sizes = {"vocab_size": len(orders[0])}
    if arguments["target_vocab_size"] is not None:
        sizes["target_vocab_size"] = len(orders[1])
    model = transformer(**arguments | sizes)
    fill(model, tensors, orders)
    return model, tokenizers, {} if archive else search_options(folder, orders[-1])


def read_config(folder, archive=None):
    """config.json, completed, after a check that this package supports all that it says."""
    path = archive.path if archive else folder / "config.json"
    config = archive.config if archive else files.read_json(path, required=SIZES)
    config["decoder_vocab_size"] = config.get("decoder_vocab_size") or config["vocab_size"]
    try:
        for name, (default, allowed) in ENTRIES.items():
            config[name] = one_of(name, config.get(name, default), allowed)
        for name, other in SAME.items():
            one_of(other, config.get(other, config[name]), [config[name]])
        for name in (*SIZES, "decoder_vocab_size", *SPECIALS):
            check(name, config.get(name), type(config.get(name)) is int, "an integer")
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return config


def read_vocabulary(path):
    """A dict from pieces to ids."""
    vocabulary = files.read_json(path, required=("<unk>",))
    with files.reading(path):
        if not all(type(number) is int and number >= 0 for number in vocabulary.values()):
            raise UserError("must map pieces to numbers")
    return vocabulary


def order_of_ids(config, vocabulary, size, path):
    """Their id for each of ours: padding, start, end, unknown, and all others in their order."""
    first = [*(config[name] for name in SPECIALS), vocabulary["<unk>"]]
    highest = max([*vocabulary.values(), *first])
    if highest >= size:
        raise files.DamagedFile(path, f"has the id {highest}, but config.json only {size} ids")
    return np.array([*first, *(number for number in range(size) if number not in first)])


def names_in_order(vocabulary, order):
    """The pieces with our ids 4, 5, …"""
    names = {number: piece for piece, number in vocabulary.items()}
    return [names.get(number, f"<unused {number}>") for number in order[4:].tolist()]


def arguments_of(config):
    """The arguments of `transformer` for a config."""
    shared = config["share_encoder_decoder_embeddings"] and config["tie_word_embeddings"]  # untied, all are apart
    return dict(
        vocab_size=config["vocab_size"],
        target_vocab_size=None if shared else config["decoder_vocab_size"],
        model_dim=config["d_model"],
        num_layers=config["encoder_layers"],
        num_decoder_layers=config["decoder_layers"],
        num_heads=config["encoder_attention_heads"],
        ff_dim=config["encoder_ffn_dim"],
        dropout=config.get("dropout", 0.1),
        activation=config["activation_function"],
        tied_output=config["tie_word_embeddings"],
        scaled_embeddings=config["scale_embedding"],
        embedding_norm=config["normalize_embedding"],
        output_bias=True,
        name="marian",
    )


class Tensors:
    """The tensors of a checkpoint by name, as float32 arrays; `size` is their number and at most so many bytes."""

    def __init__(self, folder):
        self.path = folder / "model.safetensors"
        pickled = folder / "pytorch_model.bin"
        self.path = self.path if self.path.exists() or not pickled.exists() else pickled
        with files.reading(self.path), files.open_regular_file(self.path) as file:
            if self.path == pickled:
                if zipfile.is_zipfile(file):  # earlier versions of PyTorch did not write an archive
                    with files.open_archive(self.path):
                        pass
                self.file = extras.load("torch").load(pickled, map_location="cpu", weights_only=True)
            else:
                self.file = extras.load("safetensors").safe_open(self.path, "numpy")
            self.names = {*self.file.keys()}
            self.size = len(self.names), os.fstat(file.fileno()).st_size

    def get(self, name, shape):
        if name.endswith("embed_tokens.weight") and name not in self.names:
            name = "model.shared.weight"
        with files.reading(self.path):
            if name not in self.names:
                raise UserError(f"has no {name}")
            array = self.file.get_tensor(name) if hasattr(self.file, "get_tensor") else self.file[name].float().numpy()
            if array.shape != shape:
                raise UserError(f"{name} must have the shape {shape}, like the configuration. Received: {array.shape}")
            return np.asarray(array, "float32")


def fill(model, tensors, orders):
    """Gives a model the weights of a checkpoint."""
    for variable in model.trainable_variables:
        their = counterpart(variable.path, variable.shape, orders)
        array = their.to_ours(tensors.get(their.name, their.shape), variable.shape)
        if their.name == "final_logits_bias":
            array[PAD] = IMPOSSIBLE
        variable.assign(array)


SEARCH = ("num_beams", "length_penalty", "min_length", "no_repeat_ngram_size")  # options that have our names


def search_options(folder, order):
    """Arguments of `Translator` from generation_config.json, or from config.json where there is none.

    Their `max_length` counts the start token, which ours does not, and with a `forced_eos_token_id` an end token that
    is not the model's choice. Ours bounds sources too.

    Args:
        folder: that of the model.
        order: their id for each of ours, of the target.
    """
    path = folder / "generation_config.json"
    forced = None if path.exists() else 0  # what is assumed if there is no `forced_eos_token_id`
    path = path if path.exists() else folder / "config.json"
    generation = {"forced_eos_token_id": forced} | files.read_json(path)
    generation = {name: value for name, value in generation.items() if value is not None}
    options = {"length_penalty": 1.0} | {name: generation[name] for name in SEARCH if name in generation}
    options |= {"early_stopping": False} if generation.get("early_stopping") == "never" else {}
    with files.reading(path):
        positive("num_beams", generation.get("num_beams", 1))
        longest = positive("max_length", generation.get("max_length"), optional=True)
        if "max_new_tokens" in generation:  # which takes precedence
            longest = positive("max_new_tokens", generation["max_new_tokens"]) + 1
        if longest is not None:
            options["max_length"] = max(longest - 1 - ("forced_eos_token_id" in generation), 1)
        options["suppress_tokens"], ignored = suppressed_tokens(generation.get("bad_words_ids", []), order)
    if ignored:
        warnings.warn(f"{path}: {ignored} `bad_words_ids` of several tokens are ignored", stacklevel=4)
    return options


def suppressed_tokens(banned, order):
    """Our ids of `bad_words_ids` that are single tokens, and the number of longer ones, which have no counterpart.

    Padding, start and end are left out: the first two are never written, and `transformers` ignores the last.
    """
    ours = {int(theirs): number for number, theirs in enumerate(order)}
    fine = all(number in ours for words in banned for number in words)
    check("bad_words_ids", banned, fine, "lists of ids of the vocabulary")
    single = {ours[words[0]] for words in banned if len(words) == 1}
    return sorted(single - {PAD, START, END}), sum(len(words) > 1 for words in banned)
