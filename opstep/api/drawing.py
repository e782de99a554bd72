"""What random inputs are drawn from, so that they suit the graph: labels below the number of
classes, positive numbers for a square root.

The ops that an input flows into say what they take: their `faults`, by which a range is tried on a
sample, and `outside`, by which an index is. An assert says it of what it tests. An input is
followed through ops that move elements, ops whose other operands are literals, and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pointwise.elementwise import Elementwise
from opstep.kernels.rules.faults import elementwise
from opstep.runtime.ir.control import Control
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.graph import Apply, Assert, Literal, Name, names_read
from opstep.runtime.ir.interfaces import outside_of
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application, Verified, VerifiedGraph

_Array = np.ndarray
_Changes = tuple[Callable[[_Array], _Array], ...]
Readers = dict[str, dict[str, list[int]]]  # by graph and value: the statements that read it
_MOST_CHANGES = 16  # ops that compute, between an input and what is asked about it
_MOST_CONDITIONS = 100  # of an input: who reads it more often is not asked more
_MOST_TESTS = 32  # ops that a comparison is followed through, to its assert
_SAMPLE = 64  # numbers of a range that are tried; even, so that 0 is not among those about it
_FAR = 4.0  # normal numbers are rarely further from 0
_LEAST = 1e-3
_BLOCKED = -1e4  # what is added to, or stands for, scores that count for nothing
_DEFAULT = 10  # integers are below it where nothing says more
_TESTS = ("all", "logical_and", "identity", "reshape")  # lead from a comparison to its assert


class Draw(NamedTuple):
    """One way to draw numbers. `sample` has some of them that show which ops take them."""

    text: str  # "positive numbers"
    make: Callable[[np.random.Generator, Any], _Array]
    sample: _Array


class Choice(NamedTuple):
    """How an input is drawn. `why` says which op asked for it; `unmet` what no draw could suit."""

    draw: Draw
    why: str = ""
    unmet: str = ""

    def __str__(self) -> str:
        told = self.why or self.unmet
        return f"{self.draw.text} ({told})" if told else self.draw.text


def _normal(generator: np.random.Generator, shape: Any) -> _Array:
    return generator.standard_normal(shape, np.float32)


def between(low: float, high: float) -> Draw:
    """Numbers that are spread evenly."""
    sample = np.linspace(low, high, _SAMPLE)
    return Draw(
        f"numbers from {low:g} to {high:g}", lambda g, shape: g.uniform(low, high, shape), sample
    )


def integers(low: int, high: int) -> Draw:
    """From `low` to `high`, which is one of them."""
    sample = np.unique(np.linspace(low, high, _SAMPLE).astype(np.int64))
    return Draw(
        f"integers from {low} to {high}", lambda g, shape: g.integers(low, high + 1, shape), sample
    )


def _first_of_each_row(value: bool) -> Callable[[np.random.Generator, Any], _Array]:
    def make(generator: np.random.Generator, shape: Any) -> _Array:
        made = generator.integers(0, 2, shape).astype(bool)
        if made.ndim:
            made[..., :1] = value
        return made

    return make


NUMBERS = (
    Draw("normal numbers", _normal, np.linspace(-_FAR, _FAR, _SAMPLE)),
    Draw(
        "positive numbers",
        lambda g, shape: np.maximum(np.abs(_normal(g, shape)), np.float32(_LEAST)),
        np.linspace(_LEAST, _FAR, _SAMPLE),
    ),
    between(_LEAST, 1 - _LEAST),
    between(_LEAST - 1, 1 - _LEAST),
    Draw(
        "numbers above 1",
        lambda g, shape: 1 + np.maximum(np.abs(_normal(g, shape)), np.float32(_LEAST)),
        np.linspace(1 + _LEAST, 1 + _FAR, _SAMPLE),
    ),
    Draw("negative numbers", lambda g, s: -np.abs(_normal(g, s)), np.linspace(-_FAR, -_LEAST, 64)),
)
BOOLS = Draw("true or false", lambda g, shape: g.integers(0, 2, shape), np.array([True, False]))
KEPT = {
    value: Draw(
        f"true or false, {str(value).lower()} for the first of each row",
        _first_of_each_row(value),
        np.array([True, False]),
    )
    for value in (True, False)
}


class Condition(NamedTuple):
    """What a reader wants of an input. `holds` is asked of a sample of it."""

    holds: Callable[[_Array], bool]
    why: str  # "sqrt, a.opg:4"
    fault: str  # "square root of a negative number"


@dataclass
class _Search:
    """What the readers of one input want, gathered by following it."""

    verified: Verified
    dtype: DType
    readers: Readers
    conditions: list[Condition] = field(default_factory=list)
    bounds: set[int] = field(default_factory=lambda: {_DEFAULT})  # of integers: sizes that occur
    kept: bool | None = None  # of a mask: what keeps an element
    seen: set[tuple[str, str]] = field(default_factory=set)
    todo: list[tuple[VerifiedGraph, str, Mapping[str, Any], _Changes]] = field(default_factory=list)

    def follow(
        self, graph: VerifiedGraph, value: str, sizes: Mapping[str, Any], changes: _Changes
    ) -> None:
        """Notes a value that is the input after some `changes`, to be looked at."""
        key = (graph.graph.name.text, value)
        if key not in self.seen and len(changes) <= _MOST_CHANGES:
            self.seen.add(key)
            self.todo.append((graph, value, sizes, changes))

    def look(self) -> None:
        """Looks at all that read what was noted, until enough is known."""
        while self.todo and len(self.conditions) < _MOST_CONDITIONS:
            graph, value, sizes, changes = self.todo.pop()
            for k in self.readers_of(graph).get(value, ()):
                statement, application = graph.graph.body[k], graph.applications[k]
                if len(self.conditions) >= _MOST_CONDITIONS:
                    return
                if isinstance(statement, Apply) and application is not None:
                    self.read_by(_Site(graph, statement, application, sizes, changes, value))

    def readers_of(self, graph: VerifiedGraph) -> dict[str, list[int]]:
        """The statements of a graph that read each of its values."""
        name = graph.graph.name.text
        if name not in self.readers:
            found = self.readers[name] = {}
            for k, statement in enumerate(graph.graph.body):
                for value in dict.fromkeys(names_read(statement)):
                    found.setdefault(value, []).append(k)
        return self.readers[name]

    def read_by(self, site: _Site) -> None:
        """A statement that reads the value."""
        op = site.application.op
        if op is None or issubclass(op, Control):
            self.called(site)
            return
        if op.name == "where" and 0 in site.places:
            self.masks(site)
        elif outside_of(op) is not None:
            self.indexes(site)
        else:
            self.conditions += site.rules()
        if op.traits.moves or op.traits.reinterprets or op.name == "cast":
            site.passed_on(self)
        else:
            self.computed_with_literals(site)

    def computed_with_literals(self, site: _Site) -> None:
        """Ops like ``add(x, 1.0)`` hand the value on, changed; a test of it may be asserted."""
        op, operands = site.application.op, site.statement.operands
        others = [o for k, o in enumerate(operands) if k not in site.places]
        if op is None or not issubclass(op, Elementwise):
            return
        if not all(isinstance(o, Literal) for o in others) or len(site.statement.results) != 1:
            return

        def changed(x: _Array) -> _Array:
            given = [x if k in site.places else o.value for k, o in enumerate(operands)]  # type: ignore[union-attr]
            arrays = [np.broadcast_to(np.asarray(a), x.shape) for a in given]
            return np.asarray(op.oracle(*arrays, **site.application.attrs))

        result = site.statement.results[0].name.text
        if op.family == "comparison":
            message = self.asserted(site.graph, result)
            if message is not None:
                holds = _quietly(lambda x: bool(np.all(changed(site.computed(x)))))
                self.conditions.append(Condition(holds, f"an assert, {message!r}", message))
        else:
            site.passed_on(self, changed)

    def asserted(self, graph: VerifiedGraph, name: str) -> str | None:
        """The message of the assert that a test leads to."""
        body, readers, names = graph.graph.body, self.readers_of(graph), [name]
        for value in names:
            for k in readers.get(value, ()) if len(names) <= _MOST_TESTS else ():
                statement = body[k]
                if isinstance(statement, Assert):
                    return statement.message
                if isinstance(statement, Apply) and statement.callee.text in _TESTS:
                    names += (b.name.text for b in statement.results if b.name.text not in names)
        return None

    def called(self, site: _Site) -> None:
        """A call, or control flow that hands its operands to graphs."""
        application = site.application
        op, places = application.op, site.places
        names = [application.graph.name.text] if application.graph else []
        if op is not None and issubclass(op, Control):
            refs = application.attrs.values()
            names = [r.name for v in refs for r in (v if isinstance(v, tuple) else (v,))
                     if isinstance(r, Ref)]  # fmt: skip
            if op.selects:
                if 0 in places and op.name == "switch":
                    self.bounds.add(len(names))
                    holds = _quietly(lambda x: _below(site.computed(x), len(names)))
                    self.conditions.append(Condition(holds, site.why, "there is no such case"))
                places = [k - 1 for k in places if k]
        given = application.resolved.operands
        types = given[1:] if op is not None and op.selects else given  # type: ignore[attr-defined]
        for name in names:
            callee = self.verified.graphs[name]
            inner = _bound(callee, types, site.sizes)
            for place in places:
                self.follow(callee, callee.graph.inputs[place].name.text, inner, site.changes)

    def masks(self, site: _Site) -> None:
        """``where(keep, scores, -inf)``: a row without any would have no maximum."""
        for k, kept in ((2, True), (1, False)):
            other = site.statement.operands[k]
            if isinstance(other, Literal) and other.value <= _BLOCKED:
                self.kept = kept

    def indexes(self, site: _Site) -> None:
        """Indices and labels: what exists, the op says of arrays that take up no memory."""
        shapes = site.shapes()
        op = site.application.op
        if op is None or shapes is None or not self.dtype.is_integer:
            return
        operands, result = shapes
        attrs = site.application.attrs
        places = [
            k for k in site.places if _spec(op, k).kind in "XI" and _spec(op, k).name != "offsets"
        ]
        if not places:
            return
        sizes = [n for s in operands if s is not None for n in s]
        sizes += [evaluate(v, dict(site.sizes)) for v in attrs.values() if _is_dim(v)]
        self.bounds |= {n for n in sizes if type(n) is int and 0 < n < 1 << 31}

        def holds(x: _Array) -> bool:
            ends = site.computed(np.array([x.min(), x.max()]))
            for end in ends:
                arrays = [
                    None if s is None else np.broadcast_to(end if k in places else end * 0, s)
                    for k, s in enumerate(operands)
                ]
                if bool(np.any(outside_of(op)(arrays, result, **attrs))):
                    return False
            return bool(ends[0] >= 0)

        self.conditions.append(Condition(_quietly(holds), site.why, "there is no such index"))

    def choose(self, draws: Sequence[Draw], default: Draw) -> Choice:
        """The first draw that all conditions hold for; else the one that most do."""
        best, most = default, -1
        for draw in draws:
            held = [c.holds(draw.sample) for c in self.conditions]
            if all(held):
                if draw.text == default.text:
                    return Choice(draw)
                against = [default.sample, np.arange(1 << 30, (1 << 30) + 1)]
                asked = [c.why for a in against for c in self.conditions if not c.holds(a)]
                return Choice(draw, asked[0] if asked else "")
            if sum(held) > most:
                best, most = draw, sum(held)
        failed = next(c for c in self.conditions if not c.holds(best.sample))
        return Choice(best, unmet=f"none suits {failed.why}: {failed.fault}")


@dataclass
class _Site:
    """A statement that reads a value, which is the input after some `changes`."""

    graph: VerifiedGraph
    statement: Apply
    application: Application
    sizes: Mapping[str, Any]
    changes: _Changes
    value: str

    @property
    def why(self) -> str:
        source = self.graph.source
        line = source.locate(self.statement.span.start)[0] if source else 0
        at = f", {Path(source.path).name}:{line}" if source else ""
        return f"{self.statement.callee.text}{at}"

    @property
    def places(self) -> list[int]:
        """The operands that are the value."""
        operands = self.statement.operands
        return [k for k, o in enumerate(operands) if isinstance(o, Name) and o.text == self.value]

    def computed(self, x: _Array) -> _Array:
        """The value where the input is `x`."""
        for change in self.changes:
            x = change(x)
        return x

    def passed_on(self, search: _Search, *changes: Callable[[_Array], _Array]) -> None:
        """The statement's result is the value, changed."""
        result = self.statement.results[0].name.text
        search.follow(self.graph, result, self.sizes, (*self.changes, *changes))

    def rules(self) -> Iterator[Condition]:
        """That its rules can be kept, by some operands beside the value."""
        op = self.application.op
        assert op is not None
        for rule in op.faults.rules:

            def holds(x: _Array, rule=rule) -> bool:
                mine = np.asarray(self.computed(x), np.float64)
                attrs = dict(self.application.attrs)
                return any(
                    not rule.masks(self.parts(mine, other.sample), attrs) for other in NUMBERS
                )

            yield Condition(_quietly(holds), self.why, rule.text)

    def parts(self, mine: _Array, others: _Array) -> list[Any]:
        """What the op is given."""
        return [
            np.float64(o.value) if isinstance(o, Literal)
            else self.part(k, mine if k in self.places else others)
            for k, o in enumerate(self.statement.operands)
        ]  # fmt: skip

    def part(self, place: int, sample: _Array) -> _Array:
        """A sample as an operand; a matrix where the op does not go element by element."""
        op, t = self.application.op, self.application.resolved.operands[place]
        assert op is not None
        flat = np.resize(sample, _SAMPLE)
        if t is None or t.rank < 2 or op.faults.relation is elementwise:
            return flat
        side = int(_SAMPLE**0.5)
        return flat.reshape(*[1] * (t.rank - 2), side, side)

    def shapes(self) -> tuple[list[Any], tuple[int, ...]] | None:
        """Of operands and of the first result; None where a size is not known."""
        sizes = dict(self.sizes)

        def shape(t: TensorType | None) -> Any:
            dims = () if t is None else tuple(evaluate(d, sizes) for d in t.shape)
            if not all(type(d) is int for d in dims):
                raise ValueError("a size is not known")
            return None if t is None else dims

        try:
            resolved = self.application.resolved
            return [shape(t) for t in resolved.operands], shape(resolved.results[0])
        except (ValueError, ZeroDivisionError):
            return None


