"""From a jaxpr to graphs of ours.

A `Scope` writes one graph: its equations in order, each by a rule, or as a call of a graph for what
it calls. JAX's values have no names; ours are called after the Python variables that the last
equation of a line is assigned to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from opstep.frontends.assignments import Assignment, assignment
from opstep.frontends.constants import number, written_constant
from opstep.frontends.jax.body import Body
from opstep.frontends.jax.derivatives import derivatives
from opstep.frontends.jax.errors import FAMILIES, PRINTS, Untranslatable, refusal
from opstep.frontends.jax.folding import folded
from opstep.frontends.jax.idioms import simplified
from opstep.frontends.jax.origins import Function, Origins, is_of_rule, rules_of
from opstep.frontends.jax.rules.pointwise import widened
from opstep.frontends.jax.rules.registry import IGNORED, RULES, Rule
from opstep.frontends.jax.shared import Shared
from opstep.frontends.jax.types import UNSIGNED, type_of
from opstep.frontends.jax.values import Entry, Known, Spread, Value, constant
from opstep.frontends.missing import Missing
from opstep.frontends.statements import renamed, unique
from opstep.runtime.ir.graph import Apply, Binding, Graph, Name, Provenance, Return, names_read
from opstep.runtime.ir.op import OPS, Mismatch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var

Called = Callable[["Scope", Any, list[Value]], Sequence[Value | None]]
CALLED: dict[str, Called] = {}  # by primitive; `calls` and `control` fill it
MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Broken(Exception):
    """An operand is the result of an equation that could not be translated."""


class Scope:
    """Writes one graph. `function`: what its equations were traced from; `site`: where it is first
    called.
    """

    def __init__(self, shared: Shared, function: Function, site: Provenance | None = None):
        self.shared, self.function, self.site = shared, function, site
        self.is_named = True  # whether values are called after variables
        self.origins = Origins(function)
        self.is_backward = False  # all of it is a derivative, but for what rules write
        self.rules = 0  # that called it
        self.is_derivative = False  # the equation at hand is one
        self.rules_at_hand = 0  # that it is of
        self.body = Body(set(), shared.reserved, shared.seen)
        self.body.part = self.part
        self.env: dict[Any, Entry] = {}
        self._made: dict[tuple, Var] = {}  # constants, by what they are
        self._constants: set[str] = set()  # their names

    def share_body(self, other: Scope) -> None:
        """Writes into the graph of another scope from now on."""
        self.body = other.body
        self._made, self._constants = other._made, other._constants
        self.is_named = False

    def call_from(self, outer: Scope) -> None:
        """The equation at hand of another scope calls this one's function."""
        self.is_backward, self.rules = outer.is_derivative, outer.rules_at_hand

    # --- values ---

    def input(self, name: str, type: TensorType) -> Var:
        var = Var(self.body.fresh(name), type)
        self.body.known_types[var.name] = var
        return var

    def look_up(self, atom: Any) -> Value:
        """Raises `Broken`, or `Untranslatable` for elements that have no counterpart."""
        found = self.entry(atom)
        if found is None:
            raise Broken
        if isinstance(found, Untranslatable):
            raise Untranslatable(str(found))
        return found

    def entry(self, atom: Any) -> Entry:
        if isinstance(atom, core.Literal):
            return constant(np.asarray(atom.val, atom.aval.dtype))  # pyright: ignore
        return self.env[atom]

    def var(self, value: Value) -> Var:
        """A value as a tensor."""
        if isinstance(value, Var):
            return value
        if isinstance(value, Spread):
            x, more = value.var, len(value.shape) - value.var.type.rank
            if (*[1] * more, *x.shape) == tuple(value.shape):
                return self.body.reshaped(x, value.shape)
            return self.body.broadcasted(x, value.shape)
        if value.is_weight:
            return self.shared.constant(value)
        if value.key not in self._made:
            made = written_constant(self.body, value.elements, value.type)
            self._made[value.key] = made or self.shared.constant(value)
            self._constants.add(self._made[value.key].name)
        return self._made[value.key]

    # --- equations ---

    def equations(self, jaxpr: Any, wanted: Sequence[bool] | None = None) -> None:
        """Writes those that results depend on. What cannot be is noted."""
        live = {
            v
            for k, v in enumerate(jaxpr.outvars)
            if isinstance(v, core.Var) and (wanted is None or wanted[k])
        }
        kept = []
        for equation in reversed(jaxpr.eqns):
            if equation.primitive.name in PRINTS:
                at = self._place(equation)
                self.shared.left_out.add((at.file, at.line) if at else ("", 0))
            elif any(v in live for v in equation.outvars) or equation.effects:
                kept.append(equation)
                live.update(v for v in equation.invars if isinstance(v, core.Var))
        kept.reverse()
        if self.is_backward:
            derived = {k for k, e in enumerate(kept) if not is_of_rule(e, self.rules)}
        else:
            derived = derivatives(kept, jaxpr.outvars, self.origins)
        names = self._names(kept, derived) if self.is_named else {}
        for place, equation in enumerate(kept):
            used = [v in live for v in equation.outvars]
            self.is_derivative, self.rules_at_hand = place in derived, rules_of(equation)
            try:
                self.equation(equation, used, names.get(place, ()))
            except Broken:
                self.env.update(dict.fromkeys(equation.outvars))
                if equation.primitive.name not in (*RULES, *CALLED):
                    self._note(equation, refusal(equation.primitive.name).reason)
            except (Untranslatable, Mismatch) as error:
                self._note(equation, str(error))

    def _names(self, equations: Sequence[Any], skipped: set[int]) -> dict[int, tuple[str, ...]]:
        """What results are called, by the place of their equation: that of a line which others
        read, or the last.
        """
        lines: list[Any] = []
        targets: dict[Any, tuple[str, ...]] = {}
        running: dict[Any, Assignment] = {}  # statements whose equations may go on
        turns: Counter[Any] = Counter()  # how often they began: those of a loop come again
        for place, equation in enumerate(equations):
            at = self.origins.of(equation)
            found = None
            if at is not None and place not in skipped:
                found = assignment(at.file, at.line)
            key = None
            if at is not None:
                running = {k: s for k, s in running.items() if _is_within(at.frames, k, s)}
            if found is not None and at is not None:
                statement = found.first, at.file, at.frames[1:]
                if statement not in running:
                    running[statement] = found
                    turns[statement] += 1
                key = statement, turns[statement]
                targets[key] = found.targets
            lines.append(key)
        readers: dict[Any, set[Any]] = {}
        for place, equation in enumerate(equations):
            if place not in skipped:
                for v in equation.invars:
                    if isinstance(v, core.Var):
                        readers.setdefault(v, set()).add(lines[place] or place)
        last: dict[Any, tuple[bool, int]] = {}
        for place, key in enumerate(lines):
            if key is None or not targets[key]:
                continue
            outs = equations[place].outvars
            is_read = any(readers.get(v, {key}) != {key} for v in outs) or not any(
                v in readers for v in outs
            )
            last[key] = max(last.get(key, (False, 0)), (is_read, place))
        return {
            place: targets[key]
            for key, (_, place) in last.items()
            if len(targets[key]) == len(equations[place].outvars)
        }

    def _place(self, equation: Any) -> Provenance | None:
        """The line to tell of an equation."""
        at = self.origins.of(equation)
        return self.site if at is None or (self.site and self.function.is_library) else at

    def _note(self, equation: Any, reason: str) -> None:
        name = equation.primitive.name
        at = self._place(equation)
        hint = FAMILIES[name].hint if name in FAMILIES else ""
        file, line = (at.file, at.line) if at else ("", 0)
        self.shared.missing.append(Missing(name, reason, file, line, hint))
        self.env.update(dict.fromkeys(equation.outvars))

    def equation(self, equation: Any, used: Sequence[bool], names: Sequence[str]) -> None:
        """Raises `Untranslatable`, `Mismatch`, `Broken`."""
        name, b = equation.primitive.name, self.body
        values = [self.look_up(v) for v in equation.invars]
        b.at = self.origins.of(equation, self.is_derivative)
        b.ins = [v.aval for v in equation.invars]
        b.outs = [v.aval for v in equation.outvars]
        b.used = list(used)
        begin = len(b.statements)
        if name in CALLED:
            b.types = ()
            results = CALLED[name](self, equation, values)
        else:
            results = self.by_rule(equation, values)
        self._bind(equation.outvars, results, names, begin)

    def by_rule(self, equation: Any, values: list[Value]) -> Sequence[Value]:
        b, name = self.body, equation.primitive.name
        rule = RULES.get(name)
        if rule is None:
            raise Untranslatable(refusal(name).reason)
        b.types = [type_of(a) for a in b.outs]
        b.types_in = [v.type for v in values]
        unsigned = any(str(a.dtype) in UNSIGNED for a in b.ins)
        found = folded(name, values, b.types, equation.params, unsigned)
        if found is not None:
            return found
        begin = len(b.statements)
        operands = [self._operand(rule, v) for v in values]
        if rule.numbers and not any(isinstance(o, Var) for o in operands) and operands:
            operands[0] = self.var(values[0])
        if unsigned and rule.values:
            operands = [self._wide(o, a) for o, a in zip(operands, b.ins, strict=True)]
        try:
            results = rule.function(b, *operands, **self._params(rule, equation.params))
        except MISFITS as error:
            del b.statements[begin:]
            raise Untranslatable(f"its operands and parameters do not fit ({error})") from None
        many = isinstance(results, tuple) and not isinstance(results, Var | Known | Spread)
        listed = list(results) if many else [results]
        return [self._fitting(r, t) for r, t in zip(listed, b.types, strict=True)]

    def _operand(self, rule: Rule, value: Value) -> Any:
        if isinstance(value, Known) and rule.numbers and value.is_number:
            return number(value.elements)
        if isinstance(value, Spread) and rule.spreads:
            return value.var
        return self.var(value)

    def _wide(self, operand: Any, aval: Any) -> Any:
        """An unsigned integer as the number that it is."""
        bits = UNSIGNED.get(str(aval.dtype))
        if bits is None:
            return operand
        if bits == 64:
            raise Untranslatable("uint64 has no counterpart here")
        return widened(self.body, operand, bits)

    def _params(self, rule: Rule, params: Mapping[str, Any]) -> dict[str, Any]:
        if rule.params is None:
            return {k: plain(v) for k, v in params.items()}
        odd = [k for k, v in params.items() if k not in rule.params | IGNORED and v is not None]
        if odd:
            raise Untranslatable(f"the parameter {', '.join(odd)} has no counterpart")
        return {k: plain(v) for k, v in params.items() if k in rule.params}

    def _fitting(self, result: Any, type: TensorType) -> Value:
        """What a rule gives, as JAX describes it."""
        if isinstance(result, Spread | Known):
            return result
        if not isinstance(result, Var):
            result = self.body.filled([], result, type.dtype)
        result = self.body.to(result, type.dtype)
        if result.shape == type.shape:
            return result
        if result.type.rank <= type.rank and all(
            d in (1, wanted)
            for d, wanted in zip(result.shape[::-1], type.shape[::-1], strict=False)
        ):
            return Spread(result, type.shape)
        raise Untranslatable(f"our result is {result.type}, JAX's {type}")

    def _bind(
        self, outputs: Sequence[Any], results: Sequence[Value | None], names: Sequence[str],
        begin: int,
    ) -> None:  # fmt: skip
        b = self.body
        made = {r.name.text for s in b.statements[begin:] for r in getattr(s, "results", ())}
        made -= self._constants
        found: dict[str, str] = {}
        for name, value in zip(names, results, strict=False):
            inner = value.var if isinstance(value, Spread) else value
            if name and isinstance(inner, Var) and inner.name in made and inner.name not in found:
                found[inner.name] = b.fresh(f"{b.prefix}_{name}")
        if found:
            b.statements[begin:] = [renamed(s, found) for s in b.statements[begin:]]

        def called(value: Any) -> Any:
            if isinstance(value, Var) and value.name in found:
                return Var(found[value.name], value.type)
            if isinstance(value, Spread):
                return Spread(called(value.var), value.shape)
            return value

        for output, value in zip(outputs, results, strict=True):
            value = called(value)
            self.env[output] = value
            inner = value.var if isinstance(value, Spread) else value
            if isinstance(inner, Var):
                b.known_types[inner.name] = inner

    # --- graphs ---

    def finish(self, title: str, results: Sequence[Var], inputs: Sequence[Var]) -> Graph:
        """The graph, with the statements that its results depend on."""
        found = self.finished(title, results, inputs)
        self.shared.graphs.append(found)
        return found

    def finished(self, title: str, results: Sequence[Var], inputs: Sequence[Var]) -> Graph:
        names = [v.name for v in results]
        kept = _live(self.body.statements, names)
        kept = _live(simplified(kept, names, self.body.known_types), names)
        found = self._renumbered(kept, {*names, *(v.name for v in inputs)})
        return Graph(
            Name(title),
            tuple(Binding(Name(v.name), v.type) for v in inputs),
            tuple(v.type for v in results),
            (*found, Return(tuple(map(Name, names)))),
        )

    def _renumbered(self, statements: Sequence[Apply], fixed: set[str]) -> list[Any]:
        """Values whose names have a number get the first that is free now."""
        used = fixed | self.shared.reserved
        names: dict[str, str] = {}
        for statement in statements:
            for result in statement.results:
                old = result.name.text
                if old in fixed:
                    continue
                stem = self.body.stems.get(old, old)
                names[old] = unique(statement.callee.text if stem in OPS else stem, used)
        return [renamed(s, names) for s in statements]

    def read_by(self, graph: Graph) -> set[str]:
        """The values that a graph's statements read."""
        return {name for s in graph.body for name in names_read(s)}

    def share(self, title: str, results: Sequence[Var], inputs: Sequence[Var]) -> str:
        """The name of the graph, or of one that does the same, if there is one already."""
        graph = self.finished(title, results, inputs)
        key = "graph", title, graph.inputs, graph.results, graph.body
        if key not in self.shared.called:
            name = self.shared.graph_name(title)
            graph = Graph(Name(name), graph.inputs, graph.results, graph.body)
            self.shared.called[key] = name
            self.shared.graphs.append(graph)
        return self.shared.called[key]

    def part(
        self, title: str, inputs: Sequence[tuple[str, Var]], write: Callable[..., Sequence[Var]]
    ) -> list[Var]:  # fmt: skip
        """A call of a graph that no function is: ``write(body, *inputs)`` writes it, and gives its
        results.
        """
        inner = Scope(self.shared, Function("", "", 0))
        given = [inner.input(name, v.type) for name, v in inputs]
        results = list(write(inner.body, *given))
        name = inner.share(title, results, given)
        return self.body.call(name, [v for _, v in inputs], [(title, v.type) for v in results])


def _is_within(frames: Sequence[Any], statement: tuple, lines: Assignment) -> bool:
    """Whether a Python statement, or what it calls, has these frames."""
    _, file, outer = statement
    place = len(frames) - len(outer) - 1
    if place < 0 or frames[place + 1 :] != outer or frames[place].file != file:
        return False
    return lines.first <= frames[place].line <= lines.last


def _live(statements: Iterable[Any], results: Iterable[str]) -> list[Apply]:
    """The statements that results depend on."""
    live, kept = set(results), []
    for statement in reversed(list(statements)):
        if any(r.name.text in live for r in statement.results):
            kept.append(statement)
            live.update(names_read(statement))
    return kept[::-1]


def plain(value: Any) -> Any:
    """Integers of NumPy as Python's."""
    if isinstance(value, np.integer):
        return int(value)
    if type(value) in (tuple, list):
        return type(value)(map(plain, value))
    return value
