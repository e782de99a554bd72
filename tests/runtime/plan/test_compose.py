"""Plans inside plans: all places that name streams are bound, or the checker sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_programs import SIZE, verified
from test_schedule import graph

from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.plan.compose import compose, rebind
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Call, Plan, Policy, Run
from opstep.runtime.plan.planner import make_plan
from opstep.runtime.plan.text import format_plan, parse_plan

N = f"f32[{SIZE}]"
X = TensorType(f32, (SIZE,))


def branching(name: str, count: int, *more: str) -> str:
    """A graph of so many branches, which are added up."""
    lines = [f"v{k} = heavy(x)" for k in range(count)] + [
        f"w{k} = heavy(v{k})" for k in range(count)
    ]
    lines += ["s1 = mix(w0, w1)", *(f"s{k} = mix(s{k - 1}, w{k})" for k in range(2, count)), *more]
    return graph(*lines, returned=f"s{count - 1}").replace("graph main", f"graph {name}")


# The whole graph runs on five streams and then calls a part that runs on four.
PROGRAM = verified(
    "\n".join(
        [
            f"param p: {N}",
            branching("part", 4, "p <- s3"),
            f"graph nothing(x: {N}) -> {N} {{\n  return x\n}}",
            branching("whole", 5, "t = positive(s4)", "y = cond(t, s4, then=part, else=nothing)",
                      "z = mix(y, p)").replace("return s4", "return z"),
        ]
    )
)  # fmt: skip
WHOLE = make_plan(PROGRAM, "whole", [X], Policy(5))
PART = make_plan(PROGRAM, "part", [X], Policy(4))
CALL = next(k for k, s in enumerate(WHOLE.steps) if s.op.name == "cond")


def streams_of(plan: Plan) -> set[int]:
    return {i.stream for i in plan.instructions}


def test_the_plans_are_as_the_tests_below_need_them():
    assert (WHOLE.streams, PART.streams) == (5, 4)
    assert PART.start == PART.finish == (0, 1, 2, 3)
    assert check(WHOLE) == check(PART) == []


def test_all_places_that_name_streams_are_bound():
    bound = rebind(PART, [0, 2, 3, 4])
    assert streams_of(bound) == {0, 2, 3, 4}
    assert bound.start == bound.finish == (0, 2, 3, 4)
    assert bound.streams == 5
    assert check(bound) == []
    assert rebind(bound, [0, 0, 1, 2, 3]).start == (0, 1, 2, 3)


def test_several_streams_may_be_bound_to_one():
    bound = rebind(PART, [1, 1, 1, 1])
    assert bound.start == (1,)
    assert check(bound) == []


def test_too_few_streams():
    with pytest.raises(ValueError, match="4 streams, and 3 are given"):
        rebind(PART, [0, 1, 2])


@pytest.mark.parametrize(
    "streams", [[0, 2, 3, 4], [4, 3, 2, 1], [0, 1, 2, 3], [2, 2, 0, 0], [5, 6, 7, 8]]
)
def test_a_part_that_is_bound_rightly_is_clean(streams):
    composed = compose(WHOLE, CALL, rebind(PART, streams))
    assert check(composed) == []
    runs = [i for i in composed.instructions if isinstance(i, (Run, Call))]
    assert len(runs) == len(WHOLE.steps) + len(PART.steps) == len(composed.steps)
    assert check(parse_plan(format_plan(composed))) == []


def test_streams_that_wait_at_the_start_taken_before_they_were_bound():
    """The kernels run on streams 0, 2, 3 and 4, but 0, 1, 2 and 3 wait: 4 begins too early."""
    bound = rebind(PART, [0, 2, 3, 4])
    broken = replace(bound, start=PART.start)
    assert streams_of(broken) == {0, 2, 3, 4}
    assert broken.start == (0, 1, 2, 3)
    found = check(compose(WHOLE, CALL, broken))
    races = [h for h in found if h.kind == "raw"]
    assert len(races) == 1
    (race,) = races
    assert race.first.label == "s4 = mix(s3, w4)"  # what the part is given
    assert race.second.label.endswith("= heavy(x)")
    assert race.second.stream == 4
    assert "frame 1, stream 4" in race.missing
    assert race.missing.startswith("a wait on an event recorded after `s4 = mix(s3, w4)` (line ")
    # alone, the part shows it too: nobody tells stream 4 to wait for the caller
    (alone,) = check(broken)
    assert (alone.kind, alone.second.stream) == ("start", 4)


def test_streams_that_are_waited_for_at_the_end_taken_before_they_were_bound():
    lines = ["v0 = heavy(x)", "v1 = heavy(x)", "w0 = heavy(v0)", "w1 = heavy(v1)"]
    text = graph(*lines, returned="w0, w1", results=2).replace("main", "part")
    other = graph("a = relu(x)", returned="a, x", results=2).replace("main", "other")
    main = graph("t = positive(x)", "a, b = cond(t, x, then=part, else=other)", "y = mix(a, b)",
                 returned="y")  # fmt: skip
    program = verified("\n".join([text, other, main]))
    whole, part = (make_plan(program, g, [X], Policy(2)) for g in ("main", "part"))
    assert part.finish == (0, 1)
    bound = rebind(part, [0, 2])
    assert check(compose(whole, 1, bound)) == []
    broken = replace(bound, finish=part.finish)
    found = check(compose(whole, 1, broken))
    (race,) = found
    assert race.kind == "raw"
    assert race.first.stream == 2
    assert race.second.label == "a, b = cond(t, x)"


def test_a_part_shares_the_wholes_tensors_and_has_memory_of_its_own():
    composed = compose(WHOLE, CALL, rebind(PART, [0, 1, 2, 3]))
    assert sum(b.kind == "param" for b in composed.buffers) == 1
    assert sum(b.kind == "status" for b in composed.buffers) == 1
    own = composed.buffers[len(WHOLE.buffers) :]
    assert all(b.offset >= WHOLE.arena for b in own if b.offset >= 0)
    assert composed.arena >= WHOLE.arena + PART.arena
    assert composed.frames[1].parent == 0
    assert composed.frames[1].statement is WHOLE.steps[CALL].statement


def test_inputs_must_be_as_many_as_the_part_takes():
    with pytest.raises(ValueError, match="part takes 1 inputs, not 2"):
        compose(WHOLE, CALL, PART, inputs=[0, 0])
