"""The part that texts of kernels of rows share: the lines for one element of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from opstep.kernels.pointwise.fused import computed
from opstep.kernels.reduce import folds
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.schedules.passes import passes_of
from opstep.kernels.schedules.picks import RowElement, places, tables
from opstep.kernels.schedules.row_graph import Number, RowGraph
from opstep.kernels.schedules.ways import PLANES
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.source import pinned, swaps
from opstep.runtime.device.texts import from_text

_KEYS = ("high_key", "low_key", "larger", "smaller", "lowest", "uppermost", "value_of_key")
EXTREMES = {
    reductions.max: ("lowest", "larger", "high_key"),
    reductions.min: ("uppermost", "smaller", "low_key"),
}


_numbers = count()


class Text:
    """Register k is `r{k}`, what is read of it `x{k}[i]`, where it is held `h{k}[i]`, a reduction
    that has not ended `a{k}`; result q is `y{q}[i]`, a literal `c{k}`; `o{k}` is the place of what
    is element 0, a table is `p{slot}`.
    """

    def __init__(
        self, graph: RowGraph, kinds: Sequence[str], inplace: Sequence[int],
        sums: Sequence[int] = (),
    ):  # fmt: skip
        self.graph = graph
        self.kinds = kinds
        self.sums = sums  # results to which rows are added
        self.passes, self.places = passes_of(graph, inplace, sums)
        held = [r for p in self.passes for r in p.holds]
        self.own = [r for r in held if r not in self.places]  # in working memory
        self.element = RowElement(graph, False, self.spot)
        self.scope = self.element.scope
        self.scope |= {"np": np, "number": graph.dtype.numpy.type, "offset": offset}
        self.scope |= {name: getattr(folds, name) for name in _KEYS}
        for k, leaf in enumerate(graph.leaves):
            if isinstance(leaf, Number):
                self.scope[f"c{k}"] = leaf.of(computed(graph.body.types[k]))

    def spot(self, of: int, index: str) -> tuple[str, str]:
        """A pointer to a row, and the place from there of its element at an index."""
        raise NotImplementedError

    def place(self, r: int) -> str:
        """An element's place in its row."""
        return f"o{r} + i"

    def moved(self, name: str, by: str) -> str:
        """A name of `pointers`, so many elements on."""
        if name[0] in "op":
            return f"{name} + {by}" if name[0] == "o" else name
        return f"offset({name}, {by})"

    def compiled(self, lines: list[str], names: list[str]) -> list[Any]:
        """The kernels of these names, whose loops are `loop{p}`."""
        from_text("\n".join(lines), f"{names[0]} {next(_numbers)}", names[0], self.scope)
        for p in range(len(self.passes)):
            if loop := self.scope.get(f"loop{p}"):
                swaps(loop)
        return [pinned(self.graph.dtype.name)(self.scope[name]) for name in names]

    def op(self, fold: int) -> Any:
        return self.graph.leaves[fold].op  # pyright: ignore[reportAttributeAccessIssue]

    def is_literal(self, r: int) -> bool:
        return r < len(self.graph.leaves) and isinstance(self.graph.leaves[r], Number)

    def is_of_planes(self, r: int) -> bool:
        return r < len(self.kinds) and self.kinds[r] == PLANES

    def is_read_along(self, r: int) -> bool:
        """Whether it is read element by element."""
        return r < len(self.kinds) and self.graph.inner[r] and not self.is_of_planes(r)

    def kernels(self, operands: int) -> list[Any]:
        """Those of a graph with so many operands."""
        raise NotImplementedError

    # --- a pass ---

    def looped(self, p: int) -> Sequence[int]:
        """The reductions of a pass whose terms its loop computes."""
        return self.passes[p].folds

    def needed(self, p: int) -> list[int]:
        """The registers of the loop of a pass."""
        graph, this = self.graph, self.passes[p]
        targets = [graph.terms[f] for f in self.looped(p)] + list(this.holds)
        targets += [graph.body.results[q] for q in this.stores]
        return sorted(graph.within(targets, this.known))

    def pointers(self, p: int) -> list[str]:
        """Those that the loop of a pass takes, but for numbers of rows."""
        this, needed = self.passes[p], self.needed(p)
        found = [f"x{r}" for r in needed if self.is_read_along(r)]
        found += [f"h{r}" for r in sorted(this.known.intersection(needed)) + list(this.holds)]
        found += [f"o{r}" for r in places(self.graph, needed)]
        found += tables(self.graph, self.inner_of(p, needed))
        return found + [f"y{q}" for q in this.stores]

    def numbers(self, p: int) -> list[int]:
        """The numbers of rows that the loop of a pass takes."""
        return [
            r
            for r in self.needed(p)
            if self.is_of_planes(r) or not (self.graph.inner[r] or self.is_literal(r))
        ]

    def body(self, p: int) -> list[str]:
        """The lines of a pass for element i."""
        this = self.passes[p]
        lines = self.computed(p, self.needed(p)) + [f"h{r}[i] = r{r}" for r in this.holds]
        lines += [self.element.stored(q, "i") for q in this.stores if q not in self.sums]
        results = self.graph.body.results
        return lines + [f"y{q}[i] += r{results[q]}" for q in this.stores if q in self.sums]

    def computed(self, p: int, needed: Sequence[int]) -> list[str]:
        """The lines that compute these registers in a pass."""
        known, graph = self.passes[p].known, self.graph
        lines = [f"r{r} = c{r}" for r in needed if self.is_literal(r)]
        for r in places(graph, needed):
            self.scope[f"n{r}"] = graph.body.types[r].numpy.type
            lines.append(f"r{r} = n{r}({self.place(r)})")
        lines += [f"r{r} = h{r}[i]" for r in needed if r in known]
        lines += [f"r{r} = {self.element.loaded(r, 'i')}" for r in needed if self.is_read_along(r)]
        return lines + self.element.computed(self.inner_of(p, needed))

    def inner_of(self, p: int, needed: Sequence[int]) -> list[int]:
        """The members that a pass computes of each element."""
        known, graph, leaves = self.passes[p].known, self.graph, len(self.graph.leaves)
        return [r for r in needed if r >= leaves and graph.inner[r] and r not in known]

    def between(self, stage: int) -> list[int]:
        """The members that are numbers of a row after so many passes."""
        graph = self.graph
        members = range(len(graph.leaves), len(graph.shapes))
        return [r for r in members if not graph.inner[r] and graph.stages[r] == stage]

    # --- a reduction ---

    def start(self, fold: int) -> str:
        op = self.op(fold)
        return f"{EXTREMES[op][0]}()" if op in EXTREMES else "np.float64(0.0)"

    def joined(self, fold: int, so_far: str, term: str) -> str:
        """`so_far`, and one more term."""
        if (op := self.op(fold)) in EXTREMES:
            _, join, key = EXTREMES[op]
            return f"{join}({so_far}, {key}({term}))"
        return f"{so_far} + np.float64({term})"

    def ended(self, fold: int, so_far: str) -> str:
        """The number that it gives."""
        if self.op(fold) in EXTREMES:
            return f"value_of_key({so_far}, 0)"
        if self.op(fold) is not reductions.mean:
            return f"number({so_far})"
        return f"number({so_far} / np.float64({'n * runs' if self.graph.rows.apart else 'n'}))"
