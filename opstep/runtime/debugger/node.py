"""What a run under the debugger computes: versions of tensors that never change.

A named tensor, or the state of a loop, has a node for each version. So to go back is to look at
other nodes, and a value whose memory was given up is computed again from its producer.
"""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.statistics import Statistics


class Node:
    """One version of a tensor. `producer` is None for what came from outside: inputs, constants,
    named tensors as the run found them, values that someone set.

    `memory` and `offset` say where its bytes are; memory is None where they were given up.
    """

    __slots__ = (
        "figures",
        "home",
        "index",
        "memory",
        "name",
        "offset",
        "owned",
        "producer",
        "type",
    )

    def __init__(
        self,
        type: TensorType,
        name: str,
        memory: Any = None,
        offset: int = 0,
        producer: Producer | None = None,
        index: int = 0,
    ):
        self.type = type
        self.name = name
        self.memory = memory
        self.offset = offset
        self.producer = producer
        self.index = index
        self.owned = 0  # bytes that only this node holds
        self.home: tuple[Any, int] | None = None  # the activation that computed it, its value there
        self.figures: Statistics | None = None

    @property
    def present(self) -> bool:
        """Whether it can be read without being computed again."""
        return self.memory is not None

    @property
    def address(self) -> int:
        return self.memory.address + self.offset

    def __repr__(self) -> str:
        made_by = self.producer.step.op.name if self.producer else "given"
        return f"<Node {self.name}: {self.type}, {made_by}{'' if self.present else ', dropped'}>"


class Producer:
    """One execution of an op: what computes its results, any number of times, to the same bits."""

    __slots__ = ("operands", "plan", "results", "step")

    def __init__(self, plan: Plan, step: Step, operands: tuple[Node | None, ...]):
        self.plan = plan
        self.step = step
        self.operands = operands
        self.results: tuple[Node, ...] = ()

    @property
    def op(self):
        return self.step.op

    @property
    def sources(self) -> tuple[Node | None, ...]:
        """What its results are computed of: of a collective also what other ranks have."""
        return self.operands
