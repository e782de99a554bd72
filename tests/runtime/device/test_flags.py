"""Flags of NaNs and infinities on the CPU: every type, any cut of the range, control flow."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from random_graphs import text_of

import opstep
from opstep.api import devices
from opstep.api.devices import Kind
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.api.settings import RunSettings
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.flagging import born, leaving, step_for
from opstep.runtime.driving import drive
from opstep.runtime.ir.types import DTYPES, TensorType


def flags_of(array: np.ndarray, dtype: str, lanes: int) -> list[int]:
    device = CpuDevice(lanes)
    launches, _ = device.prepare(*step_for(TensorType(DTYPES[dtype], array.shape)))
    flags = np.zeros(2, np.int64)
    device.run_now(device.bind(launches, [array.ctypes.data, flags.ctypes.data], 0))
    return flags.tolist()


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_flags_say_what_there_is(dtype, lanes):
    kind = DTYPES[dtype].numpy
    for size in (1, 63, 100_000):
        x = np.resize(np.array([3e4, -3e4, 0.0, -0.0]), size).astype(kind)
        assert flags_of(x, dtype, lanes) == [0, 0]
        for place in {0, size // 2, size - 1}:
            for value, flags in ((np.nan, [1, 0]), (np.inf, [0, 1]), (-np.inf, [0, 1])):
                bad = x.copy()
                bad[place] = value
                assert flags_of(bad, dtype, lanes) == flags


def raised(text: str, inputs: dict, **switches):
    """(graph, value) of the flags that each of three runs raises; the flags are cleared between."""
    program, found = opstep.loads(text), []
    with program._running("main", inputs, RunSettings(**switches), flagged=born) as job:
        flags = job.context.flags
        for _ in range(3):
            drive(job.context.run(job.binding))
            found.append([(r.plan.graph, r.plan.values[r.value].name) for r in flags.raised()])
            flags.clear()
    return found


LOOP = """
graph main(x: f32[2]) -> f32[2] {
  y = while(x, test=large, body=lower)
  z = add(y, 1.0)
  return z
}
graph large(x: f32[2]) -> bool[] {
  m = max(x)
  big = greater(m, 2.0)
  return big
}
graph lower(x: f32[2]) -> f32[2] {
  a = sub(x, 3.0)
  r = sqrt(a)
  return r
}
"""


@pytest.mark.parametrize("alloc", ["reuse", "fresh"])
@pytest.mark.parametrize("streams", [1, 4])
def test_turns_of_a_loop_raise_the_flags_of_its_graph(alloc, streams):
    x = {"x": np.array([100.0, 2.0], np.float32)}
    runs = raised(LOOP, x, alloc=alloc, streams=streams)
    assert (
        runs == [[("lower", "r"), ("main", "z")]] * 3
        or runs == [[("main", "z"), ("lower", "r")]] * 3
    )


def test_ops_that_cannot_be_first_are_not_looked_at():
    text = """
graph main(x: f32[2]) -> f32[2] {
  a = relu(x)
  b = transpose(a)
  c = exp(b)
  d = relu(c)
  return d
}
"""
    assert raised(text, {"x": np.array([1000.0, 0.0], np.float32)})[0] == [
        ("main", "c"),
        ("main", "d"),  # an output is looked at in any case
    ]


def test_what_leaves_a_plan_is_looked_at_in_the_plan_that_runs_without_flags():
    program = opstep.loads("""
