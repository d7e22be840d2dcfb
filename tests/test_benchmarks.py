import importlib.util
import pathlib

import numpy as np
import pytest
from conftest import assert_close

from keras_tfm.models import transformer


def load(name):
    """A file of `benchmarks/` as a module."""
    file = pathlib.Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_marian_with_our_weights_gives_our_logits():
    torch = pytest.importorskip("torch", reason="a peer of benchmarks/decoding.py, installed by hand")
    pytest.importorskip("transformers", reason="a peer of benchmarks/decoding.py, installed by hand")
    model = transformer(50, num_layers=2, model_dim=16, num_heads=2, ff_dim=32)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.1 * np.random.default_rng(0).normal(size=weight.shape))
    source, target = np.array([[5, 6, 7, 2], [8, 2, 0, 0]]), np.array([[1, 9, 8], [1, 4, 3]])
    marian = load("decoding").as_marian(model)
    with torch.no_grad():
        outputs = marian(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source > 0).long(),
            decoder_input_ids=torch.tensor(target),
        )
    assert_close(model({"source": source, "target": target}), outputs.logits.numpy(), 1e-4)
