"""Lets Keras load saved models with our classes in them after `import keras_tfm` alone, which imports neither.

Keras looks classes up in a dict by the names that they were registered under. As long as their modules are not
imported, stand-ins are there, which import them when Keras uses one. If Keras itself is not imported yet, a finder
waits for that.
"""

import importlib
import sys

PACKAGE = "keras_tfm"
# Module → the classes that it registers.
CLASSES = {
    "layers.dropout": ("Dropout",),
    "layers.attention": ("MultiHeadAttention", "MultiHeadSelfAttention"),
    "layers.blocks": ("FeedForward", "TransformerDecoderBlock", "TransformerEncoderBlock"),
    "layers.positions": ("PositionalEncoding",),
    "layers.stacks": ("TransformerDecoder", "TransformerEncoder"),
    "models.byte_net": ("ByteNet", "ByteNetDecoder", "ByteNetEncoder"),
    "models.conv_s2s": ("ConvDecoder", "ConvEncoder", "ConvS2S"),
    "models.encoder_decoder": ("TokenEmbedding",),
    "models.recurrent": ("Recurrent",),
    "models.recurrent_layers": ("BahdanauDecoder", "BottleneckDecoder", "LuongDecoder", "RecurrentEncoder"),
    "models.sequence": ("SequenceModel",),
    "models.transformers": ("DecoderLM", "EncoderClassifier", "Transformer"),
    "training.losses": ("InverseSquareRoot", "Perplexity", "SmoothedCrossentropy", "TokenAccuracy"),
}


class StandIn:
    """Stands for a class in Keras' dict until its module is imported, which registers the class itself."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def load(self):
        return getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.name)

    def __call__(self, *args, **kwargs):
        return self.load()(*args, **kwargs)

    def from_config(self, config, **kwargs):
        return self.load().from_config(config, **kwargs)


def register():
    """Puts a stand-in into Keras' dict for each class that is not there yet."""
    import keras

    objects = keras.saving.get_custom_objects()
    for module, names in CLASSES.items():
        for name in names:
            objects.setdefault(f"{PACKAGE}>{name}", StandIn(module, name))


class KerasFinder:
    """Finds Keras where the other finders do, and registers the stand-ins once it has been imported."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader:
    """A loader of Keras; everything but loading is left to the one that it was found with."""

    def __init__(self, loader, finder):
        self._loader, self._finder = loader, finder

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:  # else it has been imported before
            sys.meta_path.remove(self._finder)
        register()


def register_with_keras():
    """Registers the stand-ins, now or when Keras is imported."""
    if sys.modules.get("keras") is not None:
        register()
    elif not any(isinstance(finder, KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, KerasFinder())
