"""Groups of elementwise ops on CUDA with the statistics of what they read and compute: nothing is
read again, and what stays in registers is counted there.

A thread has the elements, in the order, that it has where a tensor's statistics are taken by
themselves (`recording.statistics`), so they have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.pointwise.conversions import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import (
    COLUMN,
    ONE,
    ROW,
    SAME,
    Task,
    Text,
    walks_of,
    ways_of,
)
from opstep.kernels.pointwise.cuda_fused import element_of, task_of
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.pointwise.fused import Element, layout_of
from opstep.kernels.pointwise.loops import indented
from opstep.runtime.device.builtin import atomic_add, offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, pointer_to
from opstep.runtime.device.cuda.recording.counters import LANES, Kind
from opstep.runtime.device.cuda.recording.merging import ROWS, THREADS
from opstep.runtime.device.cuda.recording.statistics import (
    CELLS,
    STEP,
    TILE,
    block_folder,
    blocks_for,
    element_accumulator,
    span_for,
    sums_named,
    taking,
    usual_named,
    vector_functions,
)
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.device.texts import from_text
from opstep.runtime.ir.types import DType
from opstep.runtime.plan.fusing import MOST_MEASURED, Body

TOGETHER = 16  # elements whose sums are under way at once
MOST_TOGETHER = 3  # tensors; of more, whose sums take more registers, two


def is_measured(*given: Arg, body: Body, registers: Sequence[int]) -> bool:
    """Whether the group's kernel can take the statistics of all these registers. `given`: operands
    and results of the group, and more.
    """
    args = tuple(as_numbers(a) for a in given)
    width = width_of(body)
    small = args[len(body.operands)].size < LIMIT
    alike = all(16 // body.types[r].itemsize == width for r in registers)
    few = len(registers) <= MOST_MEASURED
    layout = layout_of(args, body)
    ways = {SAME, ONE, ROW, COLUMN}.issuperset(ways_of(layout, width))
    return small and alike and few and ways


def width_of(body: Body) -> int:
    """Elements of a vector: those of 16 bytes of the widest type."""
    return 16 // max(t.itemsize for t in body.types)


def launch_measured(*given: Arg, body: Body, registers: tuple[int, ...]) -> Grid:
    """`given`: operands and results of the group, then what blocks leave of each register, one
    behind the other: counts, moments, limits (`recording.statistics.block_folder`).
    """
    *plain, counts, moments, limits = given
    args = tuple(as_numbers(a) for a in plain)
    size, width = args[len(body.operands)].size, width_of(body)
    layout = layout_of(args, body)
    ways = ways_of(layout, width)
    walks, steps = walks_of(layout, ways)
    *sizes, inner = layout.shape
    where = (inner, tuple(sizes), len(sizes), *steps) if steps else ()
    left = (counts, moments, limits)
    return Grid(
        _kernel(body, registers, ways, walks), *args, 0, size, span_for(size), *left, *where,
        grid=blocks_for(size), block=THREADS, shared=4 * CELLS * len(registers), blocks=2,
    )  # fmt: skip


_kernels: dict[tuple, Any] = {}


def _kernel(body: Body, registers: tuple[int, ...], ways: tuple[str, ...], walks: tuple[int, ...]):
    key = (body.text, registers, ways, walks)
    if key not in _kernels:
        width = width_of(body)
        more = tuple(False for _ in registers)
        every = replace(body, results=body.results + registers, updates=body.updates + more)
        element = Element(every, on_gpu=True)
        name = f"measured on CUDA {len(_kernels)}"
        scope = element.scope | _SCOPE
        scope |= {"load": Intrinsic("load", width), "store": Intrinsic("store", width)}
        scope |= {"cells": CELLS * len(registers)}
        for m, r in enumerate(registers):
            scope |= {f"{what}{m}": f for what, f in _functions(element.types[r]).items()}
        scope["element"] = element_of(element, name)
        task = task_of(element, scope["element"], body)
        text = "\n".join(_Text(task, len(registers), ways, walks, width).lines())
        _kernels[key] = pinned("f64")(from_text(text, name, "measured", scope))
        _kernels[key].__name__ = "fused with statistics"
    return _kernels[key]


_SCOPE = {
    "cuda": cuda, "np": np, "div32": div32, "spot": spot, "pointer_to": pointer_to,
    "offset": offset, "atomic_add": atomic_add, "THREADS": THREADS, "STEP": STEP, "LANES": LANES,
    "CELLS": CELLS, "ROWS": ROWS,
}  # fmt: skip


@cache
def _functions(dtype: DType) -> dict[str, Any]:
    kind = Kind(dtype)
    return {
        "value": kind.value, "low_end": kind.low, "high_end": kind.high, "place": kind.counter,
        "add_element": element_accumulator(dtype), "fold": block_folder(dtype),
        **vector_functions(dtype),
    }  # fmt: skip


class _Text(Text):
    """That of a kernel: (*operands, *results, a 0, size, span, counts, moments, limits, *what walks
    need)
    """

    def __init__(self, task: Task, measured: int, ways, walks, width: int):
        super().__init__(task, ways, walks, width)
        self.measured = measured

    def lines(self) -> list[str]:
        lines = [
            "columns = pointer_to(cuda.shared.array(0, np.int32))",
            "thread = np.int64(cuda.threadIdx.x)",
            "block, blocks = cuda.blockIdx.x, cuda.gridDim.x",
            "lane = thread & (LANES - 1)",
            "for k in range(thread, cells, THREADS):",
            "    columns[k] = 0",
            "cuda.syncthreads()",
        ]
        for m in range(self.measured):
            lines += [f"n{m} = 0", f"low{m} = high_end{m}", f"high{m} = low_end{m}"]
            lines += [f"pivot{m} = 0.0", f"total{m} = 0.0", f"squares{m} = 0.0"]
            lines.append(f"columns{m} = offset(columns, {m} * CELLS)")
        lines += [*self.begin(), "at = block * span", "end = min(at + span, n)"]
        lines.append("if at + STEP <= end:")
        lines += indented(self.same(f"at + thread * {self.width}", "_0"))
        lines += ["    while at + STEP <= end:", *indented(self._tile(), 2)]
        single = [*self.single("i"), *self._counted_alone()]
        lines += ["for i in range(at + thread, end, THREADS):", *indented(single)]
        for m in range(self.measured):
            given = f"columns{m}, {_state(m)}, offset(counts, {m} * ROWS * blocks)"
            given += f", offset(moments, {2 * m} * blocks), offset(limits, {3 * m} * blocks)"
            lines.append(f"fold{m}({given}, block, blocks)")
        head = self.head(["n", "span", "counts", "moments", "limits"])
        return [f"def measured({', '.join(head)}):", *indented(lines)]

    def _tile(self) -> list[str]:
        """Loads, computes, stores and counts a thread's part of a tile. The next vector of each
        operand is under way while one is computed with.
        """
        vectors = range(TILE // self.width)
        lines = [f"at{u} = at + ({u} * THREADS + thread) * {self.width}" for u in vectors]
        lines += ["next = at + STEP", "next = next if next + STEP <= end else at"]
        places = [*(f"at{u}" for u in vectors), f"next + thread * {self.width}"]
        for u in vectors:
            lines += self.same(places[u + 1], f"_{u + 1}")
            lines += [*self.others(f"at{u}", f"_{u}"), *self.computed(f"_{u}")]
            lines += [*self.stored(f"at{u}"), *self._counted(u)]
        whole = [k for k in self.task.needed if self.ways[k] == SAME]
        taken = [f"a{k}_0 = a{k}_{len(vectors)}" for k in whole]
        return [*lines, *taken, "at += STEP"]

    def _counted(self, u: int) -> list[str]:
        """Several tensors are summed up before anything is asked of the sums of one, so that none
        waits for another.
        """
        lines: list[str] = []
        together = min(max(TOGETHER // self.width, 1), MOST_TOGETHER)
        if self.measured > MOST_TOGETHER:
            together = min(together, 2)
        for first in range(0, self.measured, together):
            some = range(first, min(first + together, self.measured))
            for m in some:
                lines.append(f"v{m} = {self.values(self._results + m)}")
                lines.append(f"count{m}(v{m}, columns{m}, lane)")
                lines.append(f"pivot{m} = pivot_of{m}(n{m}, v{m}, pivot{m})")
            lines += [f"{sums_named(m)} = sums{m}(v{m}, pivot{m})" for m in some]
            usual = " & ".join(f"is_usual{m}({usual_named(m)})" for m in some)
            lines += [f"if {usual}:", *(f"    {taking(m, m)}" for m in some), "else:"]
            for m in some:
                given = f"v{m}, moments, at{u}, 0, columns{m}, lane, {_state(m)}"
                lines.append(f"    {_state(m)} = settle{m}({given})")
        return lines

    def _counted_alone(self) -> list[str]:
        """One element, of those that do not fill a tile."""
        lines: list[str] = []
        for m in range(self.measured):
            lines.append(f"w{m} = value{m}(o[{self._results + m}])")
            lines.append(f"atomic_add(columns{m}, place{m}(w{m}, lane), 1)")
            given = f"w{m}, moments, i, 0, columns{m}, lane, {_state(m)}"
            lines.append(f"{_state(m)} = add_element{m}({given})")
        return lines


def _state(m: int) -> str:
    return f"n{m}, low{m}, high{m}, pivot{m}, total{m}, squares{m}"
