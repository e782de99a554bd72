"""Expressions where a run stands: conditions, other steps, files; over values of a real run."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from debugger.sessions import lines_of

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.breakpoints import Wanted
from opstep.runtime.expressions import ExpressionError
from opstep.runtime.expressions.text import value_text

TEXT = textwrap.dedent("""\
    state seen: i32[] = 10

    graph main(x: f32[N]) -> f32[N] {
      large = max(x)
      late = greater(large, 5.0)
      y = while(x, test=small, body=double)
      next = add(seen, 1)
      seen <- next
      return y
    }

    graph small(x: f32[N]) -> bool[] {
      m = max(x)
      more = less(m, 100.0)
      return more
    }

    graph double(x: f32[N]) -> f32[N] {
      kept = mul(x, 0.0)
      y = mul(x, 2.0)
      return y
    }
    """)
LINES = lines_of(TEXT)


@pytest.fixture
def debugger(tmp_path):
    path = tmp_path / "model.opg"
    path.write_text(TEXT)
    np.save(tmp_path / "w.npy", np.array([1, 2, 4], "f4"))
    return Debugger(
        opstep.load(path), "main", {"x": np.array([1, 2, 3], "f4")}, steps=3, stop_on_entry=True
    )


def path_of(debugger):
    return debugger.program.module.source.path


def run_to(debugger, name, condition=None):
    wanted = Wanted(line=LINES[name], condition=condition)
    (found,) = debugger.breakpoints.set_lines(path_of(debugger), [wanted])
    assert found.verified, found.message
    return debugger.go("continue")


def text(debugger, expression):
    return value_text(debugger.evaluate(expression))


def test_a_condition_that_is_a_name(debugger):
    debugger.start()
    assert run_to(debugger, "next", "late").reason == "end"
    debugger.restart()
    assert run_to(debugger, "next", "not late").reason == "breakpoint"
    assert text(debugger, "late") == "false"


def test_the_turn_before(debugger):
    debugger.start()
    run_to(debugger, "y", "x[0] == 4")
    assert [text(debugger, t) for t in ("x", "x@-1", "prev(x, 2)", "x - x@-1")] == [
        "[4.0, 8.0, 12.0]", "[2.0, 4.0, 6.0]", "[1.0, 2.0, 3.0]", "[2.0, 4.0, 6.0]",
    ]  # fmt: skip
    assert [text(debugger, t) for t in ("changed(x)", "changed(kept)", "changed(x[0] > 1)")] == [
        "true", "false", "false",
    ]  # fmt: skip
    assert text(debugger, "diff(x, x@-1).max_abs") == "6.0"
    with pytest.raises(ExpressionError, match="no such step"):
        debugger.evaluate("prev(x, 3)")


def test_data_breakpoints_that_ask_for_a_change(debugger):
    debugger.breakpoints.set_data([Wanted(name="double.kept", condition="changed(value)")])
    debugger.start()
    assert debugger.go("continue").reason == "end"
    debugger.restart()
    debugger.breakpoints.set_data([Wanted(name="double.y", condition="changed(value)")])
    assert debugger.go("continue").reason == "data"
    assert text(debugger, "y") == "[4.0, 8.0, 12.0]"


def test_the_step_before(debugger):
    debugger.start()
    run_to(debugger, "next", "seen == 11")
    assert text(debugger, "seen") == "11"
    assert text(debugger, "prev(next)") == "11"
    assert text(debugger, "x == x@-1") == "[true, true, true]"


def test_versions_of_what_was_set(debugger):
    debugger.start()
    run_to(debugger, "y", "x[0] == 4")
    with pytest.raises(ExpressionError, match="no such version"):
        debugger.evaluate("was(x)")
    with pytest.raises(ExpressionError, match="counted back"):
        debugger.evaluate("was(x, -1)")
    frame = debugger.stack()[0]
    for number in (7, 9):
        debugger.set(frame, "x", np.full(3, number, np.float32))
        frame = debugger.stack()[0]
    assert [text(debugger, t) for t in ("x", "was(x)", "was(x, 2)", "was(was(x))")] == [
        "[9.0, 9.0, 9.0]", "[7.0, 7.0, 7.0]", "[4.0, 8.0, 12.0]", "[4.0, 8.0, 12.0]",
    ]  # fmt: skip
    assert text(debugger, "max(x - was(x))") == "2.0"
    with pytest.raises(ExpressionError, match="no such version"):
        debugger.evaluate("was(x, 3)")


def test_files_below_the_folder(debugger):
    debugger.start()
    assert text(debugger, 'load("w.npy") - x') == "[0.0, 0.0, 1.0]"
    for path in ("../w.npy", "/etc/passwd", "w.npz", "nothing.npy"):
        with pytest.raises(ExpressionError):
            debugger.evaluate(f'load("{path}")')


def test_faults_in_conditions_and_messages_are_told(debugger):
    said = []
    debugger.on_output = lambda words, frame: said.append(words)
    faults = ("x + [1, 2]", 'load("nothing.npy")', "unwritten(x + 1)", "stats(x)", "x[9]", "zz")
    wanted = [Wanted(line=LINES["large"], condition=c) for c in faults]
    wanted += [Wanted(line=LINES["large"], log="{x} {zz} {stats(x).mean} {x[0]:}")]
    found = debugger.breakpoints.set_lines(path_of(debugger), wanted)
    assert [b.verified for b in found] == [True] * len(faults) + [False]
    wanted[-1] = wanted[-1]._replace(log="{x} {zz} {stats(x).mean} {max(x) > 2}")
    debugger.breakpoints.set_lines(path_of(debugger), wanted)
    debugger.stop_on_entry = False
    assert debugger.start().reason == "breakpoint"
    assert len(said) == len(faults) + 1
    assert said[-1] == "[1.0, 2.0, 3.0] <there is no zz here> 2.0 true"


def test_masks_between_brackets(debugger):
    debugger.start()
    assert text(debugger, "x[nan(x)]") == "f32[0]  no elements"
    assert text(debugger, "x[not nan(x)]") == "[1.0, 2.0, 3.0]"
    assert text(debugger, "x[x > 1 and not inf(x)]") == "[2.0, 3.0]"
