"""The kernel of a graph of rows whose axes are not the last: a row is a column of memory, so that
neighbouring threads read neighbouring columns. Where columns are few, threads of a block share one:
each takes every so many elements of it. Nothing of a column is held.

Sums add in f64, as the CPU's do along such axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.pointwise.fused import indented
from opstep.kernels.schedules.cuda import online
from opstep.kernels.schedules.cuda.holding import Pass, is_read
from opstep.kernels.schedules.cuda.parts import MOST_PARTS, Parted
from opstep.kernels.schedules.cuda.row import EXTREMES, RowText
from opstep.kernels.schedules.cuda.teams import BLOCK, WARP, Team, plus
from opstep.kernels.schedules.row_graph import RowGraph
from opstep.kernels.schedules.ways import SAME
from opstep.runtime.device.cuda.compiling.names import cuda, max_nan, min_nan

BUSY = 1 << 17  # threads that a GPU has under way
LEAST = 4  # elements of a column for each thread that shares it
MOST = 32  # threads that share one
SHARING = 8  # the same, where blocks do, too
AT_ONCE = 8  # elements that a thread reads before it computes, where it has a column alone
MANY = 1 << 19  # elements that are worth several launches


def team_of(n: int, columns: int) -> Team:
    """For so many columns of n elements; `teams`: those of a block. One that is not `full` is for
    `LoneText`, which reads so many `vectors` at once.
    """
    threads = 1
    while threads < MOST and threads * columns < BUSY and 2 * threads * LEAST <= n:
        threads *= 2
    alone = threads == 1 and n >= 2 * AT_ONCE
    return Team(1, AT_ONCE if alone else 1, threads, max(WARP, BLOCK // threads), not alone)


def parts_of(n: int, columns: int) -> tuple[Team, int]:
    """A way for blocks to share so many columns of n elements, and the parts of a column."""
    team = Team(1, 1, SHARING, WARP, True)
    blocks = team.grid(columns)
    parts = min(MOST_PARTS, -(-BUSY // (blocks * team.block)), n // (SHARING * LEAST))
    return team, parts if n * columns > MANY else 1


def start_of(column, n, inner):
    """In a kernel: where a column of n elements begins, which lie `inner` apart."""
    outer = column // inner
    return outer * n * inner + column - outer * inner


@cache
def joined(combine: Callable, team: Team) -> Callable:
    """In a kernel: one number of those of all threads that share a column. Calls alternate between
    two slots: one is written when all threads have read it.
    """
    threads, columns, block = team.threads, team.teams, team.block
    slots = 2 * block

    def of_column(value, slot):
        if threads == 1:
            return value
        found = cuda.shared.array(slots, np.float64)
        found[slot * block + cuda.threadIdx.x] = value
        cuda.syncthreads()
        at = slot * block + cuda.threadIdx.x % columns
        value = found[at]
        for k in range(1, threads):
            value = combine(value, found[at + k * columns])
        return value

    return of_column


class ColumnText(RowText):
    """Results are pointers `y{q}` to where the column begins, operands `x{k}`."""

    index = place_stored = "k * inner"
    begun_at = "x"  # the names of these

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.length = f"first + share, end, {team.threads}"
        combined = {"total": plus, "largest": max_nan, "smallest": min_nan}
        self.scope |= {name: joined(combine, team) for name, combine in combined.items()}
        self.scope["start_of"] = start_of

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, a 0, n, inner, columns)"""
        lines = [*self.column_of("np.int64(cuda.blockIdx.x)", "0", "n"), *self.given()]
        for p, this in enumerate(self.passes):
            lines += self.numbers_before(p)
            if this.needed:
                lines += [*self.begun(this), *self.loop(this), *self.ended(this.folds)]
        if stored := self.stored_numbers():
            lines += ["if row < columns and share == 0:", *indented(stored)]
        return [self.compiled("columns_of_rows", operands, ["n", "inner", "columns"], lines)]

    def column_of(self, block: str, first: str, end: str) -> list[str]:
        """The column of a thread and its share in that, from so many elements to others."""
        graph, columns = self.graph, self.team.teams
        lines = ["thread = np.int64(cuda.threadIdx.x)", f"share = thread // {columns}"]
        lines.append(f"row = {block} * {columns} + thread % {columns}")
        lines += ["at = min(row, columns - 1)", f"first = {first}"]
        lines += [f"end = {end} if row < columns else 0", "start = start_of(at, n, inner)"]
        reads = [k for k in range(len(self.kinds)) if is_read(graph, k)]
        lines += [f"{self.begun_at}{k} = offset({self.operand(k)}, start)" for k in reads]
        inner = [q for q, r in enumerate(graph.body.results) if graph.inner[r]]
        return lines + [f"y{q} = offset(b{q}, start)" for q in inner]

    def place(self, k: int) -> str:
        return "start" if self.kinds[k] == SAME else super().place(k)

    def spot(self, of: int, index: str) -> tuple[str, str]:
        return self.operand(of), f"start + {index} * inner"

    def place_along(self) -> str:
        return "k"

    def neutral(self, fold: int) -> str:
        return super().neutral(fold) if self.op(fold) in EXTREMES else "np.float64(0.0)"

    def joined(self, fold: int, term: str) -> str:
        wide = term if self.op(fold) in EXTREMES else f"np.float64({term})"
        return super().joined(fold, wide)

    def slot(self) -> int:
        self.calls += 1
        return self.calls % 2

    def of_team(self, folds: Sequence[int]) -> list[str]:
        names = {f: EXTREMES[self.op(f)][0] for f in folds if self.op(f) in EXTREMES}
        names = {f: "largest" if name == "max_nan" else "smallest" for f, name in names.items()}
        return [f"r{f} = {names.get(f, 'total')}(a{f}, {self.slot()})" for f in folds]


