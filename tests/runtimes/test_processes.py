import pytest
from conftest import once

from keras_tfm.runtimes import processes


@once
@pytest.mark.parametrize(
    "variable, value, number",
    [
        ("KERAS_DISTRIBUTION_NUM_PROCESSES", "2", 2),
        ("SLURM_STEP_NUM_TASKS", "4", 4),
        ("OMPI_COMM_WORLD_SIZE", "1", 1),
        ("TPU_WORKER_HOSTNAMES", "a,b,c", 3),
        ("TPU_WORKER_HOSTNAMES", "a", 1),
    ],
)
def test_the_environment_says_how_many_processes_there_are(variable, value, number, monkeypatch):
    assert processes.expected() == 1
    monkeypatch.setenv(variable, value)
    assert processes.expected() == number
