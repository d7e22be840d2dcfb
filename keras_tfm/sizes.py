"""The kinds of models: their options, and the sizes that have a name. Does not import Keras."""

import typing

from keras_tfm.common import source
from keras_tfm.common.arguments import one_of

# `base` and `big` are those of https://arxiv.org/abs/1706.03762; `deep` follows https://arxiv.org/abs/2006.10369.
SIZES = {
    "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4, "ff_dim": 256},
    "small": {"num_layers": 6, "model_dim": 256, "num_heads": 4, "ff_dim": 1024},
    "base": {"num_layers": 6, "model_dim": 512, "num_heads": 8, "ff_dim": 2048},
    "big": {"num_layers": 6, "model_dim": 1024, "num_heads": 16, "ff_dim": 4096, "dropout": 0.3},
    "deep": {"num_layers": 12, "num_decoder_layers": 1, "model_dim": 512, "num_heads": 8, "ff_dim": 2048},
}
# Arguments of the constructors that no recipe has: facts about the texts, layers, what the decoder decides, Keras' own.
NOT_OPTIONS = {"vocab_size", "target_vocab_size", "source_embedding", "target_embedding", "causal", "dtype", "name"}


class Model(typing.NamedTuple):
    """A kind of model."""

    about: str
    classes: tuple  # whose arguments are its options, as for `source.parameters`
    sizes: dict
    defaults: dict = {}  # that differ from those of the classes
    without: tuple = ()  # arguments that are not its options

    @property
    def options(self):
        """Its options in a `Recipe`, which are the arguments of its classes: name → default."""
        classes = [source.parameters(path) for path in self.classes]
        arguments = {name: default for each in (*classes, self.defaults) for name, default in each.items()}
        return {name: arguments[name] for name in arguments if name not in {*NOT_OPTIONS, *self.without}}


_ATTENTIVE = {"attention": "bahdanau", "bidirectional_layers": 1}
_CONVOLUTIONS = "models.convolutional.Convolutional"
# The sizes of older models have about as many weights as the Transformer's of the same name.
MODELS = {
    "transformer": Model(
        "attention alone", ("layers.stacks.TransformerEncoder", "models.transformers.Transformer"), SIZES
    ),
    "rnn": Model(
        "one vector for the whole source",
        ("models.recurrent.Recurrent",),
        {
            "tiny": {"model_dim": 128, "units": 256},
            "small": {"model_dim": 256, "units": 512, "num_layers": 2},
            "base": {"model_dim": 512, "units": 1024, "num_layers": 2},
        },
        without=("attention", "num_heads", "score"),
    ),
    "rnn_attention": Model(
        "recurrent, with attention",
        ("models.recurrent.Recurrent",),
        {
            "tiny": {"model_dim": 128, "units": 224},
            "small": {"model_dim": 256, "units": 704},
            "base": {"model_dim": 512, "units": 976, "num_layers": 2},
        },
        _ATTENTIVE,
    ),
    "gnmt": Model(
        "deep and recurrent",
        ("models.recurrent.Recurrent",),
        {
            "tiny": {"num_layers": 3, "model_dim": 128, "units": 128},
            "small": {"num_layers": 4, "model_dim": 256, "units": 344},
            "base": {"num_layers": 8, "model_dim": 512, "units": 488},
        },
        {**_ATTENTIVE, "num_layers": 8, "model_dim": 1024, "residual": True},
    ),
    "conv": Model(
        "ConvS2S",
        ("models.conv_s2s.ConvStack", _CONVOLUTIONS),
        {
            "tiny": {"num_layers": 4, "model_dim": 128, "units": 136},
            "small": {"num_layers": 6, "model_dim": 256, "units": 360},
            "base": {"num_layers": 12, "model_dim": 512, "units": 512},
        },
    ),
    "bytenet": Model(
        "dilated convolutions",
        ("models.byte_net.ByteNetStack", _CONVOLUTIONS),
        {
            "tiny": {"num_layers": 2, "model_dim": 128, "units": 104},
            "small": {"num_layers": 3, "model_dim": 256, "units": 272},
            "base": {"num_layers": 6, "model_dim": 512, "units": 352},
        },
    ),
}


def sizes(model, size):
    """The defaults of a kind of model, with the options of a size unless that is None."""
    one_of("size", size, (None, *MODELS[model].sizes))
    return MODELS[model].defaults | MODELS[model].sizes.get(size, {})