param w: f32[1000000] = ones()
graph main(x: f32[1000000]) -> f32[1000000], f32[1000000] {
  a = log(x)
  b = relu(a)
  c = mul(b, 0.5)
  d = sub(w, a)
  w <- d
  return c, x
}
""")
    x = {"x": np.arange(1_000_000, dtype=np.float32)}
    with program._running("main", x, RunSettings(), flagged=leaving) as job:
        assert {s.op.name for s in job.binding.plan.steps} == {"fused"}
        drive(job.context.run(job.binding))
        (raised,) = job.context.flags.raised()
    assert (raised.maker.op.name, raised.inf, raised.nan) == ("update", True, False)


def test_a_run_without_flags_has_none():
    program = opstep.loads("graph main(x: f32[2]) -> f32[2] {\n  y = log(x)\n  return y\n}\n")
    x = {"x": np.zeros(2, np.float32)}
    with program._running(
        "main", x, RunSettings()
    ) as job:  # fmt: skip
        assert job.context.flags is None


class Gathering(CpuDevice):
    """Where a launch costs more than to look. Takes down how many launches look at how many."""

    gathers = True

    def __init__(self):
        super().__init__(1)
        self.name = "gathering"
        self.looks: list[int] = []

    def prepare(self, step, types):
        if step.op.family == "internal":
            self.looks.append(len(step.attrs.get("rows", [0])))
        return super().prepare(step, types)


MANY = """
graph main(x: f32[3], h: bf16[2]) -> RESULTS {
  a = log(x)
  b = add(a, 1.0)
  c = greater(a, 0.0)
  d = log(h)
BODY
  return RETURNED
}
"""


def many(count: int) -> str:
    """With `count` more results, each of which is log(x) - k."""
    body = "\n".join(f"  r{k} = sub(a, {k}.0)" for k in range(count))
    results = ", ".join(["f32[3]", "bool[3]", "bf16[2]", *["f32[3]"] * count])
    returned = ", ".join(["b", "c", "d", *(f"r{k}" for k in range(count))])
    text = MANY.replace("BODY", body).replace("RESULTS", results)
    return text.replace("RETURNED", returned)


def gathering(monkeypatch) -> Gathering:
    """The device, under its name."""
    device = Gathering()
    kind = Kind("gathering", lambda number, setup: device, "", gpu=False)
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, kind])
    return device


@pytest.mark.parametrize("device", ["cpu", "gathering"])
@pytest.mark.parametrize("block", range(5))
def test_what_comes_out_of_random_programs_is_looked_at(block, device, monkeypatch):
    """Outputs are views of what ops give, which may be what control flow was given."""
    gathering(monkeypatch)
    bad = 0
    for seed in range(20 * block, 20 * block + 20):
        main = r"(graph main\(.*?)  return (\w+)"
        text = re.sub(main, r"\1  o = view(\2)\n  return o", text_of(seed), flags=re.DOTALL)
        program, rng = opstep.loads(text.replace("y = sin(x)", "y = log(x)")), Random(seed)
        for name, t in program.module.tensors.items():
            program.params[name] = np.array([rng.gauss(0, 1) for _ in range(8)], t.type.dtype.numpy)
        x = {
            b.name.text: np.array([rng.gauss(0, 1) for _ in range(8)], np.float32)
            for b in program.graph("main").inputs
        }
        settings = RunSettings(device=device, streams=seed % 3 + 1)
        with program._running("main", x, settings, flagged=leaving) as job:
            drive(job.context.run(job.binding))
            raised = job.context.flags.raised()
            outputs = job.result().outputs
            job.step_done()
        values = [*outputs, *(np.array(program.params[n]) for n in program.module.tensors)]
        if not all(np.isfinite(v).all() for v in values):
            assert raised, text
            bad += 1
    assert bad


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("count", [2, 15, 20])
def test_results_of_calls_are_looked_at_together(monkeypatch, streams, count):
    device, verdicts = gathering(monkeypatch), []
    types = [TensorType(DTYPES["f32"], (3,)), TensorType(DTYPES["bf16"], (2,))]
    settings = RunSettings(device="gathering", streams=streams)
    executable = Executable(opstep.loads(many(count)), None, types, settings, verdicts.append)
    for x, h in (([1, 2, 3], [1, 1]), ([1, -2, 3], [1, 1]), ([1, 2, 0], [0, 1])):
        arrays = [np.array(x, "f4"), np.array(h, "f4").astype(DTYPES["bf16"].numpy)]
        tensors = [
            ExternalTensor(a.ctypes.data, t, "gathering", a)
            for a, t in zip(arrays, types, strict=True)
        ]
        executable(tensors)
    raised = verdicts[-1].raised()
    nan = [r.plan.values[r.value].name for r in raised if r.nan]
    infinite = [r.plan.values[r.value].name for r in raised if r.inf]
    several = sorted(["b", *(f"r{k}" for k in range(count))])
    assert sorted(nan) == several
    assert sorted(infinite) == sorted([*several, "d"])
    assert sum(device.looks) == count + 2
    assert streams > 1 or len(device.looks) == 1 + -(-(count + 1) // 16)


PUT = """
param w: f32[2] = zeros()
graph main(x: f32[4], s: f32[2]) -> f32[4] {
  a = sqrt(x)
PART
  y = slice_scatter(a, part, starts=[1], ends=[3])
  return y
}
"""


@pytest.mark.parametrize("part", ["part = abs(s)", "part = reshape(s, shape=[2])", "part = neg(w)"])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_written_into_a_tensor_and_the_rest_of_it_are_looked_at(part, masked):
    def raised(x: list[float], s: list[float], w: list[float] | None = None) -> bool:
        program = opstep.loads(PUT.replace("PART", f"  {part}"))
        program.params["w"] = np.array(w or [0.0, 0.0], np.float32)
        inputs = {"x": np.array(x, np.float32), "s": np.array(s, np.float32)}
        flagged = born if masked else leaving
        with program._running("main", inputs, RunSettings(), flagged=flagged) as job:
            plan = job.binding.plan
            *_, step = plan.steps
            a, y = step.operands[0], step.results[0]
            assert a is not None and plan.values[a].buffer == plan.values[y].buffer
            drive(job.context.run(job.binding))
            return bool(job.context.flags.raised())

    assert not raised([1, 1, 1, 1], [0, 0])
    assert raised([1, 1, 1, -1], [0, 0])
    assert "s" not in part.split("(")[1] or raised([1, 1, 1, 1], [0, np.nan])
    assert "w" not in part or raised([1, 1, 1, 1], [0, 0], [0, np.nan])


def test_numbers_that_are_written_into_a_tensor_are_looked_at():
    text = PUT.replace("slice_scatter(a, part, starts=[1], ends=[3])", "index_put(a, inf, i)")
    text = text.replace("PART", "  i = full(value=2, shape=[1], dtype=i32)")
    x = {"x": np.ones(4, np.float32), "s": np.ones(2, np.float32)}
    for number, bad in (("inf", True), ("0.0", False)):
        program = opstep.loads(text.replace("inf", number))
        with program._running("main", x, RunSettings(), flagged=leaving) as job:
            drive(job.context.run(job.binding))
            assert bool(job.context.flags.raised()) is bad


def test_a_tensor_is_looked_at_where_nothing_of_it_is_overwritten():
    text = """
graph main(x: f32[4], i: i64[0]) -> f32[4] {
  a = maximum(x, x)
  y = index_put_add(a, 1.0, i)
  return y
}
"""
    inputs = {"x": np.full(4, np.nan, np.float32), "i": np.zeros(0, np.int64)}
    program = opstep.loads(text)
    with program._running("main", inputs, RunSettings(), flagged=leaving) as job:
        drive(job.context.run(job.binding))
        assert job.context.flags.raised()
