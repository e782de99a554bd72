"""The graphs that a gradient consists of: what they share, and how one of them is put together.

Control flow calls graphs, so its derivative does: for each graph that a `cond`, `switch` or `while`
calls there is one that computes its derivatives, written once for each set of values that these are
by. A graph that calls itself gets a gradient that calls itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opstep.runtime.ir.calls import unify
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.effects import Effects, called_graphs, effects_of
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Binding,
    Comments,
    Graph,
    Name,
    Return,
    Statement,
    TypeParameter,
    Update,
    names_read,
)
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import DependsOnType, DType, TensorType, TypeVariable, type_variable
from opstep.runtime.ir.verified import Verified
from opstep.runtime.transforms.backward import accumulate, backward
from opstep.runtime.transforms.builder import Builder, Var
from opstep.runtime.transforms.dependence import Dependence
from opstep.runtime.transforms.forward import ControlFlow, Forward


class Family:
    """What the graphs of one gradient share.

    `threaded`: tensors that the differentiated graph updates, which are passed as values; `wanted`:
    the other named tensors that derivatives are by. `names` has those of the graphs that were asked
    for, by what they are.
    """

    def __init__(self, verified: Verified, root: str, wanted: Iterable[str], taken: Iterable[str]):
        self.verified = verified
        self.threaded = frozenset(effects_of([root], verified).updates)
        self.wanted = tuple(t for t in wanted if t not in self.threaded)
        self.dependence = Dependence(verified)
        self._graphs: dict[str, Graph] = {}
        self.names: dict[tuple, str] = {}
        self._effects: dict[tuple[str, ...], Effects] = {}
        self._taken = {*verified.graphs, *OPS, *CONTROL, *taken}

    def name(self, stem: str) -> str:
        """A name for a graph that none has."""
        name, number = stem, 1
        while name in self._taken:
            name, number = f"{stem}{number}", number + 1
        self._taken.add(name)
        return name

    def effects(self, *graphs: str) -> Effects:
        """What calling any of these graphs may do."""
        if graphs not in self._effects:
            self._effects[graphs] = effects_of(graphs, self.verified)
        return self._effects[graphs]

    def add(self, graph: Graph) -> None:
        self._graphs[graph.name.text] = graph

    def called_by(self, root: Graph) -> list[Graph]:
        """Those that a graph calls, directly or not, in the order in which they were asked for."""
        found: set[str] = set()
        todo = [root] if self._graphs else []
        while todo:
            calls = {name for s in todo.pop().body if isinstance(s, Apply) for name in _named(s)}
            new = (calls & self._graphs.keys()) - found
            found |= new
            todo += [self._graphs[name] for name in new]
        return [self._graphs[name] for name in self.names.values() if name in found]


class Instance(NamedTuple):
    """A graph that control flow calls. `types`: by name what those of its type variables are here
    that could be floats as well as integers; a derivative has to know.
    """

    graph: str
    types: tuple[tuple[str, DType], ...] = ()

    def type_parameters(self, graph: Graph) -> tuple[TypeParameter, ...]:
        """Those that are left, of the families that are left."""
        found = []
        for p in graph.type_parameters:
            t = dict(self.types).get(p.name.text, p.variable)
            if isinstance(t, TypeVariable):
                found.append(TypeParameter(p.name, Name(t.family)))
        return tuple(found)


def instance(graph: Graph, types: Sequence[TensorType | int | float]) -> Instance:
    """The instance that is called with operands of these types."""
    mixed = [p.variable for p in graph.type_parameters if _is_mixed(p.variable)]
    if not mixed:
        return Instance(graph.name.text)
    bound, _ = unify(graph, types)
    narrowed = [(v.name, _narrowed(v, bound[v.name])) for v in mixed]
    return Instance(graph.name.text, tuple(narrowed))


def _is_mixed(variable: TypeVariable) -> bool:
    return len({t.is_float for t in variable.instances}) > 1


def _narrowed(variable: TypeVariable, t: DType) -> DType:
    for family in ("float", "int"):
        narrowed = type_variable(variable.name, family)
        if narrowed.admits(t):
            return narrowed
    if t.is_generic:
        raise DependsOnType(t)  # pyright: ignore[reportArgumentType]
    return t


class Draft:
    """A graph under construction: inputs, a forward pass, perhaps a way back, and results."""

    def __init__(
        self, family: Family, inputs: Iterable[tuple[str, TensorType]],
        type_parameters: tuple[TypeParameter, ...] = (),
    ):  # fmt: skip
        self.family = family
        self.type_parameters = type_parameters
        self.builder = Builder("t", set(family.verified.tensors))
        self.inputs: list[Var] = []
        self.names: list[tuple[str, Var]] = []  # better names for values, if they are free
        self.forward: Forward | None = None
        self.take(inputs)

    def take(self, inputs: Iterable[tuple[str, TensorType]]) -> list[Var]:
        """More inputs, called so or nearly."""
        new = [Var(self.builder.fresh(identifier(n)), t) for n, t in inputs]
        self.inputs += new
        return new

    def go(
        self, control: ControlFlow, active: Iterable[str], versions: Mapping[str, Var],
        asserts: bool,
    ) -> Forward:  # fmt: skip
        """Begins the forward pass."""
        self.forward = Forward(
            self.family.verified, control, self.builder, set(active), dict(versions), asserts
        )
        return self.forward

    def come_back(self, gradients: dict[str, Var], by: Sequence[Var]) -> list[Var | None]:
        """The derivatives by some values; None by those that nothing depends on."""
        assert self.forward is not None
        backward(self.builder, self.forward.taped, gradients, self.forward.active)
        self.builder.at = self.builder.derived_from = None
        self.names += [(f"d_{x.name}", gradients[x.name]) for x in by if x.name in gradients]
        self.names += [(f"d_{name}", value) for name, value in gradients.items()]
        return [gradients.get(x.name) for x in by]

    def seed(self, gradients: dict[str, Var], x: Var, gradient: Var) -> None:
        """A derivative to begin with, of a value that depends on what derivatives are by."""
        assert self.forward is not None
        if x.name in self.forward.active:
            accumulate(self.builder, gradients, x, gradient)

    def filled(self, found: Sequence[Var | None], by: Sequence[Var]) -> list[Var]:
        """Derivatives with zeros for those that there are none of."""
        return [g or self.zeros(x) for g, x in zip(found, by, strict=True)]

    def zeros(self, x: Var) -> Var:
        shape, dtype = x.shape, x.dtype
        return self.builder.named(f"d_{x.name}", "full", shape=shape, value=0.0, dtype=dtype)

    def finish(
        self, name: str, results: Sequence[Var], updates: Mapping[str, Var] | None = None,
        comment: Sequence[str] = (),
    ) -> Graph:  # fmt: skip
        """The graph: what its results, updates and asserts depend on, under the better names."""
        updated = {t: v for t, v in (updates or {}).items() if v.name != t}
        live = {v.name for v in (*results, *updated.values())}
        kept = self.forward.kept if self.forward else set()
        body: list[Statement] = [*live_statements(self.builder.statements, live, kept)]
        names = self._better_names(body)
        body = [_renamed(s, names) for s in body] if names else body
        for t, v in updated.items():
            body.append(Update(Name(t), Name(names.get(v.name, v.name))))
        returned = tuple(Name(names.get(v.name, v.name)) for v in results)
        return Graph(
            Name(name),
            tuple(Binding(Name(v.name), v.type) for v in self.inputs),
            tuple(v.type for v in results),
            (*body, Return(returned)) if returned else tuple(body),
            Comments(tuple(comment)),
            type_parameters=self.type_parameters,
        )

    def _better_names(self, body: Sequence[Statement]) -> dict[str, str]:
        made = {b.name.text for s in body if isinstance(s, Apply) for b in s.results}
        found: dict[str, str] = {}
        for name, value in self.names:
            if value.name in made and value.name not in found:
                if value.name == (good := identifier(name)):
                    found[value.name] = good
                else:
                    found[value.name] = self.builder.fresh(good)
        return found


def typed(binding: Binding) -> TensorType:
    """The type of an input."""
    assert binding.type is not None  # the grammar wants it
    return binding.type


def _named(statement: Apply) -> list[str]:
    """The graphs that a statement names, or what it applies."""
    return [statement.callee.text, *called_graphs({a.name.text: a.value for a in statement.attrs})]


def _renamed(statement: Any, names: Mapping[str, str]) -> Any:
    """The statement with the values in `names` called so."""

    def other(name: Any) -> Any:
        new = names.get(name.text) if isinstance(name, Name) else None
        return name if new is None else Name(new, name.span)

    if isinstance(statement, Assert):
        return replace(statement, condition=other(statement.condition))
    return Apply(  # `replace` takes ten times as long
        tuple([Binding(other(b.name), b.type) for b in statement.results]),
        statement.callee,
        tuple([other(o) for o in statement.operands]),
        statement.attrs,
        statement.at,
        derived_from=statement.derived_from,
    )


def live_statements(
    statements: Sequence[Apply | Assert], live: set[str], kept: set[int]
) -> list[Apply | Assert]:
    """Asserts, the `kept` statements, and those that these and the `live` values depend on, in
    order.
    """
    found: list[Apply | Assert] = []
    for k in reversed(range(len(statements))):
        s = statements[k]
        if isinstance(s, Apply) and k not in kept:
            for r in s.results:
                if r.name.text in live:
                    break
            else:
                continue
        found.append(s)
        live.update(names_read(s))
    return found[::-1]
