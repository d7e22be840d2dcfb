"""What exports share."""

from keras_tfm.common.arguments import UserError

# Options of a `Transformer` that CTranslate2 and Marian support, the default first, and those of any value.
SUPPORTED = {
    "positions_in": ("input",),
    "positions_combine": ("add",),
    "score": ("scaled_dot",),
    "heads": ("standard",),
    "mixing": ("soft",),
    "norm": ("layer",),
    "activation": ("relu", "gelu", "swish", "silu"),
    "window": (None,),
    "num_kv_heads": (None,),
    "head_dim": (None,),
    "source_embedding": (None,),
    "target_embedding": (None,),
    "norm_epsilon": (None, 1e-5),
}
ANY = {"vocab_size", "target_vocab_size", "model_dim", "num_layers", "num_decoder_layers", "num_heads", "ff_dim"}
ANY |= {"dropout", "attention_dropout", "max_length", "kernel_initializer", "bias_initializer", "packed", "dtype"}
ANY |= {"name", "scaled_embeddings", "output_bias"}


def graph_of(function, *specs):
    """`function` as a TensorFlow graph; `specs` are shape, dtype and name of each argument."""
    import tensorflow as tf

    return tf.function(function, input_signature=[tf.TensorSpec(*spec) for spec in specs], autograph=False)


def in_float32(translator):
    """The translator, with copies of its models that compute in float32: most runtimes know no mixed precision."""
    if all(model.compute_dtype == "float32" for model in translator.models):
        return translator
    models = [type(model).from_config(model.get_config() | {"dtype": "float32"}) for model in translator.models]
    for copy, model in zip(models, translator.models, strict=True):
        copy.set_weights(model.get_weights())
    return type(translator)(models, *translator.tokenizers, **translator.settings)


def check_options(model, holder, supported, any_value):
    """Raises an error unless another format can hold the model, else returns its options.

    Args:
        model: a model of `keras_tfm.models`.
        holder: name of the format, for the message.
        supported: values that it supports besides those of `SUPPORTED`.
        any_value: options of any value besides those of `ANY`.
    """
    allowed = SUPPORTED | supported
    unknown = [name for name in model.arguments if name not in allowed and name not in ANY | any_value]
    if unknown:
        raise UserError(
            f"`translator` must have a model that {holder} can hold, which knows no {' and no '.join(unknown)}. "
            f"Received: {type(model).__name__}"
        )
    options = {name: model.arguments.get(name, values[0]) for name, values in allowed.items()}
    for name, value in options.items():
        if value not in allowed[name]:
            raise UserError(
                f"`{name}` must be one of {list(allowed[name])} in a model that {holder} can hold. Received: "
                f"{name}={value!r}; choose another format, or train a model with another {name}"
            )
    return options
