"""What launchers say of a process in its environment."""

from __future__ import annotations

import pytest

from opstep.distributed.place import Place, place_in
from opstep.runtime.ir.errors import InputError

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1", "MASTER_PORT": "1234",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "SLURM_JOB_ID": "20123",
}  # fmt: skip


@pytest.mark.parametrize(
    "environment, place",
    [
        ({}, None),
        (TORCHRUN, Place(3, 4, 1, 2, "tcp://node1:1234")),
        (MPIRUN, Place(1, 2, 1, 2, "tcp://127.0.0.1:29500")),
        (SRUN, Place(5, 8, 1, 4, "tcp://10.0.0.7:29623")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script is no rank
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "1"}, None),
        ({"RANK": "0", **MPIRUN}, Place(1, 2, 1, 2, "tcp://127.0.0.1:29500")),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "0"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "OPSTEP_STORE": "/x"}, Place(0, 2, 0, 2, "file:///x")),
    ],
)
def test_places(environment, place):
    assert place_in(environment) == place


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is no rank of WORLD_SIZE=4"),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "x"},
            "LOCAL_RANK=x in the environment is not a number",
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "RANK=1 of WORLD_SIZE=4 cannot be LOCAL_RANK=2 of LOCAL_WORLD_SIZE=2",
        ),
        ({"RANK": "0"}, "RANK=0 is in the environment without WORLD_SIZE"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is in the environment without RANK"),
        ({"RANK": "", "WORLD_SIZE": "4"}, "WORLD_SIZE=4 is in the environment without RANK"),
        ({"RANK": "1", "WORLD_SIZE": ""}, "RANK=1 is in the environment without WORLD_SIZE"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 is in the environment without RANK and WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "without OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "0"}, "PMI_RANK=0 is in the environment without PMI_SIZE"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "without SLURM_STEP_NUM_TASKS"),
        ({"RANK": "9" * 5000, "WORLD_SIZE": "4"}, "in the environment is not a number"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK=one in the environment is not a number"),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            "nothing says where the ranks of other machines",
        ),
    ],
)
def test_places_that_cannot_be(environment, message):
    with pytest.raises(InputError, match=message):
        place_in(environment)
