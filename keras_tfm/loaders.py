"""What a file or folder holds: `load` for what translates, `load_model` for a Keras model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from keras_tfm import artifacts
from keras_tfm.export import runners

if TYPE_CHECKING:
    import keras

    from keras_tfm.translator import Translator


def load(folder: str | os.PathLike[str], **options: Any) -> Translator | runners.Runner:
    """Returns what translates with a folder: a run, a saved translator, or an export in any format.

    Args:
        folder: one that `keras-tfm train`, `Translator.save` or `Translator.export` wrote, or one with a Marian model.
        **options: arguments of `Translator`, except for an export, which has fixed them.

    Returns:
        a `Translator`, or for an export a `keras_tfm.export.Runner`, which imports neither Keras nor TensorFlow unless
        its format needs them. Both are called with a string or a list of strings, and have the methods `n_best`,
        `score` and `stream`; a runner raises an error where its format cannot do it.

    >>> load(artifacts.SHIPPED, max_length=64)("3. Mai 2023")
    '2023-05-03'
    """
    format = artifacts.format_of(folder)
    if format not in (None, "huggingface"):
        return runners.load(folder, **options)
    from keras_tfm.translator import Translator

    return (Translator.load if format is None else Translator.from_marian)(folder, **options)


def load_model(path: str | os.PathLike[str], **options: Any) -> keras.Model:
    """`keras.saving.load_model`, with all classes of this package registered.

    Args:
        path: a .keras file that `model.save` wrote.
        **options: arguments of `keras.saving.load_model`.

    >>> import tempfile, keras, keras_tfm
    >>> path = tempfile.mkdtemp() + "/model.keras"
    >>> keras.Sequential([keras.Input((5, 8)), keras_tfm.layers.PositionalEncoding()]).save(path)
    >>> load_model(path).output_shape
    (None, 5, 8)
    """
    import keras

    from keras_tfm import registration  # noqa: F401, so that Keras knows our classes

    return keras.saving.load_model(path, **options)
