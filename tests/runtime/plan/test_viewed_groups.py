"""Elementwise ops that read slices, flips and repeats in place: the same bits as of copies."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import opstep
from opstep.runtime.plan import viewing
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.listing import listing
from opstep.runtime.plan.text import format_plan, parse_plan
from tests.kernels.pointwise.fused_programs import simulated


@pytest.fixture(autouse=True)
def every_copy(monkeypatch):
    """Copies of any size are worth a kernel."""
    monkeypatch.setattr(viewing, "WORTH_A_KERNEL_NS", 0)


def ran(plan) -> list[list[str]]:
    steps = (s for s in plan.steps if not s.op.traits.reinterprets)
    return [[m.op.name for m in s.members] or [s.op.name] for s in steps]


def program(seed: int) -> tuple[str, dict[str, np.ndarray]]:
    """Views of two inputs, and of what is computed of them, and sums and products of those."""
    random = Random(seed)
    rows, columns = random.choice([(4, 16), (5, 7), (3, 40)])
    dtype = random.choice(["f32", "f32", "f16", "bf16", "f64"])
    shape = (rows + 2, 2 * columns + 3)
    lines, views, values = [], [], ["x", "w"]

    def view(name: str, of: str) -> str:
        first, last = random.randint(0, 2), random.randint(0, 3)
        step = random.choice([1, 1, 2])
        ends = f"ends=[{first + rows}, {last + step * columns}], steps=[1, {step}]"
        made = f"{name} = slice({of}, starts=[{first}, {last}], {ends})"
        kind = random.choice(["", "", "flip", "turn", "column"])
        if kind == "flip":
            made += f"\n  {name}f = flip({name}, axes=[{random.choice(['0', '1', '0, 1'])}])"
            name += "f"
        if kind == "turn":
            made += f"\n  {name}r = reshape({name}, shape=[{rows}, {columns}, 1])"
            made += f"\n  {name}t = transpose({name}r, perm=[2, 0, 1])"
            made += f"\n  {name}q = reshape({name}t, shape=[{rows}, {columns}])"
            name += "q"
        if kind == "column":
            made += f"\n  {name}c = slice({name}, starts=[0, 1], ends=[{rows}, 2])"
            made += f"\n  {name}b = broadcast({name}c, shape=[{rows}, {columns}])"
            name += "b"
        lines.append(made)
        return name

    for k in range(4):
        views.append(view(f"v{k}", random.choice(values)))
    for k in range(3):
        call = random.choice(["add", "sub", "mul", "maximum"])
        lines.append(f"r{k} = {call}({random.choice(views)}, {random.choice(views)})")
        views.append(f"r{k}")
    given = f"x: {dtype}{list(shape)}, w: {dtype}{list(shape)}"
    result = f"{dtype}[{rows}, {columns}]"
    text = f"graph main({given}) -> {result}, {result} {{\n  " + "\n  ".join(lines)
    kind = opstep.runtime.ir.types.DTYPES[dtype].numpy
    numbers = np.random.default_rng(seed)
    arrays = {n: numbers.standard_normal(shape).astype(kind) for n in ("x", "w")}
    return f"{text}\n  return r1, r2\n}}\n", arrays


@pytest.mark.parametrize("seed", range(30))
def test_same_bits_in_random_programs(seed):
    text, arrays = program(seed)
    made = opstep.loads(text)
    plan = made.plan(fuse=True)
    assert not check(plan)
    assert parse_plan(format_plan(plan)) == listing(plan)
    joined = [made.run(inputs=arrays, **how).outputs for how in ({}, {"threads": 2, "streams": 1})]
    alone = made.run(inputs=arrays, sync="op").outputs
    for outputs in joined:
        for a, b in zip(outputs, alone, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("seed", range(100, 112))
def test_same_bits_on_cuda_in_the_simulator(seed):
    text, arrays = program(seed)
    made = opstep.loads(text)
    assert simulated(made.plan(fuse=True), arrays, {}) == simulated(made.plan(), arrays, {})


DIFFERENCES = """
graph main(x: f32[6, 40]) -> f32[6, 39] {
  a = slice(x, starts=[1], ends=[40], axes=[1])
  b = slice(x, starts=[0], ends=[39], axes=[1])
  y = sub(a, b)
  return y
}
"""


def test_differences_copy_nothing():
    plan = opstep.loads(DIFFERENCES).plan(fuse=True)
    assert ran(plan) == [["sub", "slice", "slice"]]
    assert "y = fused(sub, slice, slice)" in format_plan(plan)


def test_what_others_read_is_copied():
    text = DIFFERENCES.replace("-> f32[6, 39]", "-> f32[6, 39], f32[6, 39]")
    plan = opstep.loads(text.replace("return y", "return y, a")).plan(fuse=True)
    assert ran(plan) == [["slice"], ["sub", "slice"]]


def test_little_is_copied(monkeypatch):
    """A kernel takes longer to compile."""
    monkeypatch.undo()
    assert ran(opstep.loads(DIFFERENCES).plan(fuse=True)) == [["slice"], ["slice"], ["sub"]]


def test_a_result_may_take_over_a_whole_operand():
    text = """
graph main(x: f32[64, 512]) -> f32[64, 512] {
  e = exp(x)
  f = flip(x, axes=[1])
  y = mul(e, f)
  return y
}
"""
    plan = opstep.loads(text).plan(fuse=True)
    assert ran(plan) == [["exp", "mul", "flip"]] or plan.arena == 64 * 512 * 4


def test_rows_that_lie_far_apart_are_copied():
    """Columns are read a cache line an element."""
    text = """
graph main(x: f32[64, 512]) -> f32[512, 64] {
  t = transpose(x, perm=[1, 0])
  y = exp(t)
  return y
}
"""
    assert ran(opstep.loads(text).plan(fuse=True)) == [["transpose"], ["exp"]]
