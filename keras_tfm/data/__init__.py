"""Pairs of texts: read from files, encoded into token files, put into batches; and tasks that need no files."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "batches": ("BucketedBatches", "PackedBatches", "choose_shapes", "model_inputs", "padded", "shifted"),
        "corpus": ("ParallelFiles", "decode_lines", "fingerprint", "read_lines"),
        "tasks": (),
        "token_files": ("Sequences", "TokenPairs", "encode_pairs"),
    },
)
