"""The hazard checker names what is wrong: ops, lines, streams, bytes, and the missing edge."""

from __future__ import annotations

import pytest
from plan_programs import SIZE, planned
from test_schedule import branches, graph

from opstep.runtime.plan.hazards import Hazard, check
from opstep.runtime.plan.listing import NOTHING, Access, BufferRow, FrameRow, Listing, StepRow
from opstep.runtime.plan.plan import (
    Alloc,
    Call,
    Fill,
    Free,
    Policy,
    Record,
    Run,
    Sync,
    Wait,
)

N = f"f32[{SIZE}]"


def listing_of(steps, instructions, buffers, outputs=(), start=(0, 1, 2), finish=None) -> Listing:
    """A plan by hand. Steps are (label, reads, writes), accesses (buffer, value)."""
    rows = [
        StepRow(label, 0, f"line {k + 2}", _accesses(reads), _accesses(writes))
        for k, (label, reads, writes) in enumerate(steps)
    ]
    return Listing(
        graph="main",
        source="test.opg",
        policy=Policy(3),
        streams=3,
        events=9,
        arena=1024,
        peak=0,
        start=start,
        finish=start if finish is None else finish,
        frames=[FrameRow("main", -1, "")],
        buffers=buffers,
        steps=rows,
        outputs=_accesses(outputs),
        instructions=instructions,
    )


def _accesses(pairs) -> tuple[Access, ...]:
    return tuple(Access(b, v) for b, v in pairs)


INPUT = BufferRow("input", 32, -1, "x", 0)
PARAM = BufferRow("param", 32, -1, "p", 0)


def temp(offset: int, nbytes: int = 32) -> BufferRow:
    return BufferRow("temp", nbytes, offset, "", NOTHING)


def kinds(found: list[Hazard]) -> list[str]:
    return [h.kind for h in found]


PRODUCER = ("conv", [(0, 0)], [(1, 1)])
CONSUMER = ("relu", [(1, 1)], [(2, 2)])
THREE = [INPUT, temp(0), temp(64)]


def two_ops(*between, first=0, second=1) -> Listing:
    code = [Alloc(1, first), Run(0, first), *between, Alloc(2, second), Run(1, second)]
    return listing_of([PRODUCER, CONSUMER], code, THREE, outputs=[(2, 2)])


def test_a_read_that_does_not_wait():
    (hazard,) = check(two_ops())
    assert hazard.kind == "raw"
    assert hazard.buffers == (1,)
    assert hazard.bytes == (0, 32)
    assert (hazard.first.label, hazard.first.where, hazard.first.stream) == ("conv", "line 2", 0)
    assert (hazard.second.label, hazard.second.where, hazard.second.stream) == ("relu", "line 3", 1)
    assert hazard.missing == (
        "a wait on an event recorded after `conv` (line 2, stream 0) "
        "before `relu` (line 3, stream 1)"
    )
    assert str(hazard) == (
        "`relu` (line 3, stream 1) reads b1, bytes 0..32, and can do so before "
        f"`conv` (line 2, stream 0) writes it; missing: {hazard.missing}"
    )


@pytest.mark.parametrize(
    "between",
    [(Record(0, 0), Wait(0, 1)), (Sync(0),), (Record(0, 0), Wait(0, 2), Record(1, 2), Wait(1, 1))],
    ids=["an event", "the host", "another stream"],
)
def test_what_orders_two_ops(between):
    assert check(two_ops(*between)) == []


def test_one_stream_is_ordered_by_itself():
    assert check(two_ops(second=0)) == []


@pytest.mark.parametrize(
    "between",
    [
        (Record(0, 1), Wait(0, 1)),
        (Sync(1),),
        (Record(0, 0), Wait(0, 2)),
        (Wait(0, 1), Record(0, 1)),
    ],
    ids=["of the wrong stream", "of the wrong stream, host", "by the wrong stream", "before it"],
)
def test_what_does_not_order_them(between):
    assert "raw" in kinds(check(two_ops(*between)))


def test_a_write_that_does_not_wait_for_the_readers():
    steps = [("read", [(0, 0)], [(1, 1)]), ("update", [], [(0, 2)])]
    code = [Alloc(1, 0), Run(0, 0), Run(1, 1)]
    (hazard,) = check(listing_of(steps, code, [PARAM, temp(0)]))
    assert hazard.kind == "war"
    assert "can do so before `read` (line 2, stream 0) reads it" in str(hazard)


def test_two_writes():
    steps = [("update", [], [(0, 1)]), ("update", [], [(0, 2)])]
    (hazard,) = check(listing_of(steps, [Run(0, 0), Run(1, 1)], [PARAM]))
    assert hazard.kind == "waw"


