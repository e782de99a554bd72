"""What is set by hand holds, wherever and in whatever order; what is shown of the past was so."""

from __future__ import annotations

import numpy as np
import pytest
from debugger.sessions import lines_of

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.breakpoints import Wanted
from opstep.runtime.ir.errors import InputError

TEXT = """\
state total: f32[4] = zeros()
state runs: i32[] = 0

graph main(x: f32[4], b: f32[4]) -> f32[4] {
  c = add(x, b)
  d = mul(x, 2.0)
  root = halved(c)
  small, n = while(root, 0, test=large, body=turn, limit=50)
  m = mean(d)
  low = less(m, 0.0)
  e = cond(low, d, then=halved, else=twice)
  which = cast(low, dtype=i32)
  f = switch(which, e, cases=[twice, halved])
  g = add(f, small)
  t = add(total, g)
  total <- t
  r = add(runs, 1)
  runs <- r
  return g
}

graph halved(v: f32[4]) -> f32[4] {
  h = mul(v, 0.5)
  k = mul(h, 1.0)
  return h
}

graph twice(v: f32[4]) -> f32[4] {
  w = mul(v, 2.0)
  return w
}

graph large(v: f32[4], n: i32[]) -> bool[] {
  top = max(v)
  go = greater(top, 1.0)
  return go
}

graph turn(v: f32[4], n: i32[]) -> f32[4], i32[] {
  o = mul(v, 0.5)
  p = add(n, 1)
  return o, p
}
"""
LINES = lines_of(TEXT)
X, B = np.array([1, 2, 3, 4], "f4"), np.array([5, 1, 1, 2], "f4")
MODES = [{"mode": "debug"}, {"mode": "async"}, {"mode": "async", "fill": "nan", "streams": 2}]


def debug(path, **options):
    path.write_text(TEXT)
    options = {"steps": 3, "stop_on_entry": True} | options
    debugger = Debugger(opstep.load(path), "main", {"x": X, "b": B}, **options)
    debugger.told = []
    debugger.on_output = lambda text, frame: debugger.told.append(text)
    debugger.start()
    return debugger


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.opg"


def value(debugger, name):
    return debugger.evaluate(name).array().tolist()


def to(debugger, path, word):
    """To before the line that begins with a word."""
    return debugger.run_to(str(path), LINES[word])


def put(debugger, name, array, place=None):
    frame = debugger.stack()[0]
    old = np.array(frame.lookup(name).type.shape and debugger.evaluate(name).array())
    part = None
    if place is not None:
        part = np.zeros(old.shape, bool)
        part[place] = True
        old[place] = array
        array = old
    dtype = frame.lookup(name).type.dtype.numpy
    debugger.set(frame, name, np.asarray(array, dtype), part)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_back_from_the_end_states_are_those_of_where_one_is(file, mode):
    debugger = debug(file, **mode)
    debugger.breakpoints.set_lines(str(file), [Wanted(line=LINES["t"])])
    debugger.go("continue")
    assert value(debugger, "runs") == 0 and value(debugger, "total") == [0] * 4
    g = value(debugger, "g")
    while debugger.go("continue").reason != "end":
        pass
    assert value(debugger, "runs") == 3
    for step in (2, 1, 0):
        assert debugger.go("reverse_continue").reason == "breakpoint"
        assert value(debugger, "runs") == step
        assert value(debugger, "total") == (np.array(g) * step).tolist()
    debugger.go("over")
    assert value(debugger, "t") == g
    debugger.breakpoints.set_lines(str(file), [])
    put(debugger, "g", [1, 1, 1, 1])
    assert debugger.go("continue").reason == "end"
    assert debugger.program.params["total"].tolist() == (np.array(g) * 2 + 1).tolist()
    assert debugger.program.params["runs"] == 3


