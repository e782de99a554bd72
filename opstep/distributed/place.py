"""Which rank this process is: what torchrun, mpirun, srun and ``opstep run --ranks`` say in the
environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opstep.runtime.ir.errors import InputError

STORE = "OPSTEP_STORE"  # a file on this machine over which ranks find each other
_LOCALHOST = "127.0.0.1"
_PORT = 29_500  # as torchrun has it
_DIGITS = 18
# Variables of rank, number of ranks, rank on this machine, ranks on this machine; and one that must
# be there, too: a batch script of Slurm has the others, and is no rank.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_STEP_ID"),
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A rank among `ranks`, and on its machine. `meeting`: the URL where they find each other;
    `said`: the variables that say the first two, unless ``--ranks`` has set them.
    """

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    meeting: str
    said: tuple[str, ...] = field(default=(), compare=False)


def place_in(environment: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process; None where none did, or it is alone. Raises
    `InputError`.
    """
    for rank, ranks, local, many, needed in _LAUNCHERS:
        if all(environment.get(name) for name in (needed, rank, ranks)):
            count = _number(environment, ranks)
            if count == 1:
                return None
            at = _number(environment, rank)
            here = _number(environment, many, count)
            local_rank = _number(environment, local, at)
            if not at < count:
                raise InputError(f"{rank}={at} is no rank of {ranks}={count}")
            if not (local_rank < here <= count and local_rank <= at):
                raise InputError(
                    f"{rank}={at} of {ranks}={count} cannot be {local}={local_rank} of "
                    f"{many}={here}"
                )
            meeting = _meeting(environment, here == count)
            said = () if STORE in environment else (rank, ranks)
            return Place(at, count, local_rank, here, meeting, said)
    for rank, ranks, local, many, needed in _LAUNCHERS:
        _check_none(environment, (rank, ranks, local, many), needed)
    return None


def _check_none(environment: Mapping[str, str], names: Sequence[str], needed: str) -> None:
    """Raises `InputError` where a launcher's variables say something of this process, but not
    which rank it is of how many: alone it would do the work of all.
    """
    rank, ranks, *_ = names
    given = [name for name in names if environment.get(name)]
    if given == [ranks] and environment[ranks].strip() == "1":
        return
    if given and (needed == rank or environment.get(needed)):
        missing = " and ".join(name for name in (rank, ranks) if name not in given)
        raise InputError(
            f"{given[0]}={environment[given[0]]} is in the environment without {missing}",
            hint=f"a rank has both {rank} and {ranks}; unset {', '.join(given)} to run alone",
        )


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    """The largest of those that Slurm has for machines: of `4(x2),3` the 4."""
    text = environment.get(name) or str(default)
    numbers = [part.partition("(")[0] for part in text.split(",")]
    if not all(n.isascii() and n.isdigit() and len(n) <= _DIGITS for n in numbers):
        raise InputError(f"{name}={text} in the environment is not a number")
    return max(map(int, numbers))


def _meeting(environment: Mapping[str, str], one_machine: bool) -> str:
    if store := environment.get(STORE):
        return f"file://{store}"
    address = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if not address and not one_machine:
        hint = "set MASTER_ADDR to the machine of rank 0, and MASTER_PORT to a free port there"
        raise InputError(
            "nothing says where the ranks of other machines find each other", hint=hint
        )
    port = _number(environment, "MASTER_PORT", _port_of(environment))
    if not 0 < port < 65_536:
        raise InputError(f"MASTER_PORT={port} in the environment is no port")
    return f"tcp://{address or _LOCALHOST}:{port}"


def _port_of(environment: Mapping[str, str]) -> int:
    """One that jobs on a machine do not share, where the launcher numbers them."""
    job = environment.get("SLURM_JOB_ID", "")
    return _PORT + int(job) % 20_000 if job.isdigit() else _PORT
