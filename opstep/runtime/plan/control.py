"""What control flow may do: which graphs it calls, and which named tensors those touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opstep.runtime.ir.control import Control
from opstep.runtime.ir.graph import Assert, Update, names_read
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import Verified
from opstep.runtime.plan.plan import Step


class Effects(NamedTuple):
    """Named tensors that graphs read or update, those they update; whether they hold asserts."""

    touches: tuple[str, ...]
    updates: tuple[str, ...]
    asserts: bool


def called_graphs(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """The graphs that the attributes of an op of control flow name, each once."""
    found: dict[str, None] = {}
    for value in attrs.values():
        for v in value if type(value) is tuple else (value,):
            if isinstance(v, Ref):
                found[v.name] = None
    return tuple(found)


def control_of(step: Step) -> type[Control]:
    """The declaration of a step of control flow."""
    op: Any = step.op
    return op


def passed_types(step: Step) -> tuple[TensorType, ...]:
    """What a step of control flow hands to the graphs that it calls."""
    passed = step.operand_types[1 if control_of(step).selects else 0 :]
    return tuple(t for t in passed if t is not None)


def effects_of(names: Sequence[str], verified: Verified) -> Effects:
    """What calling any of these graphs may do, by itself or through the graphs that it calls."""
    touches: set[str] = set()
    updates: set[str] = set()
    asserts = False
    seen = set(names)
    todo = list(names)
    while todo:
        graph = verified.graphs[todo.pop()]
        for statement, application in zip(graph.graph.body, graph.applications, strict=True):
            touches.update(n for n in names_read(statement) if n in verified.tensors)
            asserts |= isinstance(statement, Assert)
            if isinstance(statement, Update):
                updates.add(statement.target.text)
            called: tuple[str, ...] = ()
            if application is not None and application.graph is not None:
                called = (application.graph.name.text,)
            elif application is not None and application.op is not None and application.op.host:
                called = called_graphs(application.attrs)
            todo += [name for name in called if name not in seen]
            seen.update(called)
    return Effects(tuple(sorted(touches | updates)), tuple(sorted(updates)), asserts)
