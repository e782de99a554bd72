"""Ops that run on a GPU by a kernel of the CPU, a unit a thread, though it does not suit that: what
neighbours read does not stand together, or working memory of each thread's own lets few run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from cases import cases
from cuda_kernels import GROWN, lowerings, steps

from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.launch import Call, Grid, Launch, Scratch, thread_a_unit
from opstep.runtime.device.routine import PreparedCall

Found = dict[str, set[str]]
"""Kernels, by op."""

# One number is made of what is left of no elements, or stands in for a sum that is not wanted.
SCALARS: Found = {}

# Elementwise kernels of more elements than the schedules' 32-bit divisions reach: a unit is one.
FAR: Found = {
    "add": {"add"},
}

# A unit is a row, a plane, or a sum of many products: a schedule is missing.
WITHOUT: Found = {}


@cache
def on_gpu() -> list[tuple[str, Launch]]:
    """(op, launch) of the CPU's kernels that test graphs run on a GPU, and larger ones."""
    found = []
    with targeting("sm_90"):
        for case in cases():
            for dtype in case.dtypes:
                for op, step, types in steps(case, dtype):
                    for grown in (1, *GROWN):
                        for _, made in lowerings(step, types, grown):
                            found += [(op.name, launch) for launch in of_cpu(made)]
    return found


def of_cpu(made: Any) -> Iterator[Launch]:
    """Of what an op launches, that which it has no `Grid` for."""
    if isinstance(made, PreparedCall):
        return
    for launch in [made] if isinstance(made, (Grid, Launch, Call)) else made:
        if not isinstance(launch, Launch) or launch.units == 0:
            continue
        if launch.cuda is None or launch.cuda() is None:
            yield launch


def test_ops_without_a_schedule():
    units: dict[tuple[str, str], list[int]] = {}
    for op, launch in on_gpu():
        if launch.cuda is not thread_a_unit:
            units.setdefault((op, launch.kernel.__name__), []).append(launch.units)
    one = {pair for pair, counts in units.items() if max(counts) == 1}
    far = {pair for pair, counts in units.items() if min(counts) >= LIMIT}
    assert by_op(one) == SCALARS
    assert by_op(far) == FAR
    assert by_op(units.keys() - one - far) == WITHOUT


def by_op(pairs: Any) -> Found:
    found: Found = {}
    for op, kernel in pairs:
        found.setdefault(op, set()).add(kernel)
    return found


def test_a_thread_a_unit_has_no_memory_of_its_own():
    """With such memory only some thousand threads run."""
    for op, launch in on_gpu():
        if launch.cuda is thread_a_unit:
            scratch = [a for a in launch.args if isinstance(a, Scratch) and a.per_lane]
            assert not scratch, (op, launch.kernel.__name__)
