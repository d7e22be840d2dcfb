"""Marian's own format, as OPUS-MT first published its models: weights as .npz, with their configuration inside.

A folder holds one .npz file, one *vocab.yml, source.spm and target.spm. It is presented here as if it were in the
format of Hugging Face, which `keras_tfm.convert.marian` reads.
"""

import re

import numpy as np

from keras_tfm.common import extras, files
from keras_tfm.common.arguments import UserError, one_of

CONFIGURATION = "special:model.yml"  # an array of the bytes of a YAML file
# Their entry → entry of Hugging Face's config.json.
SIZES = {"dim-emb": "d_model", "enc-depth": "encoder_layers", "dec-depth": "decoder_layers"}
SIZES |= {"transformer-heads": "encoder_attention_heads", "transformer-dim-ffn": "encoder_ffn_dim"}
# Their entry → values that are supported; an entry that is missing has the first.
ENTRIES = {
    "type": ("transformer",),
    "tied-embeddings-all": (True,),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-train-position-embeddings": (False,),
    "transformer-ffn-activation": ("swish", "relu"),
}
# Part of Hugging Face's name → theirs.
PARTS = {"self_attn": "self", "encoder_attn": "context", "self_attn_layer_norm": "self_Wo", "fc1": "1", "fc2": "2"}
PARTS |= {"encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}


class Archive:
    """A folder in Marian's format.

    Attributes:
        path: the .npz file.
        size: number of arrays, and of their bytes.
        config: what Hugging Face's config.json would say.
        vocabulary: a dict from pieces to ids, completed by "<pad>", with which Hugging Face's decoder starts.
    """

    def __init__(self, folder):
        (self.path,) = folder.glob("*.npz")
        self.arrays = files.read_arrays(self.path)
        self.size = len(self.arrays), sum(array.nbytes for array in self.arrays.values())
        with files.reading(self.path):
            config = parse_yaml(bytes(self.arrays[CONFIGURATION].astype("uint8")).rstrip(b"\0"))
            entries = {name: one_of(name, config.get(name, allowed[0]), allowed) for name, allowed in ENTRIES.items()}
            sizes = {theirs: int(config[name]) for name, theirs in SIZES.items()}
        paths = sorted(folder.glob("*vocab.yml"))
        with files.reading(paths[0] if paths else folder / "vocab.yml"):
            names = parse_yaml(files.read_bytes(paths[0] if paths else folder / "vocab.yml", files.MAX_JSON_BYTES))
            self.vocabulary = {str(piece): int(number) for piece, number in names.items()}
            pad = self.vocabulary["<pad>"] = 1 + max(self.vocabulary.values())
            specials = {"eos_token_id": self.vocabulary["</s>"], "pad_token_id": pad, "decoder_start_token_id": pad}
        self.config = {"model_type": "marian", "scale_embedding": True, "vocab_size": pad + 1, **sizes, **specials}
        self.config["activation_function"] = entries["transformer-ffn-activation"]

    def get(self, name, shape):
        """The tensor with this name in the format of Hugging Face, which must have this shape."""
        with files.reading(self.path):
            array = np.asarray(self.arrays[theirs(name)], "float32")
            if name == "model.shared.weight":
                array = np.pad(array, [(0, 1), (0, 0)])  # the decoder starts with zeros
            elif name == "final_logits_bias":
                array = np.pad(array.reshape(1, -1), [(0, 0), (0, 1)])
            else:
                array = array.T if name.endswith("weight") and len(shape) == 2 else array.reshape(-1)
            if array.shape != shape:
                raise UserError(f"{theirs(name)} must have the shape {shape}. Received: {array.shape}")
            return array


def parse_yaml(content):
    """What YAML says, without aliases, by which a few lines could stand for more than any memory holds."""
    yaml = extras.load("yaml")

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent, index):
            if self.check_event(yaml.AliasEvent):
                raise UserError("an alias of YAML is not supported")
            return super().compose_node(parent, index)

    return yaml.load(content, Loader)


def theirs(name):
    """The name of an array in Marian's format, for that of a tensor in Hugging Face's.

    >>> theirs("model.decoder.layers.0.encoder_attn.q_proj.weight"), theirs("model.encoder.layers.1.fc2.bias")
    ('decoder_l1_context_Wq', 'encoder_l2_ffn_b2')
    """
    if name in ("model.shared.weight", "final_logits_bias"):
        return {"model.shared.weight": "Wemb", "final_logits_bias": "decoder_ff_logit_out_b"}[name]
    side, number, part, weight = re.fullmatch(r"model\.(\w+)\.layers\.(\d+)\.(.*)\.(weight|bias)", name).groups()
    start, letter = f"{side}_l{int(number) + 1}", {"weight": "W", "bias": "b"}[weight]
    if part.endswith("layer_norm"):
        return f"{start}_{PARTS[part]}_ln_{'scale' if weight == 'weight' else 'bias'}"
    if part.startswith("fc"):
        return f"{start}_ffn_{letter}{PARTS[part]}"
    attention, projection = part.split(".")
    return f"{start}_{PARTS[attention]}_{letter}{projection[0]}"
