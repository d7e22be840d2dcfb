"""Export: a trained translator as something to ship.

    saved_model(translator, folder)    strings → strings, for `tf.saved_model.load` and TensorFlow Serving; so are
                                       saved_classifier and saved_language_model for the other models
    litert(translator, folder)         ids → ids by builtin operators, for phones and browsers
    ctranslate2(translator, folder)    weights for CTranslate2, which serves on processors
    onnx(translator, folder)           encoder and decoder step, for ONNX Runtime

`keras_tfm.exported.load(folder)` runs each of them from its folder alone.

All but CTranslate2's write TensorFlow graphs, so they need the TensorFlow backend. A model that was trained on JAX is
saved there and loaded here.
"""

from keras_tfm.export.common import Verdict, compare
from keras_tfm.export.to_ctranslate2 import CTRANSLATE2, ctranslate2
from keras_tfm.export.to_litert import PRECISIONS, litert
from keras_tfm.export.to_onnx import onnx
from keras_tfm.export.to_saved_model import saved_classifier, saved_language_model, saved_model
from keras_tfm.exported import NewFolder
