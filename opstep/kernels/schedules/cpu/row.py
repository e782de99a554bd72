"""The kernel of a graph of rows on the CPU: a few loops over a row, all else of it in between.

A reduction ends a pass over the row. What a later pass needs again is computed again where that is
cheap; else it is held, in the result's own row or in memory of the thread. Rows add as `sum` does,
block by block, and every primitive rounds: the kernel has the bits of the graph run op by op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opstep.kernels.pointwise.fused import indented
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.reduce.extremes import greatest, least
from opstep.kernels.reduce.runs import RUN, row_sum, sum_of
from opstep.kernels.schedules.cpu.terms import Terms, terms_of
from opstep.kernels.schedules.cpu.text import EXTREMES, Text
from opstep.kernels.schedules.picks import places
from opstep.kernels.schedules.row_graph import RowGraph
from opstep.kernels.schedules.ways import ALONG, EACH, ONE, PLANES, SAME, SPREAD
from opstep.runtime.device.builtin import buffer_f32_512, buffer_f64_512
from opstep.runtime.device.source import vectorised
from opstep.runtime.ir.types import f32

_AT = {SAME: "row * n", EACH: "row", ALONG: "0", ONE: "0"}  # of all others strides lead to a row
RUNS = {reductions.max: "greatest", reductions.min: "least"}


class RowText(Text):
    """Units are rows. Terms of reductions go to buffers `t{k}`, a block at a time."""

    def __init__(self, graph: RowGraph, kinds: Sequence[str], *rest):
        super().__init__(graph, kinds, *rest)
        self.apart = graph.rows.apart
        self._terms: dict[tuple[int, int], Terms | None] = {}
        buffer = buffer_f32_512 if graph.dtype is f32 else buffer_f64_512
        self.scope |= {"buffer": buffer, "row_sum": row_sum, "sum_of": sum_of}
        self.scope |= {"greatest": greatest, "least": least}

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, what is spread, rows of working memory each with its size, ways, n,
        lo, hi)
        """
        return self.made(self.whole(operands), ["rows"])

    def made(self, lines: list[str], names: list[str]) -> list[Any]:
        """The kernels of these names that the lines define, which call the passes' functions."""
        before = [line for p in range(len(self.passes)) for line in self.functions(p)]
        made = self.compiled([*before, *lines], names)
        for name in [name for name in self.scope if name.startswith("blocks_of_")]:
            plain, blocks = name.removeprefix("blocks_of_"), self.scope[name]
            self.scope[plain] = vectorised(f32=blocks, f64=blocks)(self.scope[plain])
        return made

    def spot(self, of: int, index: str) -> tuple[str, str]:
        return self.operand(of), f"row * n + {index}"

    # --- a pass ---

    def direct(self, p: int, fold: int) -> str:
        """The pointer to what a reduction folds, where it is in memory before the pass."""
        term = self.graph.terms[fold]
        if term in self.passes[p].known:
            return f"h{term}"
        of_type = self.graph.body.types[term] is self.graph.dtype
        return f"x{term}" if self.is_read_along(term) and of_type else ""

    def looped(self, p: int) -> list[int]:
        folds = self.passes[p].folds
        return [f for f in folds if not (self.direct(p, f) or self.terms(p, f))]

    def terms(self, p: int, fold: int) -> Terms | None:
        """The terms of a sum, where these are sums and products."""
        key = p, fold
        if key not in self._terms:
            self._terms[key] = terms_of(self, p, fold)
        return self._terms[key]

    def is_idle(self, p: int) -> bool:
        """Whether a pass has no loop."""
        return not (self.looped(p) or self.passes[p].holds or self.passes[p].stores)

    def buffered(self, p: int) -> list[int]:
        """Terms of reductions that are not held."""
        terms = {self.graph.terms[f] for f in self.looped(p)}
        return sorted(terms.difference(self.passes[p].holds))

    def functions(self, p: int) -> list[str]:
        """The loop of a pass; where it ends in reductions, two functions that call it, or do as it
        does: in blocks, and for a thread of a GPU.
        """
        lines = [line for f in self.passes[p].folds for line in self.sum_of_terms(p, f)]
        if self.is_idle(p):
            return lines
        buffers = [f"t{r}" for r in self.buffered(p)]
        numbers = [f"r{r}" for r in self.numbers(p)]
        lines += [f"def loop{p}({', '.join([*self.pointers(p), *buffers, *numbers, 'n'])}):"]
        lines += ["    for i in range(n):", *indented(self.body(p), 2)]
        lines += [f"        t{r}[i] = r{r}" for r in self.buffered(p)]
        if not (folds := self.looped(p)):
            return lines
        head = ", ".join([*self.pointers(p), *numbers, "n"])
        begun = [f"    a{f} = {self.start(f)}" for f in folds]
        ended = f"    return {', '.join(f'a{f}' for f in folds)}"
        lines += [
            f"def blocks_of_pass{p}({head}):",
            *begun,
            *self.blocks(p, buffers, numbers),
            ended,
        ]
        lines += [f"def pass{p}({head}):", *begun, "    for i in range(n):"]
        lines += indented(self.body(p), 2)
        for f in folds:
            one = self.joined(f, f"a{f}", f"r{self.graph.terms[f]}")
            lines.append(f"        a{f} = {one}")
        return [*lines, ended]

    def blocks(self, p: int, buffers: list[str], numbers: list[str]) -> list[str]:
        moved = [self.moved(name, "start") for name in self.pointers(p)]
        lines = [f"    {name} = buffer()" for name in buffers]
        lines += [f"    for start in range(0, n, {RUN}):", f"        count = min({RUN}, n - start)"]
        lines += [f"        loop{p}({', '.join([*moved, *buffers, *numbers, 'count'])})"]
        for f in self.looped(p):
            term = self.graph.terms[f]
            place = f"t{term}" if f"t{term}" in buffers else f"offset(h{term}, start)"
            run = f"{RUNS.get(self.op(f), 'sum_of')}({place}, count)"
            lines.append(f"        a{f} = {self.joined(f, f'a{f}', run)}")
        return lines

    def sum_of_terms(self, p: int, fold: int) -> list[str]:
        """Two functions that sum terms: in blocks, and for a thread of a GPU."""
        if not (terms := self.terms(p, fold)):
            return []
        self.scope[f"fixed{fold}"] = terms.intrinsic
        head = ", ".join([*terms.pointers, *terms.numbers, "n"])
        begin = ", ".join([*(f"offset({name}, start)" for name in terms.pointers), *terms.numbers])
        return [
            f"def blocks_of_terms{fold}({head}):",
            "    a = np.float64(0.0)",
            f"    for start in range(0, n, {RUN}):",
            f"        a += np.float64(fixed{fold}({begin}, min({RUN}, n - start)))",
            "    return a",
            f"def terms{fold}({head}):",
            "    a = np.float64(0.0)",
            "    for i in range(n):",
            *indented(self.computed(p, terms.needed), 2),
            f"        a += np.float64(r{self.graph.terms[fold]})",
            "    return a",
        ]

    # --- a row ---

    def whole(self, operands: int) -> list[str]:
        lane = ["lane"] if self.own else []
        names = [*self.arguments(operands), "n", "lo", "hi", *lane]
        if self.sums:
            return self.whole_parts(names)
        lines = [f"def rows({', '.join(names)}):", *self.literals()]
        return [*lines, "    for row in range(lo, hi):", *indented(self.row(), 2)]

    def whole_parts(self, names: list[str]) -> list[str]:
        """Units are parts of `each` rows."""
        at = names.index("lo")
        names[at:at] = ["each", "count"]
        lines = [
            f"def rows({', '.join(names)}):",
            *self.literals(),
            "    for unit in range(lo, hi):",
        ]
        for q in self.sums:
            lines += [f"        y{q} = offset(b{q}, unit * n)", "        for i in range(n):"]
            lines.append(f"            y{q}[i] = 0.0")
        lines.append("        for row in range(unit * each, min(count, (unit + 1) * each)):")
        return lines + indented(self.row(), 3)

    def row(self) -> list[str]:
        graph, lines = self.graph, self.numbers_of_row()
        if not self.apart:
            own = [f"h{r} = offset(m{r}, lane * m{r}_size)" for r in self.own]
            lines += [*self.places_of_run("row * n"), *own]
        for p in range(len(self.passes)):
            lines += [*self.element.computed(self.between(p)), *self.run(p)]
        lines += self.element.computed(self.between(len(self.passes)))
        results = enumerate(graph.body.results)
        return lines + [self.element.stored(q, "0") for q, r in results if not graph.inner[r]]

    def arguments(self, operands: int) -> list[str]:
        """The names of what a kernel takes first."""
        strides = [f"s{k}" for k, kind in enumerate(self.kinds) if kind not in _AT]
        names = [f"p{k}" for k in range(operands)]
        names += [f"b{q}" for q in range(len(self.graph.body.results))]
        names += [f"e{k}" for k, kind in enumerate(self.kinds) if kind == SPREAD]
        names += [name for r in self.own for name in (f"m{r}", f"m{r}_size")]
        names += ["sizes", "rank", *strides] if strides or self.apart else []
        names += ["w", "runs", "step"] if self.apart else []
        return names + (["planes", "plane"] if PLANES in self.kinds else [])

    def literals(self) -> list[str]:
        leaves = range(len(self.graph.leaves))
        return [f"    r{r} = c{r}" for r in leaves if self.is_literal(r)]

    def numbers_of_row(self) -> list[str]:
        """Those that are read, pointers to those that are results, and where its runs begin."""
        lines = ["first = locate(row, sizes, w, rank)"] if self.apart else []
        for k, kind in enumerate(self.kinds):
            if not self.graph.inner[k]:
                place = _AT.get(kind, f"locate(row, sizes, s{k}, rank)")
                lines.append(f"x{k} = offset({self.operand(k)}, {place})")
                lines.append(f"r{k} = {self.element.loaded(k, '0')}")
        results = enumerate(self.graph.body.results)
        return lines + [f"y{q} = offset(b{q}, row)" for q, r in results if not self.graph.inner[r]]

    def operand(self, k: int) -> str:
        slot = self.graph.leaves[k].slot  # pyright: ignore[reportAttributeAccessIssue]
        return f"e{k}" if self.kinds[k] == SPREAD else f"p{slot}"

    def places_of_run(self, run: str, start: str = "") -> list[str]:
        """Pointers to a row's run, which is there in what has all elements, or further on."""
        lines = []
        for k, kind in enumerate(self.kinds):
            if self.graph.inner[k]:
                place = run if kind == SAME else _AT.get(kind, f"locate(row, sizes, s{k}, rank)")
                lines.append(f"x{k} = offset({self.operand(k)}, {place}{start})")
        for q, r in enumerate(self.graph.body.results):
            if self.graph.inner[r] and q not in self.sums:
                lines.append(f"y{q} = offset(b{q}, {run}{start})")
        lines += [f"o{r} = 0{start}" for r in places(self.graph, range(len(self.graph.leaves)))]
        return lines + [f"h{r} = y{q}" for r, q in self.places.items()]

    def run(self, p: int) -> list[str]:
        """A pass, and its reductions as numbers."""
        folds = self.passes[p].folds
        if not self.apart:
            return self.reduced(p, "n") + [f"r{f} = {self.number(p, f)}" for f in folds]
        if not folds and self.is_idle(p):
            return []
        own = [f"h{r} = offset(m{r}, lane * m{r}_size + run * n)" for r in self.own]
        lines = [*self.places_of_run("first + run * step"), *own, *self.reduced(p, "n")]
        lines += [self.merged(p, f) for f in folds]
        begun = [f"t{f} = {self.start(f)}" for f in folds]
        ended = [f"r{f} = {self.ended(f, f't{f}')}" for f in folds]
        return [*begun, "for run in range(runs):", *indented(lines), *ended]

    def merged(self, p: int, fold: int) -> str:
        """The line that adds what a run came to."""
        if self.op(fold) not in EXTREMES:
            return f"t{fold} += a{fold}"
        _, join, key = EXTREMES[self.op(fold)]
        whole = f"{key}(a{fold})" if self.direct(p, fold) else f"a{fold}"
        return f"t{fold} = {join}(t{fold}, {whole})"

    def reduced(self, p: int, count: str) -> list[str]:
        """A pass over so many elements, whose reductions are `a{k}` then."""
        lines, looped = [], self.looped(p)
        for f in self.passes[p].folds:
            if (place := self.direct(p, f)) and self.op(f) in EXTREMES:
                lines.append(f"a{f} = {RUNS[self.op(f)]}({place}, {count})")
            elif place:
                lines.append(f"a{f} = row_sum({place}, {count})")
            elif terms := self.terms(p, f):
                taken = ", ".join([*terms.pointers, *terms.numbers, count])
                lines.append(f"a{f} = terms{f}({taken})")
        of_planes = [r for r in self.numbers(p) if self.is_of_planes(r)]
        if of_planes:
            return lines + self.over_planes(p, of_planes)
        if not self.is_idle(p):
            call, found = self.call(self.pointers(p), p, count), ", ".join(f"a{f}" for f in looped)
            lines.append(f"{found} = pass{p}{call}" if looped else f"loop{p}{call}")
        return lines

    def number(self, p: int, fold: int) -> str:
        """What a reduction comes to."""
        whole = self.op(fold) in EXTREMES and self.direct(p, fold)
        return f"a{fold}" if whole else self.ended(fold, f"a{fold}")

    def call(self, pointers: list[str], p: int, count: str) -> str:
        return f"({', '.join([*pointers, *(f'r{r}' for r in self.numbers(p)), count])})"

    def over_planes(self, p: int, of_planes: list[int]) -> list[str]:
        """A pass that ends in no reduction, plane by plane."""
        moved = [self.moved(name, "k * plane") for name in self.pointers(p)]
        lines = ["for k in range(planes):"]
        lines += [f"    r{r} = {self.element.loaded(r, 'k')}" for r in of_planes]
        return [*lines, f"    loop{p}{self.call(moved, p, 'plane')}"]
