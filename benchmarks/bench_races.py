"""Races that are put into plans: how many the checker names before the run, and `diff` in it.

Every wait of the plans of random graphs is taken out in turn, and the op that should then come
first is made late. A run shows the race where what it gives in the end is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
from harness import Measured, at_least, bench

import opstep
from opstep.differing.diff import diff, settings
from opstep.differing.taps import Taps
from opstep.runtime.plan.hazards import Hazard, check
from opstep.runtime.plan.plan import Call, Plan, Run, Wait

GRAPHS = 12
SIZE = 1 << 16
LATE_S = 0.01
TRIES = 3
HOW = settings("streams=4")
UNARY, BINARY = ("exp", "sin", "cos", "tanh", "abs"), ("add", "mul", "sub", "maximum")


class Late:
    """A listener under which some ops of a plan begin late."""

    def __init__(self, plan: Plan, hazards: list[Hazard]):
        self.plan = plan
        self.numbers = set()
        for hazard in hazards:
            issued = plan.instructions[hazard.first.instruction] if hazard.first else None
            if isinstance(issued, (Run, Call)):
                self.numbers.add(issued.step)

    def before(self, execution: Any) -> None:
        if execution.binding.plan is self.plan and execution.number in self.numbers:
            stream = execution.binding.streams[execution.stream]
            stream.submit(partial(time.sleep, LATE_S))

    def after(self, execution: Any) -> None:
        """Nothing is looked at."""


class Tally(NamedTuple):
    """`races` put in; `named` by the checker; `shown` by a run, and `found` of those."""

    races: int
    named: int
    shown: int
    found: int


def text_of(seed: int) -> str:
    """A graph of 24 ops that is wide, and updates a param."""
    random = Random(seed)
    lines, names = [], ["x", "w"]
    for k in range(24):
        if random.random() < 0.4:
            expression = f"{random.choice(UNARY)}({random.choice(names[-6:])})"
        else:
            a, b = random.sample(names[-8:], 2)
            expression = f"{random.choice(BINARY)}({a}, {b})"
        lines.append(f"  bounded{k} = {expression}\n  v{k} = sin(bounded{k})")
        names.append(f"v{k}")
    body, t = "\n".join(lines), f"f32[{SIZE}]"
    ends = "  w <- v22\n  return v23, v21, v20\n}\n"
    return f"param w: {t} = normal()\n\ngraph main(x: {t}) -> {t}, {t}, {t} {{\n{body}\n{ends}"


@contextmanager
def late_in_diff(late: Late) -> Iterator[None]:
    """Ops are late in both sides of a comparison, where they run by that plan."""
    kept, Taps.before = Taps.before, lambda taps, execution: late.before(execution)
    try:
        yield
    finally:
        Taps.before = kept


def one(seed: int, k: int, x: np.ndarray, truth: list[bytes]) -> tuple[bool, bool, bool]:
    """One wait taken out: whether that is named, shown, found."""
    program = opstep.loads(text_of(seed))
    plan = program.plan(policy=HOW.policy, symbols={})
    (key,) = [key for key, made in program._plans.items() if made is plan]
    places = [n for n, i in enumerate(plan.instructions) if isinstance(i, Wait)]
    code = plan.instructions[: places[k]] + plan.instructions[places[k] + 1 :]
    program._plans[key] = plan = replace(plan, instructions=code)
    hazards = check(plan)
    late = Late(plan, hazards)
    w = program.params["w"]
    shown = given(program, {"streams": 4, "listeners": [late]}, x) != truth
    program.params["w"] = w
    return (
        bool(hazards),
        shown,
        shown and any(differs(program, seed, late, x) for _ in range(TRIES)),
    )


def differs(program: opstep.Program, seed: int, late: Late, x: np.ndarray) -> bool:
    """Whether `diff` finds it. It runs the graph again, and a race is never certain to show."""
    with late_in_diff(late):
        found = diff(program, opstep.loads(text_of(seed)), inputs={"x": x}, settings_a=HOW)
    return not found.same and bool(found.verdicts["a"].hazards)


def given(program: opstep.Program, options: dict[str, Any], x: np.ndarray) -> list[bytes]:
    """All that a run leaves."""
    result = program.run(inputs={"x": x}, **options)
    return [*(array.tobytes() for array in result.values()), program.params["w"].tobytes()]


@cache
def tally() -> Tally:
    outcomes = []
    for seed in range(GRAPHS):
        program = opstep.loads(text_of(seed))
        plan = program.plan(policy=HOW.policy, symbols={})
        waits = sum(isinstance(i, Wait) for i in plan.instructions)
        x = np.random.default_rng(seed).standard_normal(SIZE).astype("f4")
        truth = given(opstep.loads(text_of(seed)), {"mode": "debug"}, x)
        outcomes += [one(seed, k, x, truth) for k in range(waits)]
    shown = [found for _, seen, found in outcomes if seen]
    return Tally(len(outcomes), sum(named for named, *_ in outcomes), len(shown), sum(shown))


@bench("races: waits taken out of plans, named before the run", bars=[at_least(100, "%")])
def named_before():
    found = tally()
    assert found.races >= 30
    return Measured(100 * found.named / found.races, unit="%")


@bench("races: shown by a run, found by diff", bars=[at_least(100, "%")])
def found_by_diff():
    found = tally()
    assert found.shown >= 20
    return Measured(100 * found.found / found.shown, unit="%")
