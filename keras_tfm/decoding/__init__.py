"""Greedy decoding, sampling and beam search, over the `start` and `step` of any model."""

from keras_tfm.decoding.beam import PENALTIES, beam_search
from keras_tfm.decoding.constraints import Constraints
from keras_tfm.decoding.samplers import MOST_BEAMS, Beam, Greedy, Sample, compiled, with_options
from keras_tfm.decoding.search import Ensemble, greedy, map_hypotheses, sample
from keras_tfm.ops.runtime import NEVER
