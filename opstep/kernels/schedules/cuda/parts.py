"""The kernels of a graph of rows that are too long for registers: blocks share a row.

A pass is a launch. A block reads its part of a row, a tile at a time, and leaves what the part
folds to; blocks of later launches join those numbers of the row first. Nothing else is kept: what a
later pass needs is read and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pointwise.fused import indented
from opstep.kernels.schedules.cuda.holding import Pass, is_read
from opstep.kernels.schedules.cuda.row import EXTREMES, RowText
from opstep.kernels.schedules.cuda.teams import Team, plus, reducers
from opstep.kernels.schedules.passes import folds_of, targets_of
from opstep.kernels.schedules.row_graph import RowGraph
from opstep.runtime.device.launch import Arg

THREADS = 256
HELD = 64  # bytes of an operand that a thread holds of a tile
BLOCKS = 1024  # so many keep a GPU busy: more only take more time to begin
MOST_PARTS = 1024


class Cut(NamedTuple):
    """Rows shared out: `parts` of `span` elements each, read by tiles of `tile`."""

    team: Team
    parts: int
    span: int
    tile: int


def cut_of(n: int, rows: int, args: list[Arg], vector: int) -> Cut:
    """For rows of n elements of these operands, read by vectors that divide `vector`."""
    width = gcd(vector, 16 // max(2, *(a.stored.itemsize for a in args)))
    vectors = max(1, HELD // (width * max(4, *(a.dtype.itemsize for a in args))))
    tile = THREADS * vectors * width
    tiles = -(-n // tile)
    parts = min(tiles, MOST_PARTS, max(1, -(-BLOCKS // rows)))
    each = -(-tiles // parts)
    team = Team(width, vectors, THREADS, 1, n % tile == 0)
    return Cut(team, -(-tiles // each), each * tile, tile)


def passes_of(graph: RowGraph) -> tuple[Pass, ...]:
    """Those of which nothing is held; at last, where numbers of rows are stored, one for these:
    they may be in the place of some that all blocks of a row read.
    """
    passes, targets = [], targets_of(graph)
    for p, now in enumerate(targets):
        needed = sorted(graph.within(now))
        reads = tuple(r for r in needed if is_read(graph, r))
        last = p == len(targets) - 1
        stores = [q for q, r in enumerate(graph.body.results) if last and graph.inner[r]]
        lists = tuple(needed), (), tuple(stores)
        passes.append(Pass(folds_of(graph, p), reads, frozenset(reads), *lists))
    stores = not all(graph.inner[r] for r in graph.body.results)
    return (*passes, *[Pass((), (), frozenset(), (), (), ())] * stores)


class PartText(RowText):
    """A part of a row folds to `m{k}[row * parts + part]`. A tile adds in the data's type (`u{k}`),
    tiles and parts in f64.
    """

    start = " + first"
    count = "count"

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.scope["total"], self.scope["totals"] = reducers(plus, team.threads, np.float64)

    def of_team(self, folds: Sequence[int]) -> list[str]:
        lines = super().of_team(folds)
        sums = [f for f in folds if self.op(f) not in EXTREMES]
        return lines + [f"r{f} = {self.number(f, f'r{f}')}" for f in sums]

    def begun(self, this: Pass) -> list[str]:
        return [f"a{f} = {self.start_of(f)}" for f in this.folds]

    def start_of(self, fold: int) -> str:
        return super().neutral(fold) if self.op(fold) in EXTREMES else "np.float64(0.0)"

    def kernels(self, operands: int) -> list[Any]:
        return [self.kernel_of(p, operands) for p in range(len(self.passes))]

    def kernel_of(self, p: int, operands: int) -> Any:
        """(operands, results, a 0, sizes, their count, strides, reductions of this pass and of
        those before, n, parts, span)
        """
        this = self.passes[p]
        lines = ["block = np.int64(cuda.blockIdx.x)"]
        lines += ["at = row = block // parts", "part = block - row * parts"] if this.needed else []
        lines += [] if this.needed else ["at = row = block"]
        lines += ["thread = np.int64(cuda.threadIdx.x)", *self.given()]
        for before in range(p + 1):
            lines += self.joined_parts(before) if before else []
            lines += self.numbers_before(before)
        if this.needed:
            tile = self.held * self.team.threads
            lines += [*self.begun(this), "end = min(n, (part + 1) * span)"]
            lines.append(f"for first in range(part * span, end, {tile}):")
            inner = [f"count = min({tile}, n - first)", *self.arrays(this)]
            inner += [f"u{f} = {self.neutral(f)}" for f in this.folds]
            inner += [*self.loop(this), *(self.with_more(f, f"u{f}") for f in this.folds)]
            lines += indented([*inner, *self.puts(this)])
            lines += super().of_team(this.folds)
            lines += ["if thread == 0:"] if this.folds else []
            lines += [f"    m{f}[row * parts + part] = r{f}" for f in this.folds]
        else:
            lines += ["if thread == 0:", *indented(self.stored_numbers())]
        sums = [f"m{f}" for these in self.passes[: p + 1] for f in these.folds]
        return self.compiled("part_of_rows", operands, [*sums, "n", "parts", "span"], lines)

    def joined_parts(self, p: int) -> list[str]:
        """The numbers that the reductions of pass p - 1 give, of those of all parts."""
        if not (folds := self.passes[p - 1].folds):
            return []
        lines = self.begun(self.passes[p - 1])
        lines += [f"for k in range(thread, parts, {self.team.threads}):"]
        lines += [f"    {self.with_more(f, f'm{f}[row * parts + k]')}" for f in folds]
        return lines + self.ended(folds)

    def joined(self, fold: int, term: str) -> str:
        join = EXTREMES[self.op(fold)][0] if self.op(fold) in EXTREMES else "exact_sum"
        return f"u{fold} = {join}(u{fold}, {term})"

    def with_more(self, fold: int, more: str) -> str:
        """The line that adds what a tile or a part folds to."""
        if self.op(fold) in EXTREMES:
            return f"a{fold} = {EXTREMES[self.op(fold)][0]}(a{fold}, {more})"
        return f"a{fold} += np.float64({more})"
