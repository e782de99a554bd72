"""What the hazard checker says of the plans of a run, and of one op in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opstep.runtime.plan.hazards import Hazard, Site, check
from opstep.runtime.plan.plan import Call, Plan, Run


class Verdict(NamedTuple):
    """`hazards` of all plans of a run; `near` those that the op that differs has a part in: it is
    one of the two ops, or shares bytes with the race or with the op that comes too early.
    """

    plans: int
    hazards: list[Hazard]
    near: list[Hazard]

    @property
    def free(self) -> bool:
        """Whether no order of execution can change a result."""
        return not self.hazards


def verdict(plans: Sequence[Plan], plan: Plan | None = None, number: int = -1) -> Verdict:
    """Of a run's plans, and of op `number` of one of them."""
    hazards, near = [], []
    for one in plans:
        found = check(one)
        hazards += found
        if one is plan:
            near += [h for h in found if _concerns(h, one, number)]
    return Verdict(len(plans), hazards, near)


def _concerns(hazard: Hazard, plan: Plan, number: int) -> bool:
    early = _step_at(plan, hazard.second)
    if number in (_step_at(plan, hazard.first), early):
        return True
    raced = set(hazard.buffers)
    if early >= 0:  # with it all that it writes comes too early
        raced.update(plan.steps[early].writes)
    step = plan.steps[number]
    return any(_overlap(plan, x, y) for x in (*step.reads, *step.writes) for y in raced)


def _overlap(plan: Plan, x: int, y: int) -> bool:
    """Whether two buffers share bytes."""
    a, b = plan.buffers[x], plan.buffers[y]
    if x == y or a.offset < 0 or b.offset < 0:
        return x == y
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _step_at(plan: Plan, site: Site | None) -> int:
    if site is None or not 0 <= site.instruction < len(plan.instructions):
        return -1
    instruction = plan.instructions[site.instruction]
    return instruction.step if isinstance(instruction, (Run, Call)) else -1
