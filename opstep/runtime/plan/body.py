"""What a step computes that does the work of several elementwise ops; `plan.fusing` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import DType
from opstep.runtime.plan.internal import PlanOp

MOST_OPERANDS = 24  # of a group
MOST_MEASURED = 5  # of its registers: a multiprocessor has room for two blocks that count them


class fused(PlanOp):
    """Ops that are computed together, element by element; `kernels.pointwise.fused` says how."""

    name = "fused"
    traits = Traits(moves=True)  # its operands are seen as they are stored
    inplace = tuple(range(MOST_OPERANDS))


class measured(PlanOp):
    """As `fused`; moments and counts of some registers beside it, for a recorded run."""

    name = "measured"
    traits = Traits(moves=True)
    inplace = fused.inplace


class Member(NamedTuple):
    """One op of a group. Its operands are registers: those of the group's operands come first, then
    one for each member. `seen`: the types that it computes with.
    """

    op: type[Op]
    operands: tuple[int, ...]
    seen: tuple[DType, ...]
    result: DType
    attrs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, repr=False)
class Body:
    """What a group computes, without shapes: groups with equal texts share a kernel.

    `results` are the registers that it stores, `updates` which of them only where the run's status
    says so; that is operand number `status`, or -1. Operands that are `per_channel` have an element
    for each place along axis 1 of the results; others broadcast.
    """

    operands: tuple[DType, ...]
    members: tuple[Member, ...]
    results: tuple[int, ...]
    updates: tuple[bool, ...]
    status: int
    per_channel: tuple[int, ...] = ()

    @property
    def types(self) -> tuple[DType, ...]:
        """Of the registers."""
        return self.operands + tuple(m.result for m in self.members)

    @cached_property
    def text(self) -> str:
        return repr(
            (self.operands, self.members, self.results, self.updates, self.status, self.per_channel)
        )

    def __repr__(self) -> str:
        return self.text
