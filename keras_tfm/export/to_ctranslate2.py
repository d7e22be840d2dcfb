"""CTranslate2 (https://github.com/OpenNMT/CTranslate2): the weights of a `transformer` in its format."""

import keras
import numpy as np

from keras_tfm.common import extras
from keras_tfm.export.common import check_options, check_search
from keras_tfm.export.runners import vocabulary
from keras_tfm.text import PAD, START

SUPPORTED = {"positions": ("sinusoidal", "learned"), "tied_output": (True,)}
ANY = {"norm_first", "use_bias", "embedding_norm", "max_wavelength"}
NEVER = np.float32(-6e4)  # bias of the logit of a token that is never written; float16 can hold it


def write(translator, folder, settings):
    """Writes a model for CTranslate2; see `keras_tfm.export.export`."""
    specs = extras.load("ctranslate2.specs")
    check_search(translator, settings, "CTranslate2")
    spec = _spec(translator.models[0], specs)
    spec.register_source_vocabulary(vocabulary(translator.source_tokenizer))
    spec.register_target_vocabulary(vocabulary(translator.target_tokenizer))
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if settings["precision"] == "float32" else settings["precision"])
    spec.save(str(folder))


def _spec(model, specs):
    """The weights of a model, as CTranslate2 expects them."""
    options = check_options(model, "CTranslate2", SUPPORTED, ANY)
    spec = specs.TransformerSpec.from_config(
        (len(model.encoder.blocks), len(model.decoder.blocks)),
        model.encoder.blocks[0].attention.num_heads,
        pre_norm=bool(model.arguments.get("norm_first")),
        activation=getattr(specs.common_spec.Activation, options["activation"].upper().replace("SILU", "SWISH")),
        layernorm_embedding=model.encoder.embedding_norm,
    )
    _fill_stack(spec.encoder, spec.encoder.embeddings[0], model.encoder, model.source_embedding)
    _fill_stack(spec.decoder, spec.decoder.embeddings, model.decoder, model.target_embedding)
    table = spec.decoder.projection.weight = spec.decoder.embeddings.weight
    bias = _array(model.target_embedding.bias) if model.target_embedding.use_bias else np.zeros(len(table), "float32")
    spec.decoder.projection.bias = np.where(np.isin(np.arange(len(table)), [PAD, START]), NEVER, bias)
    return spec


def _fill_stack(to, embeddings, stack, embedding):
    embeddings.weight, to.scale_embeddings = _array(embedding.embeddings), embedding.scaled
    positions = stack.encodings[0]
    zeros = np.zeros((1, positions.max_length or 1024, embedding.output_dim), "float32")
    to.position_encodings.encodings = _array(positions(zeros))[0]
    if stack.output_norm is not None:
        _fill_norm(to.layer_norm, stack.output_norm)
    if stack.input_norm is not None:
        _fill_norm(to.layernorm_embedding, stack.input_norm)
    for layer, block in zip(to.layer, stack.blocks, strict=True):
        own = block.attention
        _fill_linear(layer.self_attention.linear[0], own.query_dense, own.key_dense, own.value_dense)
        _fill_linear(layer.self_attention.linear[1], own.output_dense)
        _fill_norm(layer.self_attention.layer_norm, block.attention_residual.norm)
        if hasattr(block, "memory_attention"):
            other = block.memory_attention
            _fill_linear(layer.attention.linear[0], other.query_dense)
            _fill_linear(layer.attention.linear[1], other.key_dense, other.value_dense)
            _fill_linear(layer.attention.linear[2], other.output_dense)
            _fill_norm(layer.attention.layer_norm, block.memory_residual.norm)
        _fill_linear(layer.ffn.linear_0, block.feed_forward.inner)
        _fill_linear(layer.ffn.linear_1, block.feed_forward.outer)
        _fill_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)


def _fill_linear(to, *layers):
    """The weights of dense layers, side by side where one product computes several outputs."""
    # the kernel of attention's output is (heads, head_dim, features), all others are (features, …)
    inputs = [layer.kernel.shape[: 2 if layer.name == "output" else 1] for layer in layers]
    kernels = [_array(layer.kernel).reshape(np.prod(shape), -1) for layer, shape in zip(layers, inputs, strict=True)]
    to.weight = np.concatenate([kernel.T for kernel in kernels])
    if layers[0].bias is not None:
        to.bias = np.concatenate([_array(layer.bias).reshape(-1) for layer in layers])


def _fill_norm(to, norm):
    to.gamma, to.beta = _array(norm.gamma), _array(norm.beta)


def _array(variable):
    return np.array(keras.ops.convert_to_numpy(variable), "float32")
