"""Infinities that a program writes itself, or is given as masks are: no alarm, none is hidden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.hunting.harmless import LOOKS
from opstep.hunting.search import hunt

FILE = Path(__file__).with_name("own_infinities.opg")
CALLED = ("upper", "before", "turn")
GRAPHS = [g for g in opstep.load(FILE).graphs if g not in CALLED]
GIVEN = {
    "mask": np.triu(np.full((6, 6), -np.inf), 1),
    "d": np.array([0, np.inf, np.inf, np.inf, 2, np.inf]),
    "label": np.array([0, 3, 1, 2, 3, 0]),
}


def inputs_of(program: opstep.Program, graph: str, number: int) -> dict[str, np.ndarray]:
    rng, given = np.random.default_rng(number), {}
    for b in program.graph(graph).inputs:
        array = GIVEN.get(b.name.text, rng.normal(size=b.type.shape))
        given[b.name.text] = array.astype(b.type.dtype.numpy)
    return given


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("mode", ["async", "debug"])
def test_a_healthy_graph_raises_no_alarm(graph, mode):
    program = opstep.load(FILE)
    steps = (inputs_of(program, graph, k) for k in range(3))
    found = hunt(program, graph, steps, mode=mode)
    assert not found.found, found.report()
    assert found.steps == 3


def test_a_step_of_training_raises_no_alarm():
    program = opstep.load(FILE).with_grad("loss", ["bias", "x"])
    found = hunt(program, "loss_grad", inputs_of(program, "loss", 0), steps=3)
    assert not found.found, found.report()


# --- and what is an error beside them ---


def f(*values):
    return np.array(values, np.float32)


def hunted(body: str, inputs: dict, result: str = "f32[3]", **options):
    text = f"""state turn: i32[] = 0
graph main(x: f32[3]) -> {result} {{
  low = less(x, 0.0)
  m = where(low, -inf, x)
  {body}
  t = add(turn, 1)
  turn <- t
  return y
}}
"""
    return hunt(opstep.loads(text, "b.opg"), "main", inputs, **options)


@pytest.mark.parametrize(
    "body, op, rule",
    [
        ("e = mul(x, 1e38)\n  y = mul(m, e)", "mul", "overflow of f32"),
        ("y = sub(m, m)", "sub", "inf - inf"),
        ("z = mul(x, 0.0)\n  y = mul(m, z)", "mul", "0 times infinity"),
        ("c = greater(x, 90.0)\n  n = where(c, m, -inf)\n  y = softmax(n)", "softmax",
         "all elements of the row are -inf"),
        ("p = sub(m, 2.0)\n  y = log(p)", "log", "log of a negative number"),
        ("y = cos(m)", "cos", "of an infinity"),
        ("n = neg(m)\n  y = div(m, n)", "div", "inf / inf"),
    ],
)  # fmt: skip
def test_an_error_beside_own_infinities_is_an_alarm(body, op, rule):
    found = hunted(body, {"x": f(1, -1, 20)})
    assert (found.first.op, found.first.verdict.rules[0][0]) == (op, rule)


@pytest.mark.parametrize("begin, told", [(0, 0), (LOOKS - 1, LOOKS - 1), (20, 31)])
def test_an_overflow_among_own_infinities_is_found_in_a_later_step(begin, told):
    body = f"""large = greater_equal(turn, {begin})
  by = where(large, 1e38, 1.0)
  y = mul(m, by)"""
    found = hunted(body, {"x": f(1, -1, 20)}, steps=60)
    assert (found.step, found.first.op) == (told, "mul")


def test_what_was_not_looked_into_is_said():
    """An overflow of one step among own infinities, between those that are replayed."""
    body = """only = equal(turn, 20)
  by = where(only, 1e38, 1.0)
  y = mul(m, by)"""
    found = hunted(body, {"x": f(1, -1, 20)}, steps=60)
    assert not found.found
    assert "there were some at these places in 50 more steps, not looked into" in str(found)


def test_a_nan_among_own_nans_is_found():
    body = """only = equal(turn, 3)
  by = where(only, -1.0, 1.0)
  l = log(by)
  y = where(low, nan, l)"""
    found = hunted(body, {"x": f(1, -1, 20)}, steps=5)
    assert (found.step, found.first.op) == (3, "log")
    assert "no NaN and no infinity but" in str(hunted(body, {"x": f(1, -1, 20)}, steps=3))


def test_own_infinities_of_earlier_steps_are_told():
    """Another step is replayed, for it runs a graph for the first time, and has none."""
    text = """state turn: i32[] = 0
