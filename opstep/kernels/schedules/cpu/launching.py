"""Launches of graphs of rows on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from opstep.kernels.reduce.reduction import FEW, TILE, order_of
from opstep.kernels.reduce.runs import RUN
from opstep.kernels.schedules.cpu.columns import WIDTH, ColumnText
from opstep.kernels.schedules.cpu.parts import PartText
from opstep.kernels.schedules.cpu.row import RowText
from opstep.kernels.schedules.cpu.text import EXTREMES, Text
from opstep.kernels.schedules.passes import is_costly
from opstep.kernels.schedules.row_graph import Read, RowGraph, Unfit
from opstep.kernels.schedules.stages import Stage, parted
from opstep.kernels.schedules.ways import FOUND, LED, PLANES, SPREAD, Way, strides_of, way_of
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import f32, f64, i32, i64
from opstep.runtime.transforms.composite import Composite

WORK = 32768  # elements worth a lane of their own
MANY = 4 * WORK  # elements of few rows that are worth several launches
ROWS_OF_PART = 32  # whose elements are added in the data's type
COSTLY = 8192  # the same, where a function of each is computed


def launch_composite(op: type[Composite], args: Sequence[Arg | None], attrs: dict) -> list[Launch]:
    """The launch of a composite for its operands and results."""
    stages = parted(op, args, attrs, "dtype", -ROWS_OF_PART)
    return [each for stage in stages for each in launch(*stage)]


def launch(
    stage: Stage, operands: Sequence[Arg], results: Sequence[Arg], inplace: Sequence[int] = ()
) -> list[Launch]:
    """`inplace`: operands in whose buffer a result may be. Raises `Unfit`."""
    graph, rows = stage.graph, stage.graph.rows
    ways = [way_of(graph, k) for k, leaf in enumerate(graph.leaves) if isinstance(leaf, Read)]
    kinds = tuple(way.kind for way in ways)
    form = RowText if rows.after == 1 else ColumnText
    if not stage.sums and form is RowText and rows.before < FEW and rows.before * rows.count > MANY:
        form = RowText if PLANES in kinds else PartText
    text, kernels = _kernels(form, _Key(stage), kinds, len(operands), (*inplace,))
    work = COSTLY if any(is_costly(graph, r) for r in range(len(graph.inner))) else WORK
    grain, args = max(1, work // max(1, rows.count)), [*operands, *results]
    if isinstance(text, ColumnText):
        args += [*_tiles(text, graph), rows.n, rows.after, min(WIDTH, rows.after)]
        args += order_of(rows.n, rows.after)
        units = rows.before * rows.after
        return [Launch(*kernels, *args, units=units, grain=max(WIDTH, grain))]
    before = _spread(graph, ways, operands)
    args += [launch.args[1] for launch in before]
    if isinstance(text, PartText):
        args += [*_rows(text, graph, rows.before), *_places(graph, ways)]
        return [*before, *_of_parts(text, kernels, graph, args, work // RUN)]
    args += [*_rows(text, graph), *_places(graph, ways), rows.n]
    if stage.sums:
        grain, units = -(-grain // ROWS_OF_PART), -(-rows.before // ROWS_OF_PART)
        args += [ROWS_OF_PART, rows.before]
        return [*before, Launch(*kernels, *args, units=units, grain=grain)]
    return [*before, Launch(*kernels, *args, units=rows.before, grain=grain)]


def _of_parts(
    text: PartText, kernels: list[Any], graph: RowGraph, args: list[Any], grain: int
) -> list[Launch]:
    rows = graph.rows
    blocks = -(-rows.n // RUN)  # of a run
    units = rows.before * rows.runs * blocks
    kinds = [graph.dtype if text.op(f) in EXTREMES else f64 for f in graph.terms]
    args += [Scratch(kind, units) for kind in kinds]
    args += [Scratch(graph.dtype, rows.before) for _ in graph.terms]
    args += [rows.n, blocks]
    shared, whole = (units, grain), (rows.before, 1)
    counts = [shared if of_blocks else whole for of_blocks in text.of_blocks]
    return [
        Launch(kernel, *args, units=count, grain=each)
        for kernel, (count, each) in zip(kernels, counts, strict=True)
    ]


def _spread(graph: RowGraph, ways: Sequence[Way], operands: Sequence[Arg]) -> list[Launch]:
    """Launches that spread numbers of planes over these."""
    rows, launches = graph.rows, []
    for k, way in enumerate(ways):
        if way.kind == SPREAD:
            operand = operands[graph.leaves[k].slot]  # pyright: ignore[reportAttributeAccessIssue]
            outer = rows.sizes(graph.shapes[k])[: rows.first]
            whole = Scratch(operand.dtype, prod(outer) * rows.n, stored=operand.stored)
            plane = whole.size // max(1, operand.size)
            launches.append(Launch(spread, operand, whole, plane, units=operand.size))
    return launches


def spread(x, y, plane, lo, hi):
    for k in range(lo, hi):
        number = x[k]
        for i in range(plane):
            y[k * plane + i] = number


def _rows(text: Text, graph: RowGraph, rows: int = 0) -> list[Any]:
    """Working memory for what is held of a row, or of so many."""
    n = graph.rows.count
    own = [Scratch(graph.dtype, n * rows or n, per_lane=not rows) for _ in text.own]
    return [word for scratch in own for word in (scratch, scratch.size)]


def _places(graph: RowGraph, ways: Sequence[Way]) -> list[Any]:
    """Arguments that lead to the rows of operands, and to planes in them."""
    rows, args = graph.rows, []
    strides = [way.strides for way in ways if way.kind in (FOUND, LED, PLANES, SPREAD)]
    if strides or rows.apart:
        args += [tuple(rows.shape[k] for k in rows.kept), len(rows.kept), *strides]
    args += [strides_of(graph, rows.shape), rows.runs, rows.step] if rows.apart else []
    if planes := {way.planes for way in ways if way.kind == PLANES}:
        if len(planes) > 1:
            raise Unfit("planes are not of one size")
        (count,) = planes
        args += [count, rows.n // max(count, 1)]
    return args


def _tiles(text: ColumnText, graph: RowGraph) -> list[Any]:
    """Working memory for `ColumnText.tiles`."""
    held = (graph.dtype, graph.rows.n * WIDTH)
    keys = i32 if graph.dtype is f32 else i64
    sizes = {"held": held, "lanes": (f64, TILE), "keys": (keys, WIDTH), "sums": (f64, WIDTH)}
    found: list[Any] = []
    for _, kind in text.tiles:
        size = sizes[kind] if isinstance(kind, str) else (kind, WIDTH)
        own = Scratch(*size, per_lane=True)
        found += [own, own.size]
    return found


class _Key:
    """Graphs with equal texts share a kernel."""

    def __init__(self, stage: Stage):
        self.stage, graph = stage, stage.graph
        self.text = repr(
            (stage.sums, graph.body, graph.leaves, graph.inner, graph.terms, graph.rows.apart)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@cache
def _kernels(
    kind: type[Text],
    key: _Key,
    ways: tuple[str, ...],
    operands: int,
    inplace: tuple[int, ...],
) -> tuple[Text, list[Any]]:
    text = kind(key.stage.graph, ways, inplace, key.stage.sums)
    return text, text.kernels(operands)
