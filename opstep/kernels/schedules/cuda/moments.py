"""Means and squared distances from them in one pass, for rows that do not stay in registers: sums
of distances from a pivot near the data, the row's first element, say what both are.

In the pass the pivot stands for the mean. The sums and what follows from them are in f64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from opstep.kernels.pointwise.arithmetic import square, sub
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.schedules.cuda.holding import is_read
from opstep.kernels.schedules.row_graph import RowGraph
from opstep.kernels.schedules.ways import SAME, way_of
from opstep.runtime.device.builtin import pick
from opstep.runtime.device.cuda.compiling.names import real
from opstep.runtime.device.source import pinned
from opstep.runtime.plan.fusing import Body


@dataclass(frozen=True)
class Moment:
    """A sum of distances from the pivot that a mean of what is read as `of` begins with, or of
    their squares (`power` 2), and what it stands for: the mean itself (0), or the sum of distances
    from that, or of their squares, over their count where it is `shared`.
    """

    power: int
    shared: bool
    of: int
    mean: int
    op: Any = reductions.sum


def in_one_pass(graph: RowGraph) -> RowGraph:
    """The graph with moments in place of its first mean and of what is folded of distances from it,
    or the graph itself.
    """
    for mean, read in graph.terms.items():
        is_mean = _op(graph, mean) is reductions.mean and graph.rows.count > 0
        if is_mean and is_read(graph, read) and way_of(graph, read).kind == SAME:
            powers, away = _powers(graph, mean, read)
            if 2 in powers.values():
                return _with_moments(graph, {mean: 0, **powers}, mean, away)
    return graph


def _powers(graph: RowGraph, mean: int, read: int) -> tuple[dict[int, int], int]:
    """The powers of distances from the mean, by the reductions that add them; these distances."""
    members = [*enumerate(graph.body.members, len(graph.leaves))]
    away = next((k for k, m in members if m.op is sub and m.operands == (read, mean)), -1)
    squares = [k for k, m in members if m.op is square and m.operands == (away,)]
    power = {away: 1} | dict.fromkeys(squares, 2)
    sums = (reductions.sum, reductions.mean)
    found = [f for f, t in graph.terms.items() if t in power and _op(graph, f) in sums]
    return {f: power[graph.terms[f]] for f in found}, away


def _with_moments(graph: RowGraph, powers: dict[int, int], mean: int, away: int) -> RowGraph:
    leaves, read = list[Any](graph.leaves), graph.terms[mean]
    for f, power in powers.items():
        leaves[f] = Moment(power, _op(graph, f) is reductions.mean, read, mean)
    stages = stages_of(graph.body, {**graph.terms, **dict.fromkeys(powers, read)})
    terms = {**graph.terms, mean: away}
    return graph._replace(leaves=tuple(leaves), terms=terms, stages=stages)


def _op(graph: RowGraph, fold: int) -> Any:
    return graph.leaves[fold].op  # pyright: ignore[reportAttributeAccessIssue]


def stages_of(body: Body, terms: dict[int, int]) -> tuple[int, ...]:
    """The number of reductions that each register comes after, if these are their terms."""
    count, found = len(body.operands), dict[int, int]()

    def stage(r: int) -> int:
        if r not in found:
            before = body.members[r - count].operands if r >= count else ()
            at = stage(terms[r]) + 1 if r in terms else max(map(stage, before), default=0)
            found[r] = at
        return found[r]

    return tuple(stage(r) for r in range(len(body.types)))


# --- in kernels -----------------------------------------------------------------------------------


def meant(graph: RowGraph, folds: tuple[int, ...]) -> list[str]:
    """The lines that make of sums from pivots what these stand for."""
    moments = [(f, leaf) for f in folds if isinstance(leaf := graph.leaves[f], Moment)]
    lines = [f"from_pivot = r{f}" for f, leaf in moments if leaf.power == 0]
    lines += [f"r{f} = real(pivot{f} + from_pivot / n)" for f, leaf in moments if leaf.power == 0]
    for f, leaf in moments:
        if leaf.power:
            name = "away_from" if leaf.power == 1 else "squares_from"
            word = f"{name}(from_pivot, r{f}, pivot{leaf.mean}, r{leaf.mean}, n)"
            lines.append(f"r{f} = {word} / np.float64(n)" if leaf.shared else f"r{f} = {word}")
    return lines


def finite(x):
    return pick(abs(x) < real(1e999), x, real(0.0))


@pinned("f64")
def away_from(s1, s2, pivot, centre, n):
    return s1 - np.float64(n) * (np.float64(centre) - np.float64(pivot))


@pinned("f64")
def squares_from(s1, s2, pivot, centre, n):
    by = np.float64(centre) - np.float64(pivot)
    found = s2 - 2.0 * by * s1 + np.float64(n) * by * by
    return 0.0 if found < 0.0 else found


IN_KERNELS = {f.__name__: f for f in (finite, away_from, squares_from)}
