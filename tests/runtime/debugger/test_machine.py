"""The debugger computes what a run computes, whichever way it went to get there."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import numpy as np
import pytest
from random_graphs import text_of

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.activation import Producer

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MOST = 1 << 20  # elements of the params: all that was dropped is computed again, from the start


def is_small(program):
    return (
        "main" in program.graphs
        and sum(t.type.size for t in program.module.tensors.values()) < MOST
    )


FILES = sorted(p.name for p in EXAMPLES.glob("*.opg") if is_small(opstep.load(p)))
POLICIES = {
    "debug": {"mode": "debug"},
    "async": {"mode": "async"},
    "one stream": {"mode": "async", "streams": 1},
    "reuse, filled": {"mode": "debug", "alloc": "reuse"},
    "fresh, four streams": {"mode": "async", "alloc": "fresh", "fill": "nan"},
}


def given(program, size=4):
    """Inputs for the graph that runs by default: none is negative, as roots want it."""
    rng, found = np.random.default_rng(0), {}
    for b in program.graph().inputs:
        shape = tuple(d if isinstance(d, int) else size for d in b.type.shape)
        dtype = b.type.dtype
        drawn = abs(rng.standard_normal(shape)) if dtype.is_float else rng.integers(0, 9, shape)
        found[b.name.text] = drawn.astype(dtype.numpy)
    return found


def bits(arrays):
    return [np.asarray(a).tobytes() for a in arrays]


def walk(debugger, command="in"):
    """Steps to the end; gives how many stops there were."""
    stops, stop = 0, debugger.start()
    while stop.reason != "end":
        stop = debugger.go(command)
        stops += 1
        assert stop.reason in ("step", "end")
    assert stop.exception is None
    return stops


def after(program):
    """The outputs' names do not matter here, the named tensors do."""
    return bits(program.params[name] for name in program.params)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("file", FILES)
def test_steps_compute_what_a_run_does(file, policy):
    program = opstep.load(EXAMPLES / file)
    inputs = given(program)
    wanted = bits(program.run(None, inputs, steps=2, **policy).outputs)
    other = opstep.load(EXAMPLES / file)
    debugger = Debugger(other, None, inputs, steps=2, stop_on_entry=True, **policy)
    walk(debugger)
    assert bits(debugger.result().values()) == wanted
    assert after(other) == after(program)


@pytest.mark.parametrize("file", FILES)
def test_what_was_dropped_is_computed_again(file):
    program = opstep.load(EXAMPLES / file)
    inputs = given(program)
    debugger = Debugger(program, None, inputs, stop_on_entry=True, memory_budget=1)
    walk(debugger)
    executor = debugger.machine.executor
    kept = Debugger(opstep.load(EXAMPLES / file), None, inputs, stop_on_entry=True)
    walk(kept)
    for (a, _), (b, _) in zip(debugger.machine.history.log, kept.machine.history.log, strict=True):
        assert a.env.keys() == b.env.keys()
        for value, (_, node) in a.env.items():
            other = kept.machine.executor.array(b.env[value][1])
            assert executor.array(node).tobytes() == other.tobytes()


