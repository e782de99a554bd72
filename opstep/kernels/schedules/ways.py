"""The places of operands beside the rows of a graph."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from opstep.kernels.pointwise.broadcast import broadcast_strides
from opstep.kernels.schedules.row_graph import RowGraph, Unfit

SAME = "same"  # it has the shape of what is folded
ALONG = "along"  # one row for all
FOUND = "found"  # rows that strides lead to
EACH = "each"  # a number for each row
ONE = "one"  # a number for all
LED = "led"  # numbers that strides lead to
SPREAD = "spread"  # rows that strides lead to, in working memory
PLANES = "planes"  # a number for each plane of a row, and strides that lead to those of a row


SHORT = 16  # elements: numbers of shorter planes are spread over these first


class Way(NamedTuple):
    """`strides` lead to a row along the axes before it, which has so many planes of equal size."""

    kind: str
    strides: tuple[int, ...] = ()
    planes: int = 0


def way_of(graph: RowGraph, register: int) -> Way:
    """Of what is read as this register. Raises `Unfit`."""
    rows, shape, inner = graph.rows, graph.shapes[register], graph.inner[register]
    sizes = rows.sizes(shape)
    if rows.apart and inner and sizes != rows.shape:
        raise Unfit("an operand repeats along rows whose runs lie apart")
    within, whole = sizes[rows.first : rows.last], rows.shape[rows.first : rows.last]
    if inner and within != whole:
        planes = _planes(within, whole, rows.after)
        if rows.n >= planes * SHORT and register not in graph.within(graph.terms.values()):
            return Way(PLANES, strides_of(graph, shape), planes)
        return Way(SPREAD, strides_of(graph, (*sizes[: rows.first], *rows.shape[rows.first :])))
    others = [*rows.kept, *range(rows.last, len(sizes))]
    if all(sizes[k] == rows.shape[k] for k in others):
        return Way(SAME if inner else EACH)
    if all(sizes[k] == 1 for k in others):
        if inner and rows.after > 1:
            raise Unfit("an operand is the same for all columns")
        return Way(ALONG if inner else ONE)
    if rows.after > 1:
        raise Unfit("an operand repeats among columns")
    return Way(FOUND if inner else LED, strides_of(graph, shape))


def strides_of(graph: RowGraph, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those that lead to the row of what has this shape, along the axes before that are kept."""
    strides = broadcast_strides(shape, len(graph.rows.shape))
    return tuple(strides[k] for k in graph.rows.kept)


def _planes(within: tuple[int, ...], whole: tuple[int, ...], after: int) -> int:
    """The number of planes, in each of which an operand repeats. Raises `Unfit`."""
    outer = next(k for k, (d, n) in enumerate(zip(within, whole, strict=True)) if d != n)
    if after > 1 or any(d != 1 for d in within[outer:]):
        raise Unfit("an operand repeats within a row")
    return prod(within[:outer])
