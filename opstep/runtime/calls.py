"""Calls of graphs by control flow: what the interpreter and the debugger's machine share.

Which graph runs when is declared with the ops (`runtime.ir.control`); here errors get their place,
calls within calls their limit, and outputs their way to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.runtime.device.binding import Binding
from opstep.runtime.device.errors import error_at
from opstep.runtime.device.protocols import Own
from opstep.runtime.device.store import Address
from opstep.runtime.ir.control import GraphCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.plan.control import control_of
from opstep.runtime.plan.plan import Plan, Step

DEEPEST = 1000  # calls within calls that a run may make through cond, switch and while


def check_depth(plan: Plan, step: Step, depth: int) -> None:
    """Raises where a step is to call graphs from within that many calls, and that is too deep."""
    if depth > DEEPEST:
        raise error_at(plan, step, f"calls are nested more than {DEEPEST} deep", DeviceError)


def first_call(plan: Plan, step: Step, selector: Any) -> GraphCall:
    """See `Control.first_call`. Raises `OpstepError`."""
    try:
        return control_of(step).first_call(step.attrs, selector)
    except Mismatch as fault:
        raise error_at(plan, step, fault.message, hint=fault.hint) from None


def next_call(plan: Plan, step: Step, done: GraphCall, holds: bool) -> GraphCall | None:
    """See `Control.next_call`. Raises `OpstepError`."""
    op: Any = step.op
    try:
        return op.next_call(step.attrs, done, holds)
    except Mismatch as fault:
        raise error_at(plan, step, fault.message, hint=fault.hint) from None


def copies_of_outputs(child: Binding, targets: Sequence[Address]) -> list[tuple[Own, int]]:
    """What copies a graph's outputs to where its caller wants them, as if all at once; with the
    bytes of each.
    """
    device, copies = child.device, []
    types = [child.plan.values[v].type for v in child.plan.outputs]
    sources = [child.address_of(v) for v in child.plan.outputs]
    own = {address.address for address in targets}
    for k, (source, t) in enumerate(zip(sources, types, strict=True)):
        if source.address in own and source.address != targets[k].address:
            if k not in child.staging:  # a target that is read after it is written
                child.staging[k] = Address(device.alloc(t.nbytes), 0)
            sources[k] = child.staging[k]
            copies.append((device.copy(source.address, sources[k].address, t.nbytes), t.nbytes))
    copies += [
        (device.copy(source.address, target.address, t.nbytes), t.nbytes)
        for source, target, t in zip(sources, targets, types, strict=True)
        if source.address != target.address
    ]
    return copies
