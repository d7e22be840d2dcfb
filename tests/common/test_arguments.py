import numpy as np
import pytest

from keras_tfm.common.arguments import UserError, one_of, positive, rate


def test_what_is_allowed_comes_back():
    assert one_of("kind", "b", {"a": 1, "b": 2}) == "b"
    assert positive("size", 3) == 3
    assert positive("size", None, optional=True) is None
    assert rate("dropout", 0.5) == 0.5


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True, np.int64(4)])  # Keras cannot save NumPy's integers
def test_only_positive_python_integers_are_sizes(value):
    with pytest.raises(ValueError, match="`size` must be a positive integer. Received: size="):
        positive("size", value)


def test_errors_name_argument_rule_and_value():
    with pytest.raises(ValueError, match=r"`kind` must be one of \['a', 'b'\]. Received: kind='c'"):
        one_of("kind", "c", ("a", "b"))
    with pytest.raises(ValueError, match=r"`kind` must be one of \['a'\]. Received: kind=\['a'\]"):
        one_of("kind", ["a"], {"a": 1})
    with pytest.raises(ValueError, match=r"`dropout` must be at least 0 and less than 1. Received: dropout=1.5"):
        rate("dropout", 1.5)


def test_an_error_knows_the_argument_that_is_wrong():
    with pytest.raises(UserError) as error:
        one_of("kind", "c", ("a", "b"))
    assert error.value.argument == "kind"
    assert error.value.naming({"kind": "--kind", "c": "d"}) == "--kind must be one of ['a', 'b']. Received: kind='c'"
    assert UserError("x.txt: must have a line, see `kind`").argument is None
