"""The statements of one graph as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opstep.frontends.onnx.export_control import control
from opstep.frontends.onnx.export_nodes import GRAPH_DOMAIN, OP_DOMAIN, Body, NeedsNumber, Unsayable
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Literal,
    Name,
    Return,
    Statement,
    Update,
)
from opstep.runtime.ir.op import Op, Ref, Resolved
from opstep.runtime.ir.printer import print_origin, print_statement
from opstep.runtime.ir.types import GenericDType, TensorType, i64
from opstep.runtime.ir.verified import Application, VerifiedGraph
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.transforms.builder import Var, named

if TYPE_CHECKING:
    from opstep.frontends.onnx.export_functions import Functions

Bound = Mapping[str, Any]  # sizes of symbols and what type variables are


def outputs_of(body: Body, names: Sequence[str], taken: set[str]) -> list[str]:
    """Names for results: each once, and none that is an input or a constant's."""
    found = []
    taken = taken | {o for n in body.nodes if n.op_type == "Constant" for o in n.outputs}
    for name in names:
        if name in taken:
            copy = body.fresh(f"{name}/result")
            body.node("Identity", [name], [copy])
            name = copy
        taken.add(name)
        found.append(name)
    return found


class Writer:
    """Writes the statements of one graph."""

    def __init__(
        self, functions: Functions, graph: VerifiedGraph, bound: Bound, touches: Sequence[str]
    ):
        self.functions = functions
        self.graph = graph
        self.bound = bound
        inputs = [b.name.text for b in graph.graph.inputs]
        self.inputs = {*inputs, *touches}
        self.current: dict[str, Var] = {}  # what each named tensor is now
        for name in touches:
            declared = functions.verified.tensors[name]
            self.current[name] = Var(name, declared.type)
        # names of results are theirs, wherever they come
        used = {*self.inputs, *(b.name.text for s in self.applies() for b in s.results)}
        self.body = Body(used, self._size)
        for name in graph.types:
            t = self.type_of(name)
            if t.is_concrete and not t.fits:
                raise InputError(f"{name}: {t} does not fit into any memory")
        self.values: dict[str, Var] = {n: Var(n, self.type_of(n)) for n in inputs}
        self._measured: dict[str, Var] = {}
        self.pending: dict[str, Var] = {}  # updates, which take effect at the end

    def applies(self) -> list[Apply]:
        return [s for s in self.graph.graph.body if isinstance(s, Apply)]

    def type_of(self, name: str) -> TensorType:
        return self.graph.types[name].bind(self.bound)  # pyright: ignore[reportArgumentType]

    def _size(self, symbol: str) -> Var:
        """The size of a symbol of this graph, of the first input that has it alone in a dim."""
        if symbol not in self._measured:
            for b in self.graph.graph.inputs:
                for axis, d in enumerate(b.type.shape if b.type else ()):
                    if isinstance(d, Expr) and d.lone_symbol() == symbol:
                        name = self.body.fresh(f"size.{symbol}")
                        self.body.node("Shape", [b.name.text], [name], start=axis, end=axis + 1)
                        self.body.nodes[-1].helper = True
                        self._measured[symbol] = Var(name, TensorType(i64, (1,)))
                        return self._measured[symbol]
        return self._measured[symbol]

    # --- statements ---

    def write(self, strict: bool = False) -> list[str]:
        """All statements; gives the names of the results. What cannot be said becomes a problem;
        `strict`: `NeedsNumber` is raised, so that the graph can be written for certain sizes.
        """
        returned: tuple[Name, ...] = ()
        body = self.graph.graph.body
        for s, application in zip(body, self.graph.applications, strict=True):
            self.body.begin(self.metadata(s))
            try:
                if isinstance(s, Apply):
                    assert application is not None
                    self.apply(s, application)
                elif isinstance(s, Return):
                    returned = s.values
                elif isinstance(s, Update):
                    self.update(s)
                elif isinstance(s, Assert) and not self.functions.asserts:
                    raise Unsayable(
                        "assert: ONNX has nothing that stops a run",
                        Wording("leave the asserts out: ", Argument("drop_asserts", True)),
                    )
            except NeedsNumber as error:
                if strict:
                    raise
                sizes = Argument("symbols", dict.fromkeys(error.symbols, 8))
                self.problem(s, error.message, Wording("say it: ", sizes))
            except Unsayable as error:
                self.problem(s, error.message, error.hint)
        self.body.begin({})
        self.current.update(self.pending)
        names = [self.lookup(v).name for v in returned]
        return outputs_of(self.body, names, set(self.inputs))

    def problem(self, s: Statement, message: str, hint: str) -> None:
        """Notes it, and goes on as if the statement had been written."""
        span = s.callee.span if isinstance(s, Apply) else s.span
        what = f"{s.callee.text} cannot be exported: {message}" if isinstance(s, Apply) else message
        self.functions.problem(what, hint, self.graph, span)
        for b in s.results if isinstance(s, Apply) else ():
            self.values[b.name.text] = Var(b.name.text, self.type_of(b.name.text))

    def metadata(self, s: Statement) -> dict[str, str]:
        """Where a statement is, and where that was imported from."""
        found = {}
        source = self.graph.source
        if source is not None:
            found["opstep.line"] = f"{source.path}:{source.locate(s.span.start)[0]}"
        if s.at is not None:
            found["opstep.at"] = print_origin(s.at).removeprefix(" at ")
        return found

    def lookup(self, name: Name) -> Var:
        return self.values.get(name.text) or self.current[name.text]

    def operand(self, o: Name | Literal, t: TensorType | None) -> Var:
        if isinstance(o, Name):
            return self.lookup(o)
        assert t is not None
        return self.body.value(o.value, t.dtype)

    def next(self, name: str) -> str:
        """What a named tensor is at the end, as a result."""
        value = self.current[name].name
        if value.startswith(f"{name}/next"):
            return value
        result = self.body.fresh(f"{name}/next")
        self.body.node("Identity", [value], [result])
        return result

    def update(self, s: Update) -> None:
        if not self.functions.updates:
            raise Unsayable(
                f"{s.target.text} <- …: a model of ONNX keeps nothing between runs",
                Wording("take the new values as further results: ", Argument("updates", True)),
            )
        declared = self.functions.verified.tensors[s.target.text].type
        self.pending[s.target.text] = self.operand(s.value, declared)

    def apply(self, s: Apply, application: Application) -> None:
        resolved = bind_resolved(application.resolved, self.bound)
        names = [b.name.text for b in s.results]
        operands = [self.operand(o, resolved.operands[k]) for k, o in enumerate(s.operands)]
        self.body.stem = names[0] if names else s.callee.text
        if application.graph is not None:
            symbols = {k: bind(v, self.bound) for k, v in application.symbols.items()}
            self.call(application.graph.name.text, symbols, operands, names)
        elif application.op is not None and application.op.traits.host:
            self.body.metadata = {**self.body.metadata, "opstep.call": self.written(s)}
            control(self, application.op.name, dict(application.attrs), operands, names)
        else:
            assert application.op is not None
            attrs = {k: bind(v, self.bound) for k, v in application.attrs.items()}
            self.compute(s, application.op, operands, resolved, attrs, names)
        for name, t in zip(names, resolved.results, strict=True):
            self.values[name] = Var(name, t)

    def call(
        self, graph: str, symbols: Bound, operands: Sequence[Var], names: Sequence[str]
    ) -> None:
        """A node that calls a graph's function."""
        callee = self.functions.callee(graph, symbols)
        inputs = [o.name for o in operands] + [self.current[n].name for n in callee.touches]
        updated = [Var(self.body.fresh(f"{u}/next"), self.current[u].type) for u in callee.updates]
        self.body.node(callee.name, inputs, [*names, *(u.name for u in updated)], GRAPH_DOMAIN)
        self.current.update(zip(callee.updates, updated, strict=True))

    def compute(
        self, s: Apply, op: type[Op], operands: Sequence[Var], resolved: Resolved,
        attrs: Mapping[str, Any], names: Sequence[str],
    ) -> None:  # fmt: skip
        """The node or the nodes of an op."""
        body = self.body
        function = self.functions.op(op, operands, resolved, attrs)
        if function is not None:
            name, sizes = function
            given = [o.name for o in operands] + [self._helper_size(z) for z in sizes]
            body.metadata = {**body.metadata, "opstep.call": self.written(s)}
            body.node(name, given, names, OP_DOMAIN)
            return
        first = len(body.nodes)
        results = body.lower(op, operands, resolved, attrs)
        made = {o for n in body.nodes[first:] if n.op_type != "Constant" for o in n.outputs}
        own = [n for n in body.nodes[first:] if not n.helper]
        if len(own) == 1 and (attrs or own[0].op_type.lower() != op.name):
            own[0].metadata = {**body.metadata, "opstep.call": self.written(s)}
        for k, (r, name) in enumerate(zip(results, names, strict=True)):
            if r.name in made and all(r.name != other.name for other in results[:k]):
                rename(body, first, r.name, name)
            else:
                body.node("Identity", [r.name], [name])

    def _helper_size(self, symbol: str) -> str:
        return self._size(symbol).name

    def written(self, s: Apply) -> str:
        """What a statement says behind its results, for who reads the model back."""
        bare = replace(s, results=(), at=None, comments=type(s.comments)())
        attrs = tuple(
            Attr(
                a.name,
                named(bind(a.value, self.bound)) if not isinstance(a.value, Ref) else a.value,
            )
            for a in bare.attrs
        )
        return print_statement(replace(bare, attrs=attrs))


def rename(body: Body, first: int, old: str, new: str) -> None:
    """Calls a value of the nodes from `first` on by another name."""
    for n in body.nodes[first:]:
        n.inputs[:] = [new if i == old else i for i in n.inputs]
        n.outputs[:] = [new if o == old else o for o in n.outputs]


def bind(value: Any, bound: Bound) -> Any:
    """An attribute, a dim or an element type where symbols and type variables are known."""
    if type(value) is tuple:
        return tuple(bind(v, bound) for v in value)
    if isinstance(value, Expr):
        return evaluate(value, bound)  # pyright: ignore[reportArgumentType]
    return value.bound(bound) if isinstance(value, GenericDType) else value


def bind_resolved(resolved: Resolved, bound: Bound) -> Resolved:
    def one(t: TensorType | None) -> Any:
        return t if t is None else t.bind(bound)  # pyright: ignore[reportArgumentType]

    return Resolved(tuple(map(one, resolved.operands)), tuple(map(one, resolved.results)))