def test_every_stream_that_read_must_be_waited_for():
    steps = [("a", [(0, 0)], []), ("b", [(0, 0)], []), ("update", [], [(0, 1)])]
    code = [Run(0, 0), Record(0, 0), Run(1, 1), Wait(0, 2), Run(2, 2)]
    (hazard,) = check(listing_of(steps, code, [PARAM]))
    assert (hazard.kind, hazard.first.label, hazard.second.label) == ("war", "b", "update")


def test_bytes_that_are_reused_too_early():
    steps = [PRODUCER, ("read", [(1, 1)], []), ("other", [], [(2, 2)])]
    code = [Alloc(1, 0), Run(0, 0), Run(1, 0), Free(1, 0), Alloc(2, 1), Run(2, 1)]
    (hazard, *more) = check(listing_of(steps, code, [INPUT, temp(0), temp(16)]))
    assert hazard.kind == "reuse"
    assert hazard.buffers == (1, 2)
    assert hazard.bytes == (16, 32)
    assert hazard.first.label == "read"
    assert more == []  # the write of `conv` comes before `read` on its stream


def test_neighbours_do_not_conflict():
    steps = [PRODUCER, ("other", [], [(2, 2)])]
    code = [Alloc(1, 0), Run(0, 0), Alloc(2, 1), Run(1, 1)]
    assert check(listing_of(steps, code, [INPUT, temp(0), temp(32)])) == []


def test_a_value_that_was_overwritten():
    steps = [PRODUCER, ("other", [], [(2, 2)]), ("read", [(1, 1)], [])]
    code = [Alloc(1, 0), Run(0, 0), Alloc(2, 0), Run(1, 0), Run(2, 0)]
    (hazard,) = check(listing_of(steps, code, [INPUT, temp(0), temp(16)]))
    assert hazard.kind == "overwritten"
    assert hazard.bytes == (16, 32)
    assert (hazard.first.label, hazard.second.label) == ("other", "read")
    assert "`other` (line 3, stream 0) overwrote as b2" in str(hazard)


def test_an_old_version_that_is_gone():
    steps = [("update", [], [(0, 1)]), ("read", [(0, 0)], [])]
    (hazard,) = check(listing_of(steps, [Run(0, 0), Run(1, 0)], [PARAM]))
    assert hazard.kind == "overwritten"
    assert "overwrote with v1" in str(hazard)


@pytest.mark.parametrize("fill", [(), (Fill(1, 0),)], ids=["nothing", "only the fill"])
def test_a_read_that_nothing_wrote(fill):
    code = [Alloc(1, 0), *fill, Alloc(2, 0), Run(0, 0)]
    (hazard,) = check(listing_of([CONSUMER], code, THREE))
    assert hazard.kind == "unwritten"


def test_a_fill_is_a_write():
    code = [Alloc(1, 0), Fill(1, 0), Alloc(2, 0), Run(0, 1), Record(0, 1), Wait(0, 0), Run(1, 0)]
    found = check(listing_of([PRODUCER, CONSUMER], code, THREE))
    assert kinds(found) == ["waw"]
    assert "fill of b1" in str(found[0])


def test_an_op_that_uses_bytes_twice():
    steps = [PRODUCER, ("move", [(1, 1)], [(2, 2)])]
    code = [Alloc(1, 0), Run(0, 0), Alloc(2, 0), Run(1, 0)]
    (hazard,) = check(listing_of(steps, code, [INPUT, temp(0), temp(16)]))
    assert (hazard.kind, hazard.bytes) == ("overlap", (16, 32))
    in_place = [PRODUCER, ("relu", [(1, 1)], [(1, 2)])]
    assert check(listing_of(in_place, [Alloc(1, 0), Run(0, 0), Run(1, 0)], THREE)) == []


def test_working_memory_is_no_value():
    steps = [("conv", [(0, 0)], [(1, 1), (2, NOTHING)]), ("read", [(2, 1)], [])]
    code = [Alloc(1, 0), Alloc(2, 0), Run(0, 0), Run(1, 0)]
    assert kinds(check(listing_of(steps, code, THREE))) == ["unwritten"]


@pytest.mark.parametrize(
    "code, text",
    [
        ([Run(0, 0), Alloc(2, 0), Run(1, 0)], "uses buffer b1 before it is allocated"),
        ([Alloc(1, 0), Run(0, 0), Free(1, 0), Alloc(2, 0), Run(1, 0)], "after it was freed"),
        ([Alloc(1, 0), Run(0, 0), Alloc(1, 0), Alloc(2, 0), Run(1, 0)], "allocated twice"),
        ([Alloc(1, 0), Run(0, 0), Alloc(2, 0), Run(1, 0), Free(1, 0), Free(1, 0)], "not allocated"),
        ([Alloc(1, 0), Run(0, 0), Alloc(2, 0), Run(1, 0), Free(2, 0)], "for the outputs"),
    ],
)
def test_lifetimes(code, text):
    found = check(listing_of([PRODUCER, CONSUMER], code, THREE, outputs=[(2, 2)]))
    assert set(kinds(found)) == {"alloc"}
    assert text in str(found[0])


