"""Argument checks. Each error names the argument, says what is allowed and shows what was received."""

import difflib
import math

MAX_BEAMS = 1024  # that a search may be asked for, also by a file


class UserError(ValueError):
    """A mistake that the caller can correct: the message says how. Any other `ValueError` is a bug of ours.

    Messages quote the arguments that they speak of, so that a command can name its flags instead.

    >>> error = UserError("`max_queue` must be at least `max_texts`. Received: max_queue=9")
    >>> error.argument
    'max_queue'
    >>> error.naming({"max_queue": "--max_queue", "max_texts": "--max_texts"})
    '--max_queue must be at least --max_texts. Received: max_queue=9'
    """

    @property
    def argument(self):
        """The argument that is wrong, or None if it is something else, such as a file."""
        message = str(self).rpartition("\x1b[1m")[2]  # before which Keras says in which layer the error was
        before, _, rest = message.partition("`")
        return None if before else rest.partition("`")[0]

    def naming(self, names):
        """The message, with other names for the arguments that it speaks of."""
        message = str(self)
        for name in names:
            message = message.replace(f"`{name}`", names[name])
        return message


class NotFinite(UserError, FloatingPointError):
    """Weights or a loss became NaN or infinite."""


def check(name, value, fine, rule):
    """Returns `value` if it is `fine`, and otherwise raises an error that states the rule."""
    if not fine:
        raise UserError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return value


def one_of(name, value, allowed):
    """Returns `value` if it is one of the `allowed` values."""
    return check(name, value, value in list(allowed), f"one of {list(allowed)}")


# What Keras, KerasHub and Hugging Face call an argument → what it is called here.
OTHER_NAMES = {
    **{"key_dim": "head_dim", "num_query_heads": "num_heads", "num_key_value_heads": "num_kv_heads"},
    **{"intermediate_dim": "ff_dim", "normalize_first": "norm_first", "layer_norm_epsilon": "norm_epsilon"},
    **dict.fromkeys(("d_model", "hidden_dim", "hidden_size", "embedding_dim"), "model_dim"),
    **{"vocabulary_size": "vocab_size", "use_causal_mask": "causal"},
    **dict.fromkeys(("query", "decoder_sequence"), "inputs"),
    **dict.fromkeys(("value", "key", "encoder_sequence"), "memory"),
    **dict.fromkeys(("padding_mask", "query_mask", "decoder_padding_mask"), "mask"),
    **dict.fromkeys(("value_mask", "key_mask", "encoder_padding_mask", "encoder_attention_mask"), "memory_mask"),
    **{"decoder_attention_mask": "attention_mask"},
}


def did_you_mean(name, names):
    """A question whether another name was meant, or nothing if none is like it.

    >>> did_you_mean("num_layer", ["num_heads", "num_layers"])
    ' (did you mean num_layers?)'
    >>> did_you_mean("key_dim", ["num_heads", "head_dim"])
    ' (did you mean head_dim?)'
    """
    matches = [OTHER_NAMES[name]] if name in OTHER_NAMES else difflib.get_close_matches(name, names, n=1)
    return "".join(f" (did you mean {match}?)" for match in matches)


def positive(name, value, optional=False):
    """Returns `value` if it is a positive integer, or None where that is optional."""
    fine = value is None and optional or type(value) is int and value > 0
    return check(name, value, fine, "a positive integer" + " or None" * optional)


def positive_number(name, value, optional=False):
    """Returns `value` if it is a positive number, not infinity, or None where that is optional."""
    fine = value is None and optional or isinstance(value, (int, float)) and 0 < value < math.inf
    return check(name, value, fine, "a positive number" + " or None" * optional)


def rate(name, value):
    """Returns `value` if it is a rate, such as that of dropout."""
    return check(name, value, isinstance(value, (int, float)) and 0 <= value < 1, "at least 0 and less than 1")


def strings(texts, name="texts"):
    """Returns `texts` as a list, if it is an iterable of strings and not one string."""
    if isinstance(texts, str):
        raise UserError(f"`{name}` must be a list of strings. Received: a string, {texts[:40]!r}")
    check(name, texts, hasattr(texts, "__iter__"), "a list of strings")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"`{name}` must be a list of strings. Received: {text!r} in it")
    return texts
