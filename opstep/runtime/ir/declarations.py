"""Checks of params and states: their types, and what they begin as."""

from __future__ import annotations

from typing import Any

from opstep.runtime.ir.applying import Applier
from opstep.runtime.ir.calls import literal_fault
from opstep.runtime.ir.diagnostics import Reporter
from opstep.runtime.ir.graph import Declaration, Name, Source
from opstep.runtime.ir.op import Mismatch, Op, complete, resolve
from opstep.runtime.ir.shards import Unsharded, shard_of
from opstep.runtime.ir.types import boolean
from opstep.runtime.ir.verified import Application


def check_declaration(
    d: Declaration, source: Source | None, applier: Applier, reporter: Reporter
) -> Application | None:
    """Reports what is wrong with a declaration; gives its initialising op, where it has one."""
    try:
        shard_of(d, applier.mesh)
    except Unsharded as fault:
        reporter.error(source, fault.span, fault.message, fault.hint)
    if not d.type.is_concrete:
        message = f"the dims of a {d.kind} are numbers: {d.type} has symbols"
        reporter.error(source, d.type_span, message)
    elif d.value is not None:
        value, t = d.value.value, d.type.dtype
        fault = literal_fault(value, t)
        if (type(value) is bool) != (t is boolean):
            fault = f"{t} begins as true or false" if t is boolean else f"{t} is a number"
        if fault:
            reporter.error(source, d.value.span, fault)
    elif d.init is not None:
        return _initialiser(d, d.init, source, applier, reporter)
    return None


def _initialiser(
    d: Declaration, init: Name, source: Source | None, applier: Applier, reporter: Reporter
) -> Application | None:
    """The op that makes a named tensor's first value, told the declared shape and dtype."""
    op = applier.ops.get(init.text)
    if op is None:
        makers = [name for name, maker in applier.ops.items() if _needs_nothing(maker)]
        hint = reporter.near(init.text, makers)
        if not hint and makers:
            hint = f"there are {', '.join(makers)}"
        reporter.error(source, init.span, f"there is no op {init.text}", hint)
        return None
    attributes = applier.attributes(op, d.attrs, source, reporter)
    if attributes is None:
        return None
    for spec in op.attrs:
        if spec.name == "shape" and spec.type == "dims":
            attributes.setdefault("shape", d.type.shape)
        elif spec.name == "dtype" and spec.type == "dtype":
            attributes.setdefault("dtype", d.type.dtype)
    try:
        return _initialisation(d, op, attributes)
    except Mismatch as m:
        spans = {a.name.text: a.span for a in d.attrs}
        span = spans.get(m.at, init.span) if isinstance(m.at, str) else init.span
        reporter.error(source, span, m.message, m.hint)
        return None


def _initialisation(d: Declaration, op: type[Op], attributes: dict[str, Any]) -> Application:
    if not _needs_nothing(op):
        raise Mismatch(f"{op.name} takes operands, and cannot initialise {d.name.text}")
    attrs = complete(op, attributes)
    resolved = resolve(op, (), attrs)
    if resolved.results != (d.type,):
        results = ", ".join(map(str, resolved.results)) or "nothing"
        raise Mismatch(f"{d.name.text} is {d.type}, but {op.name} makes {results}")
    return Application(op, None, resolved, attrs)


def _needs_nothing(op: type[Op]) -> bool:
    """Whether an op can be applied to no operands at all."""
    return not (op.traits.host or op.traits.by_rank) and all(o.optional for o in op.operands)
