"""How many processes the environment of a job asks for. Nothing here imports Keras, so the command can ask at once."""

import os

# Variables with the number of processes: of Keras, of SLURM (only under `srun`) and of Open MPI.
NUMBERS = ("KERAS_DISTRIBUTION_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
HOSTS = "TPU_WORKER_HOSTNAMES"  # names of all hosts, with commas between them: on GKE


def expected():
    """The number of processes that train together.

    >>> expected()
    1
    """
    return max(1 + os.environ.get(HOSTS, "").count(","), *(int(os.environ.get(name) or 1) for name in NUMBERS))
