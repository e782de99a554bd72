"""From a graph of nodes to graphs of ours.

A `Scope` writes one graph: its values are those of the file, under the names that they have there,
as far as those are names here. What is known at import, sizes mostly, is no statement until one
needs it as a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from opstep.frontends.onnx import attributes, restoring
from opstep.frontends.onnx.body import Part
from opstep.frontends.onnx.definitions import check_types, definition_of, has_definition
from opstep.frontends.onnx.errors import Missing, Untranslatable, refusal
from opstep.frontends.onnx.export_nodes import GRAPH_DOMAIN
from opstep.frontends.onnx.folding import PARTS, folded
from opstep.frontends.onnx.origins import names_of
from opstep.frontends.onnx.repeats import Block, Outlined
from opstep.frontends.onnx.rules.registry import Rule, rule_for
from opstep.frontends.onnx.scope import ABSENT, Broken, Values
from opstep.frontends.onnx.shared import DOMAINS
from opstep.frontends.onnx.values import Known, Value, dims, known, same_of
from opstep.frontends.statements import bound_symbols, renamed, symbols_of
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Binding, Graph, Name, Return
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

Control = Callable[["Scope", Any, list[Any], Mapping[str, Any]], Sequence[Value]]
CONTROL: dict[str, Control] = {}  # by operator; `control` fills it
FOLDED = ("Constant", "Shape", "Size")  # they become no op, whatever they are of

# What rules run into where inputs are missing, or attributes have other lengths or sizes than is
# allowed: models come from anywhere.
MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, ValueError)
MOST_NODES = 2_000_000  # of a model with all that is written out


def _misfit(error: Exception) -> Untranslatable:
    """Of a node whose inputs or attributes do not go together."""
    return Untranslatable(f"its inputs and attributes do not fit ({str(error) or 'no value'})")


class Scope(Values):
    """Writes one graph."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.body.part = self.part

    def nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Writes nodes. What cannot be is noted."""
        for node in nodes:
            try:
                self.node(node)
            except Broken:
                self._check_known(node)
            except (Untranslatable, Mismatch) as error:
                self._note(node, str(error))

    def part_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Writes the nodes of a function, or of a part that control flow calls. Raises
        `Untranslatable` where one cannot be.
        """
        missing = self.program.missing
        before = len(missing)
        self.nodes(nodes)
        if len(missing) > before:
            first = missing[before]
            del missing[before:]
            raise Untranslatable(f"{first.op} in it: {first.reason}")

    def blocks(self, nodes: Sequence[NodeProto], blocks: Sequence[Block]) -> None:
        """Writes nodes, and a call for each block of them."""
        self._open(blocks)
        place = 0
        for block in blocks:
            self.nodes(nodes[place : block.start])
            if not self._block(block):
                self.nodes(nodes[block.start : block.stop])
            place = block.stop
        self.nodes(nodes[place:])

    def _open(self, blocks: Sequence[Block]) -> None:
        """Scales and quantised weights in which blocks differ are tensors: blocks are one graph."""
        groups: dict[Outlined, list[Block]] = {}
        for block in blocks:
            groups.setdefault(block.function, []).append(block)
        for members in groups.values():
            for names in zip(*(b.inputs for b in members), strict=True):
                values = [self.env.get(n) for n in names]
                alike = [v for v in values if isinstance(v, Known) and v.is_of_a_layer]
                if len(alike) == len(values) and len({v.key for v in alike}) > 1:
                    for value in alike:
                        value.is_weight = True
                        self.var(value)

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

    def _note(self, node: NodeProto, reason: str) -> None:
        domain = DOMAINS.get(node.domain, node.domain)
        op = f"{domain}.{node.op_type}" if domain else node.op_type
        made = next(filter(None, node.output), node.op_type)
        label = f"node {node.name}" if node.name else f"the node that makes {made}"
        self.program.missing.append(Missing(op, reason, label))
        self.env.update(dict.fromkeys(filter(None, node.output)))

    def _check_known(self, node: NodeProto) -> None:
        """A node that cannot be looked at is noted where there is nothing like it."""
        self.env.update(dict.fromkeys(filter(None, node.output)))
        domain = DOMAINS.get(node.domain, node.domain)
        there_is = (
            rule_for(domain, node.op_type, self.versions.get(domain, 1))
            or (domain, node.op_type) in self.program.functions
            or (not domain and node.op_type in (*CONTROL, *FOLDED))
            or has_definition(node.op_type, domain)
        )
        if not there_is:
            self._note(node, refusal(node.op_type))

    def node(self, node: NodeProto) -> None:
        """Writes one node. Raises `Untranslatable`, `Mismatch`, `Broken`."""
        b = self.body
        self.program.written += 1
        if self.program.written > MOST_NODES:
            raise InputError(f"{self.program.path} has more than {MOST_NODES} nodes, written out")
        domain = DOMAINS.get(node.domain, node.domain)
        inputs = [self.look_up(n) for n in node.input]
        attrs = attributes.of(node, self.attrs)
        version = self.versions.get(domain, 1)
        b.outputs, b.opset = tuple(bool(n) for n in node.output), version
        self.numbered |= names_of(node)
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
            function = self.program.functions[key]
            found = None
            if domain == restoring.DOMAIN:
                found = restoring.restored(self.body, node, function, inputs, self.var)
            return self.call(function, inputs, attrs) if found is None else found
        if not domain:
            found = restoring.restored_node(self.body, node, inputs, self.var)
            if found is not None:
                return found
            found = self._folded(node, inputs, attrs)
            if found is not None:
                return found
            if node.op_type in CONTROL:
                return CONTROL[node.op_type](self, node, inputs, attrs)
        rule = rule_for(domain, node.op_type, version)
        reason: Exception = Untranslatable(refusal(node.op_type))
        if rule is not None:
            mark = self.mark()
            try:
                found = self._by_rule(rule, inputs, attrs)
                check_types(node.op_type, inputs, found, version, domain)
                return found
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
            elif place in rule.same and (same := same_of(value)) is not None:
                values.append(same)
            elif isinstance(value, Known):
                number = value.number() if rule.numbers and not value.is_weight else None
                adapts = number is not None and ranks and value.type.rank <= max(ranks)
                values.append(number if adapts else self.var(value))
            else:
                values.append(value)
        try:
            found = rule.function(self.body, *values, **attrs)
        except TypeError as error:
            if rule.fits(self.body, *values, **attrs):
                raise _misfit(error) from None
            message = "it has inputs or attributes that this operator has not"
            raise Untranslatable(message) from None
        except MISFITS as error:
            raise _misfit(error) from None
        is_many = isinstance(found, tuple | list) and not isinstance(found, Var)
        return list(found) if is_many else [found]

    def _bind(self, outputs: Sequence[str], results: Sequence[Any], begin: int) -> None:
        """Gives results the names of the file, as far as those are names here."""
        b = self.body
        written = b.statements[begin:]
        made = {r.name.text for s in written if isinstance(s, Apply) for r in s.results}
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
            b.statements[begin:] = [renamed(s, names) for s in written]
            for output in outputs if len(outputs) > 1 else ():
                value = self.env.get(output)
                if isinstance(value, Var) and value.name in names:
                    self.env[output] = Var(names[value.name], value.type)
        for output in outputs[len(results) :]:
            if output:
                self.env[output] = None

    # --- graphs ---

    def finish(
        self, title: str, results: Sequence[Var], inputs: Sequence[Var], above: str = ""
    ) -> Graph:  # fmt: skip
        """The graph, whose statements are all there, with a comment above it."""
        returned = (Return(tuple(Name(v.name) for v in results)),) if results else ()
        found = Graph(
            Name(title),
            tuple(Binding(Name(v.name), v.type) for v in inputs),
            tuple(v.type for v in results),
            (*self.body.statements, *returned),
            restoring.comments_of(above),
        )
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
        return Part(inner.shared(title, results, given), results)

    def call(
        self, function: FunctionProto | Outlined, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> list[Value]:
        """Calls a function, whose graph is written when it is first met with such inputs."""
        values = [*inputs, *[None] * (len(function.input) - len(inputs))]
        program, key = self.program, _call_key(function, values, attrs)
        who = function.domain, function.name
        if len(values) > len(function.input):
            raise Untranslatable(f"{function.name} takes {len(function.input)} inputs")
        if who in program.calling and isinstance(function, onnx.FunctionProto):
            raise Untranslatable(f"{function.name} calls itself")
        program.calling.append(who)
        try:
            if key not in program.called:
                program.called[key] = "", ()
                program.called[key] = self._function(function, values, attrs)
            name, outputs = program.called[key]
            if not name:
                return self.inlined(function, values, attrs)
        finally:
            program.calling.pop()
        operands = [v for v in values if isinstance(v, Var) or (v is not None and v.is_weight)]
        types = [v.type for v in outputs if isinstance(v, Var)]
        made = iter(self.body.call(name, [self.var(v) for v in operands], types))
        return [next(made) if isinstance(v, Var) else v for v in outputs]

    def _function(
        self, function: FunctionProto | Outlined, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> tuple[str, list[Value]]:
        """The graph of a function for such inputs and its results, "" where it can be none: where
        sizes are no size of an input, or only tell of constants.
        """
        program = self.program
        mark = self.mark()
        inner = Scope(program, None, _complete(function, attrs), self._versions(function))
        if isinstance(function, Outlined):
            inner.prefixes, inner.labels = function.prefixes, function.labels
        given = []
        for name, value in zip(function.input, inputs, strict=True):
            if isinstance(value, Var) or (value is not None and value.is_weight):
                given.append(inner.input(name, value.type))
            else:
                inner.env[name] = ABSENT if value is None else value
        inner.part_nodes(function.node)
        outputs = [inner.look_up(n) if n in inner.env else None for n in function.output]
        results = [v for v in outputs if isinstance(v, Var)]
        used = {t for s in inner.body.statements for t in symbols_of(s)}
        used |= {t for v in given for d in v.shape if isinstance(d, Expr) for t in d.symbols()}
        if not results or len(inner.body.statements) < 2 or not used <= bound_symbols(given):
            self.reset(mark)
            return "", []
        said = getattr(function, "doc_string", "") if function.domain == GRAPH_DOMAIN else ""
        name = inner.shared(function.name, results, given, said)
        return name, outputs  # pyright: ignore[reportReturnType]

    def shared(
        self, title: str, results: Sequence[Var], inputs: Sequence[Var], above: str = ""
    ) -> str:  # fmt: skip
        """The name of the graph, or of one that does the same, if there is one already."""
        key = title, tuple(inputs), tuple(self.body.statements), tuple(results)
        called = self.program.called
        if key not in called:
            name = self.program.graph_name(title)
            self.finish(name, results, inputs, above)
            called[key] = name, ()
        return called[key][0]

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
        inner.part_nodes(function.node)
        self.body.outputs, self.body.at, self.body.prefix = outputs, at, prefix
        found: list[Any] = [inner.look_up(n) if n in inner.env else None for n in function.output]
        return found  # pyright: ignore[reportReturnType]


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
