"""One op outside of any graph, as a device is to prepare it: the way in for op tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.op import resolve
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.plan.plan import Step


def one_step(
    op: Any, arrays: Sequence[Any], attrs: dict
) -> tuple[Step, list[TensorType | None], list[TensorType]]:
    """The step, the types of its operands as stored (None for an absent one) and of its results.

    `arrays` are the operands, None for absent ones at the end; attributes are complete.
    """
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays if a is not None]
    resolved = resolve(op, types, attrs)
    missing = len(resolved.operands) - len(types)
    step = Step(op, (), (), resolved.operands, attrs, 0, Apply((), Name(op.name, NOWHERE), ()))
    return step, [*types, *[None] * missing], list(resolved.results)
