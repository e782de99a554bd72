"""A largest element and the sum of exponentials of what is less than it, in one pass over rows that
do not stay in registers (Milakov and Gimelshein 2018, arXiv:1805.02867): where a larger element is
found, the sum so far is scaled down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.pointwise.arithmetic import sub
from opstep.kernels.pointwise.transcendental import exp as exp_op
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.schedules.cuda.holding import Pass
from opstep.kernels.schedules.cuda.moments import stages_of
from opstep.kernels.schedules.passes import folds_of
from opstep.kernels.schedules.row_graph import Folded, RowGraph
from opstep.runtime.device.builtin import pick
from opstep.runtime.device.cuda.compiling.names import real
from opstep.runtime.device.source import by_dtype
from opstep.runtime.plan.internal import PlanOp


class exponential_sum(PlanOp):
    """The sum of exp(x - max(x)), which a pass ends with beside that maximum."""

    name = "exponential_sum"


def online(graph: RowGraph) -> RowGraph:
    """The graph with such a sum in place of its own, if it has one."""
    for f in graph.terms:
        if (top := _largest(graph, f)) is not None:
            leaves: list[Any] = [*graph.leaves]
            leaves[f] = Folded(exponential_sum, leaves[f].axes)
            stages = stages_of(graph.body, {**graph.terms, f: graph.terms[top]})
            return graph._replace(leaves=tuple(leaves), stages=stages)
    return graph


def pair_of(graph: RowGraph, folds: Sequence[int]) -> tuple[int, int] | None:
    """The maximum and the sum, if these are what a pass ends with."""
    sums = [f for f in folds if _op(graph, f) is exponential_sum]
    return (next(f for f in folds if f not in sums), sums[0]) if sums else None


def halves(graph: RowGraph, this: Pass, pair: tuple[int, int]) -> Iterator[Pass]:
    """The part of a pass for each of the two."""
    for f in pair:
        needed = tuple(sorted(graph.within([graph.terms[f]])))
        yield this._replace(folds=(f,), needed=needed)


def _largest(graph: RowGraph, fold: int) -> int | None:
    """The maximum that is taken away before the exponentials that a reduction adds."""
    count, stage = len(graph.leaves), graph.stages
    if _op(graph, fold) is not reductions.sum or graph.terms[fold] < count:
        return None
    e = graph.body.members[graph.terms[fold] - count]
    away = graph.body.members[e.operands[0] - count] if e.operands[0] >= count else None
    if e.op is not exp_op or away is None or away.op is not sub:
        return None
    x, top = away.operands
    alone = all(folds_of(graph, stage[f] - 1) == (f,) for f in (fold, top) if f in graph.terms)
    found = graph.terms.get(top) == x and _op(graph, top) is reductions.max and alone
    return top if found else None


def _op(graph: RowGraph, fold: int) -> Any:
    return graph.leaves[fold].op  # pyright: ignore[reportAttributeAccessIssue]


# --- in kernels -----------------------------------------------------------------------------------


def _lowest_f32():
    return np.float32(-3.4028234663852886e38)


@by_dtype(f32=_lowest_f32)
def lowest():
    return -1.7976931348623157e308


def above(top):
    """The largest element, or a number that can be subtracted from -inf."""
    return pick(top == real(-1e999), lowest(), top)


def fading(old, new):
    """The factor of a sum of exponentials, if another element is the largest."""
    return np.float64(exp(above(old) - above(new)))


IN_KERNELS = {f.__name__: f for f in (above, fading)}
