from keras_tfm.serving.server import Settings as Settings
from keras_tfm.serving.server import serve as serve
