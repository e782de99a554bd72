"""Statements that are written: their names and symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.graph import Apply, Assert, Binding, Graph, Name, Update
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DTYPES
from opstep.runtime.transforms.builder import Var

_GRAPHS = {"then", "else", "test", "body", "cases"}  # attributes that name graphs


def unique(name: str, used: set[str]) -> str:
    """The name, or with the first free number behind it; it is used from now on."""
    found, k = name, 1
    while found in used:
        k += 1
        found = f"{name}_{k}"
    used.add(found)
    return found


def renamed(statement: Any, names: Mapping[str, str]) -> Any:
    """A statement with values called otherwise."""

    def name(n: Any) -> Any:
        return Name(names[n.text]) if isinstance(n, Name) and n.text in names else n

    if isinstance(statement, Assert):
        return replace(statement, condition=name(statement.condition))
    if isinstance(statement, Update):
        return replace(statement, target=name(statement.target), value=name(statement.value))
    results = tuple([Binding(name(r.name), r.type) for r in statement.results])
    operands = tuple(map(name, statement.operands))
    return Apply(results, statement.callee, operands, statement.attrs, statement.at)


def symbols_of(statement: Any) -> set[str]:
    """Symbols that attributes name."""
    found: set[str] = set()
    for attr in getattr(statement, "attrs", ()):
        for v in attr.value if type(attr.value) is tuple else (attr.value,):
            if isinstance(v, Expr):
                found |= v.symbols()
            elif isinstance(v, Ref) and v.name not in DTYPES and attr.name.text not in _GRAPHS:
                found.add(v.name)
    return found


def bound_symbols(inputs: Sequence[Var]) -> set[str]:
    """Symbols that are the size of an input; none where an input has one that is not."""
    sizes = [d for v in inputs for d in v.shape if isinstance(d, Expr)]
    bound = {s for d in sizes if (s := d.lone_symbol())}
    return bound if all(d.symbols() <= bound for d in sizes) else set()


def by_calls(graphs: Mapping[str, Graph], first: str = "main") -> list[Graph]:
    """From the first on, in the order in which they are first called."""
    found: dict[str, Graph] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = graph = graphs[name]
        called: list[str] = []
        for statement in graph.body:
            if isinstance(statement, Apply):
                called.append(statement.callee.text)
                values = [a.value for a in statement.attrs]
                parts = [p for v in values for p in (v if type(v) is tuple else (v,))]
                called += [p.name for p in parts if isinstance(p, Ref)]
        waiting += [n for n in reversed(called) if n in graphs]
    return list(found.values())
