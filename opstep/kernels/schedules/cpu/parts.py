"""The kernels of a graph of rows that are long and few: threads share a row, block by block.

A pass is a launch whose units are the blocks of all rows; a second one joins what the blocks folded
to, in order. So the bits are those of whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opstep.kernels.pointwise.fused import indented
from opstep.kernels.reduce.runs import RUN
from opstep.kernels.schedules.cpu.row import RUNS, RowText
from opstep.kernels.schedules.cpu.text import EXTREMES
from opstep.kernels.schedules.row_graph import RowGraph, Unfit
from opstep.kernels.schedules.ways import PLANES


class PartText(RowText):
    """A block folds to `s{k}[unit]`, a row to `t{k}[row]`. What is held is so for all rows, one run
    after the other.
    """

    def __init__(self, graph: RowGraph, kinds: Sequence[str], *rest):
        super().__init__(graph, kinds, *rest)
        self.of_blocks: list[bool] = []  # whether a kernel's units are blocks, else rows
        if PLANES in kinds:
            raise Unfit("blocks of a row do not end with planes")

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, what is spread, rows of working memory each with its size, ways, all
        `s`, all `t`, n, blocks, lo, hi)
        """
        lines, names = list[str](), list[str]()
        for name, unit, body in self.launched():
            folds = [f"{kind}{f}" for kind in "st" for f in self.graph.terms]
            taken = [*self.arguments(operands), *folds, "n", "blocks", "lo", "hi"]
            lines += [f"def {name}({', '.join(taken)}):", *self.literals()]
            lines += [f"    for {unit} in range(lo, hi):", *indented(body, 2)]
            names.append(name)
            self.of_blocks.append(unit == "unit")
        return self.made(lines, names)

    def launched(self) -> Iterator[tuple[str, str, list[str]]]:
        """The name, the unit and the lines of each kernel, in their order."""
        for p, this in enumerate(self.passes):
            if this.folds or not self.is_idle(p):
                yield f"part{p}", "unit", self.part(p)
            if this.folds:
                yield f"joined{p}", "row", self.joined_blocks(p)
        results = enumerate(self.graph.body.results)
        if stored := [self.element.stored(q, "0") for q, r in results if not self.graph.inner[r]]:
            yield (
                "numbers",
                "row",
                [*self.numbers_of_row(), *self.before(len(self.passes)), *stored],
            )

    def before(self, p: int) -> list[str]:
        """The numbers of a row that are known before pass p."""
        lines = list[str]()
        for stage in range(p + 1):
            folds = self.passes[stage - 1].folds if stage else ()
            lines += [f"r{f} = t{f}[row]" for f in folds]
            lines += self.element.computed(self.between(stage))
        return lines

    def part(self, p: int) -> list[str]:
        lines = ["run = unit // blocks", f"start = (unit - run * blocks) * {RUN}"]
        lines += [f"count = min({RUN}, n - start)"]
        lines += [f"h{r} = offset(m{r}, run * n + start)" for r in self.own]
        lines += ["row = run // runs", "run -= row * runs"] if self.apart else ["row = run"]
        place = "first + run * step" if self.apart else "row * n"
        lines += [*self.numbers_of_row(), *self.places_of_run(place, " + start")]
        lines += [*self.before(p), *self.reduced(p, "count")]
        lines += [f"s{f}[unit] = {self.of_block(p, f)}" for f in self.passes[p].folds]
        return lines

    def of_block(self, p: int, fold: int) -> str:
        return self.number(p, fold) if self.op(fold) in EXTREMES else f"a{fold}"

    def joined_blocks(self, p: int) -> list[str]:
        lines, runs = [], "runs" if self.apart else "1"
        for f in self.passes[p].folds:
            if self.op(f) in EXTREMES:
                blocks = f"offset(s{f}, row * {runs} * blocks)"
                lines.append(f"t{f}[row] = {RUNS[self.op(f)]}({blocks}, {runs} * blocks)")
                continue
            lines += [f"a{f} = np.float64(0.0)", f"for run in range({runs}):"]
            lines += ["    some = np.float64(0.0)", "    for k in range(blocks):"]
            lines.append(f"        some += s{f}[(row * {runs} + run) * blocks + k]")
            lines += [f"    a{f} += some", f"t{f}[row] = {self.ended(f, f'a{f}')}"]
        return lines
