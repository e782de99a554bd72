"""Commands, breakpoints, edits: what a person does with a debugger."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from debugger.sessions import LINES, X, debug, where

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.breakpoints import Wanted
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType, f32


def value(debugger, name):
    return debugger.machine.executor.array(debugger.stack()[0].lookup(name)).tolist()


def test_steps(file):
    debugger = debug(file)
    assert debugger.start().reason == "entry"
    assert where(debugger) == [("main", 4)]
    assert list(debugger.stack()[0].names()) == ["x"]
    debugger.go("over")
    assert where(debugger) == [("main", 5)]
    assert value(debugger, "a") == [2, 3, 4]
    debugger.go("in")
    assert where(debugger) == [("scaled", 13), ("main", 5)]
    debugger.view = "python"
    assert where(debugger) == [("model.py:12", 12), ("main", 5)]
    assert [f.path for f in debugger.stack()] == ["model.py", str(file)]
    debugger.view = "graph"
    assert list(debugger.stack()[0].names()) == ["v"]
    debugger.go("out")
    assert where(debugger) == [("main", 6)]
    assert value(debugger, "b") == [3, 5, 7]
    debugger.go("back")
    assert where(debugger) == [("main", 5)]
    assert debugger.stack()[0].lookup("b") is None
    assert debugger.go("back").reason == "step"
    assert debugger.go("back").reason == "entry"
    assert debugger.go("over").reason == "step"
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["c"].tolist() == [9, 15, 21]
    assert debugger.program.params["seen"] == 1


def test_turns_of_a_loop(file):
    debugger = debug(file, "count")
    debugger.breakpoints.set_functions([Wanted(name="double")])
    stop = debugger.start()
    turns = []
    while (stop := debugger.go("continue")).reason == "function":
        turns.append(where(debugger)[0][0])
    assert turns == [f"double [i={k}]" for k in range(6)]
    assert stop.reason == "end"
    assert debugger.go("reverse_continue").reason == "function"
    assert value(debugger, "x") == [32, 64, 96]
    debugger.go("out")
    assert where(debugger)[0][0] == "count"


def test_breakpoints_are_moved_or_refused(file):
    debugger = debug(file)
    path = str(file)
    wanted = [Wanted(line=k) for k in (3, 5, 10, 11, 99)]
    found = debugger.breakpoints.set_lines(path, wanted)
    assert [(b.line, b.verified) for b in found] == [
        (4, True), (5, True), (10, False), (11, False), (99, False),
    ]  # fmt: skip
    assert all(b.message for b in found if not b.verified)
    (other,) = debugger.breakpoints.set_lines(str(file.parent / "other.opg"), [Wanted(line=1)])
    assert not other.verified and "no such file" in other.message
    (name,) = debugger.breakpoints.set_functions([Wanted(name="scald")])
    assert not name.verified and "scaled" in name.message


def test_a_breakpoint_on_the_first_line_stops_at_once(file):
    debugger = debug(file, stop_on_entry=False)
    debugger.breakpoints.set_lines(str(file), [Wanted(line=4)])
    stop = debugger.start()
    assert (stop.reason, debugger.position) == ("breakpoint", 0)


def test_conditions_hits_and_messages(file):
    debugger = debug(file, "count", stop_on_entry=False)
    said = []
    debugger.on_output = lambda text, frame: said.append(text)
    line = LINES["m"]
    debugger.breakpoints.set_lines(
        str(file),
        [
            Wanted(line=line, condition="x[0] > 3"),
            Wanted(line=line, hits="%3"),
            Wanted(line=line, log="largest {max(x)} of {{}}"),
        ],
    )
    numbers = [b.number for b in debugger.breakpoints.all()]
    debugger.start()
    hits = [debugger.stop.hits]
    while debugger.go("continue").reason == "breakpoint":
        hits.append(debugger.stop.hits)
    first, second, _ = numbers
    assert hits == [(first, second), (first,), (first,), (first, second), (first,)]
    assert said[:2] == ["largest 3.0 of {}", "largest 6.0 of {}"]
    assert len(said) == 7


def test_a_condition_that_makes_no_sense_stops_and_says_why(file):
    debugger = debug(file, stop_on_entry=False)
    said = []
    debugger.on_output = lambda text, frame: said.append(text)
    debugger.breakpoints.set_lines(str(file), [Wanted(line=6, condition="nothing > 3")])
    assert debugger.start().reason == "breakpoint"
    assert "nothing" in said[0]
    (bad,) = debugger.breakpoints.set_lines(str(file), [Wanted(line=6, condition="x[0")])
    assert not bad.verified and bad.message


def test_data_breakpoints(file):
    debugger = debug(file, "count", stop_on_entry=False)
    debugger.breakpoints.set_data([Wanted(name="double.y", condition="max(value) > 40")])
    stop = debugger.start()
    assert stop.reason == "data"
    assert where(debugger)[0] == ("double [i=3]", LINES["y"])
    assert value(debugger, "y") == [16, 32, 48]
    (unknown,) = debugger.breakpoints.set_data([Wanted(name="nobody")])
    assert not unknown.verified
    debugger.breakpoints.set_data([Wanted(name="*", condition="inf(value)")])
    assert debugger.go("continue").reason == "end"


def test_data_breakpoints_on_what_changes_once(file):
    debugger = debug(file, stop_on_entry=False)
    debugger.breakpoints.set_data([Wanted(name="seen")])
    assert debugger.start().reason == "data"
    assert where(debugger) == [("main", LINES["seen"])]
    assert value(debugger, "seen") == 1
    assert debugger.go("continue").reason == "end"


def test_data_breakpoints_on_what_a_loop_gives(file):
    debugger = debug(file, "count", stop_on_entry=False)
    debugger.breakpoints.set_data([Wanted(name="count.y", condition="min(value) > 40")])
    assert debugger.start().reason == "data"
    assert "y" in debugger.stack()[-1].names()
    assert debugger.go("continue").reason == "end"


def test_a_step_from_behind_an_op_shows_the_next(file):
    debugger = debug(file, stop_on_entry=False)
    debugger.breakpoints.set_data([Wanted(name="main.a", condition="max(value) > 0")])
    assert debugger.start().reason == "data"
    assert where(debugger) == [("main", 4)]
    assert debugger.go("over").reason == "step"
    assert where(debugger) == [("main", 5)]
    assert debugger.go("reverse_continue").reason == "data"
    assert where(debugger) == [("main", 4)]


def test_filters(tmp_path):
    text = textwrap.dedent("""\
        graph main(x: f32[N]) -> f32[N] {
          l = log(x)
          y = mul(l, 2.0)
          positive = greater_equal(x, 0.0)
          fine = all(positive)
          assert fine, "x is negative"
          return y
        }
        """)
    (tmp_path / "f.opg").write_text(text)
    program = opstep.load(tmp_path / "f.opg")

    def run(**wanted):
        origin = wanted.pop("origin", ())
        debugger = Debugger(program, None, {"x": np.array([1, 0, -1], "f4")})
        debugger.breakpoints.set_filters(wanted, origin)
        stops = [debugger.start()]
        while stops[-1].reason == "exception":
            stops.append(debugger.go("continue"))
        return debugger, stops

    debugger, stops = run(nan=None)
    assert [s.exception.node.name for s in stops[:-1]] == ["l", "y"]
    assert "1 NaN of 3" in stops[0].exception.message
    _, stops = run(nan=None, origin=["nan"])
    assert [s.exception.node.name for s in stops[:-1]] == ["l"]
    _, stops = run(inf="value[1] < 0")
    assert [s.exception.node.name for s in stops[:-1]] == ["l", "y"]
    _, stops = run(inf="value[0] < 0")
    assert [s.reason for s in stops] == ["end"]
    debugger, stops = run(**{"assert": None})
    assert stops[0].text == "assert" and "x is negative" in stops[0].exception.message
    assert stops[-1].exception.kind == "assert"
    with pytest.raises(KeyError):
        debugger.breakpoints.set_filters({"everything": None})


def test_the_origin_of_a_nan_may_be_an_infinity():
    text = "graph main(x: f32[N]) -> f32[N] {\n  a = exp(x)\n  b = sub(a, a)\n  return b\n}\n"
    debugger = Debugger(opstep.loads(text), "main", {"x": np.array([1000, 1], "f4")})
    debugger.breakpoints.set_filters({"nan": None, "inf": None}, ["nan", "inf"])
    assert debugger.start().exception.kind == "inf"
    stop = debugger.go("continue")
    assert (stop.exception.kind, stop.exception.node.name) == ("nan", "b")


def test_a_stop_behind_an_op_shows_its_line_and_its_result(tmp_path):
    (tmp_path / "f.opg").write_text(
        "graph main(x: f32[N]) -> f32[N] {\n  l = log(x)\n  y = mul(l, 2.0)\n  return y\n}\n"
    )
    debugger = Debugger(opstep.load(tmp_path / "f.opg"), None, {"x": -X})
    debugger.breakpoints.set_filters({"nan": None}, ["nan"])
    debugger.start()
    assert where(debugger) == [("main", 2)]
    assert "l" in debugger.stack()[0].names()
    frame = debugger.stack()[0]
    debugger.set(frame, "l", np.zeros(3, "f4"))
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["y"].tolist() == [0, 0, 0]


def test_setting_a_value_computes_what_depends_on_it(file):
    debugger = debug(file)
    debugger.start()
    for _ in range(3):
        debugger.go("over")
    assert value(debugger, "b") == [3, 5, 7]
    computed = debugger.machine.executor.computed
    debugger.set(debugger.stack()[0], "a", np.array([0, 0, 1], "f4"))
    assert value(debugger, "b") == [-1, -1, 1]
    assert value(debugger, "x") == [1, 2, 3]
    assert debugger.machine.executor.computed == computed + 3  # both of `scaled`, and c
    debugger.go("reverse_continue")
    assert value(debugger, "x") == [1, 2, 3]
    debugger.go("continue")
    assert debugger.result()["c"].tolist() == [-3, -3, 3]
    with pytest.raises(InputError):
        debugger.set(debugger.stack()[0], "a", np.zeros(4, "f4"))


def test_setting_a_named_tensor(file):
    debugger = debug(file)
    debugger.start()
    debugger.set(debugger.stack()[0], "seen", np.array(41, "i4"))
    debugger.go("continue")
    assert debugger.program.params["seen"] == 42


def test_setting_the_state_of_a_loop(file):
    debugger = debug(file, "count", stop_on_entry=False)
    debugger.breakpoints.set_lines(str(file), [Wanted(line=LINES["y"])])
    debugger.start()
    debugger.set(debugger.stack()[0], "x", np.array([60, 0, 0], "f4"))
    debugger.breakpoints.set_lines(str(file), [])
    debugger.go("continue")
    assert debugger.result()["y"].tolist() == [120, 0, 0]


def test_goto(file):
    debugger = debug(file)
    debugger.start()
    (ahead,) = debugger.goto_targets(str(file), 7)
    assert ahead.position < 0
    debugger.goto(ahead.number)
    assert where(debugger) == [("main", 7)]
    debugger.go("over")
    with pytest.raises(InputError):
        debugger.goto(99)


UPDATING = """\
state s: f32[2] = zeros()