@pytest.mark.parametrize(
    "code, text",
    [
        ([Wait(4, 1)], "waits for event e4, which is never recorded"),
        ([Wait(4, 1), Record(4, 0)], "recorded only later, after `conv` (line 2, stream 0)"),
        ([Record(4, 0), Record(4, 0)], "event e4 is recorded twice"),
    ],
)
def test_events(code, text):
    found = check(listing_of([PRODUCER], [Alloc(1, 0), Run(0, 0), *code], THREE))
    assert kinds(found) == ["event"]
    assert text in str(found[0])


def test_a_stream_that_does_not_wait_for_the_caller():
    (hazard,) = check(listing_of([PRODUCER], [Alloc(1, 0), Run(0, 0)], THREE, start=(1, 2),
                                 finish=(0, 1, 2)))  # fmt: skip
    assert hazard.kind == "start"
    assert "`conv` (line 2, stream 0)" in str(hazard)
    assert hazard.missing == "a wait of stream 0 for the caller at the start"


def test_a_stream_that_the_caller_does_not_wait_for():
    (hazard,) = check(listing_of([PRODUCER], [Alloc(1, 0), Run(0, 0)], THREE, finish=(1, 2)))
    assert hazard.kind == "finish"
    assert hazard.missing == "a wait of the caller for stream 0 at the end"


def test_start_and_finish_may_be_implied():
    code = [Alloc(1, 0), Run(0, 0), Record(0, 0), Wait(0, 1), Alloc(2, 1), Run(1, 1),
            Record(1, 1), Wait(1, 0)]  # fmt: skip
    assert check(listing_of([PRODUCER, CONSUMER], code, THREE, start=(0,))) == []


@pytest.mark.parametrize("code, text", [([], "never issued"), ([Run(0, 0), Run(0, 0)], "twice")])
def test_every_step_is_issued_once(code, text):
    found = check(listing_of([PRODUCER], [Alloc(1, 0), *code], THREE))
    assert kinds(found)[0] == "issue"
    assert text in str(found[0])


def test_a_call_is_ordered_like_an_op():
    code = [Alloc(1, 0), Run(0, 0), Alloc(2, 1), Call(1, 1)]
    assert kinds(check(listing_of([PRODUCER, CONSUMER], code, THREE))) == ["raw"]


def test_a_missing_edge_is_reported_once():
    steps = [PRODUCER, *(("read", [(1, 1)], []) for _ in range(5))]
    code = [Alloc(1, 0), Run(0, 0), *(Run(k, 1) for k in range(1, 6))]
    assert kinds(check(listing_of(steps, code, THREE))) == ["raw"]


# --- plans of the planner -------------------------------------------------------------------------


def test_a_removed_wait_is_named_with_its_lines():
    plan = planned(branches(2, 2), Policy(2))
    assert check(plan) == []
    plan.instructions = [i for i in plan.instructions if not isinstance(i, Wait)]
    (hazard,) = check(plan)
    assert hazard.kind == "raw"
    assert hazard.missing == (
        "a wait on an event recorded after `v1_1 = heavy(v1_0)` (line 5, stream 1) "
        "before `s1 = mix(v0_1, v1_1)` (line 6, stream 0)"
    )


def test_lines_in_other_files_and_frames():
    text = (
        f"graph inner(a: {N}) -> {N} {{\n  b = heavy(a)\n  c = heavy(b)\n  return c\n}}\n"
        + graph("l = heavy(x)", "k = heavy(l)", "r = inner(x)", "y = mix(k, r)", returned="y")
    )
    plan = planned(text, Policy(2))
    assert plan.streams == 2
    plan.instructions = [i for i in plan.instructions if not isinstance(i, Wait)]
    (hazard,) = check(plan)
    assert hazard.first.where == "line 3, frame 1"


@pytest.mark.parametrize("alloc", ["reuse", "fresh"])
@pytest.mark.parametrize("streams", [1, 2, 4, 7])
def test_plans_are_clean(alloc, streams):
    for fill in ("none", "nan"):
        for sync in ("none", "op"):
            plan = planned(branches(4, 7), Policy(streams, alloc, fill, sync))
            assert check(plan) == []
