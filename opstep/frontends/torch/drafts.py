"""Graphs under way from ATen's ops to the language: their values have no names yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, NamedTuple

from torch import fx

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.modules import Call
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.graph import Statement
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DTYPES


class Value(NamedTuple):
    """A result of an ATen op, or a placeholder's value."""

    node: fx.Node
    index: int = 0


def value_of(node: fx.Node) -> Value:
    """The value that a node stands for: `getitem` chooses a result of another."""
    if node.op == "call_function" and node.target is getitem:
        return Value(value_of(node.args[0]).node, node.args[1])  # pyright: ignore
    return Value(node)


class Made(NamedTuple):
    """The values that one item of a graph made, and the Python frames that led to it, those of the
    graph's module only, outermost first. `places`: of what a recurrent layer made, where that is
    in the tuples that it returns.
    """

    frames: tuple[Frame, ...]
    results: tuple[Var, ...]
    is_call: bool = False
    places: tuple[tuple[int, ...], ...] = ()


@dataclass(eq=False)
class Draft:
    """A graph whose values have no names yet. `name` is provisional, too (``%g1``).

    `nodes`: by value, what it is in the fx graph; `calls`: by the first result of a call, the graph
    that is called and the draft of this very call.
    """

    name: str
    call: Call
    inputs: list[Var]
    sources: list[Value]  # of the inputs, in the caller
    body: Body
    results: list[Var]
    made: list[Made] = field(default_factory=list)
    title: str = ""  # of a graph that is no module's
    nodes: dict[str, Value] = field(default_factory=dict)
    calls: dict[str, tuple[str, Draft]] = field(default_factory=dict)

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(self.body.statements)

    @property
    def key(self) -> tuple:
        """Equal where two drafts do the same on the same types."""
        types = tuple(v.type for v in self.inputs)
        return (
            self.title or self.call.class_name,
            types,
            self.statements,
            tuple(v.name for v in self.results),
        )

    def unbound(self) -> set[str]:
        """Symbols that no input binds."""
        bound = {d.lone_symbol() for v in self.inputs for d in v.shape if isinstance(d, Expr)}
        return self.symbols() - {s for s in bound if s}

    def symbols(self) -> set[str]:
        found: set[str] = set()
        for type in (*(v.type for v in self.inputs), *(v.type for v in self.results)):
            found |= _symbols(type.shape)
        for statement in self.body.statements:
            for attr in getattr(statement, "attrs", ()):
                is_list = isinstance(attr.value, tuple) and not isinstance(attr.value, Ref)
                found |= _symbols(attr.value if is_list else (attr.value,))
            for result in getattr(statement, "results", ()):
                found |= _symbols(result.type.shape) if result.type else set()
        return found


def _symbols(dims: Sequence[Any]) -> set[str]:
    names = {d.name for d in dims if isinstance(d, Ref) and d.name not in DTYPES}
    alone = {name for name in names if not name.startswith("%")}  # which are graphs
    return alone | {s for d in dims if isinstance(d, Expr) for s in d.symbols()}
