import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_build_your_own():
    file = EXAMPLES / "build_your_own.py"
    run = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(re.search(r"fresh process: accuracy ([\d.]+)%", run.stdout)[1]) > 95
    assert len(file.read_text().splitlines()) < 60
