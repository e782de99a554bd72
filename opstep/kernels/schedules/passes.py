"""The passes over a row: what each computes, and what it keeps for later ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from opstep.kernels.schedules.row_graph import Read, RowGraph

# Ops so quick that computing them again takes no longer than reading what they gave, but for
# conversions of halves.
CHEAP = {
    *("abs", "add", "cast", "equal", "greater", "greater_equal", "less", "less_equal"),
    *("logical_and", "logical_not", "logical_or", "maximum", "minimum", "mul", "neg"),
    *("not_equal", "relu", "square", "sub", "where"),
}


class Pass(NamedTuple):
    """`folds`: the reductions that it ends with. It keeps the registers `holds`, and finds those
    that are `known`; the last one stores.
    """

    folds: tuple[int, ...]
    holds: tuple[int, ...]
    known: frozenset[int]
    stores: tuple[int, ...]


class Passes(NamedTuple):
    """`places`: the results in whose rows registers are held; all others need working memory."""

    passes: list[Pass]
    places: dict[int, int]


def passes_of(graph: RowGraph, inplace: Collection[int], sums: Collection[int] = ()) -> Passes:
    """`inplace`: operands in whose buffer a result may be; `sums`: results that are no rows."""
    inner = [q for q, r in enumerate(graph.body.results) if graph.inner[r]]
    targets = targets_of(graph)
    last = len(targets) - 1
    passes, places, known = [], dict[int, int](), set[int]()
    for p in range(last + 1):
        held = _holds(graph, targets[p], targets[p + 1 :], known)
        if not _read(graph, targets[p + 1 :], {*known, *held}) & {*inplace}:
            _place(graph, held, [q for q in inner if q not in sums], places)
        passes.append(
            Pass(folds_of(graph, p), tuple(held), frozenset(known), tuple(inner) * (p == last))
        )
        known.update(held)
    return Passes(passes, places)


def folds_of(graph: RowGraph, p: int) -> tuple[int, ...]:
    """The reductions that pass p ends with."""
    return tuple(f for f in graph.terms if graph.stages[f] == p + 1)


def targets_of(graph: RowGraph) -> list[list[int]]:
    """The registers that each pass is to compute: those that it folds, at last the results."""
    results = graph.body.results
    last = max(0, *(graph.stages[r] - (not graph.inner[r]) for r in results))
    targets = [[graph.terms[f] for f in folds_of(graph, p)] for p in range(last + 1)]
    targets[last] += [r for r in results if graph.inner[r]]
    return targets


def _holds(
    graph: RowGraph, now: Sequence[int], later: Sequence[Sequence[int]], known: set[int]
) -> list[int]:
    """Registers of this pass that cost much and are needed later: the last of those that depend
    on another.
    """
    held: list[int] = []
    for r in sorted(graph.within(now, known), reverse=True):
        needed = (graph.within(targets, {*known, *held}) for targets in later)
        if r not in known and is_costly(graph, r) and any(r in found for found in needed):
            held.append(r)
    return sorted(held)


def is_costly(graph: RowGraph, r: int) -> bool:
    """Whether an element of a register takes longer to compute than to read."""
    count = len(graph.leaves)
    if not graph.inner[r] or r < count or graph.body.types[r] is not graph.dtype:
        return False
    member = graph.body.members[r - count]
    return member.op.name not in CHEAP or any(t.is_half for t in member.seen)


def _read(graph: RowGraph, later: Sequence[Sequence[int]], known: set[int]) -> set[int]:
    """The operands that passes with these targets read."""
    found = set[int]()
    for targets in later:
        for r in graph.within(targets, known):
            if r < len(graph.leaves) and isinstance(leaf := graph.leaves[r], Read):
                found.add(leaf.slot)
    return found


def _place(graph: RowGraph, held: list[int], inner: list[int], places: dict[int, int]) -> None:
    """Holds registers in the rows of results, as far as there are some of their type."""
    types, results = graph.body.types, graph.body.results
    free = [q for q in inner if types[results[q]] is graph.dtype and q not in places.values()]
    places.update(zip(held, free, strict=False))
