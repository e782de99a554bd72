"""Steps of control flow: their declarations, and what they hand to the graphs that they call."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.control import Control
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step


def control_of(step: Step) -> type[Control]:
    """The declaration of a step of control flow."""
    op: Any = step.op
    return op


def passed_types(step: Step) -> tuple[TensorType, ...]:
    """The types of the values that a step of control flow passes to the graphs that it calls."""
    passed = step.operand_types[1 if control_of(step).selects else 0 :]
    return tuple(t for t in passed if t is not None)