@pytest.mark.parametrize("seed", [*range(60), 403_042])  # the last: a slow op ends a step
def test_random_graphs(seed):
    """Random commands lead through a random program; it ends as a bare run does."""
    text, random = text_of(seed), Random(seed)
    program, other = opstep.loads(text), opstep.loads(text)
    rng = np.random.default_rng(seed)
    for name, declared in program.module.tensors.items():
        drawn = rng.standard_normal(declared.type.shape).astype(declared.type.dtype.numpy)
        program.params[name] = other.params[name] = drawn
    main = program.graphs["main"]
    inputs = {b.name.text: rng.standard_normal(8).astype("f4") for b in main.inputs}
    wanted = bits(program.run("main", inputs, steps=2).outputs)
    policy = random.choice(list(POLICIES.values()))
    debugger = Debugger(other, "main", inputs, steps=2, stop_on_entry=True, **policy)
    stop = debugger.start()
    for _ in range(30):
        command = random.choice(["in", "in", "in", "over", "out", "back", "back"])
        before = debugger.position
        stop = debugger.go(command)
        if command == "back":
            assert debugger.position < before or stop.reason == "entry"
        else:
            assert debugger.position > before or stop.reason == "end"
        if random.random() < 0.1:
            debugger.machine.history.cut()
    while stop.reason != "end":
        stop = debugger.go("in")
    machine = debugger.machine  # a name may be returned twice
    assert bits(machine.executor.array(n) for n in machine.outputs()) == wanted
    assert after(other) == after(program)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_oldest_points_are_forgotten(policy, monkeypatch):
    """What is left can be gone back through, and computed again."""
    monkeypatch.setattr("opstep.runtime.debugger.machine.MOST", 100)
    program = opstep.load(EXAMPLES / "while.opg")
    inputs = given(program)
    wanted = bits(program.run(None, inputs, steps=2, **policy).outputs)
    debugger = Debugger(
        opstep.load(EXAMPLES / "while.opg"), None, inputs, steps=2, stop_on_entry=True,
        memory_budget=1, **policy,
    )  # fmt: skip
    stops = walk(debugger)
    assert bits(debugger.result().values()) == wanted
    machine = debugger.machine
    assert len(machine.history.log) <= 100 < stops
    assert debugger.go("reverse_continue").text == "the beginning of what is kept"
    for activation, _ in machine.history.log:
        for _, node in activation.env.values():
            machine.executor.array(node)
    machine.history.cut()
    assert debugger.go("continue").reason == "end"
    assert bits(debugger.result().values()) == wanted


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_is_forgotten_is_let_go(policy, monkeypatch):
    """A long loop, or many steps, hold no more nodes than the points that are remembered."""
    monkeypatch.setattr("opstep.runtime.debugger.machine.MOST", 60)
    text = """
state s: f32[4] = zeros()
graph main(x: f32[4]) -> f32[4], i32[] {
  y, n = while(x, 0, test=early, body=body, limit=1000)
  s <- y
  return y, n
}
graph early(x: f32[4], n: i32[]) -> bool[] {
  go = less(n, 100)
  return go
}
graph body(x: f32[4], n: i32[]) -> f32[4], i32[] {
  y = mul(x, 0.5)
  m = add(n, 1)
  return y, m
}
"""
    program = opstep.loads(text)
    debugger = Debugger(
        program, "main", {"x": np.ones(4, np.float32)}, steps=3, stop_on_entry=True, **policy
    )
    debugger.start()
    gc.collect()
    before = sum(type(o) is Producer for o in gc.get_objects())
    while debugger.stop.reason != "end":
        debugger.go("in")
    machine = debugger.machine
    assert machine.history.base > 1000
    gc.collect()
    assert sum(type(o) is Producer for o in gc.get_objects()) - before < 300
    assert debugger.result()["n"] == 100 and len(machine.history.finished) <= 2
    assert debugger.go("back").reason == "step"


def test_errors_of_a_run_stand_at_their_op():
    text = """
graph main(x: f32[N], k: i32[]) -> f32[N] {
  y = switch(k, x, cases=[same, same])
  z = while(y, test=always, body=same, limit=3)
  return z
}
graph same(x: f32[N]) -> f32[N] {
  y = neg(x)
  return y
}
graph always(x: f32[N]) -> bool[] {
  m = max(x)
  y = equal(m, m)
  return y
}
"""
    program, x = opstep.loads(text), np.ones(3, "f4")
    for k, line, message in ((5, 3, "index 5"), (1, 4, "has not ended")):
        debugger = Debugger(program, "main", {"x": x, "k": k})
        debugger.breakpoints.set_functions([])
        debugger.breakpoints.set_filters({"nan": None})  # no run at full speed
        stop = debugger.start()
        assert stop.reason == "exception" and message in stop.exception.message
        assert debugger.stack()[-1].line == line
        assert debugger.go("continue").reason == "exception"  # it cannot be got past
        frame = debugger.stack()[-1]
        if k == 5:
            debugger.set(frame, "k", np.array(0, "i4"))
            assert "has not ended" in debugger.go("continue").exception.message
        assert debugger.go("back").reason == "step"
