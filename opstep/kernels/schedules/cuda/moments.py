"""Means and squared distances from them in one pass, for rows that do not stay in registers: two
sums of distances from a pivot near the data, the row's first element, say what both are.

The sums and what follows from them are in f64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pointwise.arithmetic import square, sub
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.schedules.cuda.holding import is_read
from opstep.kernels.schedules.picks import RowElement
from opstep.kernels.schedules.row_graph import Folded, RowGraph
from opstep.kernels.schedules.ways import SAME, way_of
from opstep.runtime.device.builtin import pick
from opstep.runtime.device.cuda.compiling.names import real
from opstep.runtime.device.source import pinned
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import f64
from opstep.runtime.plan.body import Body, Member


@dataclass(frozen=True)
class Pivot:
    """The first element of a row that is read as register `of`; 0 where it is not finite."""

    of: int


class moment(Op):
    """A sum or a mean of distances, of a row's elements from its mean, or of their squares; without
    a `power`, that mean. Operands: the sum of distances from the pivot, that of their squares, the
    pivot, the mean.
    """

    name = "moment"
    family = "internal"
    grad = None


class _Found(NamedTuple):
    """A mean of a row that is read, and reductions of distances from it: register -> power."""

    mean: int
    read: int
    folds: dict[int, int]


def in_one_pass(graph: RowGraph) -> RowGraph:
    """The graph with moments in place of its first mean and of what is folded of distances from it,
    or the graph itself.
    """
    found = next((f for f in map(_found(graph), graph.terms) if f), None)
    return _Rewritten(graph, found).made() if found and graph.rows.count else graph


def _found(graph: RowGraph) -> Any:
    count, members = len(graph.leaves), graph.body.members

    def of(mean: int) -> _Found | None:
        read = graph.terms[mean]
        if _op(graph, mean) is not reductions.mean or not is_read(graph, read):
            return None
        if way_of(graph, read).kind != SAME:
            return None
        away = [
            k for k, m in enumerate(members, count) if m.op is sub and m.operands == (read, mean)
        ]
        squares = [
            k for k, m in enumerate(members, count) if m.op is square and m.operands[0] in away
        ]
        power = dict.fromkeys(away, 1) | dict.fromkeys(squares, 2)
        sums = (reductions.sum, reductions.mean)
        folds = {
            f: power[t] for f, t in graph.terms.items() if t in power and _op(graph, f) in sums
        }
        return _Found(mean, read, folds) if 2 in folds.values() else None

    return of


def _op(graph: RowGraph, fold: int) -> Any:
    return graph.leaves[fold].op  # pyright: ignore[reportAttributeAccessIssue]


class _Rewritten:
    def __init__(self, graph: RowGraph, found: _Found):
        self.graph, self.found = graph, found
        gone = {found.mean, *found.folds}
        count = len(graph.leaves)
        kept = [r for r in range(count) if r not in gone]
        # leaves that stay, pivot, two sums; distances, squares, moments, the other members
        self.first = len(kept) + 3
        self.to = {r: k for k, r in enumerate(kept)}
        self.to |= {r: self.first + 2 + k for k, r in enumerate(sorted(gone))}
        self.to |= {
            r: r - count + self.first + 2 + len(gone) for r in range(count, len(graph.shapes))
        }
        self.kept, self.gone = kept, sorted(gone)

    def made(self) -> RowGraph:
        graph, to, (mean, read, _) = self.graph, self.to, self.found
        dtype, first = graph.dtype, self.first
        pivot, sums = first - 3, (first - 2, first - 1)
        number, whole = graph.shapes[mean], graph.shapes[read]
        leaves = [graph.leaves[r] for r in self.kept]
        leaves += [Pivot(to[read]), *[Folded(reductions.sum, _axes(graph, mean))] * 2]
        types = [graph.body.types[r] for r in self.kept] + [dtype, f64, f64]
        members = [
            Member(sub, (to[read], pivot), (dtype, dtype), dtype, ()),
            Member(square, (first,), (dtype,), dtype, ()),
        ]
        members += [self._moment(r, (*sums, pivot, to[mean])) for r in self.gone]
        members += [
            m._replace(operands=tuple(to[o] for o in m.operands), attrs=self._attrs(m))
            for m in graph.body.members
        ]
        shapes = [graph.shapes[r] for r in self.kept] + [number] * 3 + [whole] * 2
        shapes += [graph.shapes[r] for r in self.gone] + [*graph.shapes[len(graph.leaves) :]]
        inner = [graph.inner[r] for r in self.kept] + [False] * 3 + [True] * 2
        inner += [False] * len(self.gone) + [*graph.inner[len(graph.leaves) :]]
        terms = {to[f]: to[t] for f, t in graph.terms.items() if f not in self.gone}
        terms |= {sums[0]: first, sums[1]: first + 1}
        results = tuple(to[r] for r in graph.body.results)
        body = replace(graph.body, operands=tuple(types), members=tuple(members), results=results)
        return RowGraph(
            graph.rows, body, tuple(leaves), tuple(shapes), tuple(inner), stages_of(body, terms),
            terms, dtype,
        )  # fmt: skip

    def _attrs(self, member: Member) -> tuple:
        return tuple((name, self.to[v] if name == "of" else v) for name, v in member.attrs)

    def _moment(self, r: int, operands: tuple[int, ...]) -> Member:
        power = self.found.folds.get(r, 0)
        attrs = (("power", power), ("mean", _op(self.graph, r) is reductions.mean))
        seen = (f64, f64, self.graph.dtype, self.graph.dtype)
        count = 4 if power else 3
        return Member(moment, operands[:count], seen[:count], self.graph.dtype, attrs)


def _axes(graph: RowGraph, fold: int) -> tuple[int, ...]:
    return graph.leaves[fold].axes  # pyright: ignore[reportAttributeAccessIssue]


def stages_of(body: Body, terms: dict[int, int]) -> tuple[int, ...]:
    count, found = len(body.operands), dict[int, int]()

    def stage(r: int) -> int:
        if r not in found:
            before = body.members[r - count].operands if r >= count else ()
            at = stage(terms[r]) + 1 if r in terms else max(map(stage, before), default=0)
            found[r] = at
        return found[r]

    return tuple(stage(r) for r in range(len(body.types)))


class GpuElement(RowElement):
    """In kernels that call a row's elements `n`."""

    def value(self, k: int) -> str:
        member = self.body.members[k]
        if member.op is not moment:
            return super().value(k)
        power, mean = (value for _, value in member.attrs)
        operands = ", ".join(f"r{o}" for o in member.operands)
        word = f"{('mean_of', 'away_from', 'squares_from')[power]}({operands}, n)"
        return f"real({word} / np.float64(n))" if power and mean else f"real({word})"


# --- in kernels -----------------------------------------------------------------------------------


def finite(x):
    return pick(abs(x) < real(1e999), x, real(0.0))


@pinned("f64")
def mean_of(s1, s2, pivot, n):
    return np.float64(pivot) + s1 / np.float64(n)


@pinned("f64")
def away_from(s1, s2, pivot, centre, n):
    return s1 - np.float64(n) * (np.float64(centre) - np.float64(pivot))


@pinned("f64")
def squares_from(s1, s2, pivot, centre, n):
    by = np.float64(centre) - np.float64(pivot)
    found = s2 - 2.0 * by * s1 + np.float64(n) * by * by
    return 0.0 if found < 0.0 else found


IN_KERNELS = {f.__name__: f for f in (finite, mean_of, away_from, squares_from)}
