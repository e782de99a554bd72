"""From a graph of nodes to graphs of ours.

A `Scope` writes one graph: its values are those of the file, under the names that they have there,
as far as those are names here. What is known at import, sizes mostly, is no statement until one
needs it as a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.frontends.onnx import attributes
from opstep.frontends.onnx.body import Body, Part
from opstep.frontends.onnx.definitions import definition_of
from opstep.frontends.onnx.errors import OF_DATA, Missing, Untranslatable
from opstep.frontends.onnx.folding import PARTS, folded
from opstep.frontends.onnx.naming import readable
from opstep.frontends.onnx.origins import Origins
from opstep.frontends.onnx.reading import Weights
from opstep.frontends.onnx.repeats import Block, Outlined
from opstep.frontends.onnx.rules.registry import Rule, rule_for
from opstep.frontends.onnx.values import Known, Value, dims, known
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Assert, Binding, Declaration, Graph, Name, Return
from opstep.runtime.ir.op import OPS, Mismatch, Ref
from opstep.runtime.ir.types import DTYPES, DType, TensorType
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

Control = Callable[["Scope", Any, list[Any], Mapping[str, Any]], Sequence[Value]]
CONTROL: dict[str, Control] = {}  # by operator; `control` fills it
DOMAINS = {"ai.onnx": ""}


class Broken(Exception):
    """An input of a node is the result of one that could not be translated."""


class Program:
    """What all graphs of one import share. `given`: elements of inputs that may be used at import.

    `functions`: those of the model, by domain and name. `versions`: of the operators, by domain.
    """

    def __init__(
        self, path: str, folder: Path | None, weights: Weights, given: Mapping[str, np.ndarray],
        functions: Mapping[tuple[str, str], FunctionProto], versions: Mapping[str, int],
        taken: Iterable[str],
    ):  # fmt: skip
        self.path, self.folder, self.weights, self.given = path, folder, weights, given
        self.functions, self.versions = functions, versions
        self.declared: dict[str, Declaration] = {}
        self.graphs: list[Graph] = []
        self.missing: list[Missing] = []
        self.used_given: set[str] = set()  # inputs whose elements were used at import
        self.names = {"main", *OPS, *taken}  # of graphs
        self.reserved: set[str] = set()  # names that no value has: of tensors and symbols
        self.called: dict[tuple, tuple[str, Any]] = {}  # graphs of functions, by what they take
        self.origins = Origins()
        self._constants: dict[tuple, Var] = {}

    def graph_name(self, title: str) -> str:
        """A name that no other graph has."""
        stem = name = readable(title)
        k = 1
        while name in self.names:
            k += 1
            name = f"{stem}_{k}"
        self.names.add(name)
        return name

    def tensor(self, value: Known) -> Var:
        """A value that is known as a named tensor."""
        if value.tensor is not None and value.name:
            name, source = value.name, value.tensor
            if name not in self.declared:
                name = self._tensor_name(name)
        else:
            if value.key in self._constants:
                return self._constants[value.key]
            name, source = self._tensor_name(value.name or "constant"), value.elements
            self._constants[value.key] = Var(name, value.type)
        if name not in self.declared:
            kind = "param" if value.is_weight else "state"
            self.declared[name] = Declaration(kind, Name(name), value.type, None)
            self.weights.add(name, source)
        return Var(name, value.type)

    def _tensor_name(self, wanted: str) -> str:
        """A name that no value and no other tensor has."""
        stem = name = "".join(c if c.isprintable() and c != "`" else "_" for c in wanted)
        k = 1
        while name in self.declared or name in self.symbols:
            k += 1
            name = f"{stem}_{k}"
        self.reserved.add(name)
        return name

    symbols: set[str] = set()


class Scope:
    """Writes one graph. `around`: the scope of the graph that this one is a part of, whose values
    it reads. `attrs`: of the call, where this is a function's.
    """

    def __init__(
        self, program: Program, around: Scope | None = None,
        attrs: Mapping[str, Any] | None = None, versions: Mapping[str, int] | None = None,
    ):  # fmt: skip
        self.program, self.around = program, around
        self.attrs = attrs if attrs is not None else around.attrs if around else None
        self.versions: Mapping[str, int] = (
            versions or (around.versions if around else None) or program.versions
        )
        self.body = Body(set(program.reserved))
        self.body.constant, self.body.part = self.var, self.part
        self.env: dict[str, Value | None] = {}
        self.captured: dict[str, tuple[Var, Var]] = {}  # by outer name: outer and inner value
        self.wanted: dict[str, str] = {}  # names that results are to have
        self.prefixes: tuple[str, ...] = ()  # what is left out of names
        self._made: dict[tuple, Var] = {}  # constants, by what they are
        self._written_names: set[str] = set()  # theirs

    # --- values ---

    def named(self, name: str) -> str:
        """A name of the file as it is here."""
        for prefix in self.prefixes:
            if prefix and name.startswith(prefix) and name != prefix:
                return readable("/" + name.removeprefix(prefix))
        return readable(name)

    def input(self, name: str, type: TensorType, wanted: str = "") -> Var:
        """A value that the graph is given."""
        var = Var(self.body.fresh(wanted or self.named(name)), type)
        self.env[name] = var
        return var

    def look_up(self, name: str) -> Value | None:
        """The value of that name; None for "". Raises `Broken`."""
        if not name:
            return None
        if name in self.env:
            found = self.env[name]
            if found is None:
                raise Broken
            return None if found is ABSENT else found
        if self.around is None:
            raise InputError(f"{self.program.path}: nothing is called {name}")
        found = self.around.look_up(name)
        is_outside = isinstance(found, Var) and self.body is not self.around.body
        return self.capture(found) if is_outside else found

    def mark(self) -> tuple:
        """Where the graph is, for `reset`."""
        return len(self.body.statements), len(self.program.graphs), dict(self._made)

    def reset(self, mark: tuple) -> None:
        """Drops what was written since."""
        statements, graphs, made = mark
        del self.body.statements[statements:]
        del self.program.graphs[graphs:]
        kept = {g.name.text for g in self.program.graphs}
        called = self.program.called
        for key in [k for k, (name, _) in called.items() if name and name not in kept]:
            del called[key]
        self._made.clear()
        self._made.update(made)

    def values(self) -> Iterable[Var]:
        """The tensors of this graph that have names in the file."""
        return [v for v in self.env.values() if isinstance(v, Var)]

    def share(self, other: Scope) -> None:
        """Writes into the graph of another scope from now on."""
        self.body, self.captured = other.body, other.captured
        self._made, self._written_names = other._made, other._written_names

    def capture(self, outer: Var) -> Var:
        """A value of the graph around this one, as an input of this one; a named tensor is read
        where it is.
        """
        if outer.name in self.program.declared:
            return outer
        if outer.name not in self.captured:
            inner = Var(self.body.fresh(outer.name), outer.type)
            self.captured[outer.name] = outer, inner
        return self.captured[outer.name][1]

    def var(self, value: Value) -> Var:
        """A value as a tensor: what is known is written down."""
        if isinstance(value, Var):
            return value
        if value.is_weight:
            return self.program.tensor(value)
        key = value.key
        if key not in self._made:
            self._made[key] = self._written(value)
            self._written_names.add(self._made[key].name)
        return self._made[key]

    def _written(self, value: Known) -> Var:
        b, stem = self.body, b_prefix(value.name, self.body.prefix)
        before, b.prefix = b.prefix, stem
        try:
            return self._statement(value)
        finally:
            b.prefix = before

    def _statement(self, value: Known) -> Var:
        b, dtype, shape = self.body, value.dtype, value.shape
        elements = value.elements
        if value.is_symbolic:
            parts = [self._size(e, dtype) for e in elements.flat]
            if not shape:
                return parts[0]
            return b.reshaped(b.stack(*parts), shape)
        flat = elements.reshape(-1)
        if not flat.size:
            return b.zeros(shape=list(shape), dtype=dtype)
        first = flat[0]
        if (flat.tobytes() == first.tobytes() * flat.size) if flat.size > 1 else True:
            number = first.item() if dtype.kind in "iub" else float(first)
            if dtype.kind == "b":
                return (b.ones if number else b.zeros)(shape=list(shape), dtype=dtype)
            return b.full(shape=list(shape), value=number, dtype=dtype)
        if len(shape) == 1 and dtype.is_integer and len(flat) > 2:
            step = int(flat[1]) - int(flat[0])
            if (np.diff(flat.astype(np.int64)) == step).all():
                return b.iota(shape=list(shape), start=int(flat[0]), step=step, dtype=dtype)
        return self.program.tensor(value)

    def _size(self, element: Any, dtype: DType) -> Var:
        if isinstance(element, Expr):
            return self.body.extent(of=[element], dtype=dtype)
        return self.body.full(shape=[], value=int(element), dtype=dtype)

    def elements(self, value: Value | None) -> Any:
        """What is known of a value; raises `Untranslatable` where that is nothing."""
        if value is None:
            return None
        if isinstance(value, Known):
            return value.elements
        found = self._given(value)
        if found is None:
            raise Untranslatable(OF_DATA)
        return found

    def _given(self, var: Var) -> np.ndarray | None:
        """The elements of an input that were given at import."""
        scope: Scope | None = self
        while scope is not None and scope.around is not None:
            outer = next((o for o, i in scope.captured.values() if i.name == var.name), None)
            if outer is None:
                return None
            var, scope = outer, scope.around
        assert scope is not None
        name = next((n for n, v in scope.env.items() if v is var), "")
        if name in self.program.given:
            self.program.used_given.add(name)
            return self.program.given[name]
        return None

    # --- nodes ---

    def nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Writes nodes. What cannot be is noted."""
        for place, node in enumerate(nodes):
            try:
                self.node(node)
            except Broken:
                self._check_known(node, place)
            except (Untranslatable, Mismatch) as error:
                self._note(node, place, str(error))

    def blocks(self, nodes: Sequence[NodeProto], blocks: Sequence[Block]) -> None:
        """Writes nodes, and a call for each block of them."""
        place = 0
        for block in blocks:
            self.nodes(nodes[place : block.start])
            if not self._block(block):
                self.nodes(nodes[block.start : block.stop])
            place = block.stop
        self.nodes(nodes[place:])

    def _block(self, block: Block) -> bool:
        """Whether a block could be called."""
        mark, b = self.mark(), self.body
        b.at, b.prefix = None, self.named(block.outputs[0])
        b.outputs = (True,) * len(block.outputs)
        try:
            inputs = [self.look_up(n) for n in block.inputs]
            outputs = self.call(block.function, inputs, self.attrs or {})
        except (Untranslatable, Mismatch, Broken):
            self.reset(mark)
            return False
        self._bind(block.outputs, outputs, mark[0])
        return True

    def _note(self, node: NodeProto, place: int, reason: str) -> None:
        domain = DOMAINS.get(node.domain, node.domain)
        op = f"{domain}.{node.op_type}" if domain else node.op_type
        label = f"node {node.name}" if node.name else f"node {place}"
        self.program.missing.append(Missing(op, reason, label))
        self.env.update(dict.fromkeys(filter(None, node.output)))

    def _check_known(self, node: NodeProto, place: int) -> None:
        """A node that cannot be looked at is noted where there is nothing like it."""
        self.env.update(dict.fromkeys(filter(None, node.output)))
        domain = DOMAINS.get(node.domain, node.domain)
        there_is = (
            rule_for(domain, node.op_type, self.versions.get(domain, 1))
            or (domain, node.op_type) in self.program.functions
            or node.op_type in CONTROL
            or not domain
        )
        if not there_is:
            self._note(node, place, "there is no op for it")

    def node(self, node: NodeProto) -> None:
        """Writes one node. Raises `Untranslatable`, `Mismatch`, `Broken`."""
        b = self.body
        domain = DOMAINS.get(node.domain, node.domain)
        inputs = [self.look_up(n) for n in node.input]
        attrs = attributes.of(node, self.attrs)
        version = self.versions.get(domain, 1)
        b.outputs, b.opset = tuple(bool(n) for n in node.output), version
        b.prefix = self.named(self.wanted.get(node.output[0], node.output[0]) or node.op_type)
        b.at = self.program.origins.of(node)
        begin = len(b.statements)
        results = self._results(node, domain, version, inputs, attrs)
        self._bind(node.output, results, begin)

    def _results(
        self, node: NodeProto, domain: str, version: int, inputs: list[Any], attrs: dict[str, Any]
    ) -> Sequence[Any]:
        key = domain, node.op_type
        if key in self.program.functions:
            return self.call(self.program.functions[key], inputs, attrs)
        if not domain:
            found = self._folded(node, inputs, attrs)
            if found is not None:
                return found
            if node.op_type in CONTROL:
                return CONTROL[node.op_type](self, node, inputs, attrs)
        rule = rule_for(domain, node.op_type, version)
        reason: Exception = Untranslatable("there is no op for it")
        if rule is not None:
            mark = self.mark()
            try:
                return self._by_rule(rule, inputs, attrs)
            except (Untranslatable, Mismatch) as error:
                self.reset(mark)
                reason = error
        defined = definition_of(node, inputs, version, domain)
        if defined is None:
            raise reason
        mark = self.mark()
        try:
            return self.call(defined, inputs, attributes.with_defaults(node, attrs, version))
        except (Untranslatable, Mismatch):
            self.reset(mark)
            raise reason from None

    def _folded(
        self, node: NodeProto, inputs: list[Any], attrs: Mapping[str, Any]
    ) -> Sequence[Any] | None:
        if node.op_type == "Constant":
            value = attributes.constant(attrs)
            return None if value is None else [known(value, name=node.output[0])]
        (first, *_) = inputs or (None,)
        if node.op_type == "Identity" and first is not None:
            return [first]
        if node.op_type == "Shape" and isinstance(first, Var | Known):
            shape = list(first.shape)[attrs.get("start") : attrs.get("end")]
            return [dims(shape)]
        if node.op_type == "Size" and isinstance(first, Var | Known):
            total: Any = 1
            for d in first.shape:
                total = total * d
            return [known(np.array(total, object))]
        if not inputs or not all(v is None or isinstance(v, Known) for v in inputs):
            return None
        found = folded(node.op_type, inputs, {**attrs, PARTS: len(node.output)})
        for name, value in zip(node.output, found or (), strict=False):
            value.name = name
        return found

    def _by_rule(self, rule: Rule, inputs: list[Any], attrs: dict[str, Any]) -> Sequence[Any]:
        if rule.attrs is not None and not attrs.keys() <= rule.attrs:
            listed = ", ".join(sorted(attrs.keys() - rule.attrs))
            raise Untranslatable(f"the attribute {listed} has no counterpart")
        ranks = [v.type.rank for v in inputs if isinstance(v, Var)]
        values: list[Any] = []
        for place, value in enumerate(inputs):
            if value is None:
                values.append(None)
            elif place in rule.known:
                values.append(self.elements(value))
            elif isinstance(value, Known):
                number = value.number() if rule.numbers and not value.is_weight else None
                adapts = number is not None and ranks and value.type.rank <= max(ranks)
                values.append(number if adapts else self.var(value))
            else:
                values.append(value)
        try:
            found = rule.function(self.body, *values, **attrs)
        except TypeError:
            if rule.fits(self.body, *values, **attrs):
                raise
            message = "it has inputs or attributes that this operator has not"
            raise Untranslatable(message) from None
        is_many = isinstance(found, tuple | list) and not isinstance(found, Var)
        return list(found) if is_many else [found]

    def _bind(self, outputs: Sequence[str], results: Sequence[Any], begin: int) -> None:
        """Gives results the names of the file, as far as those are names here."""
        b = self.body
        made = {r.name.text for s in b.statements[begin:] if isinstance(s, Apply) for r in s.results}
        made -= self._written_names
        names: dict[str, str] = {}
        for output, value in zip(outputs, results, strict=False):
            if not output:
                continue
            if value is None:
                raise Untranslatable(f"its result {output} has no counterpart")
            if isinstance(value, Var) and value.name in made and value.name not in names:
                wanted = self.wanted.get(output)
                new = wanted or b.fresh(self.named(output))
                names[value.name] = new
                self.env[output] = Var(new, value.type)
            else:
                self.env[output] = value
        if names:
            b.statements[begin:] = [_renamed(s, names) for s in b.statements[begin:]]
            for output in outputs:
                value = self.env.get(output)
                if isinstance(value, Var) and value.name in names:
                    self.env[output] = Var(names[value.name], value.type)
        for output in outputs[len(results) :]:
            if output:
                self.env[output] = None

    # --- graphs ---

    def finish(self, title: str, results: Sequence[Var], inputs: Sequence[Var]) -> Graph:
        """The graph, whose statements are all there."""
        found = Graph(
            Name(title),
            tuple(Binding(Name(v.name), v.type) for v in inputs),
            tuple(v.type for v in results),
            (*self.body.statements, *((Return(tuple(Name(v.name) for v in results)),) if results else ())),
        )  # fmt: skip
        self.program.graphs.append(found)
        return found

    def part(
        self, title: str, inputs: Sequence[tuple[str, TensorType]],
        write: Callable[..., Sequence[Var]],
    ) -> Part:  # fmt: skip
        """A graph that no part of the model is: ``write(body, *inputs)`` writes it, and gives its
        results.
        """
        inner = Scope(self.program)
        given = [inner.input(name, type) for name, type in inputs]
        results = list(write(inner.body, *given))
        used = {t for s in inner.body.statements for t in symbols_of(s)}
        if not used <= bound_symbols(given):
            raise Untranslatable("a size that no operand has alone")
        key = title, tuple(given), tuple(inner.body.statements), tuple(results)
        if key not in self.program.called:
            name = self.program.graph_name(title)
            inner.finish(name, results, given)
            self.program.called[key] = name, ()
        return Part(self.program.called[key][0], [v.type for v in results])

    def call(
        self, function: FunctionProto | Outlined, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Calls a function, whose graph is written when it is first met with such inputs."""
        values = [*inputs, *[None] * (len(function.input) - len(inputs))]
        program, key = self.program, _call_key(function, values, attrs)
        if key not in program.called:
            place = len(program.graphs)
            program.called[key] = "", ()
            program.called[key] = self._function(function, values, attrs, place)
        name, outputs = program.called[key]
        if not name:
            return self.inlined(function, values, attrs)
        operands = [v for v in values if isinstance(v, Var) or (v is not None and v.is_weight)]
        types = [v.type for v in outputs if isinstance(v, Var)]
        made = iter(self.body.called(name, [self.var(v) for v in operands], types))
        return [next(made) if isinstance(v, Var) else v for v in outputs]

    def _function(
        self, function: FunctionProto | Outlined, inputs: Sequence[Any], attrs: Mapping[str, Any], place: int
    ) -> tuple[str, list[Value]]:
        """The graph of a function for such inputs and its results, "" where it can be none: where
        sizes are no size of an input, or only tell of constants.
        """
        program = self.program
        missing = len(program.missing), len(program.graphs)
        inner = Scope(program, None, _complete(function, attrs), self._versions(function))
        inner.prefixes = getattr(function, "prefixes", ())
        given = []
        for name, value in zip(function.input, inputs, strict=True):
            if isinstance(value, Var) or (value is not None and value.is_weight):
                given.append(inner.input(name, value.type))
            else:
                inner.env[name] = ABSENT if value is None else value
        inner.nodes(function.node)
        if len(program.missing) > missing[0]:
            reason = program.missing[missing[0]]
            del program.missing[missing[0] :]
            raise Untranslatable(f"{reason.op} in it: {reason.reason}")
        outputs = [inner.look_up(n) if n in inner.env else None for n in function.output]
        results = [v for v in outputs if isinstance(v, Var)]
        used = {t for s in inner.body.statements for t in symbols_of(s)}
        if not results or len(inner.body.statements) < 2 or not used <= bound_symbols(given):
            del program.graphs[missing[1] :]
            return "", []
        name = program.graph_name(function.name)
        inner.finish(name, results, given)
        return name, outputs  # pyright: ignore[reportReturnType]

    def _versions(self, function: FunctionProto | Outlined) -> dict[str, int]:
        """Of the operators in a function; what it does not say is as here."""
        own = {DOMAINS.get(o.domain, o.domain): o.version for o in function.opset_import}
        return {**self.versions, **own}

    def inlined(
        self, function: FunctionProto | Outlined, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> list[Value]:
        """The nodes of a function, in place of a call."""
        versions = self._versions(function)
        inner = Scope(self.program, None, _complete(function, attrs), versions)
        inner.share(self)
        for name, value in zip(function.input, inputs, strict=True):
            inner.env[name] = ABSENT if value is None else value
        outputs, at, prefix = self.body.outputs, self.body.at, self.body.prefix
        before = len(self.program.missing)
        inner.nodes(function.node)
        self.body.outputs, self.body.at, self.body.prefix = outputs, at, prefix
        if len(self.program.missing) > before:
            reason = self.program.missing[before]
            del self.program.missing[before:]
            raise Untranslatable(f"{reason.op} in it: {reason.reason}")
        found = [inner.look_up(n) if n in inner.env else None for n in function.output]
        return found  # pyright: ignore[reportReturnType]


class _Absent(Known):
    """An input of a function that its call leaves out."""


ABSENT = _Absent(TensorType(DTYPES["bool"], (0,)), "", np.zeros(0, bool))


def b_prefix(name: str, other: str) -> str:
    return readable(name) if name else other


def _call_key(function: Any, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple:
    def one(value: Any) -> Any:
        if value is None:
            return None
        return value.type if isinstance(value, Var) or value.is_weight else value.key

    listed = tuple(sorted((k, repr(v)) for k, v in attrs.items()))
    # functions of the library are made anew for each node
    own: Any = function
    if not isinstance(function, Outlined):
        own = function.domain, function.name, function.SerializeToString(deterministic=True)
    return own, tuple(map(one, inputs)), listed


def _complete(function: FunctionProto | Outlined, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call, with what the function has for those that are left out."""
    found = {a.name: attributes.value(a, None) for a in function.attribute_proto}
    return {**found, **attrs}


def _renamed(statement: Apply | Assert, names: Mapping[str, str]) -> Apply | Assert:
    def name(n: Any) -> Any:
        return Name(names[n.text]) if isinstance(n, Name) and n.text in names else n

    if isinstance(statement, Assert):
        return replace(statement, condition=name(statement.condition))
    results = tuple([Binding(name(r.name), r.type) for r in statement.results])
    return replace(statement, results=results, operands=tuple(map(name, statement.operands)))


def symbols_of(statement: Any) -> set[str]:
    """Symbols that attributes name."""
    found: set[str] = set()
    for attr in getattr(statement, "attrs", ()):
        for v in attr.value if isinstance(attr.value, tuple) else (attr.value,):
            if isinstance(v, Expr):
                found |= v.symbols()
            elif isinstance(v, Ref) and v.name not in DTYPES and attr.name.text not in _GRAPHS:
                found.add(v.name)
    return found


_GRAPHS = {"then", "else", "test", "body", "cases"}


def bound_symbols(inputs: Sequence[Var]) -> set[str]:
    """Symbols that are the size of an input; none where an input has one that is not."""
    sizes = [d for v in inputs for d in v.shape if isinstance(d, Expr)]
    bound = {s for d in sizes if (s := d.lone_symbol())}
    return bound if all(d.symbols() <= bound for d in sizes) else set()
