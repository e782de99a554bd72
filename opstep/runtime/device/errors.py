"""Errors of a run, with the place of a step's statement."""

from __future__ import annotations

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.graph import Apply
from opstep.runtime.plan.plan import Plan, Step


def error_at(
    plan: Plan, step: Step, message: str, kind: type[OpstepError] = OpstepError, hint: str = ""
) -> OpstepError:
    """An error that points at the statement of a step."""
    statement = step.statement
    source = plan.frames[step.frame].source
    span = statement.callee.span if isinstance(statement, Apply) else statement.span
    return kind(message, span=span, source=source, hint=hint)


def error_in(plan: Plan, step: Step, error: OpstepError, message: str = "") -> OpstepError:
    """An error that does not say where it is, as one of a step's statement."""
    found = error.diagnostics[0]
    return error_at(plan, step, message or found.message, type(error), found.hint)


def error_of_op(plan: Plan, step: Step, error: DeviceError, stream: int) -> OpstepError:
    """A device's error while the host waited for an op, as one of the op's statement."""
    if error.diagnostics[0].span is not None:
        return error
    message = f"{step.op.name} {_operands(plan, step)}, on stream {stream}: "
    return error_in(plan, step, error, message + error.diagnostics[0].message)


def _operands(plan: Plan, step: Step) -> str:
    values = plan.values
    named = [f"{values[v].name}: {values[v].type}" for v in step.operands if v is not None]
    return f"of {', '.join(named)}" if named else "of no operands"
