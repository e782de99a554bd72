"""Checks of one graph: its inputs, its statements and what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from opstep.runtime.ir.applying import Applier, attrs_key
from opstep.runtime.ir.calls import amount, bound_symbols, literal_fault, symbols_of
from opstep.runtime.ir.diagnostics import Note, Reporter
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Binding,
    Declaration,
    Graph,
    Literal,
    Name,
    Return,
    Source,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.shards import can_be_shared
from opstep.runtime.ir.types import TensorType, boolean
from opstep.runtime.ir.verified import Application, VerifiedGraph

_CONDITION = TensorType(boolean, ())


class _Types(dict):
    """Name -> type of the values so far; falls back on the named tensors. None where unknown."""

    def __init__(self, tensors: Mapping[str, Declaration], mesh: Mesh):
        self.tensors = tensors
        self.mesh = mesh

    def __missing__(self, name: str) -> TensorType | None:
        d = self.tensors[name]
        t = self[name] = d.type if can_be_shared(d, self.mesh) else None
        return t


class BodyChecker:
    """Checks one graph and reports what is wrong with it."""

    def __init__(
        self,
        graph: Graph,
        source: Source | None,
        tensors: Mapping[str, Declaration],
        applier: Applier,
        reporter: Reporter,
    ):
        self.graph = graph
        self.source = source
        self.tensors = tensors
        self.applier = applier
        self.reporter = reporter
        self.types: Any = _Types(tensors, applier.mesh)
        self.bound = bound_symbols(graph)
        self.unbound: set[str] = set()  # symbols that no input binds, each reported once
        self.updates: dict[str, Update] = {}  # the first of each named tensor
        self.returned: Return | None = None
        self.over = False  # something stands behind the return, and was reported
        self._definitions: dict[str, Span] | None = None

    def check(self) -> VerifiedGraph:
        """All checks; the types that stay unknown are left out of the result."""
        self.check_head()
        applications = self.check_statements(self.graph.body)
        self.check_returned()
        return self.verified(applications)

    def verified(self, applications: list[Application | None]) -> VerifiedGraph:
        """What was found out, once all is checked."""
        types = self.types
        if None in types.values():
            types = {name: t for name, t in types.items() if t is not None}
        return VerifiedGraph(self.graph, self.source, types, applications, tuple(self.bound))

    def check_head(self) -> None:
        """Checks the inputs and the types of the results."""
        self._inputs()
        self._results()

    def error(
        self,
        span: Span,
        message: str,
        hint: str = "",
        notes: tuple[Note, ...] = (),
        code: str = "",
    ) -> None:
        self.reporter.error(self.source, span, message, hint, notes, code)

    # --- the head ---------------------------------------------------------------------------------

    def _inputs(self) -> None:
        said = {b.type.dtype for b in self.graph.inputs if b.type is not None}
        for parameter in self.graph.type_parameters:
            if parameter.variable not in said:
                name = parameter.name.text
                hint = f"an input must have it as its element type, as in x: {name}[N]"
                self.error(parameter.name.span, f"no input says what {name} is", hint)
        for binding in self.graph.inputs:
            self._define(binding, binding.type)
            if binding.type is not None:
                self._check_symbols(binding.type, binding.type_span)

    def _results(self) -> None:
        for t in self.graph.results:
            if not self._check_symbols(t, self.graph.results_span):
                return

    def _check_symbols(self, t: TensorType, span: Span) -> bool:
        """Whether inputs bind all symbols of a type."""
        return t.is_concrete or self.check_bound(symbols_of(t.shape), span)

    def check_bound(self, symbols: Set[str], span: Span) -> bool:
        """Whether inputs bind all these; reports those that none binds, where they occur first."""
        if symbols <= self.bound.keys():
            return True
        free = sorted(symbols - self.bound.keys() - self.unbound)
        self.unbound.update(free)
        if free:
            hint = f"an input must have {free[0]} alone as a dim, as in x: f32[{free[0]}]"
            self.error(span, f"no input says what {' and '.join(free)} is", hint)
        return False

    # --- statements -------------------------------------------------------------------------------

    def check_statements(self, body: Sequence[Statement]) -> list[Application | None]:
        """Checks the body, or a part of it behind those that were checked.

        Most statements repeat another in other names: they take a look-up.
        """
        types, cache, tensors = self.types, self.applier.cache, self.tensors
        unknown = self.applier.unknown
        applications: list[Application | None] = []
        for s in body:
            if self.returned is not None:
                if not self.over:
                    self.error(s.span, "nothing can stand after return")
                self.over = True
                break
            found = key = None
            if isinstance(s, Apply):
                try:
                    key = (
                        s.callee.text,
                        attrs_key(s.attrs) if s.attrs else None,
                        *[
                            types[o.text] if isinstance(o, Name) else o.value.__class__
                            for o in s.operands
                        ],
                    )
                    found = cache.get(key)
                except KeyError:  # an unknown name
                    pass
                if found is None:
                    found = None if key in unknown else self.apply(s)
                elif found.literals or found.needs:
                    found = self.apply(s)
                results = s.results
                if found is not None and len(results) == 1 == len(found.resolved.results):
                    binding, t = results[0], found.resolved.results[0]
                    name = binding.name.text
                    if binding.type is None and name not in types and name not in tensors:
                        types[name] = t
                    else:
                        self._define(binding, t)
                else:
                    self._define_all(s, found)
            elif isinstance(s, Update):
                self._update(s)
            elif isinstance(s, Assert):
                self._assert(s)
            elif isinstance(s, Return):
                self.returned = s
            applications.append(found)
        return applications

    def apply(self, s: Apply) -> Application | None:
        """What a statement comes to; None, with the errors reported, where that cannot be said."""
        types = [o.value if isinstance(o, Literal) else self.lookup(o) for o in s.operands]
        found = self.applier.apply(s, types, self.source, self.reporter)
        if found is None:
            return None
        fits = self.applier.literals_fit(s, found, self.source, self.reporter)
        return found if self.check_bound(found.needs, s.callee.span) and fits else None

    def _define_all(self, s: Apply, found: Application | None) -> None:
        """Defines the results of a statement, whose number may be wrong."""
        count = len(s.results)
        gives = found.resolved.results if found is not None else (None,) * count
        if len(gives) != count:
            callee = s.callee.text
            if not count:
                form = f"{', '.join(f'y{k}' for k in range(len(gives)))} = {callee}(…)"
                message = f"the results of {callee} have no names"
                self.error(s.callee.span, message, f"write {form}", code="unnamed-results")
            else:
                many = amount(len(gives), "result") if gives else "no results"
                span = Span(s.results[0].name.span.start, s.results[-1].name.span.end)
                self.error(span, f"{callee} gives {many}, not {count}")
            gives = (*gives, *(None,) * count)[:count]
        for binding, t in zip(s.results, gives, strict=True):
            self._define(binding, t)

    def _define(self, binding: Binding, t: TensorType | None) -> None:
        """Adds a value. Of an unknown type it is, unless a type is written."""
        name, types = binding.name.text, self.types
        if name in types or name in self.tensors:
            self._redefined(binding.name)
            return
        if binding.type is not None and binding.type is not t:
            resolved = self._check_symbols(binding.type, binding.type_span)
            if t is not None and resolved and binding.type != t:
                message = f"{name} is {t}, not {binding.type}"
                self.error(binding.type_span, message, code="annotation")
                resolved = False  # either may be what was meant
            t = binding.type if resolved else None
        types[name] = t

    def _redefined(self, name: Name) -> None:
        text = name.text
        if text in self.tensors:
            d = self.tensors[text]
            hint = f"an update is written {text} <- value"
            message = f"{text} is the name of a {d.kind}"
            source = self.applier.tensor_sources[text]
            notes = (Note(f"{text} is declared here", d.name.span, source),)
        else:
            hint = "every value has a name of its own"
            message = f"{text} is defined twice"
            first = self.definition(text)
            notes = (Note(f"{text} is defined here first", first),) if first else ()
        self.error(name.span, message, hint, notes, "redefined")

    def _update(self, s: Update) -> None:
        updates = self.updates
        target = s.target.text
        declared = self.tensors.get(target)
        value = s.value
        value_type = self.lookup(value) if isinstance(value, Name) else None
        if declared is None:
            hint = self.reporter.near(target, self.tensors)
            if target in self.types:
                hint = "values do not change: give the new one another name"
            self.error(s.target.span, f"{target} is not a param or a state", hint)
            return
        if target in updates:
            first = Note("the first update is here", updates[target].target.span)
            message = f"{target} is updated twice in graph {self.graph.name.text}"
            self.error(s.target.span, message, "updates take effect when the graph ends", (first,))
        updates.setdefault(target, s)
        t = self.types[target]
        if t is None:
            return
        if isinstance(value, Literal):
            if t.rank:
                hint = f"a tensor of one number is full(value={value.value}, …)"
                self.error(value.span, f"{target} is {t}, and cannot become a number", hint)
            elif fault := literal_fault(value.value, t.dtype):
                self.error(value.span, fault)
        elif value_type is not None and value_type != t:
            message = f"{target} is {t}, and cannot become {value.text}, a {value_type}"
            self.error(value.span, message, code="update-type")

    def _assert(self, s: Assert) -> None:
        t = self.lookup(s.condition)
        if t is not None and t != _CONDITION:
            hint = ""
            if t.dtype is boolean:
                hint = f"all({s.condition.text}) or any({s.condition.text}) is one bool"
            message = f"assert wants a bool[], but {s.condition.text} is {t}"
            self.error(s.condition.span, message, hint, code="condition")

    def check_returned(self) -> None:
        """Checks the return statement against the signature, behind all statements."""
        graph = self.graph
        signature = Note("the signature says so", graph.results_span)
        s = self.returned
        if s is None:
            if graph.results:
                brace = Span(max(graph.span.start, graph.span.end - 1), graph.span.end)
                expected = ", ".join(map(str, graph.results))
                message = f"graph {graph.name.text} must return {expected}"
                self.error(brace, message, "", (signature,), "missing-return")
            return
        found = [self.lookup(name) for name in s.values]
        if len(found) != len(graph.results):
            count = len(graph.results)
            expected = amount(count, "value") if count else "nothing"
            self.error(
                s.span, f"graph {graph.name.text} returns {expected}, not {len(found)}", "",
                (signature,),
            )  # fmt: skip
            return
        for name, t, expected in zip(s.values, found, graph.results, strict=True):
            bound = symbols_of(expected.shape) <= self.bound.keys()
            if t is not None and bound and t != expected:
                message = f"graph {graph.name.text} returns {expected}, but {name.text} is {t}"
                generic = t.dtype.is_generic and t.shape == expected.shape
                hint = f"cast({name.text}, dtype={expected.dtype})" if generic else ""
                self.error(name.span, message, hint, (signature,), "return-type")

    # --- names ------------------------------------------------------------------------------------

    def lookup(self, name: Name) -> TensorType | None:
        """The type of a value in use; None where it is unknown. Reports an undefined name."""
        try:
            return self.types[name.text]
        except KeyError:
            self._undefined(name)
            return None

    def _undefined(self, name: Name) -> None:
        text = name.text
        if definition := self.definition(text):
            note = Note(f"{text} is defined here", definition)
            if definition.start <= name.span.start:
                self.error(name.span, f"{text} is used in its own definition")
            else:
                self.error(name.span, f"{text} is used before it is defined", "", (note,))
            return
        shown = quote_name(text)
        hint = self.reporter.near(shown, map(quote_name, [*self.types, *self.tensors]))
        if not hint and self.applier.is_callee(text):
            hint = f"{text} is an op or a graph: call it on a line of its own"
        self.error(name.span, f"there is no value {shown}", hint, code="undefined")

    def definition(self, text: str) -> Span | None:
        """Where a value is defined (first)."""
        if self._definitions is None:
            self._definitions = {}
            for name in self._defined_names():
                self._definitions.setdefault(name.text, name.span)
        return self._definitions.get(text)

    def _defined_names(self) -> Iterator[Name]:
        yield from (b.name for b in self.graph.inputs)
        for s in self.graph.body:
            if isinstance(s, Apply):
                yield from (b.name for b in s.results)
