import threading

import keras
from conftest import array
from keras import ops

from keras_tfm.runtimes import programs


def test_a_program_sees_new_values_of_the_variables_and_takes_the_locks():
    variable, lock = keras.Variable(2.0), threading.RLock()
    program = programs.compiled(lambda x, size: x * variable * size, [variable], [lock])
    x = ops.convert_to_tensor(3.0)
    assert array(program(x, 5)) == 30
    variable.assign(4.0)
    assert array(program(x, 5)) == 60 and array(program(x, 1)) == 12
    assert lock.acquire(blocking=False)


def test_xla_is_a_choice_on_tensorflow_alone():
    assert programs.uses_xla() == (keras.backend.backend() != "torch")
    assert programs.uses_xla(jit_compile=False) == (keras.backend.backend() == "jax")
