"""Groups of elementwise ops on CUDA: vectors of 16 bytes, one a thread, as single ops have them
(`cuda_elementwise`). Where rows end within vectors, each element is a thread's.
"""

from __future__ import annotations

from collections.abc import Sequence

from opstep.kernels.pointwise.broadcast import Layout
from opstep.kernels.pointwise.cuda_cast import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import (
    COLUMN,
    EACH,
    ONE,
    ROW,
    SAME,
    THREADS,
    ways_of,
)
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.pointwise.fused import Element, indented, launch, layout_of
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.plan.body import Body

_kernels: dict[tuple, tuple] = {}


def launch_on_gpu(given: Sequence[Arg], body: Body) -> Grid | Launch:
    count = len(body.operands)
    args = tuple(as_numbers(a) for a in given)
    n = args[count].size
    layout = layout_of(args, body)
    width = _width(args, n)
    ways = ways_of(layout.shape, layout.strides, width)
    while EACH in ways:  # rows end within vectors
        width //= 2
        ways = ways_of(layout.shape, layout.strides, width)
    if n >= LIMIT * width:
        return launch(args, body, on_gpu=True)
    *sizes, inner = layout.shape
    walks, steps = walks_of(layout, ways)
    kernel = _kernel(body, ways, walks, width)
    where = (inner, tuple(sizes), len(sizes), *steps) if steps else ()
    grid = -(-n // (width * THREADS))
    return Grid(kernel, *args, 0, n, *where, grid=grid, block=THREADS)


def walks_of(layout: Layout, ways: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The strides of operands that repeat, each once, and which of them an operand has, or -1."""
    steps: dict[tuple[int, ...], int] = {}
    walks = tuple(
        steps.setdefault(s[:-1], len(steps)) if way in (ROW, COLUMN) else -1
        for s, way in zip(layout.strides, ways, strict=True)
    )
    return walks, list(steps)


def _width(args: Sequence[Arg], n: int) -> int:
    """Elements of a vector: the widest type fills 16 bytes."""
    return 16 // max((a.stored.itemsize for a in args if a.size == n), default=16)


def _kernel(body: Body, ways: tuple[str, ...], walks: tuple[int, ...], width: int):
    """(*operands, *results, a 0, n, inner, sizes, count, *strides of operands that repeat), which
    `walks` tells for each.
    """
    key = (repr(body), ways, walks, width)
    if key not in _kernels:
        element = Element(body, on_gpu=True)
        scope = element.scope | {"cuda": cuda, "div32": div32, "spot": spot}
        scope |= {"load": Intrinsic("load", width), "store": Intrinsic("store", width)}
        name = f"fused on CUDA {len(_kernels)}"
        scope["element"] = from_text(
            element_text(element, ways), f"{name} element", "element", scope
        )
        _kernels[key] = from_text(_kernel_text(element, ways, walks, width), name, "fused", scope)
    return _kernels[key]


def element_text(element: Element, ways: Sequence[str]) -> str:
    """A function of one element of each operand: one of each result."""
    results = element.body.results
    needed = element.needed(range(len(results)))
    operands = [f"r{k}" for k in needed if k < len(ways)]
    lines = [f"def element({', '.join([*operands, 'zero'])}):"]
    lines += indented(element.computed(needed))
    return "\n".join([*lines, f"    return ({', '.join(f'r{r}' for r in results)},)"])


def _kernel_text(element: Element, ways: Sequence[str], walks: Sequence[int], width: int) -> str:
    body, count = element.body, len(ways)
    needed = [k for k in element.needed(range(len(body.results))) if k < count]
    repeats = max(walks, default=-1) >= 0
    head = [f"x{k}" for k in range(count)] + [f"y{q}" for q in range(len(body.results))]
    head += ["zero", "n"]
    if repeats:
        head += ["inner", "sizes", "count", *(f"s{w}" for w in range(max(walks) + 1))]
    lines = [f"at = cuda.grid(1) * {width}", "if at >= n:", "    return"]
    lines += [f"r{k} = x{k}[0]" for k in needed if ways[k] == ONE]
    if body.status >= 0:
        lines.append(f"takes = takes_effect(x{body.status}[0])")
    if repeats:  # rows end where vectors do
        lines += _vector(element, ways, walks, needed, width)
    else:
        lines += [f"if at + {width} <= n:", *indented(_vector(element, ways, walks, needed, width))]
        lines += ["else:", "    for i in range(at, n):"]
        lines += indented(_single(element, ways, needed), 2)
    return "\n".join([f"def fused({', '.join(head)}):", *indented(lines)])


def _places(walks: Sequence[int], needed: Sequence[int], width: int) -> list[str]:
    walked = sorted({walks[k] for k in needed if walks[k] >= 0})
    if not walked:
        return []
    lines = [f"across = inner // {width}", f"row = div32(at // {width}, across)"]
    lines.append("column = at - row * inner")
    return lines + [f"q{w} = spot(row, sizes, s{w}, count)" for w in walked]


def _vector(
    element: Element, ways: Sequence[str], walks: Sequence[int], needed: Sequence[int], width: int
) -> list[str]:
    """Loads, computes and stores a vector; loads that need no place are under way before others."""
    lines = [f"a{k} = {loaded(k, 'at', width)}" for k in needed if ways[k] == SAME]
    lines += _places(walks, needed, width)
    for k in needed:
        if ways[k] == COLUMN:
            lines.append(f"r{k} = x{k}[q{walks[k]}]")
        elif ways[k] == ROW:
            lines.append(f"a{k} = {loaded(k, f'q{walks[k]} + column', width)}")
    for e in range(width):
        given = [f"r{k}" if ways[k] in (ONE, COLUMN) else f"a{k}[{e}]" for k in needed]
        lines.append(f"o{e} = element({', '.join([*given, 'zero'])})")
    for q in range(len(element.body.results)):
        values = ", ".join(f"o{e}[{q}]" for e in range(width))
        line = f"store(y{q}, at, ({values},))" if width > 1 else f"y{q}[at] = {values}"
        lines += guarded(element.body, q, line)
    return lines


def loaded(k: int, place: str, width: int) -> str:
    return f"load(x{k}, {place})" if width > 1 else f"(x{k}[{place}],)"


def _single(element: Element, ways, needed: Sequence[int]) -> list[str]:
    given = [f"r{k}" if ways[k] == ONE else f"x{k}[i]" for k in needed]
    lines = [f"o = element({', '.join([*given, 'zero'])})"]
    for q in range(len(element.body.results)):
        lines += guarded(element.body, q, f"y{q}[i] = o[{q}]")
    return lines


def guarded(body: Body, q: int, line: str) -> list[str]:
    return ["if takes:", f"    {line}"] if body.updates[q] else [line]
