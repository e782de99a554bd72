"""Streams and events: spread where it pays, synchronised only where it must be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from plan_programs import SIZE, planned, random_choices

import opstep.kernels  # noqa: F401 - its ops
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.ir.verify import verify
from opstep.runtime.plan.cost import SYNC_NS
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Call, Fill, Plan, Policy, Record, Run, Sync, Wait
from opstep.runtime.plan.planner import make_plan
from opstep.runtime.plan.schedule import clocks, schedule, tails

N = f"f32[{SIZE}]"


def ops(plan: Plan, stream: int | None = None) -> list[str]:
    """The ops in order of issue, on one stream or on all."""
    return [
        plan.steps[i.step].op.name
        for i in plan.instructions
        if isinstance(i, (Run, Call)) and stream in (None, i.stream)
    ]


def count(plan: Plan, kind: type) -> int:
    return sum(isinstance(i, kind) for i in plan.instructions)


def graph(*lines: str, returned: str, results: int = 1) -> str:
    """A graph `main` of one input with these statements."""
    head = f"graph main(x: {N}) -> {', '.join([N] * results)} {{"
    return "\n".join([head, *(f"  {line}" for line in lines), f"  return {returned}", "}"])


def branches(number: int, length: int, op: str = "heavy") -> str:
    """Branches that begin at the input and are added up at the end."""
    lines = []
    for b in range(number):
        names = ["x", *(f"v{b}_{k}" for k in range(length))]
        lines += [f"{y} = {op}({x})" for x, y in pairwise(names)]
    total = f"v0_{length - 1}"
    for b in range(1, number):
        lines.append(f"s{b} = mix({total}, v{b}_{length - 1})")
        total = f"s{b}"
    return graph(*lines, returned=total)


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_a_chain_stays_on_one_stream(streams):
    plan = planned(branches(1, 50), Policy(streams))
    assert (plan.streams, plan.events) == (1, 0)
    assert plan.start == plan.finish == (0,)


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_independent_branches_are_spread(streams):
    plan = planned(branches(streams, 6), Policy(streams))
    assert plan.streams == streams
    heavy = [ops(plan, s).count("heavy") for s in range(streams)]
    assert heavy == [6] * streams
    assert count(plan, Wait) == streams - 1


def test_more_branches_than_streams_share_them():
    plan = planned(branches(6, 4), Policy(3))
    assert [ops(plan, s).count("heavy") for s in range(3)] == [8, 8, 8]


def test_branches_written_alternately_are_spread():
    lines = ["a0 = relu(x)", "b0 = copy(x)"]
    for k in range(60):
        lines += [f"a{k + 1} = copy(a{k})", f"b{k + 1} = copy(b{k})"]
    plan = planned(graph(*lines, "y = mix(a60, b60)", returned="y"), Policy(2))
    assert plan.streams == 2
    assert count(plan, Wait) == 1


def test_tiny_ops_are_not_spread():
    lines = [f"v{k} = copy(x)" for k in range(40)]
    lines += ["s0 = mix(v0, v1)"] + [f"s{k} = mix(s{k - 1}, v{k + 1})" for k in range(1, 39)]
    plan = planned(graph(*lines, returned="s38"), Policy(4))
    assert (plan.streams, plan.events) == (1, 0)


def test_tiny_ops_that_depend_on_each_other_all_over_are_not_spread():
    below, names, lines = random_choices(3), ["x"], []
    for k in range(400):
        a, b = (names[-20:][below(len(names[-20:]))] for _ in range(2))
        lines.append(f"v{k} = mix({a}, {b})")
        names.append(f"v{k}")
    plan = planned(graph(*lines, returned="v399"), Policy(4))
    assert (plan.streams, plan.events) == (1, 0)


def test_a_tiny_op_beside_a_heavy_branch_stays_with_what_it_depends_on():
    plan = planned(
        graph("a = heavy(x)", "b = heavy(a)", "t = relu(a)", "c = heavy(b)", "y = mix(c, t)",
              returned="y"), Policy(4))  # fmt: skip
    assert (plan.streams, plan.events) == (1, 0)


def test_what_gains_little_stays_on_one_stream():
    lines = [f"v{k + 1} = heavy({'x' if k == 0 else f'v{k}'})" for k in range(100)]
    lines += ["w1 = heavy(x)", "y = mix(v100, w1)"]
    assert planned(graph(*lines, returned="y"), Policy(4)).streams == 1


def test_the_fewest_waits_for_a_diamond():
    plan = planned(
        graph("a = heavy(x)", "l1 = heavy(a)", "l2 = heavy(l1)", "r1 = heavy(a)", "r2 = heavy(r1)",
              "y = mix(l2, r2)", "z = mix(y, a)", returned="z"), Policy(2))  # fmt: skip
    assert plan.streams == 2
    # one when the branch leaves, one when it comes back; that z needs a is known by then
    assert count(plan, Wait) == 2
    assert count(plan, Record) == plan.events == 2


def test_a_wait_that_another_brings_along_is_dropped():
    # step 3 needs 0 (stream 0) and 1 (stream 1), and 1 has waited for 0
    plan, _ = schedule([10**6] * 4, [(), (), (), ()], 3)
    assert plan.streams == 3
    fixed = plan._replace(stream=[0, 1, 2, 2], order=range(4))
    times = clocks(fixed, [(), (0,), (), (0, 1)])
    assert times.waits == {1: (0,), 3: (1,)}


def test_a_wait_is_not_repeated_later_on_the_stream():
    plan, _ = schedule([10**6] * 4, [(), (), (), ()], 2)
    fixed = plan._replace(stream=[0, 1, 1, 1], order=range(4))
    assert clocks(fixed, [(), (0,), (0,), (0, 1)]).waits == {1: (0,)}


def test_every_event_is_recorded_once_before_its_waits():
    plan = planned(branches(4, 5), Policy(4))
    recorded: set[int] = set()
    waited: set[int] = set()
    for i in plan.instructions:
        if isinstance(i, Record):
            assert i.event not in recorded
            recorded.add(i.event)
        elif isinstance(i, Wait):
            assert i.event in recorded
            waited.add(i.event)
    assert recorded == waited == set(range(plan.events))


def test_a_record_stands_right_behind_its_op():
    plan = planned(branches(2, 5), Policy(2))
    (k,) = [k for k, i in enumerate(plan.instructions) if isinstance(i, Record)]
    assert isinstance(plan.instructions[k - 1], Run)
    assert plan.instructions[k - 1].stream == plan.instructions[k].stream


def test_updates_wait_for_those_who_read_the_old_value():
    text = f"param p: {N}\n" + graph(
        "a = heavy(x)", "b = heavy(a)", "c = add(b, p)",
        "l = heavy(p)", "m = heavy(l)", "y = mix(c, m)", "p <- x", returned="y",
    )  # fmt: skip
    plan = planned(text, Policy(2))
    assert plan.streams == 2
    assert ops(plan)[-1] == "update"
    assert check(plan) == []


def test_asserts_happen_in_the_order_of_the_program():
    lines = []
    for k in range(4):
        lines += [f"v{k} = heavy(x)", f"t{k} = positive(v{k})", f'assert t{k}, "{k}"']
    text = graph(*lines, "s = mix(v0, v3)", returned="s")
    plan = planned(text, Policy(4))
    assert plan.streams > 1
    codes = [
        plan.steps[i.step].attrs["code"]
        for i in plan.instructions
        if isinstance(i, Run) and plan.steps[i.step].op.name == "assert"
    ]
    assert codes == [1, 2, 3, 4]


def test_a_view_stays_with_what_it_shows():
    plan = planned(
        graph("a = heavy(x)", "b = heavy(a)", "v = heavy(x)", "w = heavy(v)", "u = view(w)",
              "t = view(u)", "y = mix(b, t)", returned="y"), Policy(2))  # fmt: skip
    assert plan.streams == 2
    assert count(plan, Wait) == 1
    # no kernel, but a line where a debugger can stop
    assert ops(plan).count("view") == 2


def test_sync_op_waits_after_each_op_and_needs_no_events():
    plan = planned(branches(3, 4), Policy(3, sync="op"))
    assert plan.streams == 3
    assert count(plan, Sync) == len(plan.steps)
    assert plan.events == 0
    assert check(plan) == []
    runs = [k for k, i in enumerate(plan.instructions) if isinstance(i, Run)]
    assert all(plan.instructions[k + 1] == Sync(plan.instructions[k].stream) for k in runs)


def test_fill_comes_before_the_first_write_on_the_same_stream():
    plan = planned(branches(2, 3), Policy(2, "fresh", "nan"))
    filled: dict[int, int] = {}
    for i in plan.instructions:
        if isinstance(i, Fill):
            filled[i.buffer] = i.stream
        elif isinstance(i, Run):
            for b in plan.steps[i.step].writes:
                assert filled[b] == i.stream
    assert len(filled) == sum(b.kind == "temp" for b in plan.buffers)


def test_a_graph_without_steps_uses_no_stream():
    plan = planned(f"graph main(x: {N}) -> {N} {{\n  return x\n}}", Policy(4))
    assert (plan.streams, plan.instructions, plan.start, plan.finish) == (0, [], (), ())
    assert check(plan) == []


def test_control_flow_is_a_call_on_a_stream():
    text = (
        f"graph one(x: {N}) -> {N} {{\n  y = relu(x)\n  return y\n}}\n"
        f"graph two(x: {N}) -> {N} {{\n  y = copy(x)\n  return y\n}}\n"
    ) + graph("t = positive(x)", "y = cond(t, x, then=one, else=two)", returned="y")
    plan = planned(text, Policy(2))
    assert count(plan, Call) == 1
    assert check(plan) == []


def test_the_tail_of_a_step_is_the_work_that_depends_on_it_alone():
    #  0 -> 1 -> 2 -> 4, and 3 -> 4
    assert tails([1, 10, 100, 5, 1000], [(), (0,), (1,), (), (2, 3)]) == [111, 110, 100, 5, 1000]


def test_times_respect_dependencies_and_streams():
    preds = [(), (), (0,), (1,), (2, 3)]
    plan, _ = schedule([100_000] * 5, preds, 2)
    assert plan.streams == 2
    for i, before in enumerate(preds):
        for p in before:
            apart = plan.stream[p] != plan.stream[i]
            assert plan.start[i] >= plan.end[p] + (SYNC_NS if apart else 0)


@pytest.mark.parametrize("lanes, streams", [(1, 2), (2, 1)])
def test_ops_that_keep_all_threads_busy_follow_each_other(lanes, streams):
    device = CpuDevice(lanes)
    a = TensorType(f32, (512, 512))
    text = """
    graph main(a: f32[512, 512]) -> f32[512, 512], f32[512, 512] {
      b = matmul(a, a)
      c = matmul(a, a, transpose_b=true)
      return b, c
    }"""
    plan = make_plan(
        verify(parse(text)), "main", (a,), Policy(4), device.prepare, fuse=True, pace=device.pace,
        fills=device.fills,
    )  # fmt: skip
    assert plan.streams == streams
    assert not check(plan)
