"""The kernel of a graph of rows on CUDA: rows in registers, as hand-written kernels have them
(`teams`). A team of threads reads a row once, folds it, and writes its results.

Every primitive rounds as by itself. Sums add each thread's elements, then those of the team, in the
data's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.pointwise.cuda_offsets import spot
from opstep.kernels.pointwise.fused import computed, indented
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.schedules.cuda.holding import Pass
from opstep.kernels.schedules.cuda.moments import IN_KERNELS, Moment, meant
from opstep.kernels.schedules.cuda.teams import SLOTS, Team, plus, reducers, steps_for
from opstep.kernels.schedules.passes import is_costly
from opstep.kernels.schedules.picks import RowElement, places
from opstep.kernels.schedules.row_graph import Number, RowGraph
from opstep.kernels.schedules.ways import ALONG, EACH, FOUND, LED, ONE, PLANES, SAME
from opstep.runtime.device.builtin import offset, pick
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    exact_sum,
    max_nan,
    min_nan,
    real,
)
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.device.texts import from_text

AT = {SAME: "at * n", EACH: "at", ALONG: "0", ONE: "0"}  # where the row's part of an operand is
STRIDED = (FOUND, LED, PLANES)
# Where a loop is not unrolled, its local arrays are memory: compilers stop at some length.
MOST = 2  # functions in a loop over all elements of a thread
LENGTHS = {"pow": 3}  # of which one is as long as so many
CHUNK = 8  # elements, where there are more
MISSING = 1  # is read past the end of a row; no function of it is out of the ordinary
# op -> how terms are joined, what joining starts with
EXTREMES = {reductions.max: ("max_nan", "-1e999"), reductions.min: ("min_nan", "1e999")}

_numbers = count()


@cache
def fetch_planes(team: Team):
    """Reads numbers of planes, of so many elements each, into a local array: one for each vector
    from `first` on, which ends with a plane, or before.
    """
    width, vectors, threads, full = team.width, team.vectors, team.threads, team.full

    def fetch_planes(x, first, plane, n, thread, values, missing):
        for k in range(vectors):
            i = (k * threads + thread) * width
            values[k] = x[div32(first + i, plane)] if full or i < n else missing

    return fetch_planes


@cache
def runs_apart(team: Team):
    """(fetch, put) of `teams.steps_for` for a row whose runs of so many elements are `step` apart;
    it begins at x, and what is wanted at its element `first`. Vectors end with a run, or before.

    Past the end, reads are of the first vector: in a branch, one of halves would wait for the last.
    """
    width, vectors, threads, full = team.width, team.vectors, team.threads, team.full
    load, store = Intrinsic("load", width), Intrinsic("store", width)
    gathered = GATHERED[width]

    def fetch_runs(x, first, run, step, n, thread, values, missing):
        for k in range(vectors):
            i = (k * threads + thread) * width
            there = full or i < n
            at = first + (i if there else 0)
            before = div32(at, run)
            vector = load(x, before * step + at - before * run)
            for j in range(width):
                values[k * width + j] = vector[j] if there else missing

    def put_runs(y, first, run, step, n, thread, values):
        for k in range(vectors):
            i = (k * threads + thread) * width
            if full or i < n:
                before = div32(first + i, run)
                place = before * step + first + i - before * run
                store(y, place, gathered(values, k * width))

    return fetch_runs, put_runs


class RowText:
    """Register k is `r{k}`; a local array of it is `x{k}`, where it is read, or `h{k}`, that of a
    result `y{q}`. A reduction that has not ended is `a{k}`. Operands are `p{k}`, results `b{q}`.
    """

    start = ""  # added to where a row begins
    count = "n"  # elements from there
    index = "k"  # of a thread's element k, where it is read
    place_stored = "k"  # the same, where it is stored
    length = ""  # elements of a thread

    def __init__(
        self, graph: RowGraph, kinds: Sequence[str], passes: Sequence[Pass], team: Team,
        sums: Sequence[int] = (),
    ):  # fmt: skip
        self.graph = graph
        self.sums = sums  # results to which rows are added
        self.kinds = kinds
        self.passes = passes
        self.team = team
        self.held = team.width * team.vectors  # elements of a thread
        self.calls = 0  # of reductions of the team
        self.element = RowElement(graph, True, self.spot)
        steps = steps_for(team)
        self.scope = self.element.scope | {"np": np, "cuda": cuda, "real": real, "offset": offset}
        self.scope |= IN_KERNELS
        self.scope |= {"exact_sum": exact_sum, "max_nan": max_nan, "min_nan": min_nan}
        self.scope |= {"pick": pick, "spot": spot, "locate": steps.locate, "put": steps.put}
        self.scope |= {"fetch": steps.fetch, "in_row": steps.in_row}
        self.scope["fetch_planes"] = fetch_planes(team)
        self.scope["fetch_runs"], self.scope["put_runs"] = runs_apart(team)
        self.apart = graph.rows.apart
        self.scope["total"], self.scope["totals"] = reducers(plus, team.threads)
        self.scope["largest"], _ = reducers(max_nan, team.threads)
        self.scope["smallest"], _ = reducers(min_nan, team.threads)
        for k, leaf in enumerate(graph.leaves):
            if isinstance(leaf, Number):
                self.scope[f"c{k}"] = leaf.of(computed(graph.body.types[k]))

    def kernels(self, operands: int) -> list[Any]:
        """(operands, results, a 0, sizes, their count, strides, runs, sizes of planes, n, rows)"""
        lines = ["at = min(row, rows - 1)", *self.given()]
        for p, this in enumerate(self.passes):
            lines += [*self.numbers_before(p), *self.begun(this), *self.arrays(this)]
            lines += [*self.loop(this), *self.ended(this.folds)]
            if this.stores:
                lines += ["if row < rows:", *indented(self.puts(this))]
        lines += self.numbers_before(len(self.passes))
        if stored := self.stored_numbers():
            lines += ["if row < rows and thread == 0:", *indented(stored)]
        if not self.sums:
            lines = ["row, thread = locate()", *lines]
            return [self.compiled("rows", operands, ["n", "rows"], lines)]
        before, after = ["part, thread = locate()"], ["if part * each < rows:"]
        for q in self.sums:
            before += [
                f"z{q} = cuda.local.array({self.held}, real)",
                f"for k in range({self.held}):",
            ]
            before.append(f"    z{q}[k] = 0.0")
            after.append(f"    put(offset(b{q}, part * n), n, thread, z{q})")
        before.append("for row in range(part * each, (part + 1) * each):")
        lines.append("cuda.syncthreads()")  # what a reduction left may be read until here
        lines = [*before, *indented(lines), *after]
        return [self.compiled("rows", operands, ["each", "n", "rows"], lines)]

    def compiled(self, name: str, operands: int, last: list[str], lines: list[str]) -> Any:
        strides = [f"s{k}" for k, kind in enumerate(self.kinds) if kind in STRIDED]
        names = [f"p{k}" for k in range(operands)]
        names += [f"b{q}" for q in range(len(self.graph.body.results))]
        names += ["zero", *(["sizes", "rank", *strides] if strides or self.apart else [])]
        names += ["w", "run", "step"] if self.apart else []
        names += [*(f"plane{k}" for k, kind in enumerate(self.kinds) if kind == PLANES), *last]
        text = "\n".join([f"def {name}({', '.join(names)}):", *indented(lines)])
        made = from_text(text, f"{name} on CUDA {next(_numbers)}", name, self.scope)
        return pinned(self.graph.dtype.name)(made)

    # --- places ---

    def spot(self, of: int, index: str) -> tuple[str, str]:
        """A pointer to a row, and the place from there of its element at an index."""
        return self.operand(of), f"at * n + {index}"

    def place_along(self) -> str:
        """The place in its row of element k of a thread."""
        width = self.team.width
        return (
            f"0{self.start} + (k // {width} * {self.team.threads} + thread) * {width} + k % {width}"
        )

    def operand(self, k: int) -> str:
        return f"p{self.graph.leaves[k].slot}"  # pyright: ignore[reportAttributeAccessIssue]

    def place(self, k: int) -> str:
        """The place at which the row's part of an operand begins."""
        if self.apart and self.kinds[k] == SAME:
            return "spot(at, sizes, w, rank)"
        return AT.get(self.kinds[k]) or f"spot(at, sizes, s{k}, rank)"

    def given(self) -> list[str]:
        """The numbers of a row that are there before it is read."""
        leaves = self.graph.leaves
        lines = [f"r{k} = c{k}" for k, leaf in enumerate(leaves) if isinstance(leaf, Number)]
        of_rows = [k for k in range(len(self.kinds)) if not self.graph.inner[k]]
        lines += [f"r{k} = {self.operand(k)}[{self.place(k)}]" for k in of_rows]
        for r, leaf in enumerate(leaves):
            if isinstance(leaf, Moment) and leaf.power == 0:
                first = f"{self.operand(leaf.of)}[{self.place(leaf.of)}]"
                lines += [f"pivot{r} = np.float64(finite({first}))", f"r{r} = real(pivot{r})"]
        return lines

    # --- a pass ---

    def arrays(self, this: Pass) -> list[str]:
        """The local arrays that it makes, and what is read into them."""
        found = [(f"x{r}", r) for r in this.reads] + [(f"h{r}", r) for r in this.holds]
        rows = [q for q in this.stores if q not in self.sums]
        found += [(f"y{q}", self.graph.body.results[q]) for q in rows]
        lines = []
        for name, r in found:
            dtype = computed(self.graph.body.types[r])
            self.scope[f"t{r}"] = np.uint8 if dtype.kind == "b" else dtype.numpy.type
            held = self.team.vectors if self.is_of_planes(r) else self.held
            lines.append(f"{name} = cuda.local.array({held}, t{r})")
        return lines + [self.fetched(r) for r in this.reads]

    def fetched(self, r: int) -> str:
        last = f"{self.count}, thread, x{r}, {MISSING})"
        if self.is_of_planes(r):
            source = f"offset({self.operand(r)}, {self.place(r)})"
            return f"fetch_planes({source}, 0{self.start}, plane{r}, {last}"
        if self.apart:
            source = f"offset({self.operand(r)}, {self.place(r)})"
            return f"fetch_runs({source}, 0{self.start}, run, step, {last}"
        return f"fetch(offset({self.operand(r)}, {self.place(r)}{self.start}), {last}"

    def is_of_planes(self, r: int) -> bool:
        """Whether it is read as one number for each vector."""
        return r < len(self.kinds) and self.kinds[r] == PLANES

    def begun(self, this: Pass) -> list[str]:
        return [f"a{f} = {self.neutral(f)}" for f in this.folds]

    def loop(self, this: Pass) -> list[str]:
        """The lines of a pass for each element of a thread."""
        graph, leaves = self.graph, len(self.graph.leaves)
        found = [(r, "x" if r < leaves else "h") for r in this.needed if r in this.known]
        index = {r: f"k // {self.team.width}" for r, _ in found if self.is_of_planes(r)}
        lines = [f"r{r} = {kind}{r}[{index.get(r, self.index)}]" for r, kind in found]
        for r in places(graph, this.needed):
            self.scope[f"n{r}"] = graph.body.types[r].numpy.type
            lines.append(f"r{r} = n{r}({self.place_along()})")
        lines += self.element.computed(
            [r for r in this.needed if r >= leaves and graph.inner[r] and r not in this.known]
        )
        lines += [f"h{r}[k] = r{r}" for r in this.holds]
        for q in this.stores:
            if q in self.sums:
                term = f"pick(row < rows, r{graph.body.results[q]}, real(0.0))"
                lines.append(f"z{q}[k] = z{q}[k] + {term}")
            else:
                lines.append(self.element.stored(q, self.place_stored))
        if this.folds and not self.team.full:
            lines.append(f"there = in_row({self.count}, thread, k)")
        for f in this.folds:
            term = f"r{graph.terms[f]}"
            term = term if self.team.full else f"pick(there, {term}, {self.neutral(f)})"
            lines.append(self.joined(f, term))
        if not lines:
            return []
        each = self.held if self.is_short(this) else CHUNK
        chunks = [(k, min(k + each, self.held)) for k in range(0, self.held, each)]
        ranges = [self.length] if self.length else [f"{k}, {end}" for k, end in chunks]
        return [line for r in ranges for line in [f"for k in range({r}):", *indented(lines)]]

    def is_short(self, this: Pass) -> bool:
        """Whether a compiler unrolls a loop over all elements of a thread."""
        graph, leaves = self.graph, len(self.graph.leaves)
        costly = [r for r in this.needed if r not in this.known and is_costly(graph, r)]
        return sum(LENGTHS.get(graph.body.members[r - leaves].op.name, 1) for r in costly) <= MOST

    def puts(self, this: Pass) -> list[str]:
        place, n = f"at * n{self.start}", self.count
        if self.apart:
            runs = f"0{self.start}, run, step, {n}"
            place = "spot(at, sizes, w, rank)"
            return [f"put_runs(offset(b{q}, {place}), {runs}, thread, y{q})" for q in this.stores]
        rows = [q for q in this.stores if q not in self.sums]
        return [f"put(offset(b{q}, {place}), {n}, thread, y{q})" for q in rows]

    # --- reductions ---

    def op(self, fold: int) -> Any:
        return self.graph.leaves[fold].op  # pyright: ignore[reportAttributeAccessIssue]

    def neutral(self, fold: int) -> str:
        return f"real({EXTREMES[self.op(fold)][1] if self.op(fold) in EXTREMES else '0.0'})"

    def joined(self, fold: int, term: str) -> str:
        """The line that adds a term to a reduction."""
        join = EXTREMES[self.op(fold)][0] if self.op(fold) in EXTREMES else "exact_sum"
        return f"a{fold} = {join}(a{fold}, {term})"

    def slot(self) -> int:
        """That of the next reduction. The one before is read until this one's barrier."""
        self.calls += 1
        return self.calls % 2 * (SLOTS // 2)

    def ended(self, folds: Sequence[int]) -> list[str]:
        """The numbers that reductions give."""
        narrow = [f"r{f} = real(r{f})" for f in folds]
        means = [f"r{f} = r{f} / real(n)" for f in folds if self.op(f) is reductions.mean]
        return [*self.of_team(folds), *meant(self.graph, tuple(folds)), *narrow, *means]

    def of_team(self, folds: Sequence[int]) -> list[str]:
        """Numbers of all threads together; sums go by twos, which wait for each other once."""
        lines, sums = [], [f for f in folds if self.op(f) not in EXTREMES]
        for f in folds:
            if self.op(f) in EXTREMES:
                name = "largest" if self.op(f) is reductions.max else "smallest"
                lines.append(f"r{f} = {name}(a{f}, {self.slot()})")
        for a, b in zip(sums[::2], sums[1::2], strict=False):
            lines.append(f"r{a}, r{b} = totals(a{a}, a{b}, {self.slot()})")
        if len(sums) % 2:
            lines.append(f"r{sums[-1]} = total(a{sums[-1]}, {self.slot()})")
        return lines

    # --- numbers of the row ---

    def numbers_before(self, stage: int) -> list[str]:
        """Those members that come after so many passes."""
        graph = self.graph
        members = range(len(graph.leaves), len(graph.shapes))
        return self.element.computed(
            [r for r in members if not graph.inner[r] and graph.stages[r] == stage]
        )

    def stored_numbers(self) -> list[str]:
        results = enumerate(self.graph.body.results)
        return [f"b{q}[row] = r{r}" for q, r in results if not self.graph.inner[r]]
