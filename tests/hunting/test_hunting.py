"""Hunting: seeded bugs are found where they were born, clean programs raise no alarm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded import Expected, Seeded, break_kernel, bugs, clean, seeded

import opstep
from opstep.api.settings import RunSettings
from opstep.hunting.search import hunt
from opstep.runtime.device.flagging import born
from opstep.runtime.driving import drive
from opstep.runtime.nan.backtrace import trace_back
from opstep.runtime.nan.findings import Finding


def holds(finding: Finding, expected: Expected) -> None:
    """The finding says what the comment of its program says."""
    if expected.kind == "given":
        assert finding.given == expected.rule
        assert (finding.kind, finding.bad, finding.op) == ("origin", expected.bad, "")
    elif expected.kind == "uninitialised":
        assert finding.kind == "uninitialised"
        assert finding.unwritten is not None
        assert finding.unwritten.first[0] == expected.place
    else:
        assert (finding.kind, finding.bad) == (expected.kind, expected.bad)
        assert finding.verdict.rules[0][0] == expected.rule
    if expected.place is not None and expected.kind != "uninitialised":
        assert finding.verdict.elements[0].place == expected.place
    if expected.op:
        assert finding.op == expected.op
    if expected.line:
        assert finding.where.line == expected.line
    if expected.graph:
        assert finding.where.graph == expected.graph


@pytest.mark.parametrize("path", bugs(), ids=lambda p: p.stem)
@pytest.mark.parametrize("mode", ["async", "debug"])
def test_a_seeded_bug_is_found_where_it_was_born(path, mode, monkeypatch):
    case = seeded(path)
    if case.broken:
        break_kernel(monkeypatch, *case.broken)
    found = hunt(case.program, case.graph, case.inputs, steps=case.steps, mode=mode)
    if case.first.kind == "masked":
        assert not found.found
        assert found.steps == case.steps
        holds(found.masked[0], case.first)
        return
    assert found.step == case.step
    holds(found.findings[0], case.first)
    for expected in case.also:
        (finding,) = [f for f in found.findings[1:] if f.where.line == expected.line]
        holds(finding, expected)
    assert found.findings[0].chain or case.first.kind == "uninitialised"


@pytest.mark.parametrize("path", clean(), ids=lambda p: p.stem)
def test_a_clean_program_raises_no_alarm(path):
    case = seeded(path)
    found = hunt(case.program, case.graph, case.inputs, steps=3)
    assert not found.found, found.report()
    assert found.steps == 3


def flagged(case, **switches):
    """The values whose flags one step at full speed raised."""
    with case.program._running(
        case.graph, case.inputs, RunSettings(**switches), flagged=born
    ) as job:
        drive(job.context.run(job.binding))
        return [r.plan.values[r.value].name for r in job.context.flags.raised()]


@pytest.mark.parametrize("path", bugs(), ids=lambda p: p.stem)
def test_flags_are_raised_by_the_op_at_fault(path):
    case = seeded(path)
    if case.broken or case.step or case.first.kind == "given":
        return
    found = hunt(case.program, case.graph, case.inputs)
    names = flagged(case)
    assert (found.findings or found.masked)[0].value in names


@pytest.mark.parametrize("path", clean(), ids=lambda p: p.stem)
def test_no_flag_is_raised_where_nothing_is_wrong(path):
    case = seeded(path)
    if all(np.isfinite(x).all() for x in case.inputs.values()):
        assert flagged(case, streams=3) == []


@pytest.mark.parametrize("masked, replays", [(False, 1), (True, 2)])
def test_infinities_that_are_meant_are_looked_into_once(masked, replays):
    case = seeded(next(p for p in clean() if p.stem == "mask_that_is_added"))
    found = hunt(case.program, case.graph, case.inputs, steps=50, masked=masked)
    assert (found.found, found.steps, found.replays) == (False, 50, replays)
    assert [f.given for f in found.intended] == ["input mask"]


def test_harmless_infinities_do_not_hide_nans_at_the_same_place():
    program = opstep.loads("""
state turn: i32[] = 0
graph main(x: f32[2]) -> f32[2] {
  low = log(x)
  c = equal(turn, 3)
  y = where(c, nan, 0.0)
  worse = add(low, y)
  next = add(turn, 1)
  turn <- next
  return worse
}
""")
    x = {"x": np.array([0.0, 1.0], np.float32)}
    found = hunt(program, "main", x, steps=9, wanted=["low", "worse"])
    assert (found.step, found.replays) == (3, 3)
    assert found.first.given == "literal nan"
    assert int(program.params["turn"]) == 3


PASSING = """
state left: f32[] = 2.0
state w: f32[8] = zeros()

graph main(x: f32[8], i: i32[2, 1], part: f32[2]) -> f32[2, 4] {
  r = sqrt(left)
  y = mul(x, r)
BODY
  z = reshape(out, shape=[2, 4])
  next = sub(left, 1.0)
  left <- next
  return z
}

