"""From a graph to a flat list of steps: calls inlined, symbols bound, values in buffers.

Most of it happens in `_Lowering.apply`, once for each statement of each call: that is a hot path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from opstep.runtime.ir.calls import bind_symbols, mismatch_span, substitute, types_of, unify
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.control import Control
from opstep.runtime.ir.diagnostics import Note, OpstepError
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.effects import called_graphs, effects_of
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Literal,
    Module,
    Name,
    Return,
    Statement,
    Update,
)
from opstep.runtime.ir.op import Mismatch, Op, Resolved, resolve
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application, Verified, VerifiedGraph
from opstep.runtime.ir.verify import verify
from opstep.runtime.plan.cost import CALL_NS, estimate
from opstep.runtime.plan.flat import Flat, Versions, gather_commits, nbytes
from opstep.runtime.plan.internal import Asserts, assert_, update
from opstep.runtime.plan.plan import Step
from opstep.runtime.transforms.composite import Composite, definition


class Rule(NamedTuple):
    """An op on concrete types: what all steps of one `Application` and one binding share."""

    op: type[Op]
    operands: tuple[TensorType | None, ...]  # after promotion
    results: tuple[tuple[TensorType, int], ...]  # with their bytes
    attrs: dict[str, Any]
    cost: int
    absent: int  # optional operands that are not given
    is_shared: bool  # with other ranks
    kind: str  # "kernel", "view" (a reinterpretation) or "control"


def lower(
    verified: Verified | Module,
    graph: str,
    input_types: Sequence[TensorType],
    library: Sequence[Module] = (),
    asserts: Asserts | None = None,
    enters: Enters | None = None,
) -> Flat:
    """The steps of a graph for inputs of these concrete types.

    A `Module` is verified first, and may call graphs of the modules of `library`. `asserts` gives
    the asserts their codes; plans that run together must share one. `enters` says which composites
    become calls of their graphs, by default those without a kernel. Raises `OpstepError` where a
    size does not fit, with the calls that led there.
    """
    if isinstance(verified, Module):
        verified = verify(verified, library=library)
    with collector_paused():
        return _Lowering(verified, asserts or Asserts(), enters).lower(graph, input_types)


# Whether a composite becomes a call, of operands of these types, with these attributes.
Enters = Callable[[type[Composite], tuple[TensorType | None, ...], dict[str, Any]], bool]


class _Activation:
    """A graph being lowered: where it stands, and what its names and symbols mean.

    `rules` are those of its ops under its symbols, by the id of their `Application`.
    """

    __slots__ = (
        "call",
        "frame",
        "graph",
        "rest",
        "returned",
        "rules",
        "scope",
        "symbols",
        "updates",
    )

    def __init__(self, graph: VerifiedGraph, frame: int, call: Apply | None, scope, symbols, rules):
        self.graph = graph
        self.frame = frame
        self.call = call
        self.rest = zip(graph.graph.body, graph.applications, strict=True)
        self.scope: dict[str, int] = scope
        self.symbols: dict[str, int] = symbols
        self.rules: dict[int, Rule] = rules
        self.updates: list[tuple[Update, int]] = []  # with the value, as of the line it stands in
        self.returned: tuple[int, ...] = ()


class _Lowering:
    def __init__(self, verified: Verified, asserts: Asserts, enters: Enters | None):
        self.verified = verified
        self.asserts = asserts
        self.enters = enters or _has_no_kernel
        self.flat = Flat("")
        self.versions = Versions(self.flat, verified.tensors)
        self.consts: dict[tuple, int] = {}
        self.rules: dict[tuple, dict[int, Rule]] = {}  # binding of symbols -> see _Activation
        self.stack: list[_Activation] = []
        self.definitions: list[Verified] = []

    def lower(self, graph: str, input_types: Sequence[TensorType]) -> Flat:
        if graph not in self.verified.graphs:
            raise OpstepError(f"there is no graph {graph}")
        flat, root = self.flat, self.verified.graphs[graph]
        flat.graph = graph
        symbols = bind_symbols(root.graph, input_types, root.source)
        values = []
        for binding, t in zip(root.graph.inputs, input_types, strict=True):
            buffer = flat.add_buffer("input", nbytes(t))
            values.append(flat.add_value(binding.name.text, t, buffer, 0))
        flat.inputs = values
        self._activate(root, None, symbols, values)
        while self.stack:
            self._advance(self.stack[-1])
        self.versions.insert_copies()
        return gather_commits(flat)

    def _activate(
        self, graph: VerifiedGraph, call: Apply | None, symbols, inputs, step: Step | None = None
    ) -> None:
        """Opens a frame for a graph whose inputs are these values: of a call, or of a composite."""
        parent = self.stack[-1].frame if self.stack else -1
        types = types_of(graph.graph, symbols)
        frame = self.flat.open_frame(parent, graph.graph, call, types, graph.source, step)
        scope = self.flat.scopes[frame]
        for binding, value in zip(graph.graph.inputs, inputs, strict=True):
            scope[binding.name.text] = value
        rules = self.rules.setdefault(tuple(sorted(symbols.items())), {})
        self.stack.append(_Activation(graph, frame, call, scope, symbols, rules))

    def _advance(self, at: _Activation) -> None:
        """Lowers statements up to the next call of a graph, or to the end."""
        for statement, application in at.rest:
            try:
                if application is not None:
                    assert isinstance(statement, Apply)
                    if application.graph is not None:
                        self._enter(at, statement, application.graph.name.text)
                        return
                    op = application.op
                    if op is not None and issubclass(op, Composite):
                        rule = self._rule(at, statement, application)
                        if self.enters(op, rule.operands, rule.attrs):
                            self._enter_composite(at, statement, op, rule)
                            return
                    self._apply(at, statement, application)
                elif isinstance(statement, Update):
                    at.updates.append((statement, self._update_value(at, statement)))
                elif isinstance(statement, Return):
                    at.returned = tuple([self._read(at, name) for name in statement.values])
                elif isinstance(statement, Assert):
                    self._assert(at, statement)
            except Mismatch as error:
                raise self._error(error, at, statement) from None
        for statement, value in at.updates:
            self._update(at, statement, value)
        self.stack.pop()
        if at.call is None:
            self.flat.outputs = [self.versions.fresh(v) for v in at.returned]
            return
        caller, flat = self.stack[-1], self.flat
        step = flat.frames[at.frame].step
        for binding, value in zip(at.call.results, at.returned, strict=True):
            caller.scope[binding.name.text] = value
            if step is not None and flat.frame_of[value] == at.frame:
                # the result of an op, whoever looks at it
                flat.names[value], flat.frame_of[value] = binding.name.text, caller.frame
        if step is not None:
            step.results = at.returned

    # --- statements ---

    def _apply(self, at: _Activation, call: Apply, application: Application) -> None:
        flat, scope, stale = self.flat, at.scope, self.versions.stale
        rule = self._rule(at, call, application)
        operands: list[int | None] = []
        for o in call.operands:
            if isinstance(o, Name):
                value = scope.get(o.text)
                if value is None:
                    value = self.versions.current(o.text)
                operands.append(self.versions.fresh(value) if value in stale else value)
            else:
                operands.append(self._const(o.value, rule.operands[len(operands)]))
        if rule.absent:
            operands.extend(repeat(None, rule.absent))
        if rule.kind == "control":
            self._control(at, call, rule, operands)
            return
        frame, homes, kinds, sizes = at.frame, flat.homes, flat.kinds, flat.sizes
        results = []
        for binding, (t, size) in zip(call.results, rule.results, strict=True):
            name = binding.name.text
            value = len(homes)
            if rule.kind == "kernel":
                homes.append(len(kinds))
                kinds.append("temp")
                sizes.append(size)
            else:
                homes.append(self.versions.aliased(value, operands[0]))
            flat.names.append(name)
            flat.types.append(t)
            flat.frame_of.append(frame)
            scope[name] = value
            results.append(value)
        step = Step(
            rule.op, tuple(operands), tuple(results), rule.operands, rule.attrs, frame, call
        )
        if rule.is_shared:  # the status puts them in one order, the same on all ranks
            step.touched, step.changed = (self.versions.status(),), (self.versions.next(""),)
        flat.steps.append(step)
        flat.costs.append(rule.cost)

    def _rule(self, at: _Activation, call: Apply, application: Application) -> Rule:
        rule = at.rules.get(id(application))
        if rule is None:
            rule = at.rules[id(application)] = self._new_rule(at, call, application)
        return rule

    def _new_rule(self, at: _Activation, call: Apply, application: Application) -> Rule:
        types = [self._type_of(at, o) for o in call.operands]
        rule = _rule_of(application, types, at.symbols, self.verified)
        # a rule may see more in numbers than in symbols: 0:3 of N elements are two where N is 2
        for declared, (t, _) in zip(application.resolved.results, rule.results, strict=True):
            promised = substitute(declared, at.symbols)
            if t != promised:
                raise _broken_promise(rule.op.name, declared, t, promised, at.symbols)
        return rule

    def _type_of(self, at: _Activation, operand: Name | Literal) -> TensorType | int | float:
        if isinstance(operand, Literal):
            return operand.value
        return self.flat.types[self._read(at, operand)]

    def _enter(self, at: _Activation, call: Apply, callee: str) -> None:
        """Begins a call of a graph, whose inputs are the operands' values."""
        graph = self.verified.graphs[callee]
        symbols, bound = unify(graph.graph, [self._type_of(at, o) for o in call.operands])
        self._activate(graph, call, symbols, self._arguments(at, call, bound))

    def _arguments(
        self, at: _Activation, call: Apply, types: Sequence[TensorType | None]
    ) -> list[int]:
        """The values of a call's operands; `types` are those of literals."""
        return [
            self._const(o.value, t) if isinstance(o, Literal) else self._read(at, o)
            for o, t in zip(call.operands, types, strict=False)
        ]

    def _enter_composite(
        self, at: _Activation, call: Apply, op: type[Composite], rule: Rule
    ) -> None:
        """Begins a call of the graph that an op is."""
        values = self._arguments(at, call, rule.operands)
        verified = definition(op, [self.flat.types[v] for v in values], rule.attrs)
        operands = (*values, *[None] * rule.absent)
        step = Step(op, operands, (), rule.operands, rule.attrs, at.frame, call)
        self.definitions.append(verified)  # rules go by the ids of what is in it
        self._activate(verified.graphs[op.name], call, {}, values, step)

    def _control(self, at: _Activation, call: Apply, rule: Rule, operands: list) -> None:
        """A step of control flow: the interpreter calls the plans of its graphs."""
        flat, versions = self.flat, self.versions
        graphs = called_graphs(rule.attrs)
        effects = effects_of(graphs, self.verified)
        for k, value in enumerate(operands):
            if value is not None and flat.labels.get(flat.homes[value]) in effects.updates:
                # an input of the called graph must not change while that updates the tensor
                operands[k] = versions.copy_now(value, at.frame, call)
        touched = [versions.current(name) for name in effects.touches]
        shared = effects.asserts or effects.collectives
        touched += [versions.status()] if effects.updates or shared else []
        results = []
        for binding, (t, size) in zip(call.results, rule.results, strict=True):
            value = flat.add_value(binding.name.text, t, flat.add_buffer("temp", size), at.frame)
            at.scope[binding.name.text] = value
            results.append(value)
        changed = [versions.next(name) for name in effects.updates]
        changed += [versions.next("")] if shared else []
        step = Step(
            rule.op, tuple(operands), tuple(results), rule.operands, rule.attrs, at.frame, call
        )
        step.graphs, step.touched, step.changed = graphs, tuple(touched), tuple(changed)
        flat.steps.append(step)
        flat.costs.append(CALL_NS * len(graphs))

    def _assert(self, at: _Activation, statement: Assert) -> None:
        condition = self.versions.fresh(self._read(at, statement.condition))
        status = self.versions.status()
        code = self.asserts.code(statement, at.graph.graph.name.text, at.graph.source)
        attrs = {"code": code, "message": statement.message}
        self._internal(assert_, (condition, status), self.versions.next(""), attrs, at, statement)

    def _update_value(self, at: _Activation, statement: Update) -> int:
        if isinstance(statement.value, Literal):
            target = self.versions.current(statement.target.text)
            return self._const(statement.value.value, self.flat.types[target])
        return self._read(at, statement.value)

    def _update(self, at: _Activation, statement: Update, value: int) -> None:
        operands = (self.versions.fresh(value), self.versions.status())
        result = self.versions.next(statement.target.text)
        self._internal(update, operands, result, {}, at, statement)

    def _internal(
        self, op: type[Op], operands, result: int, attrs, at: _Activation, statement: Statement
    ) -> None:
        types = tuple(self.flat.types[v] for v in operands)
        self.flat.steps.append(Step(op, operands, (result,), types, attrs, at.frame, statement))
        self.flat.costs.append(estimate(op, types, (self.flat.types[result],), attrs))

    # --- values ---

    def _read(self, at: _Activation, name: Name) -> int:
        """The value that a name means here; its bytes may have been overwritten since."""
        value = at.scope.get(name.text)
        return self.versions.current(name.text) if value is None else value

    def _const(self, number: int | float, t: TensorType | None) -> int:
        """A const of this type; the same for the same number."""
        assert t is not None
        text = repr(number)  # tells 0.0 from -0.0, and nan is nan
        value = self.consts.get((t.dtype, text))
        if value is None:
            buffer = self.flat.add_buffer("const", t.dtype.itemsize)
            self.flat.literals[buffer] = number
            value = self.flat.add_value(text, TensorType(t.dtype, ()), buffer, 0)
            self.consts[t.dtype, text] = value
        return value

    def _error(self, error: Mismatch, at: _Activation, statement: Statement) -> OpstepError:
        """The message at the operand or attribute to blame, with the calls that led there."""
        span = mismatch_span(statement, error) if isinstance(statement, Apply) else statement.span
        notes = tuple(
            Note("called here", a.call.callee.span, caller.graph.source)
            for caller, a in zip(self.stack, self.stack[1:], strict=False)
            if a.call is not None
        )
        return OpstepError(
            error.message, span=span, source=at.graph.source, hint=error.hint, notes=notes[::-1]
        )


