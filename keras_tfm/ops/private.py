"""The private names of Keras that this package needs. Only this module imports from `keras.src`."""

# The mask that Keras attaches to a tensor has no public accessors, and JAX tracers keep theirs in a side table.
from keras.src.backend import get_keras_mask, set_keras_mask

# The only kind of data that `fit` accepts without inferring fixed shapes from the first batches.
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

# Wraps an iterable of NumPy batches for the torch trainer; every adapter of Keras uses it.
from keras.src.trainers.data_adapters.data_adapter_utils import get_torch_dataloader

__all__ = ["DataAdapter", "earlier_store", "get_keras_mask", "get_torch_dataloader", "set_keras_mask"]


def earlier_store(store, names):
    """The weights of a layer in a .keras file, also if its attribute had another name then: `names` new → old."""
    folder, _, name = (getattr(store, "_h5_entry_path", None) or "").rpartition("/")
    return store.get(f"{folder}/{names[name]}") if name in names and not store.keys() else store
