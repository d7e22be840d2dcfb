"""What exports share."""

import warnings

from keras_tfm.common.arguments import UserError, check, one_of

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


def graph_of(function, *specs, jit_compile=None):
    """`function` as a TensorFlow graph, or one for XLA; `specs` are shape, dtype and name of each argument."""
    import tensorflow as tf

    signature = [tf.TensorSpec(*spec) for spec in specs]
    return tf.function(function, input_signature=signature, autograph=False, jit_compile=jit_compile)


def in_float32(translator):
    """The translator, with copies of its models that compute in float32: most runtimes know no mixed precision."""
    if all(model.compute_dtype == "float32" for model in translator.models):
        return translator
    models = [type(model).from_config(model.get_config() | {"dtype": "float32"}) for model in translator.models]
    for copy, model in zip(models, translator.models, strict=True):
        copy.set_weights(model.get_weights())
    return translator.with_settings(model=models)


def check_search(translator, settings, format_name):
    """Refuses what the search of another package cannot do; empties `copied_tokens`, with a warning."""
    check("translator", len(translator.models), len(translator.models) == 1, "one with a single model")
    one_of("penalty", settings["penalty"], ["length"])
    check("coverage_penalty", settings["coverage_penalty"], not settings["coverage_penalty"], f"0 for {format_name}")
    if settings["copied_tokens"]:
        settings["copied_tokens"] = []
        warnings.warn(
            f"{format_name} does not support `copied_tokens`: translations may lack or repeat some", stacklevel=5
        )


def check_options(model, format_name, supported, any_value):
    """Raises an error unless another format supports the model, else returns its options.

    Args:
        model: a model of `keras_tfm.models`.
        format_name: name of the format, for the message.
        supported: values that it supports besides those of `SUPPORTED`.
        any_value: options of any value besides those of `ANY`.
    """
    allowed = SUPPORTED | supported
    unknown = [name for name in model.arguments if name not in allowed and name not in ANY | any_value]
    if unknown:
        raise UserError(
            f"`translator` must have a model that {format_name} supports, which knows no {' and no '.join(unknown)}. "
            f"Received: {type(model).__name__}"
        )
    options = {name: model.arguments.get(name, values[0]) for name, values in allowed.items()}
    for name, value in options.items():
        if value not in allowed[name]:
            raise UserError(
                f"`{name}` must be one of {list(allowed[name])} in a model that {format_name} supports. Received: "
                f"{name}={value!r}; choose another format, or train a model with {name}={allowed[name][0]!r}"
            )
    return options
