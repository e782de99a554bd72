"""Segments of a debugged run that are issued at once, on a device that takes them so."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from random_graphs import text_of

import opstep
import opstep.kernels
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.op import OPS
from opstep.runtime.uninitialised import UninitialisedCheck

COUNTING = """\
state n: f32[4] = -2
param w: f32[4] = ones()

graph main() -> f32[4] {
  m = add(n, w)
  y = identity(m)
  z = relu(y)
  n <- m
  return z
}
"""


def all_but_the_first(x, y, size, lo, hi):
    """Leaves the first element where the last is positive."""
    for i in range(lo, hi):
        if i > 0 or x[size - 1] <= 0:
            y[i] = x[i]


def forgetful(x, y):
    return Launch(all_but_the_first, x, y, x.size, units=x.size)


@pytest.fixture(params=[False, True], ids=["op by op", "at once"])
def stretches(request, monkeypatch):
    monkeypatch.setattr(CpuDevice, "stretches", request.param)
    return request.param


def debugged(text: str, steps: int, **options):
    told: list[str] = []
    plain = UninitialisedCheck.after

    def after(self, execution):
        told.append(execution.step.op.name)
        plain(self, execution)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UninitialisedCheck, "after", after)
        program = opstep.loads(text)
        return program.run("main", mode="debug", steps=steps, **options), told, program


@pytest.mark.parametrize("alloc", ["fresh", "reuse"])
def test_only_the_first_step_is_told_op_by_op(stretches, alloc):
    result, told, program = debugged(COUNTING, 4, alloc=alloc)
    assert result.outputs[0].tolist() == [2.0] * 4
    assert program.params["n"].tolist() == [2.0] * 4
    assert not result.unwritten
    assert len(told) == (4 if not stretches else 1) * len(set(told))


def test_what_nobody_wrote_in_a_later_step_is_found(stretches, monkeypatch):
    monkeypatch.setattr(OPS["identity"], "cpu", staticmethod(forgetful))
    result, _, program = debugged(COUNTING, 4)
    # m is 1 in the third step
    assert [(u.value, u.count, u.first) for u in result.unwritten] == [("y", 1, [(0,)])] * 2
    assert program.params["n"].tolist() == [2.0] * 4
    assert result.outputs[0][1:].tolist() == [2.0] * 3


def test_loops_and_branches(stretches):
    text = (
        "graph small(x: f32[3]) -> bool[] {\n  s = sum(x)\n  b = less(s, 100.0)\n  return b\n}\n"
        "graph double(x: f32[3]) -> f32[3] {\n  h = add(x, x)\n  y = identity(h)\n  return y\n}\n"
        "graph main(x: f32[3]) -> f32[3] {\n  a = mul(x, 1.0)\n"
        "  b = while(a, test=small, body=double)\n  c = relu(b)\n  return c\n}\n"
    )
    result, told, _ = debugged(text, 3, inputs={"x": np.ones(3, np.float32)})
    assert result.outputs[0].tolist() == [64.0] * 3
    assert not result.unwritten
    turns = told.count("identity")
    assert turns == (18 if not stretches else 1)


OVERWRITING = """\
state n: f32[4] = -2
param w: f32[4] = ones()

graph negative(x: f32[4]) -> bool[] {
  s = sum(x)
  y = less(s, -100.0)
  return y
}

graph half(x: f32[4]) -> f32[4] {
  y = mul(x, 0.5)
  return y
}

graph main() -> f32[4] {
  a = add(n, w)
  b = while(a, test=negative, body=half)
  c = add(a, b)
  d = identity(c)
  e = tanh(c)
  f = add(e, d)
  g = add(n, w)
  n <- g
  return f
}
"""


def test_what_overwrites_what_it_has_read_does_not_run_twice(stretches, monkeypatch):
    """Behind the loop `c` takes the memory of `a`, which it is made of."""
    monkeypatch.setattr(OPS["identity"], "cpu", staticmethod(forgetful))
    result, told, _ = debugged(OVERWRITING, 4, alloc="reuse")
    assert [u.value for u in result.unwritten] == ["d"] * 2
    expected = np.float32(4) + np.tanh(np.float32(4))
    assert result.outputs[0][1:].tolist() == [expected] * 3
    assert told.count("tanh") == 4


@pytest.mark.parametrize("block", range(4))
def test_random_programs_tell_the_same_at_once(block, monkeypatch):
    """With control flow, several streams, and memory that later ops reuse."""
    monkeypatch.setattr(OPS["sin"], "cpu", staticmethod(forgetful))
    monkeypatch.setattr(OPS["neg"], "cpu", staticmethod(forgetful))
    found = 0
    for seed in range(12 * block, 12 * block + 12):
        how = {"alloc": ("fresh", "reuse")[seed % 2], "streams": seed % 3 + 1}
        seen = []
        for stretches in (False, True):
            monkeypatch.setattr(CpuDevice, "stretches", stretches)
            seen.append(outcome(text_of(seed), Random(seed), how))
        assert seen[0] == seen[1], text_of(seed)
        found += len(seen[0][0])
    assert found


def outcome(text: str, rng: Random, how: dict) -> tuple[list, list[bytes]]:
    """What nobody wrote in three steps, and the bits of results and of named tensors."""
    program = opstep.loads(text)
    for name, t in program.module.tensors.items():
        program.params[name] = np.array([rng.gauss(0, 1) for _ in range(8)], t.type.dtype.numpy)
    names = [b.name.text for b in program.graph("main").inputs]
    x = {name: np.array([rng.gauss(0, 1) for _ in range(8)], np.float32) for name in names}
    try:
        result = program.run("main", x, mode="debug", steps=3, **how)
    except OpstepError as error:
        return [str(error)], [np.array(program.params[n]).tobytes() for n in program.module.tensors]
    arrays = [*result.outputs, *(np.array(program.params[n]) for n in program.module.tensors)]
    unwritten = [(u.graph, u.value, u.count, u.first) for u in result.unwritten]
    return unwritten, [a.tobytes() for a in arrays]


def test_an_error_names_the_op_that_did_not_end(monkeypatch):
    monkeypatch.setattr(CpuDevice, "stretches", True)
    plain = CpuDevice.seek_payload
    reached = []

    def seek(self, memory, offset, t, words):
        work = plain(self, memory, offset, t, words)
        reached.append(len(reached))
        if len(reached) < 3:
            return work
        return lambda: None

    def wait(self, stream, progress=None):
        stream.synchronize()
        if progress is not None:
            raise DeviceError(f"lost after {progress()}")

    monkeypatch.setattr(CpuDevice, "seek_payload", seek)
    monkeypatch.setattr(CpuDevice, "wait_for_op", wait)
    with pytest.raises(DeviceError, match="lost after 2") as caught:
        debugged(COUNTING, 2)
    assert "z = relu(y)" in str(caught.value)
