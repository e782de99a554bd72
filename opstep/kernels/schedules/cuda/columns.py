"""The kernel of a graph of rows whose axes are not the last: a thread works through a row, which is
a column of memory, so that neighbours read neighbours. It holds nothing of it.

Sums add in f64, as the CPU's do along such axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.kernels.schedules.cuda.holding import Pass, is_read
from opstep.kernels.schedules.cuda.row import EXTREMES, RowText
from opstep.kernels.schedules.cuda.teams import Team
from opstep.kernels.schedules.row_graph import RowGraph

ALONE = Team(width=1, vectors=1, threads=1, teams=128, full=True)


def start_of(column, n, inner):
    """In a kernel: where a column of n elements begins, which lie `inner` apart."""
    outer = column // inner
    return outer * n * inner + column - outer * inner


class ColumnText(RowText):
    """Results are pointers `y{q}` to where the column begins, operands `x{k}`."""

    index = "k * inner"
    length = "n"

    def __init__(self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team):
        super().__init__(graph, kinds, passes, team)
        self.scope["start_of"] = start_of

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, a 0, n, inner, columns)"""
        graph = self.graph
        lines = ["row = at = cuda.grid(1)", "if row >= columns:", "    return"]
        lines += ["start = start_of(row, n, inner)", *self.given()]
        reads = [k for k in range(len(self.kinds)) if is_read(graph, k)]
        lines += [f"x{k} = offset({self.operand(k)}, start)" for k in reads]
        inner = [q for q, r in enumerate(graph.body.results) if graph.inner[r]]
        lines += [f"y{q} = offset(b{q}, start)" for q in inner]
        for p, this in enumerate(self.passes):
            lines += self.numbers_before(p)
            if this.needed:
                lines += [*self.begun(this), *self.loop(this), *self.ended(this.folds)]
        lines += self.stored_numbers()
        return [self.compiled("columns_of_rows", operands, ["n", "inner", "columns"], lines)]

    def neutral(self, fold: int) -> str:
        return super().neutral(fold) if self.op(fold) in EXTREMES else "np.float64(0.0)"

    def joined(self, fold: int, term: str) -> str:
        wide = term if self.op(fold) in EXTREMES else f"np.float64({term})"
        return super().joined(fold, wide)

    def of_team(self, folds: Sequence[int]) -> list[str]:
        return [f"r{f} = real(a{f})" for f in folds]
