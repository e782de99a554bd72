"""What graphs do beside giving results: the named tensors that they touch, their asserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Assert, Update, names_read
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.verified import Application, Verified


class Effects(NamedTuple):
    """Named tensors that graphs read or update, those they update; whether they hold asserts, or
    talk to other ranks.
    """

    touches: tuple[str, ...]
    updates: tuple[str, ...]
    asserts: bool
    collectives: bool


def called_graphs(attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """The graphs that the attributes of an op of control flow name, each once."""
    found: dict[str, None] = {}
    for value in attrs.values():
        for v in value if type(value) is tuple else (value,):
            if isinstance(v, Ref):
                found[v.name] = None
    return tuple(found)


def callees(application: Application | None) -> tuple[str, ...]:
    """The graphs that a statement calls, by itself or as control flow."""
    if application is None:
        return ()
    if application.graph is not None:
        return (application.graph.name.text,)
    host = application.op is not None and application.op.traits.host
    return called_graphs(application.attrs) if host else ()


def reached_graphs(names: Sequence[str], verified: Verified) -> list[str]:
    """These graphs, and all that they call, directly or not."""
    found = dict.fromkeys(names)
    todo = list(found)
    while todo:
        for application in verified.graphs[todo.pop()].applications:
            new = [name for name in callees(application) if name not in found]
            found.update(dict.fromkeys(new))
            todo += new
    return list(found)


def effects_of(names: Sequence[str], verified: Verified) -> Effects:
    """What calling any of these graphs may do, by itself or through the graphs that it calls."""
    touches: set[str] = set()
    updates: set[str] = set()
    asserts = collectives = False
    own = verified.module.graphs
    for name in reached_graphs(names, verified):
        found = verified.graphs[name]
        collectives |= any(a and a.op and a.op.is_shared(a.attrs) for a in found.applications)
        for statement in found.graph.body:
            if name in own:  # those of the library see no named tensors
                touches.update(n for n in names_read(statement) if n in verified.tensors)
            asserts |= isinstance(statement, Assert)
            if isinstance(statement, Update):
                updates.add(statement.target.text)
    return Effects(tuple(sorted(touches | updates)), tuple(sorted(updates)), asserts, collectives)
