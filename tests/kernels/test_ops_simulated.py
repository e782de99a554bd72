"""Every test graph of every op by its CUDA kernels, thread by thread, against the float64 oracle.

Pointers of the simulator know what they point to, so an index beyond it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import oracle
import pytest
from cases import Case, cases, inputs, program
from cuda_kernels import steps
from values import all_written, compare, op_by_op

from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS

# One thread runs after the other, which takes time: so much work, in elements and 1/4 of the
# operations, may a graph have. The graph of an op that is nearest to so much is run for each type.
LARGEST, USUAL = 10000, 200

CASES = {c.id: c for c in cases()}


def work(case: Case) -> int:
    """How many elements and operations a simulated run goes through, about."""
    tensors = [b.type for b in case.graph.inputs if b.type] + list(case.graph.results)
    operations = 0
    for op, step, _ in steps(case, case.dtypes[0]):
        types = [t for t in step.operand_types if t is not None]
        try:
            operations += int(op.flops(*types, **step.attrs) or 0)
        except TypeError:  # an absent operand stands before another one
            continue
    return sum(prod(t.shape) for t in tensors) + operations // 4


def simulated() -> Iterator[tuple[str, str]]:
    """(case, dtype): one graph of an op for each type, the others for one."""
    files: dict[str, list[Case]] = {}
    for case in CASES.values():
        if work(case) <= LARGEST:
            files.setdefault(case.file, []).append(case)
    for found in files.values():
        usual = min(found, key=lambda case: abs(work(case) - USUAL))
        for case in found:
            one = "f32" if "f32" in case.dtypes else case.dtypes[0]
            for dtype in case.dtypes if case is usual else (one,):
                yield case.id, dtype


@pytest.mark.parametrize("case_id, dtype", list(simulated()))
def test_simulated(case_id, dtype):
    case = CASES[case_id]
    made, given = program(case_id, dtype), inputs(case, dtype)
    name = case.graph.name.text

    def execute(application, operands):
        return simulator.execute(application.op, operands, dict(application.attrs))

    found = op_by_op(made, case, given, execute)
    expected = oracle.evaluate(made.verified, name, given)
    all_written(found)
    for got, want, t in zip(found, expected, made.graphs[name].results, strict=True):
        assert got.shape == t.shape
        compare(got, want, case.tolerance(t.dtype) if t.dtype.is_float else 0)


def test_every_op_is_simulated():
    """Ops of the host have no kernels."""
    chosen = {case_id for case_id, _ in simulated()}
    tested = {
        op.name for c in CASES.values() if c.id in chosen for op, _, _ in steps(c, c.dtypes[0])
    }
    assert {op.name for op in OPS.values() if not op.traits.host} <= tested
