"""The text form: what it shows, that it is read back, and what is said of text that is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_programs import (
    OPS,
    SIZE,
    planned,
    random_choices,
    random_policy,
    random_program,
    verified,
)
from test_schedule import branches

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.ir.verify import verify
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.listing import listing
from opstep.runtime.plan.plan import Policy
from opstep.runtime.plan.planner import make_plan
from opstep.runtime.plan.text import format_plan, parse_plan

N = f"f32[{SIZE}]"

PROGRAM = f"""\
param p: {N}
graph inner(a: {N}) -> {N} {{
  b = heavy(a)
  c = heavy(b)
  return c
}}
graph main(x: {N}) -> {N} {{
  l = heavy(x)
  k = heavy(l)
  r = inner(x)
  y = add(k, r)
  p <- y
  return y
}}
"""

TEXT = """\
plan     main
source   test.opg
policy   streams=2 alloc=reuse fill=none sync=none
streams  2  start=0,1 finish=0,1
size     steps=6 events=1 arena=256 peak=256

frames
  f0  main   -
  f1  inner  f0  line 10

buffers
  b0  input   32  own       v0  x
  b1  temp    32  0..32     -   -  # l
  b2  temp    32  128..160  -   -  # k, y
  b3  temp    32  64..96    -   -  # b
  b4  temp    32  192..224  -   -  # c
  b5  status  8   own       v6  -
  b6  param   32  own       v7  p

instructions
  alloc   s0  b1  # 0..32
  run     s0  @0  l = heavy(x)   |  b0:v0 -> b1:v1        |  f0 line 8
  alloc   s1  b3  # 64..96
  run     s1  @2  b = heavy(a)   |  b0:v0 -> b3:v3        |  f1 line 3
  alloc   s0  b2  # 128..160
  run     s0  @1  k = heavy(l)   |  b1:v1 -> b2:v2        |  f0 line 9
  free    s0  b1
  alloc   s1  b4  # 192..224
  run     s1  @3  c = heavy(b)   |  b3:v3 -> b4:v4        |  f1 line 4
  record  s1  e0
  free    s1  b3
  wait    s0  e0
  run     s0  @4  y = add(k, r)  |  b2:v2 b4:v4 -> b2:v5  |  f0 line 11
  free    s0  b4
  run     s0  @5  p <- y         |  b2:v5 b5:v6 -> b6:v8  |  f0 line 12