def _spec(op: Any, place: int) -> Any:
    return op.operands[min(place, len(op.operands) - 1)]


def _is_dim(value: Any) -> bool:
    return type(value) is int or isinstance(value, Expr)


def _below(values: _Array, end: int) -> bool:
    return bool(values.min() >= 0 and values.max() < end)


def _quietly(test: Callable[[_Array], bool]) -> Callable[[_Array], bool]:
    """A test whose NaNs are nobody's concern; what cannot be tried counts as fine."""

    def tested(x: _Array) -> bool:
        try:
            with np.errstate(all="ignore"):
                return test(x)
        except (TypeError, ValueError, IndexError, AttributeError):
            return True

    return tested


def _bound(callee: VerifiedGraph, types: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that a callee's symbols have in a call on operands of these types."""
    found: dict[str, Any] = {}
    for binding, given in zip(callee.graph.inputs, types, strict=False):
        if binding.type is None or given is None:
            continue
        for dim, size in zip(binding.type.shape, given.shape, strict=False):
            symbol = dim.lone_symbol() if isinstance(dim, Expr) else None
            if symbol is not None:
                try:
                    found[symbol] = evaluate(size, dict(sizes))
                except ZeroDivisionError:
                    continue
    return found


def choice(
    verified: Verified, graph: str, name: str, t: TensorType, sizes: Mapping[str, Any],
    readers: Readers,
) -> Choice:  # fmt: skip
    """How random elements of an input are drawn: as all that read it like them. `readers`: filled
    here, for all inputs of a program.
    """
    search = _Search(verified, t.dtype, readers)
    search.follow(verified.graphs[graph], name, sizes, ())
    search.look()
    if t.dtype.is_float:
        return search.choose(NUMBERS, NUMBERS[0])
    if t.dtype.is_integer:
        most = np.iinfo(str(t.dtype.numpy)).max
        bounds = [b for b in sorted(search.bounds, reverse=True) if b - 1 <= most]
        digits = integers(0, _DEFAULT - 1)
        wanted = [integers(0, b - 1) for b in bounds] if search.bounds != {_DEFAULT} else [digits]
        return search.choose([*wanted, integers(1, _DEFAULT - 1)], digits)
    return Choice(BOOLS) if search.kept is None else Choice(KEPT[search.kept], "a mask")
