"""Damages plans in small ways, each of which makes a hazard, and counts how many the checker names.

    python tests/runtime/plan/mutants.py --count 10000

plans that many random programs and damages each plan in all ways that it offers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from plan_programs import SIZE, prepare, random_choices, random_policy, random_program, verified

from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.plan import Call, Free, Plan, Record, Run, Wait
from opstep.runtime.plan.planner import make_plan


def mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """(what was done, plan) for each way to damage it."""
    for k, i in enumerate(plan.instructions):
        if isinstance(i, Wait):
            yield "wait removed", _without(plan, k)
            yield "wait after its op", _moved(plan, k, _next_op(plan, k))
        elif isinstance(i, Record):
            yield "record removed", _without(plan, k)
            yield "record before its op", _moved(plan, k, _op_before(plan, k) - 1)
        elif isinstance(i, Free):
            last = max(j for j in range(k) if i.buffer in _touched(plan, j))
            yield "free before the last use", _moved(plan, k, last - 1)
        elif isinstance(i, (Run, Call)):
            yield "op removed", _without(plan, k)
    yield from _overlaps(plan)
    yield from _unordered_streams(plan)


def _without(plan: Plan, k: int) -> Plan:
    return replace(plan, instructions=plan.instructions[:k] + plan.instructions[k + 1 :])


def _moved(plan: Plan, k: int, behind: int) -> Plan:
    """The plan with instruction k right behind another."""
    rest = plan.instructions[:k] + plan.instructions[k + 1 :]
    at = behind if behind > k else behind + 1
    return replace(plan, instructions=[*rest[:at], plan.instructions[k], *rest[at:]])


def _next_op(plan: Plan, k: int) -> int:
    stream = plan.instructions[k].stream
    return next(
        j
        for j in range(k, len(plan.instructions))
        if isinstance(plan.instructions[j], (Run, Call)) and plan.instructions[j].stream == stream
    )


def _op_before(plan: Plan, k: int) -> int:
    stream = plan.instructions[k].stream
    return next(
        j
        for j in range(k, -1, -1)
        if isinstance(plan.instructions[j], (Run, Call)) and plan.instructions[j].stream == stream
    )


def _touched(plan: Plan, k: int) -> set[int]:
    i = plan.instructions[k]
    if isinstance(i, (Run, Call)):
        return {*plan.steps[i.step].reads, *plan.steps[i.step].writes}
    return set()


def _overlaps(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Buffers shifted over others that are written before and read after."""
    writes: dict[int, int] = {}
    reads: dict[int, int] = {}
    for k, i in enumerate(plan.instructions):
        if isinstance(i, (Run, Call)):
            for b in plan.steps[i.step].writes:
                writes.setdefault(b, k)
            reads |= dict.fromkeys(plan.steps[i.step].reads, k)
    for b, row in enumerate(plan.buffers):
        if row.offset < 0 or b not in writes:
            continue
        for other, first in writes.items():
            there = plan.buffers[other].offset
            if there >= 0 and other != b and first < writes[b] < reads.get(other, -1):
                buffers = list(plan.buffers)
                buffers[b] = row._replace(offset=there)
                yield "buffer over another", replace(plan, buffers=buffers)


def _unordered_streams(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Streams left out of `start` and `finish`, where no event orders them anyway."""
    if plan.policy.sync == "op":
        return  # the host has seen the end of every op, and orders the streams
    ordered = (Run, Call, Wait, Record)
    for s in range(plan.streams):
        mine = [i for i in plan.instructions if i.stream == s and isinstance(i, ordered)]
        if not isinstance(mine[0], Wait):
            yield "no start", replace(plan, start=tuple(t for t in plan.start if t != s))
        if not isinstance(mine[-1], Record):
            yield "no finish", replace(plan, finish=tuple(t for t in plan.finish if t != s))


def count(programs: range, steps: int) -> tuple[Counter, Counter]:
    """How many mutants were tried and caught, by what was done."""
    tried: Counter = Counter()
    caught: Counter = Counter()
    for seed in programs:
        below = random_choices(seed)
        program = verified(random_program(below, steps))
        types = [TensorType(f32, (SIZE,))] * len(program.graphs["main"].graph.inputs)
        plan = make_plan(program, "main", types, random_policy(below), prepare)
        tried["none (a clean plan)"] += 1
        caught["none (a clean plan)"] += check(plan) == []
        for what, mutant in mutants(plan):
            tried[what] += 1
            caught[what] += check(mutant) != []
    return tried, caught


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--steps", type=int, default=40, help="statements of a program, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    options = parser.parse_args()
    tried, caught = count(range(options.seed, options.seed + options.count), options.steps)
    for what, number in sorted(tried.items()):
        print(f"{what:<26} tried {number:>9,}  caught {caught[what]:>9,}")
    print(f"{'all':<26} tried {tried.total():>9,}  caught {caught.total():>9,}")
    sys.exit(tried != caught)


if __name__ == "__main__":
    main()
