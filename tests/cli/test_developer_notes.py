import os
import subprocess
import sys

import pytest
from conftest import once


@pytest.mark.slow
@once
def test_notes_for_developers_of_tensorflow_do_not_reach_users_but_errors_do():
    program = "from keras_tfm.cli import developer_notes; import os, sys; "
    program += "developer_notes.without_developer_notes(); import tensorflow; "
    program += "print('from Python', file=sys.stderr); os.write(2, b'from C++\\n'); "
    program += "os.write(2, b'I0000 00:00:1.2 3 port.cc:1] a note\\n'); "
    program += "os.write(2, b'INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\\n'); "
    program += "os.write(2, b'last words'); os.abort()"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.returncode < 0 and sorted(run.stderr.split("\n")) == ["from C++", "from Python", "last words"]
