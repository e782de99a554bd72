"""The kernel of a graph of rows whose axes are not the last: elements of a row lie apart, and
neighbouring rows, which are columns of memory, are worked on side by side.

Columns add as `sum` does, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.kernels.pointwise.fused import computed, indented
from opstep.kernels.schedules.cpu.text import EXTREMES, Text
from opstep.kernels.schedules.picks import tables
from opstep.kernels.schedules.row_graph import RowGraph, Unfit, picked_of
from opstep.kernels.schedules.ways import EACH, ONE
from opstep.runtime.ir.types import DType

WIDTH = 64  # columns side by side


class ColumnText(Text):
    """Units are columns. Column i of a tile has numbers `v{k}[i]` and folds into `a{k}[i]`; sums
    of parts join `s{k}[i]`.
    """

    def __init__(self, graph: RowGraph, kinds: Sequence[str], *rest):
        super().__init__(graph, kinds, *rest)
        if any(computed(graph.body.types[f]) is not graph.dtype for f in graph.terms):
            raise Unfit("a number of a column is of another type")

    def spot(self, of: int, index: str) -> tuple[str, str]:
        return f"x{of}", f"i + {index} * inner"

    def place(self, r: int) -> str:
        return f"o{r}"

    def moved(self, name: str, by: str) -> str:
        """Of a row of memory: so many further on."""
        wide = "width" if name in self.own_names else "inner"
        return super().moved(name, by if name[0] == "o" else f"{by} * {wide}")

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, tiles each with its size, n, inner, width, together, part, lo, hi,
        lane)
        """
        lines = [line for p in range(len(self.passes)) for line in self.pass_of(p)]
        lines += [line for p in range(len(self.passes) + 1) for line in self.numbers_after(p)]
        return self.compiled([*lines, *self.whole(operands)], ["columns"])

    @property
    def tiles(self) -> list[tuple[str, str | DType]]:
        """The working memory of a lane: names, and kinds: of all elements of a tile of columns
        (held), sums of rows side by side (lanes), a number each (sums, keys, types of others).
        """
        found: list[tuple[str, str | DType]] = [(f"h{r}", "held") for r in self.own]
        for f in self.graph.terms:
            if self.op(f) in EXTREMES:
                found.append((f"a{f}", "keys"))
            else:
                found += [(f"a{f}", "lanes"), (f"s{f}", "sums")]
        return found + [(f"v{r}", computed(self.graph.body.types[r])) for r in self.kept]

    @property
    def kept(self) -> list[int]:
        """The registers that have a number for each column."""
        graph = self.graph
        members = range(len(graph.leaves), len(graph.shapes))
        return [*graph.terms, *(r for r in members if not graph.inner[r])]

    def total(self, fold: int) -> str:
        """The name of what a reduction comes to in its pass."""
        return f"a{fold}" if self.op(fold) in EXTREMES else f"s{fold}"

    # --- a pass ---

    def taken(self, registers: list[int]) -> tuple[list[str], list[str]]:
        """Names of these numbers as parameters, and the lines that read them for column i."""
        names, lines = [], []
        for r in registers:
            kind = self.kinds[r] if r < len(self.kinds) else ""
            if kind == ONE:
                names.append(f"r{r}")
            elif kind == EACH:
                names.append(f"x{r}")
                lines.append(f"r{r} = {self.element.loaded(r, 'i')}")
            else:
                names.append(f"v{r}")
                lines.append(f"r{r} = v{r}[i]")
        return names, lines

    def pass_of(self, p: int) -> list[str]:
        """The loop of a pass over neighbouring columns, and a function that calls it for all rows
        of memory.
        """
        if not self.needed(p):
            return []
        folds, (names, reads) = self.looped(p), self.taken(self.numbers(p))
        sums = [f for f in folds if self.op(f) not in EXTREMES]
        own = [f"a{f}" for f in folds]
        pointers = self.pointers(p)
        lines = [f"def loop{p}({', '.join([*pointers, *names, *own, 'n'])}):"]
        lines += ["    for i in range(n):", *indented([*reads, *self.body(p)], 2)]
        for f in folds:
            one = self.joined(f, f"a{f}[i]", f"r{self.graph.terms[f]}")
            lines.append(f"        a{f}[i] = {one}")
        head = [*pointers, *names, *own, *(f"s{f}" for f in sums)]
        lines.append(f"def pass{p}({', '.join(head)}, count, n, inner, width, together, part):")
        begun = [f"{self.total(f)}[i] = {self.start(f)}" for f in folds]
        lines += ["    for i in range(count):", *indented(begun, 2)] if begun else []
        lines += ["    for first in range(0, n, part):"]
        if sums:
            lines += ["        for i in range(together * width):"]
            lines += [f"            a{f}[i] = np.float64(0.0)" for f in sums]
        moved = [self.moved(name, "k") for name in pointers]
        side = [f"offset(a{f}, side)" if f in sums else f"a{f}" for f in folds]
        lines += ["        side = 0", "        for k in range(first, min(first + part, n)):"]
        lines += [f"            loop{p}({', '.join([*moved, *names, *side, 'count'])})"]
        lines += ["            side = side + width if side + width < together * width else 0"]
        if sums:
            lines += ["        for j in range(1, together):", "            for i in range(count):"]
            lines += [f"                a{f}[i] += a{f}[j * width + i]" for f in sums]
            lines += ["        for i in range(count):"]
            lines += [f"            s{f}[i] += a{f}[i]" for f in sums]
        return lines

    @property
    def own_names(self) -> list[str]:
        return [f"h{r}" for r in self.own]

    # --- between passes ---

    def after(self, stage: int) -> tuple[list[int], list[int]]:
        """Reductions that the pass before ended, and the members that are computed then."""
        return list(self.looped(stage - 1)) if stage else [], self.between(stage)

    def numbers_after(self, stage: int) -> list[str]:
        """A function that computes the numbers of columns after so many passes, and at the end
        stores them.
        """
        if not (head := self.parameters_after(stage)):
            return []
        ended, members = self.after(stage)
        lines = [f"def numbers{stage}({', '.join(head)}, n, inner, count):"]
        lines += ["    for i in range(count):"]
        inner = [f"r{f} = {self.ended(f, f'{self.total(f)}[i]')}" for f in ended]
        needed = self.needed_after(stage)
        inner += [f"r{r} = c{r}" for r in needed if self.is_literal(r)]
        inner += self.taken(self.given(stage))[1]
        inner += self.element.computed(members)
        inner += [f"v{r}[i] = r{r}" for r in [*ended, *members]]
        inner += [self.element.stored(q, "i") for q in self.stored_after(stage)]
        return lines + indented(inner, 2)

    def stored_after(self, stage: int) -> list[int]:
        last = stage == len(self.passes)
        results = enumerate(self.graph.body.results)
        return [q for q, r in results if last and not self.graph.inner[r]]

    def needed_after(self, stage: int) -> list[int]:
        graph, count = self.graph, len(self.graph.leaves)
        found = {o for r in self.between(stage) for o in graph.body.members[r - count].operands}
        return sorted(found | {graph.body.results[q] for q in self.stored_after(stage)})

    def given(self, stage: int) -> list[int]:
        """The numbers that are known before."""
        new = {r for registers in self.after(stage) for r in registers}
        needed = self.needed_after(stage)
        return [r for r in needed if r not in new and not self.is_literal(r)]

    def parameters_after(self, stage: int) -> list[str]:
        ended, members = self.after(stage)
        stores = self.stored_after(stage)
        if not (ended or members or stores):
            return []
        found = [self.total(f) for f in ended]
        found += self.taken(self.given(stage))[0]
        rows = (picked_of(self.graph.body.members[r - len(self.graph.leaves)]) for r in members)
        found += [f"x{r}" for r in sorted({r for r in rows if r in range(len(self.kinds))})]
        found += tables(self.graph, members)
        found += [f"v{r}" for r in [*ended, *members]] + [f"y{q}" for q in stores]
        return [*dict.fromkeys(found)]

    # --- a tile ---

    def whole(self, operands: int) -> list[str]:
        graph = self.graph
        names = [f"p{k}" for k in range(operands)]
        names += [f"b{q}" for q in range(len(graph.body.results))]
        names += [word for name, _ in self.tiles for word in (f"{name}_all", f"{name}_size")]
        names += ["n", "inner", "width", "together", "part", "lo", "hi", "lane"]
        lines = [f"def columns({', '.join(names)}):"]
        lines += [f"    {t} = offset({t}_all, lane * {t}_size)" for t, _ in self.tiles]
        lines += ["    column = lo", "    while column < hi:"]
        inner = ["outer = column // inner"]
        inner += ["count = min(width, hi - column, (outer + 1) * inner - column)"]
        inner += ["start = outer * n * inner + column - outer * inner"]
        for k, kind in enumerate(self.kinds):
            slot = graph.leaves[k].slot  # pyright: ignore[reportAttributeAccessIssue]
            place = {EACH: "column", ONE: "0"}.get(kind, "start")
            inner.append(f"x{k} = offset(p{slot}, {place})")
            if kind == ONE:
                inner.append(f"r{k} = {self.element.loaded(k, '0')}")
        for q, r in enumerate(graph.body.results):
            inner.append(f"y{q} = offset(b{q}, {'start' if graph.inner[r] else 'column'})")
        inner += [f"h{r} = y{q}" for r, q in self.places.items()]
        for p in range(len(self.passes) + 1):
            if head := self.parameters_after(p):
                inner.append(f"numbers{p}({', '.join(head)}, n, inner, count)")
            if p < len(self.passes) and self.needed(p):
                inner.append(self.call(p))
        return [*lines, *indented([*inner, "column += count"], 2)]

    def call(self, p: int) -> str:
        folds = self.looped(p)
        pointers = ["0" if name[0] == "o" else name for name in self.pointers(p)]
        args = [*pointers, *self.taken(self.numbers(p))[0], *(f"a{f}" for f in folds)]
        args += [f"s{f}" for f in folds if self.op(f) not in EXTREMES]
        return f"pass{p}({', '.join(args)}, count, n, inner, width, together, part)"
