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
from opstep.kernels.schedules.cuda import online
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


class Parted(RowText):
    """Each pass is a kernel; a part of a row folds to `m{k}`, in which sums are of f64."""

    share = "thread"  # of those that share a part or a row
    is_first = "thread == 0"
    last = ("n", "parts", "span")

    def kernels(self, operands: int) -> list[Any]:
        return [self.kernel_of(p, operands) for p in range(len(self.passes))]

    def kernel_of(self, p: int, operands: int) -> Any:
        """(operands, results, a 0, sizes, their count, strides, reductions of this pass and of
        those before, `last`)
        """
        this = self.passes[p]
        lines = [*self.located(bool(this.needed)), *self.given()]
        for before in range(p + 1):
            lines += self.joined_parts(before) if before else []
            lines += self.numbers_before(before)
        if this.needed:
            lines += [*self.begun(this), *self.over_part(this), *self.of_team(this.folds)]
            lines += [f"if {self.is_first}:"] if this.folds else []
            lines += [f"    m{f}[{self.place_of('part')}] = r{f}" for f in this.folds]
        else:
            lines += [f"if {self.is_first}:", *indented(self.stored_numbers())]
        sums = [f"m{f}" for these in self.passes[: p + 1] for f in these.folds]
        return self.compiled("part_of_rows", operands, [*sums, *self.last], lines)

    def joined_parts(self, p: int) -> list[str]:
        """The numbers that the reductions of pass p - 1 give, of those of all parts."""
        if not (folds := self.passes[p - 1].folds):
            return []
        lines = self.begun(self.passes[p - 1])
        lines += [f"for k in range({self.share}, parts, {self.team.threads}):"]
        place = self.place_of("k")
        lines += [f"    {self.with_more(f, f'm{f}[{place}]')}" for f in folds]
        return lines + self.ended(folds)

    def begun(self, this: Pass) -> list[str]:
        return [f"a{f} = {self.start_of(f)}" for f in this.folds]

    def start_of(self, fold: int) -> str:
        return RowText.neutral(self, fold) if self.op(fold) in EXTREMES else "np.float64(0.0)"

    def with_more(self, fold: int, more: str) -> str:
        """The line that adds what a tile or a part folds to."""
        if self.op(fold) in EXTREMES:
            return f"a{fold} = {EXTREMES[self.op(fold)][0]}(a{fold}, {more})"
        return f"a{fold} += np.float64({more})"

    def located(self, in_parts: bool) -> list[str]:
        """The row of a block, and the part of it."""
        raise NotImplementedError

    def over_part(self, this: Pass) -> list[str]:
        raise NotImplementedError

    def place_of(self, part: str) -> str:
        """That of what a part of the row folds to."""
        raise NotImplementedError


class PartText(Parted):
    """Of rows of neighbours. A tile adds in the data's type (`u{k}`)."""

    start = " + first"
    count = "count"

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.scope["total"], self.scope["totals"] = reducers(plus, team.threads, np.float64)

    def located(self, in_parts: bool) -> list[str]:
        lines = ["block = np.int64(cuda.blockIdx.x)", "thread = np.int64(cuda.threadIdx.x)"]
        if not in_parts:
            return [*lines, "at = row = block"]
        return [*lines, "at = row = block // parts", "part = block - row * parts"]

    def place_of(self, part: str) -> str:
        return f"row * parts + {part}"

    def over_part(self, this: Pass) -> list[str]:
        tile = self.held * self.team.threads
        lines = [f"count = min({tile}, n - first)", *self.arrays(this)]
        lines += [f"u{f} = {self.neutral(f)}" for f in this.folds]
        lines += [*self.loop(this), *(self.with_more(f, f"u{f}") for f in this.folds)]
        lines = indented([*lines, *self.puts(this)])
        head = f"for first in range(part * span, end, {tile}):"
        return ["end = min(n, (part + 1) * span)", head, *lines]

    def joined(self, fold: int, term: str) -> str:
        join = EXTREMES[self.op(fold)][0] if self.op(fold) in EXTREMES else "exact_sum"
        return f"u{fold} = {join}(u{fold}, {term})"


class OnlineText(PartText):
    """A pass may end with a maximum and an `exponential_sum`."""

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.scope |= online.IN_KERNELS

    def loop(self, this: Pass) -> list[str]:
        if not (pair := online.pair_of(self.graph, this.folds)):
            return super().loop(this)
        top, total = pair
        first, then = online.halves(self.graph, this, pair)
        lines = [*super().loop(first), f"before = a{top}"]
        lines += [f"{self.with_more(top, f'u{top}')}", f"r{top} = above(a{top})"]
        return [*lines, f"a{total} *= fading(before, a{top})", *super().loop(then)]

    def of_team(self, folds: Sequence[int]) -> list[str]:
        if not (pair := online.pair_of(self.graph, folds)):
            return super().of_team(folds)
        top, total = pair
        lines = [*super().of_team([top]), f"a{total} *= fading(a{top}, r{top})"]
        return [*lines, *super().of_team([total])]

    def joined_parts(self, p: int) -> list[str]:
        folds = self.passes[p - 1].folds
        if not (pair := online.pair_of(self.graph, folds)):
            return super().joined_parts(p)
        (top, total), place = pair, self.place_of("k")
        lines = self.begun(self.passes[p - 1])
        lines += [f"for k in range({self.share}, parts, {self.team.threads}):"]
        lines += [f"    before = a{top}", f"    {self.with_more(top, f'm{top}[{place}]')}"]
        lines.append(f"    a{total} *= fading(before, a{top})")
        lines.append(f"    a{total} += m{total}[{place}] * fading(m{top}[{place}], a{top})")
        # where the largest is no number, or infinite, there is no sum
        return [*lines, *self.ended(folds), f"r{total} += r{top} - r{top}"]
