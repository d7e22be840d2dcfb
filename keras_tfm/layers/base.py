"""What layers with weights share: saving of their options, and initialization of their kernels."""

import inspect
from functools import partial

import keras
import numpy as np

from keras_tfm import ops
from keras_tfm.common.arguments import UserError, did_you_mean, one_of, positive, positive_number, rate

VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_boolean = partial(one_of, allowed=(False, True))
_optional = partial(positive, optional=True)
KERAS_OPTIONS = {"name", "dtype", "trainable", "autocast", "activity_regularizer", "input_shape", "input_dim"}
# Validators by the name of an option, which means the same in every layer. Options whose values are names are checked
# by the module that looks them up.
CHECKS = {
    **dict.fromkeys(("num_layers", "num_heads", "ff_dim", "units", "kernel_size", "dilations"), positive),
    **dict.fromkeys(("head_dim", "num_kv_heads", "window", "dim"), _optional),
    **dict.fromkeys(("dropout", "attention_dropout"), rate),
    **dict.fromkeys(("use_bias", "causal", "norm_first"), _boolean),
    "max_wavelength": positive_number,
    "norm_epsilon": partial(positive_number, optional=True),
}


class Layer(keras.layers.Layer):
    """A Keras layer whose config has every argument of its constructor, defaults included.

    Subclasses need no `get_config` for arguments of their own; arguments that are layers are serialized, too. Each of
    the `options` is checked and becomes an attribute. Masks are passed on.
    """

    def __new__(cls, *args, **kwargs):
        layer, signature = super().__new__(cls), inspect.signature(cls.__init__)
        try:
            # not a dict, in which Keras would look for layers to save
            vars(layer)["_arguments"] = signature.bind(None, *args, **kwargs)
        except TypeError as error:
            hints = "".join(f"; {name}{did_you_mean(name, ())}" for name in kwargs if did_you_mean(name, ()))
            raise TypeError(f"{cls.__name__}{signature}: {error}{hints}") from None
        return layer

    def __init__(self, options=None, **kwargs):
        for name in [name for name in kwargs if name not in KERAS_OPTIONS]:
            hint = did_you_mean(name, self.get_options())
            rule = f"`{name}` must be an option of {type(self).__name__}{hint}"
            raise UserError(f"{rule}. Received: {name}={kwargs[name]!r}")
        super().__init__(**kwargs)
        self.supports_masking = True
        self.set_options(options or {})

    def set_options(self, options):
        for name, value in options.items():
            setattr(self, name, CHECKS[name](name, value) if name in CHECKS else value)

    def make(self, kind, name, options):
        """A layer inside of this one, with those of the options that it takes, and the same precision."""
        return kind(**options_of(kind, options), dtype=self.dtype_policy, name=name)

    def get_options(self):
        """The options of the constructor and their values, as given, defaults included."""
        return self._options()[0]

    def _options(self):
        """The same, and those that the constructor takes as `**kwargs`."""
        self._arguments.apply_defaults()
        given = self._arguments.arguments
        kinds = {name: parameter.kind for name, parameter in self._arguments.signature.parameters.items()}
        named = {name: value for name, value in given.items() if kinds[name] not in (VAR_POSITIONAL, VAR_KEYWORD)}
        others = [value for name, value in given.items() if kinds[name] is VAR_KEYWORD]  # whatever they are called
        del named["self"]
        return named, *(others or [{}])

    def get_config(self):
        options, others = self._options()
        config = options | others
        config.pop("dtype", None)  # Keras always writes it, and to serialize it here would import TensorFlow
        return keras.saving.serialize_keras_object(config) | super().get_config()

    @classmethod
    def from_config(cls, config):
        objects = {name: value for name, value in config.items() if isinstance(value, (dict, list, tuple))}
        return super().from_config(config | keras.saving.deserialize_keras_object(objects))


def options_of(kind, arguments):
    """Those of the arguments, by name, that the constructor of a layer or model takes as options."""
    parameters = inspect.signature(kind.__init__).parameters
    names = {name for name, parameter in parameters.items() if parameter.kind is not VAR_KEYWORD}
    return {name: value for name, value in arguments.items() if name in names - {"self"}}


def check_sequence(name, shape):
    """Raises an error unless this is the shape of a batch of sequences."""
    if len(shape) != 3:
        raise UserError(f"`{name}` must be (batch, length, features). Received: {name}.shape={tuple(shape)}")


def as_integer(name, value):
    """`value` as an int or an int32 tensor; other types raise an error."""
    if isinstance(value, int):
        return value
    value = ops.convert_to_tensor(value)
    if "int" not in keras.backend.standardize_dtype(value.dtype):
        raise UserError(f"`{name}` must be an integer. Received: {name} of dtype {value.dtype}")
    return ops.cast(value, "int32")


def initializer(name, value):
    """The Keras initializer for a name, a config or an initializer."""
    try:
        return keras.initializers.get(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"`{name}` must be a Keras initializer or its name. Received: {name}={value!r}") from error


def clone(initializer, number=0):
    """A copy of an initializer, which draws other numbers unless it has a seed; functions are returned as they are.

    Copies with another `number` draw other numbers also if it has a seed.
    """
    if not hasattr(initializer, "clone"):
        return unless_loading(initializer)
    config = initializer.get_config()
    if number and isinstance(config.get("seed"), int):
        return unless_loading(type(initializer).from_config(config | {"seed": config["seed"] + number}))
    return unless_loading(initializer.clone())


def unless_loading(initializer):
    """The initializer; zeros for a model that is being loaded, whose weights are about to be replaced."""
    return initializer if ops.current().initializes else _zeros


def _zeros(shape, dtype=None):
    """Zeros, for which JAX compiles nothing."""
    return ops.convert_to_tensor(np.zeros(shape, "float32"), dtype)


def as_matrices(initializer, inputs, outputs, matrices=1):
    """Initializes a kernel of rank 3 as matrices of this size; Keras would treat it as that of a convolution."""

    def draw(shape, dtype=None):
        each = [clone(initializer, number)((inputs, outputs), dtype) for number in range(matrices)]
        return ops.reshape(ops.stack(each), shape)

    return unless_loading(draw)
