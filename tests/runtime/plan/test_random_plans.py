"""Random programs: plans are clean and mean what the program says; no damage goes unseen."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import count
from plan_programs import (
    SIZE,
    prepare,
    random_choices,
    random_policy,
    random_program,
    verified,
)
from plan_simulator import Simulator, Symbols, differences, evaluate

from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.plan import fusing
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.listing import listing
from opstep.runtime.plan.plan import Call, Plan, Policy, Run, Wait
from opstep.runtime.plan.planner import make_plan
from opstep.runtime.plan.text import format_plan, parse_plan


def choices(data: st.DataObject):
    """Numbers that hypothesis draws (and shrinks) where the generators ask for them."""
    return lambda below: data.draw(st.integers(0, below - 1))


@pytest.fixture(scope="module", autouse=True)
def every_group():
    """Groups of any size are worth a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
        yield


def inputs_of(program) -> list[TensorType]:
    return [TensorType(f32, (SIZE,))] * len(program.graphs["main"].graph.inputs)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_plans_are_clean_and_mean_what_the_program_says(data):
    below = choices(data)
    program = verified(random_program(below))
    policy, fuse = random_policy(below), below(2) == 1
    plan = make_plan(program, "main", inputs_of(program), policy, prepare, fuse=fuse)
    assert check(plan) == []
    symbols = Symbols()
    expected = evaluate(program, "main", symbols)
    for seed in range(3):
        assert differences(expected, Simulator(plan, symbols, seed).run()) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 99))
def test_long_programs(seed, run):
    """Drawn by a generator of their own: hypothesis keeps its own draws short."""
    chosen = random_choices(seed)
    program = verified(random_program(chosen, steps=150))
    policy, fuse = random_policy(chosen), chosen(2) == 1
    plan = make_plan(program, "main", inputs_of(program), policy, prepare, fuse=fuse)
    assert check(plan) == []
    symbols = Symbols()
    expected = evaluate(program, "main", symbols)
    assert differences(expected, Simulator(plan, symbols, run).run()) == []


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
def test_a_run_can_be_given_up_until_its_updates_begin(seed):
    """The updates at the end are issued last, and no other step changes what is not in `early`."""
    chosen = random_choices(seed)
    program = verified(random_program(chosen, steps=40))
    plan = make_plan(program, "main", inputs_of(program), random_policy(chosen), prepare)
    others = len(plan.steps) - plan.commits
    issued = [i.step >= others for i in plan.instructions if isinstance(i, (Run, Call))]
    assert issued == sorted(issued)
    params = {k: b.name for k, b in enumerate(plan.buffers) if b.kind == "param"}
    changed = {params[b] for s in plan.steps[:others] for b in s.writes if b in params}
    assert set(plan.early) == changed
    prepared = {v for s in plan.steps[others:] if s.op.name != "update" for v in s.results}
    assert prepared.isdisjoint(
        [*plan.outputs, *(v for s in plan.steps[:others] for v in s.operands)]
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_text_of_a_plan_reads_back_the_same(data):
    below = choices(data)
    program = verified(random_program(below))
    for policy in (Policy(4), random_policy(below), Policy(1, "fresh", "nan", "op")):
        plan = make_plan(program, "main", inputs_of(program), policy, prepare)
        assert parse_plan(format_plan(plan)) == listing(plan)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_empty_tensors(data):
    below = choices(data)
    text = random_program(below).replace(f"f32[{SIZE}]", "f32[0]")
    program = verified(text)
    inputs = [TensorType(f32, (0,))] * len(program.graphs["main"].graph.inputs)
    assert check(make_plan(program, "main", inputs, random_policy(below), prepare)) == []


def test_every_mutant_is_caught():
    """See `mutants.py`, which does the same for as many programs as one likes."""
    tried, caught = count(range(60), steps=40)
    print(*(f"{what}: {caught[what]} of {n}" for what, n in tried.items()), sep="\n")
    assert tried == caught
    assert all(tried[what] > 20 for what in tried)


def test_every_wait_that_is_removed_is_caught_in_wide_graphs():
    """Graphs in which there is much to wait for."""
    tried = caught = 0
    for seed in range(12):
        plan = wide_plan(seed)
        for k, i in enumerate(plan.instructions):
            if isinstance(i, Wait):
                tried += 1
                caught += without_wait(plan, k) != []
    print(f"waits removed: {tried}, caught: {caught}")
    assert tried == caught
    assert tried > 200


def without_wait(plan: Plan, k: int):
    rest = plan.instructions[:k] + plan.instructions[k + 1 :]
    found = listing(plan)
    found.instructions = rest
    return check(found)


def wide_plan(seed: int) -> Plan:
    """Many heavy ops on what a few dozen ops before gave."""
    below = random_choices(seed)
    names, lines = ["x"], [f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{"]
    for k in range(60):
        recent = names[-9:]
        a, b = recent[below(len(recent))], recent[below(len(recent))]
        lines.append(f"  a{k} = heavy({a})" if below(3) else f"  a{k} = mix({a}, {b})")
        names.append(f"a{k}")
    lines += ["  return a59", "}"]
    program = verified("\n".join(lines))
    return make_plan(program, "main", inputs_of(program), Policy(2 + below(6)))


def test_the_simulator_sees_races():
    """Most plans that lack a wait go wrong in it: then it can be trusted with those that do not."""
    seen = tried = 0
    for seed in range(6):
        plan = wide_plan(seed)
        symbols = Symbols()
        expected = Simulator(plan, symbols, 0).run()
        waits = [k for k, i in enumerate(plan.instructions) if isinstance(i, Wait)]
        for k in waits[::3]:
            rest = plan.instructions[:k] + plan.instructions[k + 1 :]
            broken = Plan(**{f: getattr(plan, f) for f in Plan.__slots__} | {"instructions": rest})
            tried += 1
            seen += any(
                differences(expected, Simulator(broken, symbols, s).run()) for s in range(20)
            )
    assert seen > tried / 3


# --- growth ---------------------------------------------------------------------------------------


def calls_of(work) -> int:
    """Calls of Python functions within `work`: what it costs, whatever else the machine does."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def graph_of(steps: int, wide: bool) -> str:
    below = random_choices(1)
    names, lines = ["x"], ["graph main(x: f32[N]) -> f32[N] {"]
    for k in range(steps):
        recent = names[-20:] if wide else names[-1:]
        a, b = recent[below(len(recent))], recent[below(len(recent))]
        op = ("heavy({0})", "mix({0}, {1})", "relu({0})", "add({0}, {1})")[below(4)]
        lines.append(f"  v{k} = {op.format(a, b)}")
        names.append(f"v{k}")
    return "\n".join([*lines, f"  return {names[-1]}", "}"])


def test_work_grows_linearly():
    for wide in (False, True):
        for policy in (Policy(1), Policy(4), Policy(1, "fresh", "nan", "op")):
            costs = []
            for steps in (800, 1_600):
                program = verified(graph_of(steps, wide))
                inputs = inputs_of(program)
                plan = make_plan(program, "main", inputs, policy)
                planning = calls_of(lambda: make_plan(program, "main", inputs, policy))  # noqa: B023
                costs.append((planning, calls_of(lambda: check(plan))))  # noqa: B023
            (small, small_check), (large, large_check) = costs
            assert large < 2.3 * small
            assert large_check < 2.3 * small_check
