import os
import subprocess
import sys

from conftest import once


@once
def test_notes_for_developers_of_tensorflow_do_not_reach_users_but_errors_do():
    program = "from keras_tfm import cli; import os, sys; cli.main(); import tensorflow; "
    program += "print('from Python', file=sys.stderr); os.write(2, b'from C++\\n'); "
    program += "os.write(2, b'I0000 00:00:1.2 3 port.cc:1] a note\\n'); "
    program += "os.write(2, b'INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\\n'); "
    program += "os.write(2, b'last words'); os.abort()"
    command = [sys.executable, "-c", program, "translate", "--text", "3. Mai 2023"]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "KERAS_BACKEND": "tensorflow"})
    assert run.returncode < 0 and sorted(run.stderr.split("\n"))[:3] == ["from C++", "from Python", "last words"]
    assert run.stderr.count("\n") == 3  # and the line that no model was named
