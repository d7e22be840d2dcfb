"""Hugging Face (https://huggingface.co/docs/transformers/model_doc/marian): a Marian model and its tokenizer.

`MarianMTModel.from_pretrained` and `MarianTokenizer.from_pretrained` of `transformers` load the folder.
"""

import keras
import numpy as np

from keras_tfm import artifacts
from keras_tfm.common import extras, files
from keras_tfm.common.arguments import check
from keras_tfm.export.common import check_options, check_search
from keras_tfm.models.marian_layout import counterpart
from keras_tfm.text import MarianTokenizer, SentencePieceTokenizer

SUPPORTED = {"positions": ("sinusoidal",), "max_wavelength": (10000.0,), "norm_first": (False,), "use_bias": (True,)}
SUPPORTED |= {"embedding_norm": (False,)}
END, UNKNOWN, PAD = range(3)  # ids in the files; all others follow in our order, and the decoder starts with padding


def write(translator, folder, settings):
    """Writes a model for Hugging Face; see `keras_tfm.export.export`."""
    check_search(translator, settings, "Hugging Face")
    model, tokenizers = translator.models[0], [translator.source_tokenizer, translator.target_tokenizer]
    check_options(model, "Marian", SUPPORTED, {"tied_output"})
    check("model_dim", model.arguments["model_dim"], model.arguments["model_dim"] % 2 == 0, "even for Hugging Face")
    names = [names_of(tokenizer) for tokenizer in tokenizers]
    orders = [np.array([PAD, PAD, END, UNKNOWN, *range(3, len(each))]) for each in names]
    shared = model.source_embedding is model.target_embedding
    for tokenizer, side in zip(tokenizers, ("source", "target"), strict=True):
        (folder / f"{side}.spm").write_bytes(tokenizer.model)
    for each, name in zip(names, ("vocab.json", "target_vocab.json")[: 1 if shared else 2], strict=False):
        files.write_json(folder / name, {piece: number for number, piece in enumerate(each)}, checksum=False)
    for name, content in configurations(translator, settings, names, shared, orders[1]).items():
        files.write_json(folder / f"{name}.json", content, checksum=False)
    content = extras.load("safetensors.numpy").save(tensors_of(model, orders), {"format": "pt"})
    # not by `save_file`, which would let only this user read it
    (folder / artifacts.FORMATS["huggingface"].main).write_bytes(content)


def names_of(tokenizer):
    """The pieces of a tokenizer, in the order of their ids in the files."""
    classes = SentencePieceTokenizer, MarianTokenizer
    rule = "made by SentencePiece, for Hugging Face"
    check("tokenizer", type(tokenizer).__name__, isinstance(tokenizer, classes), rule)
    return ["</s>", "<unk>", "<pad>", *tokenizer.names()]


def tensors_of(model, orders):
    """The weights by their names in the files."""
    tensors = {"final_logits_bias": np.zeros((1, len(orders[-1]) - 1), "float32")}
    for variable in model.trainable_variables:
        their = counterpart(variable.path, variable.shape, orders)
        tensors[their.name] = their.to_theirs(keras.ops.convert_to_numpy(variable).astype("float32"))
    return tensors


def configurations(translator, settings, names, shared, order):
    """The contents of config.json, generation_config.json and tokenizer_config.json, for the order of target ids."""
    model = translator.models[0]
    block, sizes = model.encoder.blocks[0], {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END}
    for side, stack in {"encoder": model.encoder, "decoder": model.decoder}.items():
        sizes |= {f"{side}_layers": len(stack.blocks), f"{side}_attention_heads": block.attention.num_heads}
        sizes |= {f"{side}_ffn_dim": block.feed_forward.ff_dim}
    config = {"model_type": "marian", "architectures": ["MarianMTModel"], "is_encoder_decoder": True, **sizes}
    config |= {"vocab_size": len(names[0]), "decoder_vocab_size": len(names[1]), "forced_eos_token_id": None}
    config |= {"d_model": model.arguments["model_dim"], "max_position_embeddings": 1024, "bos_token_id": None}
    config |= {"activation_function": model.arguments.get("activation", "relu"), "static_position_embeddings": True}
    config |= {
        "scale_embedding": model.target_embedding.scaled,
        "tie_word_embeddings": model.target_embedding.tie_weights,
    }
    config |= {"share_encoder_decoder_embeddings": shared, "dropout": model.arguments.get("dropout", 0.1)}
    generation = {name: config[name] for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id")}
    generation |= {"num_beams": settings["num_beams"], "length_penalty": settings["length_penalty"]}
    generation["early_stopping"] = False if settings["early_stopping"] else "never"
    generation |= {"min_length": settings["min_length"], "no_repeat_ngram_size": settings["no_repeat_ngram_size"]}
    generation["bad_words_ids"] = [[PAD], *([int(order[number])] for number in settings["suppress_tokens"])]
    generation |= {"max_length": settings["longest"] + 1, "forced_eos_token_id": None}  # it counts the start token
    tokenizer = {"tokenizer_class": "MarianTokenizer", "model_max_length": settings["max_length"]}
    tokenizer |= {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>", "separate_vocabs": not shared}
    return {"config": config, "generation_config": generation, "tokenizer_config": tokenizer}
