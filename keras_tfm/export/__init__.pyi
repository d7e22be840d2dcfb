from keras_tfm.artifacts import FORMATS as FORMATS
from keras_tfm.export.runners import Runner as Runner
from keras_tfm.export.writing import Disagreement as Disagreement
from keras_tfm.export.writing import Verdict as Verdict
from keras_tfm.export.writing import compare as compare
from keras_tfm.export.writing import export as export
