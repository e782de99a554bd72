"""Runs kernels in one process, for compute-sanitizer: those of the ops' test graphs, once each, and
those of random programs whose plans join ops, and of such whose runs are recorded.

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/gpu/sweep.py [NAME...]

NAME: ops, joined, recorded.

Of kernels of ops that differ only by constants or by how elements are converted the two that differ
most are run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "shared"), str(TESTS / "kernels")]

import numpy as np  # noqa: E402 - found by the lines above
from cases import cases, inputs, program  # noqa: E402
from cuda_kernels import launched, representatives, steps  # noqa: E402
from values import op_by_op  # noqa: E402

import opstep  # noqa: E402
from opstep.runtime.device.cuda.compiling.target import targeting  # noqa: E402
from opstep.runtime.device.cuda.device import device, execute  # noqa: E402
from opstep.runtime.device.cuda.recording import measuring  # noqa: E402
from opstep.runtime.plan import fusing  # noqa: E402
from tests.kernels.pointwise import fused_programs  # noqa: E402
from tests.kernels.pointwise.fused_programs import (  # noqa: E402
    NetworkWriter,
    ProductWriter,
    Writer,
)
from tests.kernels.pointwise.test_measured import LARGE  # noqa: E402

PROGRAMS = [ProductWriter(seed) for seed in range(4)]
PROGRAMS += [NetworkWriter(seed, scale=scale) for scale in (1, 5) for seed in range(8)]


def chosen(arch: str) -> dict:
    """(case, dtype) -> how many kernels nobody else runs."""
    users: dict = {}
    with targeting(arch):
        for case in cases():
            for dtype in case.dtypes:
                for _, step, types in steps(case, dtype):
                    for kernel in launched(step, types, 1):
                        users.setdefault(kernel, (case, dtype))
    wanted: dict = {}
    for case, dtype in representatives(users, 2).values():
        wanted.setdefault((case.id, dtype), case)
    return wanted


def run(application, operands) -> list[np.ndarray]:
    return execute(application.op, list(operands), dict(application.attrs))


def sweep_ops() -> None:
    wanted = chosen(device(0).gpu.arch)
    for (case_id, dtype), case in wanted.items():
        op_by_op(program(case_id, dtype), case, inputs(case, dtype), run)
    print(f"{len(wanted)} graphs run")


def sweep_joined() -> None:
    fusing.WORTH_A_KERNEL_NS = 0  # of groups of any size
    for writer in PROGRAMS:
        program = opstep.loads(writer.text())
        program.run(inputs=writer.arrays(), device="cuda", kernels="numba")
    print(f"{len(PROGRAMS)} programs run")


def sweep_recorded() -> None:
    """Groups take the statistics of each other program themselves; those of the rest are packed."""
    fusing.WORTH_A_KERNEL_NS = 0
    fused_programs.SHAPES = (*fused_programs.SHAPES, *LARGE)
    writers = [Writer(seed) for seed in range(10)] + [NetworkWriter(seed) for seed in range(4)]
    with TemporaryDirectory() as folder:
        for number, writer in enumerate(writers):
            measuring.LARGE = 1 if number % 2 else 1 << 30
            with opstep.Recording(workspace=f"{folder}/runs.db") as recording:
                opstep.loads(writer.text()).run(
                    inputs=writer.arrays(), device="cuda", kernels="numba", recording=recording
                )
    print(f"{len(writers)} programs recorded")


def main() -> int:
    sweeps = {"ops": sweep_ops, "joined": sweep_joined, "recorded": sweep_recorded}
    for name in sys.argv[1:] or sweeps:
        sweeps[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
