"""Functional Keras models made of the layers; they can also encode and decode step by step."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "builders": ("BUILDERS",),
        "byte_net": ("ByteNet", "bytenet"),
        "conv_s2s": ("ConvS2S", "conv"),
        "encoder_decoder": ("TokenEmbedding",),
        "loading": ("average_checkpoints", "checkpoints", "load_model"),
        "recurrent": ("Recurrent", "gnmt", "rnn", "rnn_attention"),
        "sequence": ("SequenceModel",),
        "sizes": ("SIZES",),
        "transformers": (
            "DecoderLM",
            "EncoderClassifier",
            "Transformer",
            "decoder_lm",
            "encoder_classifier",
            "transformer",
        ),
    },
)