def _rule_of(
    application: Application,
    types: Sequence[TensorType | int | float],
    symbols: Mapping[str, int],
    verified: Verified,
) -> Rule:
    """The rule of an op for operands of these types (literals as numbers). Raises `Mismatch`."""
    op = application.op
    assert op is not None
    attrs = {name: _concrete(value, symbols) for name, value in application.attrs.items()}
    try:
        if issubclass(op, Control):
            resolved = op.resolve_call(types, attrs, lambda name: verified.graphs[name].graph)
        elif op.traits.foreign:
            results = (substitute(t, symbols) for t in application.resolved.results)
            resolved = Resolved(tuple(types), tuple(results))  # pyright: ignore[reportArgumentType]
        else:
            resolved = resolve(op, types, attrs)
    except ZeroDivisionError:
        raise Mismatch("a dim of the result is divided by zero") from None
    return Rule(
        op,
        resolved.operands,
        tuple((t, nbytes(t)) for t in resolved.results),
        attrs,
        estimate(op, resolved.operands, resolved.results, attrs),
        len(resolved.operands) - len(types),
        op.is_shared(attrs),
        "control" if op.traits.host else "view" if op.traits.reinterprets else "kernel",
    )


def _concrete(value, symbols: Mapping[str, int]):
    """An attribute's value with its symbols replaced by numbers."""
    if type(value) is tuple:
        return tuple(_concrete(v, symbols) for v in value)
    if isinstance(value, DType):
        return value.bound(symbols)
    if not isinstance(value, Expr):
        return value
    try:
        result = evaluate(value, dict(symbols))
    except ZeroDivisionError:
        raise Mismatch(f"{value} divides by zero", hint=_sizes(value, symbols)) from None
    if isinstance(result, Expr):
        raise Mismatch(f"the size {min(result.symbols())} is not known: no input has it as a dim")
    return result


def _sizes(dim: Expr, symbols: Mapping[str, int]) -> str:
    return ", ".join(f"{s} is {symbols[s]}" for s in sorted(dim.symbols()) if s in symbols)


def _has_no_kernel(op: type[Composite], types: tuple, attrs: dict) -> bool:
    return not op.has_kernel(False, types, attrs)


def _broken_promise(
    op: str,
    declared: TensorType,
    found: TensorType,
    promised: TensorType,
    symbols: dict[str, int],
) -> Mismatch:
    """Of an op whose result has another size than all sizes were thought to have."""
    dims: Any = zip(map(str, declared.shape), found.shape, promised.shape, strict=False)
    most = [f"{d} may be at most {n}" for d, n, p in dims if d in symbols and n < p]
    named = [s for s in symbols if re.search(rf"\b{re.escape(s)}\b", str(declared))]
    sizes = ", ".join(f"{s} = {symbols[s]}" for s in named or symbols)
    return Mismatch(
        f"{op} gives {found}{sizes and f' where {sizes}'}, not {promised}",
        hint=", ".join(most) or f"for any sizes its result was taken to be {declared}",
    )
