from conftest import assert_close
from keras import ops

from keras_tfm.runtimes.replicas import mean_over_replicas, num_replicas

# `test_training.py` trains on several replicas.


def test_one_replica_takes_the_mean_by_itself():
    assert num_replicas() == 1
    assert_close(mean_over_replicas(ops.convert_to_tensor(6.0), ops.convert_to_tensor(4.0)), 1.5)
    assert_close(mean_over_replicas(ops.convert_to_tensor(0.0), ops.convert_to_tensor(0.0)), 0.0)
