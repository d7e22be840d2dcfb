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


def _sizes(units, num_layers):
    """Sizes of an older model with about as many weights as the Transformer's of the same name."""
    rows = zip(("tiny", "small", "base"), units, num_layers, strict=True)
    return {name: {"model_dim": SIZES[name]["model_dim"], "units": n, "num_layers": layers} for name, n, layers in rows}


_RECURRENT, _CONVOLUTIONAL = "models.recurrent.Recurrent", "models.convolutional.Convolutional"
_ATTENTIVE = {"attention": "bahdanau", "bidirectional_layers": 1}
MODELS = {
    "transformer": Model(
        "attention alone", ("layers.stacks.TransformerEncoder", "models.transformers.Transformer"), SIZES
    ),
    "rnn": Model(
        "one vector for the whole source",
        (_RECURRENT,),
        _sizes(units=(256, 512, 1024), num_layers=(1, 2, 2)),
        without=("attention", "num_heads", "score"),
    ),
    "rnn_attention": Model(
        "recurrent, with attention", (_RECURRENT,), _sizes(units=(224, 704, 976), num_layers=(1, 1, 2)), _ATTENTIVE
    ),
    "gnmt": Model(
        "deep and recurrent",
        (_RECURRENT,),
        _sizes(units=(128, 344, 488), num_layers=(3, 4, 8)),
        {**_ATTENTIVE, "num_layers": 8, "model_dim": 1024, "residual": True},
    ),
    "conv": Model(
        "ConvS2S", ("models.conv_s2s.ConvStack", _CONVOLUTIONAL), _sizes(units=(136, 360, 512), num_layers=(4, 6, 12))
    ),
    "bytenet": Model(
        "dilated convolutions",
        ("models.byte_net.ByteNetStack", _CONVOLUTIONAL),
        _sizes(units=(104, 272, 352), num_layers=(2, 3, 6)),
    ),
}


def sizes(model, size):
    """The name and the defaults of a kind of model, with the options of a size unless that is None."""
    one_of("size", size, (None, *MODELS[model].sizes))
    return {"name": model} | MODELS[model].defaults | MODELS[model].sizes.get(size, {})
