"""What depends on the Keras backend, one module per subject.

No other module asks which backend is running. What depends on the runtime that will execute a program, such as XLA or
LiteRT, is in `keras_tfm.kernels`.
"""

from keras_tfm.backend import xla

xla.set_flags()
