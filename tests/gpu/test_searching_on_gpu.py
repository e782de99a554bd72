"""Debugged steps that are issued at once, and replayed: they tell what single ops would tell."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
import opstep.kernels
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Grid
from opstep.runtime.ir.op import OPS
from opstep.runtime.uninitialised import UninitialisedCheck


def counting(size: int) -> str:
    return f"""\
state n: f32[{size}] = -5
param w: f32[{size}] = ones()
param k: f32[{size}, {size}] = normal()

graph main() -> f32[{size}] {{
  m = add(n, w)
  y = identity(m)
  z = relu(y)
  p = matmul(k, z)
  i = argsort(p)
  j = cast(i, dtype=f32)
  n <- m
  r = add(j, z)
  return r
}}
"""


def all_but_the_first(x, y, size):
    """Leaves the first element where the last is positive."""
    i = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    if i < size and (i > 0 or x[size - 1] <= 0):
        y[i] = x[i]


def forgetful(x, y):
    return Grid(all_but_the_first, x, y, x.size, grid=-(-x.size // 128), block=128)


@pytest.mark.parametrize("alloc", ["fresh", "reuse"])
def test_later_steps_are_not_told_op_by_op(alloc, monkeypatch):
    told: list[str] = []
    plain = UninitialisedCheck.after

    def after(self, execution):
        told.append(execution.step.op.name)
        plain(self, execution)

    monkeypatch.setattr(UninitialisedCheck, "after", after)
    program = opstep.loads(counting(1000))
    result = program.run("main", device="cuda", mode="debug", steps=9, alloc=alloc)
    assert not result.unwritten
    assert sorted(told) == sorted(
        ["add", "identity", "relu", "matmul", "argsort", "cast", "add", "update"]
    )
    again = opstep.loads(counting(1000))
    expected = again.run("main", device="cuda", steps=9)
    assert np.array_equal(result.outputs[0], expected.outputs[0])
    assert np.array_equal(program.params["n"], again.params["n"])


@pytest.mark.parametrize("alloc", ["fresh", "reuse"])
def test_what_nobody_wrote_in_a_replayed_step_is_found(alloc, monkeypatch):
    """In the sixth step, and in those behind it. Kernels of other sizes are another test's."""
    monkeypatch.setattr(OPS["identity"], "cuda", staticmethod(forgetful))
    program = opstep.loads(counting(999))
    result = program.run("main", device="cuda", mode="debug", steps=8, alloc=alloc)
    found = [(u.value, u.count, u.first) for u in result.unwritten]
    assert found == [("y", 1, [(0,)])] * 3
    assert np.array_equal(program.params["n"], np.full(999, 3, np.float32))
