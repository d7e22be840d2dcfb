import numpy as np
from conftest import BACKEND
from keras import ops
from test_private import TwoLengths


def test_the_backend_gets_every_batch_as_it_is():
    feed = TwoLengths()
    batches = {
        "jax": feed.get_jax_iterator,
        "tensorflow": feed.get_tf_dataset,
        "torch": feed.get_torch_dataloader,
    }[BACKEND]
    for _ in range(2):  # every epoch asks again
        actual = [[ops.convert_to_numpy(x) for x in batch] for batch in batches()]
        assert [x.shape for x, _ in actual] == [(2, 3, 1), (2, 5, 1)]
        assert all(x.dtype == np.float32 and (x == 1).all() for batch in actual for x in batch)