graph main(x: f32[2]) -> f32[2], i32[] {
  y, i = while(s, 0, test=t, body=b)
  z = add(y, x)
  return z, i
}

graph t(v: f32[2], i: i32[]) -> bool[] {
  l = less(i, 3)
  return l
}

graph b(v: f32[2], i: i32[]) -> f32[2], i32[] {
  y = add(v, 2.0)
  s <- y
  j = add(i, 1)
  return y, j
}
"""


@pytest.mark.parametrize("command, line", [("over", 5), ("in", 10), ("until", 5)])
def test_a_step_over_a_loop_whose_body_updates_what_it_takes(command, line, tmp_path):
    """What the loop took is copied before it, at a point that is not shown."""
    (tmp_path / "model.opg").write_text(UPDATING)
    program = opstep.load(tmp_path / "model.opg")
    debugger = Debugger(program, "main", {"x": X[:2]}, stop_on_entry=True)
    debugger.start()
    assert where(debugger) == [("main", 4)]
    debugger.go(command)
    assert where(debugger)[0][1] == line
    debugger.restart_frame(debugger.stack()[-1])
    assert where(debugger) == [("main", 4)]
    debugger.go(command)
    assert where(debugger)[0][1] == line


def test_goto_in_a_loop_is_to_the_last_visit_before_the_stop(file):
    debugger = debug(file, "count")
    debugger.start()
    while debugger.go("over").reason != "end":
        pass
    small, body = LINES["m"], LINES["y"]

    def goes_to(line):
        (target,) = debugger.goto_targets(str(file), line)
        debugger.goto(target.number)
        return target.label, debugger.stack()[0].name

    assert goes_to(body) == (f"line {body}, back in double [i=5]", "double [i=5]")
    assert goes_to(body) == (f"line {body}, back in double [i=4]", "double [i=4]")
    assert goes_to(small) == (f"line {small}, back in small [i=4]", "small [i=4]")
    assert goes_to(body) == (f"line {body}, back in double [i=3]", "double [i=3]")
    length = debugger.machine.history.frontier
    debugger.restart_frame(debugger.stack()[-1])
    assert goes_to(body) == (f"line {body}, on in double [i=0]", "double [i=0]")
    assert goes_to(body) == (f"line {body}, on in double [i=1]", "double [i=1]")
    assert debugger.machine.history.frontier == length  # nothing was lost


def test_going_to_what_needs_values_that_are_not_there(file):
    debugger = debug(file)
    debugger.start()
    (ahead,) = debugger.goto_targets(str(file), 6)
    with pytest.raises(InputError, match="b has no value"):
        debugger.goto(ahead.number)
    assert debugger.go("continue").reason == "end"


def test_run_to_and_restart(file):
    debugger = debug(file)
    debugger.start()
    debugger.run_to(str(file), 14)
    assert where(debugger)[0] == ("scaled", 14)
    debugger.restart_frame(debugger.stack()[0])
    assert where(debugger)[0] == ("scaled", 13)
    debugger.restart()
    assert where(debugger) == [("main", 4)]
    with pytest.raises(InputError):
        debugger.run_to(str(file), 1000)


def test_steps_of_a_run_at_full_speed(file):
    program = opstep.load(file)
    debugger = Debugger(program, "main", {"x": X}, steps=5, mode="async")
    assert debugger.start().reason == "end"
    assert debugger.result()["c"].tolist() == [9, 15, 21]
    assert program.params["seen"] == 5


def test_a_pause_stops_a_run_at_full_speed(file):
    program = opstep.load(file)
    debugger = Debugger(program, "main", {"x": X}, steps=100_000_000, mode="async")
    debugger.later(debugger.pause)
    stop = debugger.start()
    assert stop.reason == "pause"
    assert where(debugger)[0][1] == 4
    assert debugger.go("over").reason == "step"


def test_streams_are_threads(tmp_path):
    from branching import SIZE, branching

    (tmp_path / "b.opg").write_text(branching(3, 4))
    program = opstep.load(tmp_path / "b.opg")
    x = np.ones(SIZE, "f4")
    debugger = Debugger(program, None, {"x": x}, mode="async", streams=3, stop_on_entry=True)
    debugger.start()
    assert len(debugger.threads()) > 1
    tops = [debugger.stack(number)[0].line for number, _ in debugger.threads()]
    assert len(set(tops)) == len(tops)
    seen = set()
    for _ in range(3):
        stop = debugger.go("over", thread=1)
        assert stop.thread == 1
        seen.add(debugger.stack()[0].line)
    assert len(seen) == 3
    debugger.go("continue")
    wanted = program.run(None, {"x": x})
    assert next(iter(debugger.result().values())).tobytes() == wanted.outputs[0].tobytes()


def test_launches_one_at_a_time(tmp_path):
    body = "y = cumsum(x, axis=0)\n  z = neg(y)\n  return z"
    text = f"graph main(x: f16[N]) -> f16[N] {{\n  {body}\n}}\n"
    (tmp_path / "f.opg").write_text(text)
    program = opstep.load(tmp_path / "f.opg")
    x = np.linspace(-1, 1, 7).astype("f2")
    debugger = Debugger(program, None, {"x": x}, stop_on_entry=True)
    debugger.start()
    launches = len(debugger.machine.history.next_point()[0].plan.steps[0].launches)
    assert launches > 1  # two bytes a float are staged through f32
    for k in range(1, launches):
        stop = debugger.go("over", granularity="instruction")
        assert stop.text == f"launch {k} of {launches} of cumsum"
        assert where(debugger) == [("main", 2)]
    debugger.go("over", granularity="instruction")
    assert where(debugger) == [("main", 3)]
    debugger.go("continue")
    assert debugger.result()["z"].tobytes() == program.run(None, {"x": x})["z"].tobytes()


@pytest.mark.parametrize("mode", ["debug", "async"])
def test_values_are_read_between_launches(mode):
    """Meanwhile nothing else gets the memory that the launches work in."""
    body = "y = cumsum(x, axis=0)\n  z = neg(y)\n  return z"
    text = f"graph main(x: f16[N]) -> f16[N] {{\n  {body}\n}}\n"
    x = np.linspace(-1, 1, 1 << 20).astype("f2")
    program = opstep.loads(text)
    debugger = Debugger(program, None, {"x": x}, stop_on_entry=True, mode=mode, alloc="fresh")
    debugger.start()
    debugger.go("over", granularity="instruction")
    executor = debugger.machine.executor
    executor.settle()
    others = [executor.device.alloc(8 << 20) for _ in range(4)]
    for memory in others:
        executor.device.write(memory, 0, TensorType(f32, (2 << 20,)), 7.0)
    debugger.go("over")
    debugger.go("continue")
    assert debugger.result()["z"].tobytes() == program.run(None, {"x": x})["z"].tobytes()


def test_a_budget_below_nothing(file):
    with pytest.raises(InputError, match="negative"):
        debug(file, memory_budget=-5)


def test_a_small_budget_remembers_fewer_points(file):
    small, large = debug(file, memory_budget=30_000_000), debug(file)
    assert (small.machine.most, large.machine.most) == (30_000, 1_000_000)