graph never(x: f32[8]) -> bool[] {
  most = max(x)
  y = greater(most, 1e9)
  return y
}

graph half(x: f32[8]) -> f32[8] {
  y = mul(x, 0.5)
  return y
}

graph same(x: f32[8]) -> f32[8] {
  return x
}

graph keep(x: f32[8]) -> f32[8] {
  w <- x
  return x
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "  out = reshape(y, shape=[8])",
        "  out = while(y, test=never, body=half)",
        "  c = greater(left, -9.0)\n  out = cond(c, y, then=same, else=half)",
        "  c = greater(left, -9.0)\n  out = mul(x, 0.0)\n  k = cond(c, y, then=keep, else=half)",
        "  out = scatter_nd(y, i, part)",
        "  out = scatter_nd(x, i, part)\n  w <- y",
    ],
)
def test_what_comes_out_as_another_op_s_result_is_found(body):
    """As a view, through control flow, as the rest of what is overwritten in part."""
    program = opstep.loads(PASSING.replace("BODY", body))
    x, part = np.ones(8, np.float32), np.ones(2, np.float32)
    inputs = {"x": x, "i": np.array([[0], [1]], np.int32), "part": part}
    found = hunt(program, "main", inputs, steps=9)
    assert (found.step, found.first.op, found.first.value) == (3, "sqrt", "r")


def test_a_sum_that_overflows_where_it_is_added_in_place_is_found():
    program = opstep.loads("""
state left: f32[] = 3.0
graph main(x: f32[8], i: i32[2, 1], part: f32[2]) -> f32[8] {
  h = div(3e38, left)
  big = mul(x, h)
  z = scatter_nd_add(big, i, part)
  next = sub(left, 1.0)
  left <- next
  return z
}
""")
    inputs = {
        "x": np.ones(8, "f4"),
        "i": np.array([[0], [1]], "i4"),
        "part": np.full(2, 1e38, "f4"),
    }
    found = hunt(program, "main", inputs, steps=3)
    assert (found.step, found.first.op) == (2, "scatter_nd_add")


def test_a_step_is_replayed_from_the_state_that_it_began_with():
    program = opstep.loads("""
param w: f32[2] = full(value=8.0)
graph main(x: f32[2]) -> f32[2] {
  y = log(w)
  h = mul(w, 0.25)
  z = sub(h, 0.5)
  w <- z
  out = mul(x, y)
  return out
}
""")
    found = hunt(program, "main", {"x": np.ones(2, np.float32)}, steps=9)
    assert found.step == 2
    assert found.first.verdict.elements[0].blamed[0].value == -0.125
    assert program.params["w"].tolist() == [-0.125, -0.125]
    assert found.state["w"].tolist() == [-0.125, -0.125]


def test_infinities_may_be_left_out():
    program = opstep.loads("graph main(x: f32[1]) -> f32[1] {\n  y = log(x)\n  return y\n}\n")
    x = {"x": np.zeros(1, np.float32)}
    assert hunt(program, "main", x).found
    assert not hunt(program, "main", x, nan_only=True, steps=3).found
    with pytest.raises(opstep.OpstepError, match="nan_only"):
        hunt(program, "main", x, nan_only=True, kinds="index")


def test_a_report_says_all_of_it():
    case = seeded(next(p for p in bugs() if p.stem == "in_a_call"))
    found = hunt(case.program, case.graph, case.inputs)
    text = found.report()
    assert "log of a negative number" in text
    assert "lg[1, 0] = nan of p[1, 0] = -3" in text
    assert "reaches total: mul h (in_a_call.opg:4) -> sum total (in_a_call.opg:10)" in text
    assert "mean 0.25" in text
    assert str(found) == text
    assert repr(found).startswith("<Hunt main: step 0: NaN born in log lg at entropy, ")


def test_a_way_back_where_a_debugger_stands():
    case = seeded(next(p for p in bugs() if p.stem == "in_a_call"))
    debugger = opstep.Debugger(case.program, case.graph, case.inputs)
    debugger.breakpoints.set_filters({"nan": None})
    debugger.start()
    second = debugger.go("continue")
    found = trace_back(debugger.machine.executor, second.exception.node)
    carried, origin = found.links
    assert (carried.kind, carried.op, carried.verdict.carried) == ("propagated", "mul", (1,))
    assert (origin.kind, origin.verdict.rules) == ("origin", (("log of a negative number", 1),))
    assert "log of a negative number" in found.text and "way back: h <- lg" in found.text
    x = debugger.stack()[0].lookup("p")
    (finite,) = trace_back(debugger.machine.executor, x).links
    assert finite.verdict is None


