"""The file is changed while it is debugged."""

from __future__ import annotations

import numpy as np
import pytest
from debugger.sessions import TEXT, X, debug, where

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError


def test_an_edit_after_a_run_at_full_speed(file):
    debugger = Debugger(opstep.load(file), "main", {"x": X}, mode="async")
    with pytest.raises(InputError):
        debugger.result()
    assert debugger.start().reason == "end"
    file.write_text(TEXT.replace("mul(b, 3.0)", "mul(b, 5.0)"))
    assert debugger.reload().of == 0
    debugger.go("continue")
    assert debugger.result()["c"].tolist() == [15, 25, 35]


def test_an_edit_keeps_what_did_not_change(file):
    debugger = debug(file)
    debugger.start()
    while where(debugger) != [("main", 7)]:
        debugger.go("over")
    file.write_text(TEXT.replace("mul(b, 3.0)", "mul(b, 5.0)"))
    reloaded = debugger.reload()
    assert (reloaded.reused, reloaded.of) == (3, 4)
    assert where(debugger) == [("main", 4)]
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["c"].tolist() == [15, 25, 35]


def test_an_edit_tells_what_was_set_by_hand_and_is_no_longer(file):
    debugger = debug(file)
    debugger.start()
    debugger.set(debugger.stack()[0], "seen", np.array(41, "i4"))  # at the begin: stays
    while where(debugger) != [("main", 7)]:
        debugger.go("over")
    debugger.set(debugger.stack()[0], "b", np.array([0, 0, 0], "f4"))
    debugger.set(debugger.stack()[0], "b", np.array([1, 1, 1], "f4"))
    assert debugger.reload().dropped == ["b"]
    assert debugger.reload().dropped == []
    debugger.go("over")
    debugger.set(debugger.stack()[0], "a", np.array([-1, -1, 1], "f4"))
    debugger.go("back")  # what is ahead is as it was set, too
    assert debugger.reload().dropped == ["a"]
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["c"].tolist() == [9, 15, 21]
    assert debugger.program.params["seen"] == 42


def test_an_edit_with_errors_changes_nothing(file):
    debugger = debug(file)
    debugger.start()
    debugger.go("over")
    file.write_text(TEXT.replace("mul(b, 3.0)", "mul(b, )"))
    with pytest.raises(OpstepError):
        debugger.reload()
    assert where(debugger) == [("main", 5)]
    debugger.go("continue")
    assert debugger.result()["c"].tolist() == [9, 15, 21]


def test_a_text_that_cannot_be_run_leaves_one_where_one_stands(tmp_path):
    text = """state s: f32[4] = zeros()
graph main(x: f32[4]) -> f32[4] {
  a = add(x, s)
  b = mul(a, 2.0)
  s <- b
  c = neg(b)
  return c
}
"""
    path = tmp_path / "edited.opg"
    path.write_text(text)
    x = np.ones(4, np.float32)
    debugger = opstep.Debugger(opstep.load(path), "main", {"x": x}, steps=2, stop_on_entry=True)
    debugger.start()
    for _ in range(9):
        debugger.go("in")
    at = debugger.position, debugger.stack()[0].line
    wrong = ["", "graph (", text.replace("main", "other"), text.replace("f32[4]", "f32[5]")]
    for one in wrong:
        path.write_text(one)
        with pytest.raises(OpstepError):
            debugger.reload()
        assert (debugger.position, debugger.stack()[0].line) == at
    path.unlink()
    with pytest.raises(OpstepError, match="is not there"):
        debugger.reload()
    assert debugger.evaluate("s").array().tolist() == [6.0] * 4
    # a named tensor that is no more, or of another type
    path.write_text(text.replace("s: f32[4]", "s: f32[1]").replace("  s <- b\n", ""))
    debugger.reload()
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["c"].tolist() == [-2.0] * 4
    path.write_text("graph main(x: f32[4]) -> f32[4] {\n  c = neg(x)\n  return c\n}\n")
    debugger.go("back")
    debugger.reload()
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["c"].tolist() == [-1.0] * 4