outputs  b2:v5
"""


def test_the_text_of_a_plan():
    assert format_plan(planned(PROGRAM, Policy(2))) == TEXT


def test_the_text_is_read_back():
    plan = planned(PROGRAM, Policy(2))
    found = parse_plan(TEXT)
    assert found == listing(plan)
    assert format_plan(found) == TEXT
    assert check(found) == []


@pytest.mark.parametrize("seed", range(30))
def test_any_plan_is_read_back(seed):
    below = random_choices(seed)
    program = verified(random_program(below))
    types = [TensorType(f32, (SIZE,))] * len(program.graphs["main"].graph.inputs)
    plan = make_plan(program, "main", types, random_policy(below))
    assert parse_plan(format_plan(plan)) == listing(plan)


def test_lines_of_another_file_carry_its_name():
    text = f"graph main(x: {N}) -> {N} {{\n  y = twice(x)\n  return y\n}}"
    library = "graph twice(x: f32[N]) -> f32[N] {\n  y = add(x, x)\n  return y\n}"
    plan = make_plan(verified(text, [library]), "main", [TensorType(f32, (SIZE,))], Policy(1))
    shown = format_plan(plan)
    assert "|  f1 library0.opg line 2" in shown
    assert parse_plan(shown) == listing(plan)


def test_names_in_backquotes_are_read_back():
    text = PROGRAM.replace("param p:", "param `a p`:").replace("p <-", "`a p` <-")
    plan = planned(text, Policy())
    shown = format_plan(plan)
    assert shown.count("`a p`") >= 2
    assert parse_plan(shown) == listing(plan)


def test_a_path_may_have_any_character():
    text = f"graph main(x: {N}) -> {N} {{\n  y = twice(x)\n  return y\n}}"
    library = parse(
        "graph twice(x: f32[N]) -> f32[N] {\n  y = add(x, x)\n  return y\n}", "a | b # c -> d.opg"
    )
    program = verify(parse(text, "t # 1.opg"), ops=OPS, library=[library])
    plan = make_plan(program, "main", [TensorType(f32, (SIZE,))], Policy(1))
    assert parse_plan(format_plan(plan)) == listing(plan)


def test_a_wait_that_is_taken_out_of_the_text_is_found():
    text = TEXT.replace("  wait    s0  e0\n", "")
    (hazard,) = check(parse_plan(text))
    assert hazard.kind == "raw"
    assert hazard.missing == (
        "a wait on an event recorded after `c = heavy(b)` (line 4, frame 1, stream 1) "
        "before `y = add(k, r)` (line 11, stream 0)"
    )


def test_a_buffer_that_is_moved_in_the_text_is_found():
    found = check(
        parse_plan(TEXT.replace("192..224  -", "160..192  -").replace("64..96 ", "144..176"))
    )
    assert {h.kind for h in found} >= {"reuse"}


def test_a_step_that_no_line_shows_is_never_issued():
    lines = [line for line in TEXT.splitlines() if "@5" not in line]
    (hazard,) = check(parse_plan("\n".join(lines)))
    assert hazard.kind == "issue"


def test_comments_and_blank_lines_mean_nothing():
    text = TEXT.replace("  # k, y", "").replace("\n\n", "\n\n\n")
    assert parse_plan(text) == parse_plan(TEXT)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("plan     main", "plan", "1:1: error: expected a line `plan …`"),
        ("streams=2 alloc", "streams=two alloc", "3:1: error: expected a line `policy …`"),
        ("finish=0,1", "finish=0;1", "4:1: error: expected a line `streams …`"),
        ("frames\n", "frame\n", "7:1: error: expected the section frames"),
        ("f1  inner", "f2  inner", "9:3: error: expected frame f1"),
        ("b1  temp", "b1  tempo", "13:3: error: expected buffer b1"),
        ("64..96 ", "64..97 ", "15:3: error: 64..97 is not 32 bytes"),
        ("run     s0  @0 ", "run     s0  @9 ", "error: there are 6 steps and 2 frames"),
        ("wait    s0  e0", "wait    s0  b0", "error: expected an instruction"),
        ("free    s0  b1", "free    s0  b99", "error: there is no buffer b99"),
        ("b0:v0 -> b1:v1", "b0:x -> b1:v1", "error: expected a buffer and its value such as b3:v5"),
        ("b0:v0 -> b1:v1", "b0:v0 -> b8:v1", "error: there is no buffer b8"),
        ("outputs  b2:v5", "", "expected a line `outputs …`, not the end of the text"),
    ],
)
def test_what_cannot_be_read(old, new, message):
    assert old in TEXT
    with pytest.raises(OpstepError) as error:
        parse_plan(TEXT.replace(old, new, 1), "a.plan")
    assert message in str(error.value)
    assert str(error.value).startswith("a.plan:")


@pytest.mark.parametrize("text", ["", "\n\n", "plan", "\0", "instructions"])
def test_what_is_no_plan_at_all(text):
    with pytest.raises(OpstepError):
        parse_plan(text)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_text_is_read_or_refused(data):
    """Never another error, whatever stands there; and what is read can be checked."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = at + data.draw(st.integers(0, 6))
        put = data.draw(
            st.sampled_from(["", " ", "\n", "9", "-", "b1", "s0", "v", "..", "|", "0" * 40])
        )
        text = text[:at] + put + text[end:]
    try:
        found = parse_plan(text)
    except OpstepError:
        return
    check(found)
    assert parse_plan(format_plan(found)) == found


def test_numbers_that_no_plan_has():
    for old, new in (
        ("steps=6", "steps=99999999"),
        ("s1  @2", "s99999  @2"),
        ("streams  2", "streams  99999"),
        ("b0  input   32", "b0  input   " + "9" * 5000),
    ):
        with pytest.raises(OpstepError):
            parse_plan(TEXT.replace(old, new))


def test_wide_plans_are_aligned():
    shown = format_plan(planned(branches(3, 5), Policy(3))).splitlines()
    rows = [line for line in shown if line.startswith("  run")]
    assert len({line.index(" | ") for line in rows}) == 1
    assert len({line.rindex(" | ") for line in rows}) == 1


def test_a_graph_without_steps_has_a_text():
    plan = planned(f"graph main(x: {N}) -> {N} {{\n  return x\n}}", Policy(1))
    assert parse_plan(format_plan(plan)) == listing(plan)
