from keras_tfm.backend import machine


def test_the_settings_can_be_used_by_keras():
    here = machine.current()
    assert here.accelerated in (False, True) and here.shapes > 0 and here.jit_compile in (False, True, "auto")