def test_a_second_run_begins_with_the_states_of_the_first(file):
    for mode in MODES:
        debugger = debug(file, **mode)
        for _ in range(2):
            assert debugger.go("continue").reason == "end"
            assert debugger.program.params["runs"] == 3
            debugger.restart()
            assert value(debugger, "runs") == 0
    file.write_text(TEXT.replace("mul(x, 2.0)", "mul(x, 3.0)"))
    debugger.go("continue")
    debugger.reload()
    assert value(debugger, "runs") == 0 or debugger.position


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_changes_hold_in_any_order(file, mode, order):
    debugger = debug(file, **mode)
    to(debugger, file, "t")
    changes = [("d", [1, 2, 3, 4], None), ("c", 50, 0), ("b", [7, 7, 7, 7], None), ("total", 9, 3)]
    for k in order:
        put(debugger, *changes[k])
    assert value(debugger, "d") == [1, 2, 3, 4]
    assert value(debugger, "b") == [7, 7, 7, 7]
    assert value(debugger, "c") == [50, 9, 10, 11]
    assert value(debugger, "total") == [0, 0, 0, 9]
    assert debugger.stack()[0].line == LINES["t"] and not debugger.told
    g = value(debugger, "g")
    assert debugger.go("over").reason == "step"
    assert value(debugger, "t") == [*g[:3], g[3] + 9]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_inputs_and_states_are_set_before_the_first_op(file, mode):
    debugger = debug(file, steps=1, **mode)
    put(debugger, "b", [0, 0, 0, 0])
    put(debugger, "x", [0, 0, 0, 1])
    put(debugger, "runs", 41)
    assert debugger.go("continue").reason == "end"
    assert debugger.program.params["runs"] == 42
    plain = opstep.loads(TEXT).run("main", {"x": np.array([0, 0, 0, 1], "f4"), "b": 0 * B})
    assert debugger.result()["g"].tolist() == plain["g"].tolist()


def test_a_state_that_is_set_is_what_is_read_from_there_on(file):
    debugger = debug(file)
    to(debugger, file, "r")
    put(debugger, "runs", 100)
    debugger.go("over")
    assert value(debugger, "r") == 101
    debugger.go("continue")
    assert debugger.program.params["runs"] == 103


def test_a_change_whose_place_does_not_come_is_told(file):
    debugger = debug(file, steps=1)
    debugger.breakpoints.set_lines(str(file), [Wanted(line=LINES["o"], condition="n == 1")])
    debugger.go("continue")
    put(debugger, "v", [8, 8, 8, 8])
    to(debugger, file, "t")
    turns = value(debugger, "n")
    put(debugger, "c", [0, 0, 0, 0])
    assert value(debugger, "n") == 0 < turns
    assert debugger.told == ["No longer as they were set by hand: v."]
    put(debugger, "c", [6, 6, 6, 6])
    assert value(debugger, "n") == 2


def test_what_a_call_gave_is_set_behind_the_call(file):
    """Within, and in what was given to it, it stays as it was."""
    debugger = debug(file)
    to(debugger, file, "m")
    put(debugger, "root", [0, 0, 0, 0])
    assert value(debugger, "n") == 0 and value(debugger, "small") == [0, 0, 0, 0]
    debugger.breakpoints.set_lines(str(file), [Wanted(line=LINES["k"])])
    debugger.go("reverse_continue")
    assert value(debugger, "h") == ((X + B) / 2).tolist()
    debugger.go("over")
    assert value(debugger, "k") == ((X + B) / 2).tolist()
    put(debugger, "v", [0, 0, 0, 2])
    assert value(debugger, "k") == [0, 0, 0, 1]
    debugger.breakpoints.set_lines(str(file), [])
    to(debugger, file, "m")
    assert value(debugger, "c") == (X + B).tolist()


def test_a_name_for_a_param_and_a_literal_are_not_set(tmp_path):
    text = """\
param p: f32[2] = ones()
graph main(x: f32[2]) -> f32[2] {
  q = same(p)
  y = plus(x, 2.0)
  return y
}
graph same(v: f32[2]) -> f32[2] {
  return v
}
graph plus(a: f32[2], b: f32[]) -> f32[2] {
  z = mul(a, b)
  return z
}
"""
    debugger = Debugger(opstep.loads(text), "main", {"x": X[:2]}, stop_on_entry=True)
    debugger.start()
    with pytest.raises(InputError, match="q is p itself"):
        debugger.set(debugger.stack()[0], "q", np.zeros(2, "f4"))


WIDE = """\
graph main(x: f32[64]) -> f32[64], f32[64] {
  a0 = sin(x)
  a1 = cos(x)
  a2 = exp(x)
  a3 = tanh(x)
  b0 = branch(a0, a1)
  b1 = branch(a1, a2)
  b2 = branch(a2, a3)
  b3 = branch(a3, a0)
  c0 = add(b0, b1)
  c1 = add(b2, b3)
  d0 = mul(c0, c1)
  d1 = sub(c0, c1)
  e = add(d0, d1)
  return e, d0
}

graph branch(u: f32[64], v: f32[64]) -> f32[64] {
  rows = reshape(u, shape=[8, 8])
  s = softmax(rows)
  flat = reshape(s, shape=[64])
  y = mul(flat, v)
  return y
}
"""


