"""What all models of this package share: how they are saved, quantized and protected from other threads."""

import json
import threading
from typing import Any

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import NotFinite, UserError, one_of
from keras_tfm.runtimes import devices, machine


def only_tensors(value):
    """Whether a value is a dict of lists of tensors, of which Keras need not keep track."""
    if not isinstance(value, dict) or not all(isinstance(items, list) for items in value.values()):
        return False
    one_of_each_type = {type(item): item for items in value.values() for item in items}
    return all(ops.is_tensor(item) and not isinstance(item, keras.Variable) for item in one_of_each_type.values())


@keras.saving.register_keras_serializable(package="keras_tfm")
class SequenceModel(keras.Model):
    """A functional model whose config is the arguments of its constructor, defaults included.

    Each argument is an attribute, too: `model.num_layers`, `model.dropout`.

    `keras.models.clone_model` returns a plain functional model, without methods and metadata; for a copy with both, use
    `type(model).from_config(model.get_config())`.

    Attributes:
        arguments: the arguments of the constructor.
        metadata: a dict of JSON values that is saved with the model, such as fingerprints of its tokenizers.
        running: a lock that `fit`, `evaluate` and `predict` hold. Other threads must wait, since Keras on JAX moves the
            weights out of the model while they run.
        programs: what `generate` and translators have compiled for the model.
        quantization: None, or the config that `quantize` was called with, as JSON values.
    """

    def __init__(self, inputs: Any, outputs: Any, arguments: dict[str, Any]):
        super().__init__(inputs=inputs, outputs=outputs, name=arguments["name"])
        policy = keras.dtype_policies.get(arguments["dtype"]).name
        self.dtype_policy = policy  # Keras reads it to decide whether to scale the loss; an error if it has no name
        self.arguments, self.metadata, self.quantization = arguments | {"dtype": policy}, {}, None
        for option in arguments.keys() - {"dtype", "name"}:  # which are Keras' own
            setattr(self, option, arguments[option])
        self.running, self.programs = threading.RLock(), {}

    def __setattr__(self, name, value):
        # Keras on JAX sets its state at each step of `fit`, and would search it for layers for milliseconds.
        if only_tensors(value):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def call(self, inputs, training=None, mask=None, **kwargs):
        return super().call(devices.shard_rows(inputs), training=training, mask=mask, **kwargs)

    def fit(self, x=None, *args, **kwargs):
        with self.running, devices.any_rows(x):
            return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        with self.running, devices.any_rows(x):
            return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        with self.running, devices.any_rows(x):
            return super().predict(x, *args, **kwargs)

    def check_finite(self, name=None):
        """Raises an error, in which the model is called `name`, if a weight is NaN or infinite."""
        with self.running:
            weights = [weight for weight in self.weights if "float" in keras.backend.standardize_dtype(weight.dtype)]
            if machine.current().accelerated:  # where to copy all weights of a large model takes long
                finite = ops.convert_to_numpy(ops.stack([ops.all(ops.isfinite(weight)) for weight in weights]))
            else:  # JAX would compile a program for each shape
                finite = [np.isfinite(array).all() for array in ops.to_numpy(weights)]
            wrong = [weight.path for weight, fine in zip(weights, finite, strict=True) if not fine]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise NotFinite(
                f"{name or f'model {self.name!r}'} must have finite weights: use an earlier checkpoint, or train again "
                "with a lower learning rate, more warm-up steps or in float32. "
                f"Received: NaN or infinite {wrong[0]}{more}"
            )

    def get_config(self):
        try:
            metadata = json.loads(json.dumps(self.metadata))
        except (TypeError, ValueError) as error:
            raise UserError(f"`metadata` must contain only JSON values. Received: {self.metadata}") from error
        arguments = keras.saving.serialize_keras_object(dict(self.arguments))
        return {"metadata": metadata, "quantization": self.quantization, **arguments}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        arguments = dict(config)
        metadata, quantization = arguments.pop("metadata", {}), arguments.pop("quantization", None)
        if arguments.pop("flat", False) or "builder" in arguments:
            raise UserError("the model was written by an earlier version of keras_tfm, which this one cannot read")
        for side in ("source", "target"):
            if arguments.get(f"{side}_embedding"):
                layer = keras.saving.deserialize_keras_object(arguments[f"{side}_embedding"])
                arguments[f"{side}_embedding"] = layer
        model = cls(**arguments)
        model.metadata = metadata
        if quantization:  # before the weights are loaded, which are those of quantized layers
            model.quantize(config=keras.saving.deserialize_keras_object(quantization))
        return model

    def quantize(self, mode=None, config=None, filters=None):
        """Quantizes all dense layers to "int8" or "int4"; embeddings keep their precision."""
        one_of("mode", mode, ("int8", "int4"))
        if filters is not None:
            raise UserError(f"`filters` must be None, since they cannot be saved. Received: {filters=}")
        dense = keras.layers.Dense, keras.layers.EinsumDense  # Keras warns about each layer of another kind
        super().quantize(mode, config, filters=lambda layer: isinstance(layer, dense))
        self.quantization = keras.saving.serialize_keras_object(config)
