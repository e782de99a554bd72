"""Launches of graphs of rows on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from opstep.kernels.pointwise.conversions import as_numbers
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.schedules.cuda.columns import ColumnPartText, ColumnText, LoneText, parts_of
from opstep.kernels.schedules.cuda.columns import team_of as team_of_columns
from opstep.kernels.schedules.cuda.holding import Pass, Passes, is_read, passes_of, without_casts
from opstep.kernels.schedules.cuda.moments import in_one_pass
from opstep.kernels.schedules.cuda.online import online
from opstep.kernels.schedules.cuda.parts import OnlineText, cut_of
from opstep.kernels.schedules.cuda.parts import passes_of as passes_by_parts
from opstep.kernels.schedules.cuda.row import EXTREMES, STRIDED, RowText
from opstep.kernels.schedules.cuda.teams import HELD, Team, rows_grid, team_for
from opstep.kernels.schedules.row_graph import Read, RowGraph, Rows, Unfit
from opstep.kernels.schedules.stages import Stage, parted, rows_of_part
from opstep.kernels.schedules.ways import PLANES, SPREAD, strides_of, way_of
from opstep.runtime.device.launch import Arg, Grid, Held, Scratch
from opstep.runtime.ir.types import TensorType, f64
from opstep.runtime.transforms.composite import Composite

PARTS = 1024  # of rows, whose elements are added in the data's type
ROOM = 6 * HELD  # elements of 4 bytes that a thread holds at most, of all arrays


class _Work(NamedTuple):
    graph: RowGraph
    passes: Passes
    text: str  # graphs with equal texts share a kernel
    again: Any = None  # the same, where rows do not stay in registers
    parts: Any = None  # and are shared by blocks


def launch_composite(op: type[Composite], args: Sequence[Arg | None], attrs: dict) -> list[Grid]:
    """The launches of a composite for its operands and results. Raises `Unfit`."""
    return [g for stage in parted(op, args, attrs, "stored", PARTS) for g in _launches(*stage)]


@lru_cache(256)
def _work(stage: Stage) -> _Work:
    graph = without_casts(stage.graph)
    rows = graph.rows
    if rows.first == rows.last:  # rows of one element are side by side
        graph = graph._replace(rows=Rows(rows.shape, len(rows.shape), len(rows.shape)))
    again = in_one_pass(graph)
    forms = (_Work(g, _NONE, _text(g)) for g in (again, online(again)))
    return _Work(graph, passes_of(graph), _text(graph), *forms)


_NONE = Passes((), 0)


def _text(graph: RowGraph) -> str:
    stages, apart = graph.stages, graph.rows.apart
    return repr((graph.body, graph.leaves, graph.inner, stages, graph.terms, apart))


def _launches(
    stage: Stage, operands: Sequence[Arg], results: Sequence[Arg], inplace: Sequence[int]
) -> list[Grid]:
    work = _work(stage)
    graph, rows = work.graph, work.graph.rows
    if max(rows.count, rows.before * rows.after) >= LIMIT:
        raise Unfit("places take more than 32 bits")
    if not rows.before * rows.after:
        return []
    args = [_as_numbers(a) for a in (*operands, *results)]
    within = any(p.needed for p in work.passes.passes)
    if rows.after > 1 or rows.count == 0 or not within:
        columns = rows.before * rows.after
        last = rows.count, rows.after, columns
        team, parts = parts_of(rows.count if within else 1, columns)
        if parts > 1:
            last = *last, parts, -(-rows.count // parts)
            return _by_parts(
                work.again, ColumnPartText, team, args, last, team.grid(columns), parts, columns
            )
        team = team_of_columns(rows.count if within else 1, columns)
        form, work = (ColumnText, work.again) if team.full else (LoneText, work.parts)
        kernels, given = _kernels(work, form, passes_by_parts(work.graph), team, args)
        return [Grid(*kernels, *given, *last, grid=team.grid(columns), block=team.block)]
    inner, vector = _inner(graph, args), _longest_vector(graph)
    if team := _team(work, inner, vector, len(stage.sums)):
        kernels, given = _kernels(work, RowText, work.passes.passes, team, args, stage.sums)
        if stage.sums:
            each = rows_of_part(rows.before, PARTS)
            parts = team.grid(-(-rows.before // each))
            last = each, rows.count, rows.before
            return [Grid(*kernels, *given, *last, grid=parts, block=team.block)]
        return [rows_grid(*kernels, team, rows.before, *given, rows.count)]
    if stage.sums:
        raise Unfit("sums over rows are of rows in registers")
    cut = cut_of(rows.count, rows.before, inner, vector)
    last = rows.count, cut.parts, cut.span
    return _by_parts(
        work.parts, OnlineText, cut.team, args, last, rows.before, cut.parts, rows.before
    )


def _by_parts(
    work: _Work, form: type[RowText], team: Team, args: list[Any], last: tuple[int, ...],
    blocks: int, parts: int, rows: int,
) -> list[Grid]:  # fmt: skip
    """A launch for each pass; of `blocks`, if rows had no parts."""
    graph, passes = work.graph, passes_by_parts(work.graph)
    kernels, given = _kernels(work, form, passes, team, args)
    kinds = [graph.dtype if graph.leaves[f].op in EXTREMES else f64 for f in graph.terms]  # pyright: ignore[reportAttributeAccessIssue]
    sums = {f: Scratch(t, rows * parts) for f, t in zip(graph.terms, kinds, strict=True)}
    launches, known = list[Grid](), list[Scratch]()
    for kernel, this in zip(kernels, passes, strict=True):
        known += [sums[f] for f in this.folds]
        grid = blocks * (parts if this.needed else 1)
        launches.append(Grid(kernel, *given, *known, *last, grid=grid, block=team.block))
    return launches


_made: dict[tuple, list[Any]] = {}


def _kernels(
    work: _Work,
    form: type[RowText],
    passes: Sequence[Pass],
    team: Team,
    args: list[Any],
    sums: tuple[int, ...] = (),
) -> tuple[list[Any], tuple]:
    """Those of a graph, and what all of them take first."""
    graph = work.graph
    reads = [k for k, leaf in enumerate(graph.leaves) if isinstance(leaf, Read)]
    kinds = tuple(_kind(graph, k) for k in reads)
    operands = len(args) - len(graph.body.results)
    key = (form, work.text, kinds, team, operands, sums)
    if key not in _made:
        more = (sums,) if sums else ()
        _made[key] = form(graph, kinds, passes, team, *more).kernels(operands)
    return _made[key], (*args, 0, *_where(graph, kinds))


def _kind(graph: RowGraph, register: int) -> str:
    kind = way_of(graph, register).kind
    return PLANES if kind == SPREAD else kind


def _plane(graph: RowGraph, register: int) -> int:
    """Elements of a row for each that an operand has of it."""
    rows = graph.rows
    return rows.n // prod(rows.sizes(graph.shapes[register])[rows.first : rows.last])


def _where(graph: RowGraph, kinds: Sequence[str]) -> list[Any]:
    """Arguments that lead to the rows of operands, to runs of these, and the sizes of planes."""
    rows = graph.rows
    strided = [k for k, kind in enumerate(kinds) if kind in STRIDED]
    planes = [_plane(graph, k) for k in strided if kinds[k] == PLANES]
    strides = [strides_of(graph, graph.shapes[k]) for k in strided]
    where = [tuple(rows.shape[k] for k in rows.kept), len(rows.kept), *strides]
    runs = [strides_of(graph, rows.shape), rows.n, rows.step] if rows.apart else []
    return [*where, *runs, *planes] if strided or runs else []


def _as_numbers(a: Arg | Held) -> Arg | Held:
    """As it is stored: its graph casts it, where it is promoted. Bools are bytes."""
    return a if isinstance(a, Held) else as_numbers(Arg(TensorType(a.stored, a.shape), a.slot))


def _inner(graph: RowGraph, args: list[Arg]) -> list[Arg]:
    """Those operands and results that have an element for each of a row's."""
    slots = {graph.leaves[r].slot for r in range(len(graph.leaves)) if is_read(graph, r)}  # pyright: ignore[reportAttributeAccessIssue]
    first = len(args) - len(graph.body.results)
    slots |= {first + q for q, r in enumerate(graph.body.results) if graph.inner[r]}
    return [args[k] for k in sorted(slots)] or args


def _longest_vector(graph: RowGraph) -> int:
    """Vectors of a row divide this number: they end where rows and planes do."""
    reads = [k for k, leaf in enumerate(graph.leaves) if isinstance(leaf, Read) and graph.inner[k]]
    return gcd(graph.rows.n, *(_plane(graph, k) for k in reads if _kind(graph, k) == PLANES))


def _team(work: _Work, inner: list[Arg], vector: int, sums: int) -> Team | None:
    """None where rows are too long."""
    arrays = work.passes.arrays + sums
    held = min(HELD, ROOM // arrays)
    if work.graph.dtype.itemsize > max(4, *(a.dtype.itemsize for a in inner)):
        held //= 2
    # a block of 1,024 threads has registers for one array, one of 512 for three
    count = 1 if arrays == 1 else 2 if arrays <= 3 else 4
    return team_for(work.graph.rows.count, inner, count, held, vector)
