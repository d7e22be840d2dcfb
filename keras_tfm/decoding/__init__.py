"""Greedy decoding, sampling and beam search, over the `prefill` and `step` of any model."""

from keras_tfm.decoding.beam import PENALTIES, beam_search, check_search
from keras_tfm.decoding.constraints import Constraints
from keras_tfm.decoding.samplers import Beam, Greedy, Sample, compiled
from keras_tfm.decoding.search import Ensemble, Prompted, greedy, map_hypotheses, sample
from keras_tfm.ops.runtime import NEVER
