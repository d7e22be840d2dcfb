"""CTranslate2: the weights of a `transformer` in its format."""

import keras
import numpy as np

from keras_tfm.arguments import one_of
from keras_tfm.export.common import check_not_quantized, compare, save_settings, save_tokenizers
from keras_tfm.exported import CTranslate2Translator, NewFolder, vocabulary
from keras_tfm.text import PAD, START

# Options of `transformer` that CTranslate2 can compute, the default first; sizes and pre- or post-norm are free.
CTRANSLATE2 = {
    "positions": ("sinusoidal", "learned"),
    "positions_in": ("input",),
    "positions_combine": ("add",),
    "score": ("scaled_dot",),
    "heads": ("standard",),
    "mixing": ("soft",),
    "norm": ("layer",),
    "activation": ("relu", "gelu", "swish"),
    "window": (None,),
    "num_kv_heads": (None,),
    "tied_output": (True,),
}


def ctranslate2(translator, folder, quantization=None, compare_on=None):
    """Writes a translator for CTranslate2 (https://github.com/OpenNMT/CTranslate2), with its tokenizers beside.

    Args:
        translator: a `Translator` of one model, with the options of `CTRANSLATE2`.
        folder, compare_on: as of `saved_model`, which says what is returned, too.
        quantization: of CTranslate2, such as "int8" or "float16"; None keeps float32.
    """
    place, runtime = NewFolder(folder), _package()
    check_not_quantized(translator)
    if len(translator.models) != 1:
        raise ValueError(f"`translator` must have one model. Received: {len(translator.models)} models")
    one_of("penalty", translator.options.get("penalty", "length"), ["length"])
    if translator.options.get("coverage_penalty"):
        received = translator.options["coverage_penalty"]
        raise ValueError(f"`coverage_penalty` must be 0, which CTranslate2 knows another one of. Received: {received}")
    spec = _spec(translator.models[0], runtime.specs)
    spec.register_source_vocabulary(vocabulary(translator.source_tokenizer))
    spec.register_target_vocabulary(vocabulary(translator.target_tokenizer))
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=quantization)
    with place as new:
        spec.save(str(new))
        save_tokenizers(translator, new)
        settings = {"max_length": translator.max_length, "precision": quantization or "float32"}
        save_settings(translator, new, format="ctranslate2", **settings)
        return None if compare_on is None else compare(new, CTranslate2Translator(new), translator, compare_on)


def _spec(model, specs):
    """The weights of a `transformer` where CTranslate2 looks for them."""
    options = {
        name: one_of(name, model.arguments.get(name, allowed[0]), allowed) for name, allowed in CTRANSLATE2.items()
    }
    norm_first, layers = bool(model.arguments.get("norm_first")), model.arguments.get("num_layers", 6)
    counts = {"encoder": layers, "decoder": model.arguments.get("num_decoder_layers") or layers}
    spec = specs.TransformerSpec.from_config(
        tuple(counts.values()),
        model.encoder.blocks[0].attention.num_heads,
        pre_norm=norm_first,
        activation=getattr(specs.common_spec.Activation, options["activation"].upper()),
    )

    def linear(to, *layers):  # side by side, where one product makes several outputs
        inputs = to_inputs(layers[0])
        to.weight = np.concatenate([_array(layer.kernel).reshape(inputs, -1).T for layer in layers])
        if layers[0].bias is not None:
            to.bias = np.concatenate([_array(layer.bias).reshape(-1) for layer in layers])

    def to_inputs(layer):
        """How many features come in: the output of attention takes heads and features of each."""
        shape = layer.kernel.shape
        return shape[0] * shape[1] if layer.name == "output" else shape[0]

    def norm(to, layer):
        to.gamma, to.beta = _array(layer.gamma), _array(layer.beta)

    for side, count in counts.items():
        to, stack = getattr(spec, side), getattr(model, side)
        table = _array((model.source_embedding if side == "encoder" else model.target_embedding).embeddings)
        embeddings = to.embeddings[0] if side == "encoder" else to.embeddings
        embeddings.weight = table
        positions = stack.encodings[0]
        length = positions.max_length or 1024
        to.position_encodings.encodings = _array(positions(np.zeros((1, length, table.shape[1]), "float32")))[0]
        if norm_first:
            norm(to.layer_norm, stack.norm)
        for number in range(count):
            block, layer = stack.blocks[number], to.layer[number]
            own = block.attention
            linear(layer.self_attention.linear[0], own.query_dense, own.key_dense, own.value_dense)
            linear(layer.self_attention.linear[1], own.output_dense)
            norm(layer.self_attention.layer_norm, block.attention_residual.norm)
            if side == "decoder":
                other = block.memory_attention
                linear(layer.attention.linear[0], other.query_dense)
                linear(layer.attention.linear[1], other.key_dense, other.value_dense)
                linear(layer.attention.linear[2], other.output_dense)
                norm(layer.attention.layer_norm, block.memory_residual.norm)
            linear(layer.ffn.linear_0, block.feed_forward.inner)
            linear(layer.ffn.linear_1, block.feed_forward.outer)
            norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)
    spec.decoder.projection.weight = table
    spec.decoder.projection.bias = np.where(np.isin(np.arange(len(table)), [PAD, START]), -1e9, 0).astype("float32")
    return spec


def _array(variable):
    return np.array(keras.ops.convert_to_numpy(variable), "float32")


def _package():
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError as error:
        raise ImportError("This export needs CTranslate2: pip install 'keras_tfm[ctranslate2]'") from error
    return ctranslate2
