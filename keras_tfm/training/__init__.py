"""From pairs of texts to a trained model: options, loss and metrics, the folder of a run, and `train`."""

from keras_tfm.common import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