graph one(x: f32[3]) -> f32[3] {
  y = add(x, 1.0)
  return y
}
graph two(x: f32[3]) -> f32[3] {
  y = add(x, -inf)
  return y
}
graph main(x: f32[3]) -> f32[3] {
  first = equal(turn, 0)
  y = cond(first, x, then=two, else=one)
  t = add(turn, 1)
  turn <- t
  return y
}
"""
    found = hunt(opstep.loads(text, "b.opg"), "main", {"x": f(1, 2, 3)}, steps=3)
    assert "no infinity but what is written or given (b.opg:7), came out" in str(found)


def test_an_overflow_follows_from_no_infinity_of_other_elements():
    text = """graph main(x: f32[2, 3]) -> f32[2] {
  y = sum(x, axes=[1])
  return y
}
"""
    x = np.array([[3e38, 3e38, 1], [-np.inf, 1, 1]], np.float32)
    told = str(hunt(opstep.loads(text, "b.opg"), "main", {"x": x}))
    assert "overflow of f32" in told
    assert "it follows" not in told


def test_own_infinities_that_end_are_no_race():
    """Flags of steps that were not looked into are not those of a later one."""
    body = """few = less(turn, 20)
  y = where(few, m, x)"""
    assert not hunted(body, {"x": f(1, -1, 20)}, steps=60).found


def test_the_line_of_an_infinity_that_a_nan_is_made_of_is_named():
    told = str(hunted("y = sub(m, m)", {"x": f(1, -1, 20)}))
    assert "the infinity is from: literal -inf (b.opg:4)" in told


def test_a_param_is_to_stay_finite():
    text = """param w: f32[2] = ones()
graph main(x: f32[2]) -> f32[2] {
  c = less(x, 0.0)
  next = where(c, inf, w)
  w <- next
  return x
}
"""
    found = hunt(opstep.loads(text), "main", {"x": f(1, -1)})
    assert (found.first.given, found.first.output) == ("literal inf", "w")


def hunt_in(text: str, inputs: dict):
    return hunt(opstep.loads(text, "b.opg"), "main", inputs)


LOSES = (
    "graph main(x: f32[2], c: bool[2]) -> {} {{\n  h = where(c, x, -inf)\n  {}\n  return y\n}}\n"
)


@pytest.mark.parametrize(
    "way",
    [
        "y = mean(h)",
        "s = neg(h)\n  y = sum(s)",
        "y = matmul(h, x)",
        "m = reshape(h, shape=[1, 2])\n  w = reshape(x, shape=[2, 1])\n  n = matmul(m, w)\n"
        "  y = sum(n)",
    ],
)
def test_finite_numbers_that_are_lost_to_an_infinity_that_is_meant_are_an_alarm(way):
    found = hunt_in(LOSES.format("f32[]", way), {"x": f(1, 2), "c": np.array([True, False])})
    assert (found.first.given, found.first.intended) == ("literal -inf", True)
    assert "if that is as it should be: wanted=['y']" in str(found)


@pytest.mark.parametrize("way", ["y = cumsum(h, axis=0)", "y = cumprod(h, axis=0)"])
def test_an_infinity_that_is_meant_may_be_added_to_the_numbers_beside_it(way):
    text = LOSES.format("f32[2]", way)
    assert not hunt_in(text, {"x": f(1, 2), "c": np.array([True, False])}).found


def test_an_infinity_that_is_meant_and_comes_out_is_no_alarm_and_is_named():
    scaled = "graph main(x: f32[2]) -> f32[2] {\n  y = mul(x, inf)\n  return y\n}\n"
    found = hunt_in(scaled, {"x": f(1, 2)})
    assert not found.found
    assert str(found) == (
        "main: 1 step, no NaN, and no infinity but what is written or given (b.opg:2), came out"
    )
    given = "graph main(x: f32[2]) -> f32[2] {\n  y = neg(x)\n  return y\n}\n"
    for x in (f(-np.inf, 2), f(np.inf, 2)):
        found = hunt_in(given, {"x": x})
        assert (found.found, "what is written or given (input x)" in str(found)) == (False, True)
