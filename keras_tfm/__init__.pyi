from keras_tfm import artifacts as artifacts
from keras_tfm import data as data
from keras_tfm import decoding as decoding
from keras_tfm import documents as documents
from keras_tfm import export as export
from keras_tfm import layers as layers
from keras_tfm import models as models
from keras_tfm import plots as plots
from keras_tfm import serving as serving
from keras_tfm import text as text
from keras_tfm import training as training
from keras_tfm.artifacts import load as load
from keras_tfm.layers import record_attention as record_attention
from keras_tfm.models import decoder_lm as decoder_lm
from keras_tfm.models import encoder_classifier as encoder_classifier
from keras_tfm.models import transformer as transformer
from keras_tfm.models.loading import load_model as load_model
from keras_tfm.options import Recipe as Recipe
from keras_tfm.runtimes.compilation_cache import cache_compilations as cache_compilations
from keras_tfm.runtimes.devices import distributed as distributed
from keras_tfm.runtimes.devices import join_processes as join_processes
from keras_tfm.training import train as train
from keras_tfm.translator import Translator as Translator

__version__: str
