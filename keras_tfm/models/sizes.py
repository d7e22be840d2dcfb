"""The kinds of models: their options, and the sizes that have a name. Does not import Keras."""

import typing

from keras_tfm.common.arguments import one_of

# `base` and `big` are those of https://arxiv.org/abs/1706.03762; `deep` follows https://arxiv.org/abs/2006.10369.
PRESETS = {
    "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4, "ff_dim": 256},
    "small": {"num_layers": 6, "model_dim": 256, "num_heads": 4, "ff_dim": 1024},
    "base": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "ff_dim": 2048},
    "big": {"num_layers": 6, "model_dim": 1024, "num_heads": 16, "ff_dim": 4096, "dropout": 0.3},
    "deep": {"num_layers": 12, "num_decoder_layers": 1, "model_dim": 512, "num_heads": 8, "ff_dim": 2048},
}
_RECURRENT = ("num_layers", "num_decoder_layers", "model_dim", "units", "cell", "bidirectional_layers", "residual")
_RECURRENT += ("dropout", "tied_output")
_ATTENTION = ("attention", "num_heads", "score")
_CONVOLUTIONAL = ("num_layers", "num_decoder_layers", "model_dim", "units", "kernel_size", "dropout", "tied_output")


class Model(typing.NamedTuple):
    """A kind of model: the names of its options in a `Recipe`, and their values in each preset."""

    options: tuple
    presets: dict


_TRANSFORMER = ("num_layers", "num_decoder_layers", "model_dim", "num_heads", "num_kv_heads", "ff_dim", "dropout")
_TRANSFORMER += (
    "attention_dropout",
    "positions",
    "positions_in",
    "positions_combine",
    "max_length",
    "norm",
    "norm_first",
)
_TRANSFORMER += ("activation", "score", "heads", "mixing", "window", "use_bias", "kernel_initializer")
_TRANSFORMER += ("bias_initializer", "tied_output", "output_bias", "scaled_embeddings", "embedding_norm", "packed")
# The presets of older models have about as many weights as the Transformer's of the same name.
MODELS = {
    "transformer": Model(_TRANSFORMER, PRESETS),
    "rnn": Model(
        _RECURRENT,
        {
            "tiny": {"model_dim": 128, "units": 256},
            "small": {"model_dim": 256, "units": 512, "num_layers": 2},
            "base": {"model_dim": 512, "units": 1024, "num_layers": 2},
        },
    ),
    "rnn_attention": Model(
        _RECURRENT + _ATTENTION,
        {
            "tiny": {"model_dim": 128, "units": 224},
            "small": {"model_dim": 256, "units": 704},
            "base": {"model_dim": 512, "units": 976, "num_layers": 2},
        },
    ),
    "gnmt": Model(
        _RECURRENT + _ATTENTION,
        {
            "tiny": {"num_layers": 3, "model_dim": 128, "units": 128},
            "small": {"num_layers": 4, "model_dim": 256, "units": 344},
            "base": {"num_layers": 8, "model_dim": 512, "units": 488},
        },
    ),
    "conv": Model(
        (*_CONVOLUTIONAL, "positions", "max_length"),
        {
            "tiny": {"num_layers": 4, "model_dim": 128, "units": 136},
            "small": {"num_layers": 6, "model_dim": 256, "units": 360},
            "base": {"num_layers": 12, "model_dim": 512, "units": 512},
        },
    ),
    "bytenet": Model(
        (*_CONVOLUTIONAL, "dilations"),
        {
            "tiny": {"num_layers": 2, "model_dim": 128, "units": 104},
            "small": {"num_layers": 3, "model_dim": 256, "units": 272},
            "base": {"num_layers": 6, "model_dim": 512, "units": 352},
        },
    ),
}


def sizes(model, preset):
    """The options of a model's preset; none if `preset` is None."""
    one_of("preset", preset, (None, *MODELS[model].presets))
    return MODELS[model].presets.get(preset, {})