@pytest.mark.parametrize("alloc", ["reuse", "fresh"])
@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_what_is_set_in_a_wide_graph(streams, alloc):
    """On all streams the run goes on from what was set, whatever was computed already."""
    x = np.linspace(-1, 1, 64, dtype="f4")
    say = WIDE.replace("  c0 = add(b0, b1)", "  c0 = add(b0, b1_set)")
    say = say.replace("add(d0, d1)", "add(d0_set, d1)").replace("return e, d0", "return e, d0_set")
    say = say.replace("(x: f32[64])", "(x: f32[64], b1_set: f32[64], d0_set: f32[64])", 1)
    b1 = opstep.loads(WIDE.replace("return e, d0", "return e, b1")).run("main", {"x": x})["b1"]
    b1 = b1.copy()
    b1[:10] = 9
    wanted = opstep.loads(say).run("main", {"x": x, "b1_set": b1, "d0_set": np.full(64, -4, "f4")})
    for there in ("d0", "e"):
        options = {"mode": "async", "streams": streams, "alloc": alloc, "stop_on_entry": True}
        debugger = Debugger(opstep.loads(WIDE), "main", {"x": x}, **options)
        debugger.start()
        while debugger.stack()[-1].lookup(there) is None:
            debugger.go("over")
        frame = debugger.stack()[-1]
        debugger.set(frame, "b1", b1, np.arange(64) < 10)
        while debugger.stack()[-1].lookup("d0") is None:
            debugger.go("over")
        debugger.set(debugger.stack()[-1], "d0", np.full(64, -4, "f4"))
        debugger.go("continue")
        found = [debugger.machine.executor.array(n) for n in debugger.machine.outputs()]
        assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted.outputs]


def test_a_data_breakpoint_on_what_is_computed_next(file):
    debugger = debug(file)
    to(debugger, file, "d")
    debugger.breakpoints.set_data([Wanted(name="main.d"), Wanted(name="turn.o"), Wanted(name="g")])
    stop = debugger.go("continue")
    assert stop.reason == "data" and value(debugger, "d") == [2, 4, 6, 8]
    turns = [debugger.go("continue") and value(debugger, "o")[0] for _ in range(2)]
    assert turns == [1.5, 0.75]
    assert debugger.stack()[0].name == "turn [i=1]"
    assert debugger.go("continue").reason == "data" and value(debugger, "g")
    assert debugger.stack()[0].line == LINES["g"]
    debugger.go("continue")  # d and g are as they were in the step before; o begins anew
    assert debugger.stack()[0].name == "turn [i=0]"


def test_a_failed_assert_is_looked_at_where_nothing_was_to_stop(tmp_path):
    text = """\
state runs: i32[] = 0
graph main(x: f32[4]) -> f32[4] {
  r = add(runs, 1)
  few = less(r, 3)
  assert few, "too many"
  runs <- r
  return x
}
"""
    for mode in MODES:
        debugger = Debugger(opstep.loads(text), "main", {"x": X}, steps=5, **mode)
        stop = debugger.start()
        assert stop.exception is not None and "too many" in stop.exception.message
        assert [f.name for f in debugger.stack()] == ["main [step=2]"]
        assert value(debugger, "r") == 3 and value(debugger, "runs") == 2
        debugger.go("reverse_continue")
        assert value(debugger, "runs") == 2


def test_to_stop_at_the_end_is_to_see_it(file):
    debugger = debug(file, mode="async", stop_at_end=True, stop_on_entry=False)
    assert debugger.stop.reason == "end"
    assert debugger.stack()[0].name == "main [step=2]" and value(debugger, "runs") == 3
    debugger.go("back")
    assert value(debugger, "g")


def test_who_goes_elsewhere_stands_before_what_is_shown(file):
    """Also from behind an op."""
    debugger = debug(file)
    debugger.breakpoints.set_data([Wanted(name="d", condition="value[0] > 0")])
    for go in ("goto", "frame", "reload"):
        assert debugger.go("continue").reason == "data"
        assert debugger.stack()[0].line == LINES["d"]
        if go == "goto":
            (target,) = debugger.goto_targets(str(file), LINES["c"])
            debugger.goto(target.number)
        elif go == "frame":
            debugger.restart_frame(debugger.stack()[0])
        else:
            debugger.reload()
        assert debugger.stack()[0].line == LINES["c"]
    (target,) = debugger.goto_targets(str(file), LINES["e"])
    put(debugger, "x", [1, 1, 1, 1])
    with pytest.raises(InputError, match="no such target"):
        debugger.goto(target.number)