class ColumnPartText(Parted, ColumnText):
    """Of columns, where they are few: blocks share one."""

    share = "share"
    is_first = "row < columns and share == 0"
    last = ("n", "inner", "columns", "parts", "span")

    def located(self, in_parts: bool) -> list[str]:
        lines = ["block = np.int64(cuda.blockIdx.x)"]
        if not in_parts:
            return [*lines, *self.column_of("block", "0", "n")]
        lines += ["tile = block // parts", "part = block - tile * parts"]
        return [*lines, *self.column_of("tile", "part * span", "min(n, (part + 1) * span)")]

    def place_of(self, part: str) -> str:
        return f"{part} * columns + at"

    def over_part(self, this: Pass) -> list[str]:
        return self.loop(this)

    def joined(self, fold: int, term: str) -> str:
        return ColumnText.joined(self, fold, term)


class LoneText(ColumnText):
    """Of columns that a thread has alone: it reads `AT_ONCE` elements before it computes with them.
    A pass may end with a maximum and an `exponential_sum`.
    """

    index = "k"
    place_stored = "(some + k) * inner"
    begun_at = "v"
    count = "end - some"

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.length = f"{self.held}"
        self.scope |= online.IN_KERNELS | {"in_row": is_before, "read_some": read_some}

    def place_along(self) -> str:
        return "some + k"

    def loop(self, this: Pass) -> list[str]:
        lines = self.arrays(this._replace(stores=()))
        if pair := online.pair_of(self.graph, this.folds):
            top, total = pair
            first, then = online.halves(self.graph, this, pair)
            lines += [f"before = a{top}", *super().loop(first), f"r{top} = above(a{top})"]
            lines += [f"a{total} *= fading(before, a{top})", *super().loop(then)]
        elif this.stores:
            head, *rest = super().loop(this)
            lines += [head, "    if some + k < end:", *indented(rest)]
        else:
            lines += super().loop(this)
        return [f"for some in range(0, end, {self.held}):", *indented(lines)]

    def fetched(self, r: int) -> str:
        return f"read_some(x{r}, v{r}, some, end, inner)"

    def ended(self, folds: Sequence[int]) -> list[str]:
        lines = super().ended(folds)
        if pair := online.pair_of(self.graph, folds):
            # where the largest is no number, or infinite, there is no sum
            lines.append("r{1} += r{0} - r{0}".format(*pair))
        return lines


def is_before(n, thread, k):
    """In a kernel: whether element k of n is one."""
    return k < n


def read_some(values, x, some, end, inner):
    """In a kernel: the elements of a column from `some` on; past its end, the last one."""
    for k in range(AT_ONCE):
        values[k] = x[min(some + k, end - 1) * inner]