ENDLESS = """
state bias: f32[] = 2.0
graph main(x: f32[2]) -> f32[2] {
  y = while(x, test=apart, body=closer, limit=20)
  next = sub(bias, 1.0)
  bias <- next
  return y
}
graph apart(x: f32[2]) -> bool[] {
  m = max(x)
  small = less(m, 0.001)
  on = logical_not(small)
  return on
}
graph closer(x: f32[2]) -> f32[2] {
  r = log(bias)
  k = mul(r, 0.0)
  h = mul(x, 0.01)
  n = add(h, k)
  return n
}
"""


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_a_loop_that_does_not_end_for_a_nan(mode):
    """At the third step the logarithm is one of 0: times 0 it is NaN, and the test never holds."""
    x = {"x": np.ones(2, np.float32)}
    found = hunt(opstep.loads(ENDLESS), "main", x, steps=5, mode=mode)
    assert (found.step, found.first.op, found.first.bad) == (2, "log", "inf")
    assert "the loop has not ended after 20 turns" in str(found.error)
    assert "then the step ended: the loop has not ended" in found.report()


def test_an_error_that_no_nan_made_is_an_error():
    program = opstep.loads(ENDLESS.replace("log(bias)", "add(bias, 3.0)").replace("0.01", "1.0"))
    with pytest.raises(opstep.OpstepError, match="the loop has not ended"):
        hunt(program, "main", {"x": np.ones(2, np.float32)}, steps=5)


def test_two_threads_may_hunt_at_once():
    case = seeded(next(p for p in bugs() if p.stem == "third_step"))
    programs = [opstep.load(case.program.module.source.path) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(hunt, p, "main", case.inputs, steps=5) for p in programs]
        assert [j.result().step for j in jobs] == [2, 2]


UNARY = ("exp", "log", "sqrt", "neg", "square", "reciprocal", "tanh", "relu", "abs", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, 60.0, -60.0, 1e30, -1e30, 1e-30, 3.0)


@st.composite
def chains(draw):
    """A program of random ops on values that each may use, and its inputs."""
    names, lines = ["x", "y"], []
    for k in range(draw(st.integers(1, 12))):
        kind = draw(st.integers(0, 5))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if kind == 0:
            lines.append(f"  c{k} = greater({a}, {b})\n  v{k} = where(c{k}, {a}, {b})")
        elif kind == 1:
            lines.append(f"  s{k} = sum({a}, axes=[0], keepdims=true)\n  v{k} = add({b}, s{k})")
        elif kind < 4:
            lines.append(f"  v{k} = {draw(st.sampled_from(UNARY))}({a})")
        else:
            lines.append(f"  v{k} = {draw(st.sampled_from(BINARY))}({a}, {b})")
        names.append(f"v{k}")
    out = draw(st.sampled_from(names[2:]))
    text = "\n".join(
        ["graph main(x: f32[3], y: f32[3]) -> f32[3] {", *lines, f"  return {out}\n}}"]
    )
    row = st.lists(st.sampled_from(VALUES), min_size=3, max_size=3)
    return text, {n: np.array(draw(row), np.float32) for n in ("x", "y")}


@settings(max_examples=150, deadline=None)
@given(chains())
def test_a_hunt_finds_something_where_an_output_is_bad_and_only_there(case):
    text, inputs = case
    program = opstep.loads(text)
    result = program.run("main", inputs).outputs[0]
    found = hunt(program, "main", inputs)
    bad = not np.isfinite(result).all()
    assert found.found == bad, text
    raised = flagged(Seeded(program, "main", inputs), streams=2)
    assert raised or not bad, text
    for finding in found.findings:
        assert finding.chain[0].value == finding.value
        assert finding.verdict.own > 0
        for element in finding.verdict.elements:
            assert element.rule
            kind = np.isnan if np.isnan(element.value) else np.isinf
            assert not any(kind(b.value) for b in element.blamed)
    assert report_is_whole(found.report(), found)


def report_is_whole(text, found) -> bool:
    return all(f.value in text for f in found.findings) and ("bad" in text) == found.found


def test_what_only_full_speed_shows_is_told_with_the_plan_s_hazards(monkeypatch):
    """A plan that gives two tensors the same memory, though both are needed: op by op, each with
    memory of its own, nothing is wrong.
    """
    from opstep.runtime.plan import planner

    sound = planner.make_plan

    def make_plan(*arguments, **options):
        plan = sound(*arguments, **options)
        if plan.policy.alloc == "reuse":
            y, z = (plan.values[s.results[0]].buffer for s in plan.steps[:2])
            plan.buffers[z] = plan.buffers[z]._replace(offset=plan.buffers[y].offset)
        return plan

    monkeypatch.setattr(planner, "make_plan", make_plan)
    program = opstep.loads(
        "graph main(x: f32[8]) -> f32[8] {\n  y = exp(x)\n  z = neg(y)\n  s = sqrt(y)\n"
        "  out = sub(s, z)\n  return out\n}\n"
    )
    found = hunt(program, "main", {"x": np.ones(8, np.float32)}, steps=3)
    assert (found.found, found.step, found.findings) == (True, 0, [])
    assert any("sqrt s" in text for text in found.unrepeated)
    assert found.hazards
    text = found.report()
    assert "at full speed these results were bad" in text
    assert "the plan has hazards:" in text
