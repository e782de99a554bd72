"""Groups of elementwise ops that take statistics: the bits of ops and statistics one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.recording.gathering import left_by, merge_several, step_of
from opstep.runtime.device.cuda.recording.statistics import blocks_for
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan import fusing
from opstep.runtime.plan.fusing import MOST_MEASURED, measured
from opstep.runtime.statistics import ENABLED, RECORD, WORDS
from tests.kernels.pointwise import fused_programs
from tests.kernels.pointwise.fused_programs import Writer, array
from tests.runtime.device.cuda.recording.test_statistics_simulated import record_of

LARGE = (
    ((6, 800), (800,), (6, 1), (), (1, 800)),
    ((2, 6, 20, 20), (20,), (6, 1, 1), (), (2, 1, 20, 20), (6,)),
)


def run(step, types, memory) -> None:
    launches, size = Lowering(step, types).prepared()
    workspace = np.zeros(size + 8, np.uint8)
    for launch in launches:
        assert isinstance(launch, Prepared)
        simulator.run(launch, [a.reshape(-1).view(np.uint8) for a in memory], workspace)


def poisoned(types) -> list[np.ndarray]:
    return [np.full(t.nbytes, 0xAB, np.uint8).view(t.dtype.numpy).reshape(t.shape) for t in types]


def check(plan, step, rng) -> int:
    """How many tensors were measured."""
    body = step.attrs["body"]
    operands = [plan.values[v].type for v in step.operands]
    results = [plan.values[v].type for v in step.results]
    given = [array(rng, t.dtype.name, t.shape) for t in operands]
    shape = results[0].shape
    kinds = [t.dtype for t in operands] + [m.result for m in body.members]
    whole = [
        k for k in range(len(kinds))
        if k >= len(operands) or (operands[k].shape == shape and k not in body.per_channel)
    ]  # fmt: skip
    every = replace(body, results=tuple(whole), updates=(False,) * len(whole))
    types = [TensorType(kinds[k], shape) for k in whole]
    alone = dict(zip(whole, poisoned(types), strict=True))
    run(replace(step, attrs={"body": every}), (*operands, *types), [*given, *alone.values()])

    args = Lowering(step, (*operands, *results)).args()
    widest = max(t.itemsize for t in body.types)
    fitting = [r for r in rng.permutation(whole).tolist() if kinds[r].itemsize == widest]
    registers = fitting[:MOST_MEASURED]
    if not registers or not measured.is_taken(*args, body=body, registers=registers):
        return 0
    blocks = blocks_for(np.prod(shape))
    left = left_by(blocks * len(registers))
    attrs = {"body": body, "registers": tuple(registers)}
    made, kept = poisoned(results), poisoned(left)
    taking = replace(step, op=measured, attrs=attrs)
    run(taking, (*operands, *results, *left), [*given, *made, *kept])
    for result, register in zip(made, body.results, strict=True):
        assert result.tobytes() == alone[register].tobytes()

    table = []
    for place, register in enumerate(registers):
        kind = 2 * kinds[register].is_float
        table += [place * blocks, blocks, int(np.prod(shape)), kind, place]
    records = np.full(WORDS * len(registers), -7, np.int64)
    merging = step_of(merge_several, [ENABLED, *left], [RECORD], table=tuple(table))
    run(*merging, [np.array([1]), *kept, records])
    for register, record in zip(registers, records.reshape(-1, WORDS), strict=True):
        assert (record == record_of(alone[register])).all(), (register, body)
    return len(registers)


@pytest.mark.parametrize("seed", range(6))
def test_same_bits_in_random_programs(seed, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    monkeypatch.setattr(fused_programs, "SHAPES", LARGE)
    plan = opstep.loads(Writer(seed).text()).plan(fuse=True)
    rng, found = np.random.default_rng(seed), 0
    with np.errstate(all="ignore"):
        for step in plan.steps:
            if step.members and not any(step.attrs["body"].updates):
                found += check(plan, step, rng)
    assert found
