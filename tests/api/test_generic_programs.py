"""Generic graphs that are run: what binds their type variables, and what shows them."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import dtype

TEXT = """\
param scale: f32[] = 2.0
state calls: i32[] = 0

graph scaled<T: number>(x: T[N], by: T[]) -> T[N] {
  s = cast(scale, dtype=T)
  y = mul(x, s)
  z = mul(y, by)
  next = add(calls, 1)
  calls <- next
  return z
}

graph both(x: f16[N], k: i8[N]) -> f16[N], i8[N] {
  a = scaled(x, 0.5)
  b = scaled(k, 3)
  return a, b
}

graph rounds<T: float>(x: T[N], left: i32[]) -> f64[N] {
  more = greater(left, 0)
  y = cond(more, x, left, then=narrower, else=done)
  return y
}

graph narrower<T: float>(x: T[N], left: i32[]) -> f64[N] {
  h = cast(x, dtype=bf16)
  next = sub(left, 1)
  y = rounds(h, next)
  return y
}

graph done<T: float>(x: T[N], left: i32[]) -> f64[N] {
  y = cast(x, dtype=f64)
  return y
}

graph pick<T, I: index>(x: T[N], k: I[]) -> T[] {
  y = gather(x, k)
  return y
}
"""


@pytest.fixture
def program() -> opstep.Program:
    return opstep.loads(TEXT)


@pytest.mark.parametrize("t", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8"])
@pytest.mark.parametrize("mode", ["async", "debug"])
def test_arrays_bind_the_variables(program, t, mode):
    x = np.array([1, 2, 3]).astype(dtype(t).numpy)
    (y,) = program.run("scaled", {"x": x, "by": x[0]}, mode=mode).outputs
    assert y.dtype == x.dtype
    assert y.tolist() == [2, 4, 6]
    assert program.params["calls"] == 1


def test_numbers_and_lists_take_the_type_of_arrays(program):
    x = np.ones(2, "f2")
    assert program.run("scaled", {"x": x, "by": 2}).outputs[0].dtype == "f2"
    assert program.run("scaled", {"x": [1, 2], "by": np.array(0.5)}).outputs[0].dtype == "f8"
    assert program.run("scaled", {"x": [1, 2], "by": 2}).outputs[0].dtype == "i4"
    (y,) = program.run("scaled", {"x": [1, 2], "by": 0.5}).outputs
    assert (y.dtype, y.tolist()) == ("f4", [1, 2])


def test_inputs_that_do_not_agree(program):
    with pytest.raises(InputError, match="one element type as T, but it is f32 in x and f16 in by"):
        program.run("scaled", {"x": np.ones(2, "f4"), "by": np.float16(1)})
    with pytest.raises(InputError, match="wants a number as T, but it is bool in x"):
        program.run("scaled", {"x": np.ones(2, bool), "by": np.True_})
    with pytest.raises(InputError, match="elements of type complex64"):
        program.run("scaled", {"x": np.ones(2, "c8"), "by": 1})


def test_calls_are_instances_of_their_own(program):
    x, k = np.array([1, 2], "f2"), np.array([1, 50], "i1")
    result = program.run("both", {"x": x, "k": k})
    assert result["a"].tolist() == [1, 2]
    assert result["b"].tolist() == [6, 300 - 256]
    plan = program.plan("both", symbols={"N": 2})
    assert [f.name for f in plan.frames] == ["both", "scaled<f16>", "scaled<i8>"]


def test_recursion_that_changes_the_type_ends(program):
    x = np.array([1 + 2.0**-30, 3.0])
    assert program.run("rounds", {"x": x, "left": 0}).outputs[0].tolist() == x.tolist()
    assert program.run("rounds", {"x": x, "left": 5}).outputs[0].tolist() == [1, 3]


def test_several_variables(program):
    x = np.array([False, True])
    for t in ("i4", "i8"):
        assert program.run("pick", {"x": x, "k": np.array(1, t)}).outputs[0].tolist() is True
    frame = program.plan("pick", symbols={"N": 2, "T": "u8", "I": "i64"}).frames[0]
    assert frame.name == "pick<u8,i64>"


def test_plans_for_types_by_name(program):
    assert program.plan("scaled", symbols={"N": 2}).frames[0].name == "scaled<f32>"
    assert program.plan("scaled", symbols={"N": 2, "T": "i8"}).frames[0].name == "scaled<i8>"
    for t, why in [("bool", "T is one of f64"), ("f61", "no element type f61"), (4, "T is an el")]:
        with pytest.raises(InputError, match=why):
            program.plan("scaled", symbols={"N": 2, "T": t})
    with pytest.raises(InputError, match="N is a size"):
        program.plan("scaled", symbols={"N": "f32"})


def test_all_plans_that_control_flow_can_reach(program):
    plans = program.plans("rounds", symbols={"N": 2, "T": "f32"})
    names = {plan.frames[0].name for plan in plans}
    assert names == {"rounds<f32>", "narrower<f32>", "done<f32>", "narrower<bf16>", "done<bf16>"}


def test_a_debugger_shows_instances(tmp_path):
    debugger = opstep.Debugger(opstep.loads(TEXT), "both", {
        "x": np.ones(2, "f2"), "k": np.ones(2, "i1"),
    }, stop_on_entry=True)  # fmt: skip
    debugger.start()
    debugger.go("in")
    assert [f.name for f in debugger.stack()] == ["scaled<f16>", "both"]
    debugger.go("over")
    assert str(debugger.stack()[0].lookup("s").type) == "f16[]"
    debugger.go("out")
    debugger.go("in")
    assert [f.name for f in debugger.stack()] == ["scaled<i8>", "both"]
    debugger.go("back")
    assert debugger.go("continue").reason == "end"
    assert debugger.result()["b"].tolist() == [6, 6]


def test_a_step_of_training_is_generic_where_its_loss_is():
    program = opstep.loads("""\
        param w: f32[3] = ones()
        graph loss<T: float>(x: T[N, 3]) -> f32[] {
          wide = cast(x, dtype=f32)
          y = mul(wide, w)
          l = mean(y)
          return l
        }
        """).with_optimizer("loss", "sgd", lr=0.5)
    for t in ("f2", "f8"):
        before = program.params["w"].copy()
        program.run("loss_step", {"x": np.ones((2, 3), t)})
        np.testing.assert_allclose(program.params["w"], before - 0.5 / 3, rtol=1e-6)


def test_errors_in_a_call_show_both_lines():
    text = TEXT.replace("scaled(x, 0.5)", "scaled(x, x)")
    with pytest.raises(OpstepError) as found:
        opstep.loads(text, "model.opg")
    assert "model.opg:14:17: error: scaled wants T[] as by, not f16[N]" in str(found.value)
    assert "model.opg:4:7: note: graph scaled is declared here" in str(found.value)
