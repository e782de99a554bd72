"""The passes over a row whose values stay in registers, and what is held from one to the next.

A value needs as many registers as the part of a row that a thread has: an array. What a later pass
needs is held where it is costly to compute again, or where it takes the place of what it is made
of: x less its mean in place of x, a product in place of both factors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from opstep.kernels.schedules.passes import folds_of, is_costly, targets_of
from opstep.kernels.schedules.row_graph import Read, RowGraph
from opstep.kernels.schedules.ways import PLANES, SPREAD, way_of
from opstep.runtime.ir.types import f32


class Pass(NamedTuple):
    """`reads`: operands that are fetched before it, `needed`: the registers that it computes or
    finds, of which it holds `holds`. It ends with the reductions `folds`; the last one stores.
    """

    folds: tuple[int, ...]
    reads: tuple[int, ...]
    known: frozenset[int]
    needed: tuple[int, ...]
    holds: tuple[int, ...]
    stores: tuple[int, ...]


class Passes(NamedTuple):
    """`arrays`: how many are needed at once."""

    passes: tuple[Pass, ...]
    arrays: int


def passes_of(graph: RowGraph) -> Passes:
    targets = targets_of(graph)
    known, passes, arrays = set[int](), list[Pass](), 1
    stored = tuple(q for q, r in enumerate(graph.body.results) if graph.inner[r])
    for p, now in enumerate(targets):
        later = [t for of_pass in targets[p + 1 :] for t in of_pass]
        needed = sorted(graph.within(now, known))
        reads = [r for r in needed if is_read(graph, r) and r not in known]
        known.update(reads)
        held = _holds(graph, needed, later, known)
        stores = stored if p == len(targets) - 1 else ()
        folds = folds_of(graph, p)
        lists = tuple(reads), frozenset(known), tuple(needed), tuple(held)
        passes.append(Pass(folds, *lists, stores))
        after = _live(graph, later, {*known, *held})
        arrays = max(arrays, _arrays(graph, known), _arrays(graph, after) + len(stores))
        known = after
    return Passes(tuple(passes), arrays)


def _arrays(graph: RowGraph, registers: Collection[int]) -> int:
    """How many arrays these are; numbers of planes take little."""
    reads = [r for r in registers if is_read(graph, r)]
    return len(registers) - sum(way_of(graph, r).kind in (PLANES, SPREAD) for r in reads)


def is_read(graph: RowGraph, r: int) -> bool:
    """Whether it is an operand with an element for each of a row's."""
    return r < len(graph.leaves) and graph.inner[r] and isinstance(graph.leaves[r], Read)


def _holds(
    graph: RowGraph, needed: Sequence[int], later: Sequence[int], known: Collection[int]
) -> list[int]:
    """The last of what depends on another comes first."""
    held: list[int] = []
    for r in reversed(needed):
        found = {*known, *held}
        if r in found or not graph.inner[r] or r not in graph.within(later, found):
            continue
        before, after = (len(_live(graph, later, have)) for have in (found, {*found, r}))
        if is_costly(graph, r) or after <= before:
            held.append(r)
    return sorted(held)


def _live(graph: RowGraph, later: Iterable[int], known: Collection[int]) -> set[int]:
    """Of what is known, what later passes read."""
    return graph.within(later, known).intersection(known)


def without_casts(graph: RowGraph) -> RowGraph:
    """Halves are f32 once they are read, and are rounded as they are stored: casts between the two
    at either end are left out.
    """
    body, count = graph.body, len(graph.leaves)
    types, same, members = body.types, dict[int, int](), []
    for r, member in enumerate(body.members, count):
        operands = tuple(same.get(o, o) for o in member.operands)
        members.append(member._replace(operands=operands))
        if member.op.name == "cast" and member.result is f32 and types[operands[0]].is_half:
            same[r] = operands[0]

    def before_rounding(r: int) -> int:
        if r < count or members[r - count].op.name != "cast" or not types[r].is_half:
            return r
        (wide,) = members[r - count].operands
        return wide if types[wide] is f32 else r

    results = [before_rounding(same.get(r, r)) for r in body.results]
    plain = replace(body, members=tuple(members), results=tuple(results))
    terms = {f: same.get(t, t) for f, t in graph.terms.items()}
    return graph._replace(body=plain, terms=terms)
