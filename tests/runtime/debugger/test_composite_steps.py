"""Ops that are graphs of others: a step goes over one as over an op, and into it as into a call."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
import pytest
from debugger.sessions import where

import opstep
from opstep.api.debugging import Debugger
from opstep.api.rank_debugging import debug_ranks
from opstep.runtime.debugger.breakpoints import Wanted

TEXT = """\
graph main(x: f32[N, 4]) -> f32[N, 4] {
  a = mul(x, 2.0)
  y = softmax(a)
  z = layer_norm(y, shape=[4])
  e = exp(z)
  return e
}
"""
X = np.arange(8, dtype="f4").reshape(2, 4)


@pytest.fixture
def session(tmp_path):
    """Starts one at the entry; of inputs with one element set, if that is given."""

    def start(element: float | None = None, **options) -> Debugger:
        (tmp_path / "f.opg").write_text(TEXT)
        x = X.copy()
        if element is not None:
            x[1, 2] = element
        debugger = Debugger(
            opstep.load(tmp_path / "f.opg"), "main", {"x": x}, stop_on_entry=True, **options
        )
        debugger.start()
        return debugger

    return start


def lines(debugger) -> list[int]:
    return [line for _, line in where(debugger)]


def names(debugger) -> list[str]:
    return [name for name, _ in where(debugger)]


def array(debugger, name):
    return debugger.machine.executor.array(debugger.stack()[0].lookup(name))


def test_a_step_goes_over_it(session):
    debugger = session()
    found = [lines(debugger)]
    while debugger.go("over").reason == "step":
        found.append(lines(debugger))
    assert found == [[2], [3], [4], [5], [6]]


def test_a_step_goes_into_it_and_back(session):
    debugger = session()
    debugger.go("over")
    debugger.go("in")
    assert names(debugger) == ["softmax", "main"]
    source = debugger.stack()[0].source
    assert source.text.startswith("graph softmax(x: f32[2, 4]) -> f32[2, 4] {")
    assert array(debugger, "x").tolist() == (2 * X).tolist()
    while names(debugger) == ["softmax", "main"]:
        debugger.go("in")
    assert where(debugger) == [("main", 4)]
    y = array(debugger, "y")
    debugger.go("back_in")
    assert names(debugger) == ["softmax", "main"]
    assert debugger.stack()[0].lookup("y") is None
    debugger.go("back_out")
    assert where(debugger) == [("main", 3)]
    debugger.go("over")
    assert array(debugger, "y").tobytes() == y.tobytes()


def test_out_of_it(session):
    debugger = session()
    debugger.go("over")
    debugger.go("in")
    debugger.go("in")
    debugger.go("out")
    assert where(debugger) == [("main", 4)]


def test_the_bits_are_those_of_a_run(session):
    debugger = session()
    debugger.go("continue")
    (expected,) = opstep.loads(TEXT).run("main", {"x": X}).outputs
    assert debugger.result()["e"].tobytes() == expected.tobytes()


def test_breakpoints_are_on_the_op_and_not_within(session):
    debugger = session()
    debugger.breakpoints.set_functions([Wanted(name=n) for n in ("softmax", "exp", "z")])
    stops = []
    while debugger.go("continue").reason == "function":
        stops.append(where(debugger))
    assert stops == [[("main", 3)], [("main", 4)], [("main", 5)]]


def test_a_nan_stops_at_the_op_with_its_result(session):
    debugger = session(float("inf"))
    debugger.breakpoints.set_filters({"nan": None}, ["nan"])
    stop = debugger.go("continue")
    assert stop.exception.message == "y, the result of softmax: 4 NaN of 8 elements"
    assert where(debugger) == [("main", 3)]
    assert np.isnan(array(debugger, "y")[1]).all()
    debugger.go("over")
    assert where(debugger) == [("main", 4)]
    assert debugger.go("continue").reason == "end"  # no other is an origin


def test_a_data_breakpoint_on_its_result(session):
    debugger = session()
    debugger.breakpoints.set_data([Wanted(name="y"), Wanted(name="main.z")])
    assert debugger.go("continue").reason == "data"
    assert where(debugger) == [("main", 3)]
    assert debugger.go("continue").reason == "data"
    assert where(debugger) == [("main", 4)]
    assert debugger.go("continue").reason == "end"


def test_a_value_within_can_be_set(session):
    debugger = session()
    debugger.go("over")
    debugger.go("in")
    debugger.go("in")
    (name,) = set(debugger.stack()[0].names()) - {"x"}
    largest = array(debugger, name)
    assert largest.ravel().tolist() == [6, 14]
    debugger.set(debugger.stack()[0], name, largest + 1)
    debugger.go("out")
    expected = np.exp(2 * X - largest - 1)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(array(debugger, "y"), expected, rtol=1e-6)


def test_halves_are_f32_within(session):
    text = "graph main(x: bf16[N]) -> bf16[N] {\n  y = softmax(x)\n  return y\n}\n"
    debugger = Debugger(
        opstep.loads(text), "main", {"x": X[0].astype("bfloat16")}, stop_on_entry=True
    )
    debugger.start()
    debugger.go("in")
    debugger.go("in")
    frame = debugger.stack()[0]
    types = {name: str(node.type) for name, node in frame.names().items()}
    assert types.pop("x") == "bf16[4]"
    assert set(types.values()) == {"f32[4]"}


def test_ranks_step_into_it():
    text = "graph main(x: f32[N, 4]) -> f32[N, 4] {\n"
    text += "  y = softmax(x)\n  s = all_reduce(y)\n  return s\n}\n"
    program = opstep.loads(text, ranks=2)
    debugger = debug_ranks(program, "main", {"x": X}, stop_on_entry=True)
    debugger.start()
    debugger.go("in")
    assert names(debugger) == names(debugger.group.members[1]) == ["softmax", "main"]
    debugger.go("out")
    debugger.go("over")
    (expected,) = opstep.loads(text, ranks=1).run("main", {"x": X}).outputs
    assert array(debugger, "s").tobytes() == (2 * expected).tobytes()
