"""Export: a trained translator as something to ship.

    saved_model(translator, folder)    strings → strings, for `tf.saved_model.load` and TensorFlow Serving; so are
                                       saved_classifier and saved_language_model for the other models
    litert(translator, folder)         ids → ids by builtin operators, for `keras_tfm.litert` and for phones
    ctranslate2(translator, folder)    weights for CTranslate2, which serves on processors
    onnx(translator, folder)           encoder and decoder step, for ONNX Runtime

All but CTranslate2's write TensorFlow graphs, so they need the TensorFlow backend. A model that was trained on JAX is
saved there and loaded here.
"""

from keras_tfm.export.common import NewFolder, Verdict, compare
from keras_tfm.export.to_ctranslate2 import CTRANSLATE2, ctranslate2, run_ctranslate2, vocabulary
from keras_tfm.export.to_litert import PRECISIONS, litert
from keras_tfm.export.to_onnx import onnx, run_onnx
from keras_tfm.export.to_saved_model import saved_classifier, saved_language_model, saved_model
