"""Groups of elementwise ops on CUDA: vectors of 16 bytes, one a thread, as single ops have them
(`cuda_elementwise`). Where rows end within vectors, each element is a thread's.
"""

from __future__ import annotations

from collections.abc import Sequence

from opstep.kernels.pointwise.broadcast import collapse
from opstep.kernels.pointwise.cuda_cast import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import (
    COLUMN,
    EACH,
    ONE,
    ROW,
    THREADS,
    ways_of,
)
from opstep.kernels.pointwise.cuda_offsets import LIMIT, spot
from opstep.kernels.pointwise.fused import Element, indented, launch
from opstep.runtime.device.cuda.compiling.names import cuda, div32
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.plan.body import Body

_kernels: dict[tuple, tuple] = {}


def launch_on_gpu(given: Sequence[Arg], body: Body) -> Grid | Launch:
    count = len(body.operands)
    args = tuple(as_numbers(a) for a in given)
    operands, results = args[:count], args[count:]
    shape, n = results[0].shape, results[0].size
    layout = collapse(shape, [a.shape for a in operands])
    width = _width([*operands, *results], n)
    ways = ways_of(layout.shape, layout.strides, width)
    if EACH in ways or n >= LIMIT * width:
        return launch(args, body, on_gpu=True)
    kernel = _kernel(body, ways, width)
    *sizes, inner = layout.shape
    steps = [s[:-1] for s, way in zip(layout.strides, ways, strict=True) if way in (ROW, COLUMN)]
    where = (inner, tuple(sizes), len(sizes), *steps) if steps else ()
    grid = -(-n // (width * THREADS))
    return Grid(kernel, *args, 0, n, *where, grid=grid, block=THREADS)


def _width(args: Sequence[Arg], n: int) -> int:
    """Elements of a vector: the widest type fills 16 bytes."""
    return 16 // max((a.stored.itemsize for a in args if a.size == n), default=16)


def _kernel(body: Body, ways: tuple[str, ...], width: int):
    """(*operands, *results, a 0, n, inner, sizes, count, *strides of operands that repeat)"""
    key = (repr(body), ways, width)
    if key not in _kernels:
        element = Element(body, on_gpu=True)
        scope = element.scope | {"cuda": cuda, "div32": div32, "spot": spot}
        scope |= {"load": Intrinsic("load", width), "store": Intrinsic("store", width)}
        name = f"fused on CUDA {len(_kernels)}"
        scope["element"] = from_text(
            _element_text(element, ways), f"{name} element", "element", scope
        )
        _kernels[key] = from_text(_kernel_text(element, ways, width), name, "fused", scope)
    return _kernels[key]


def _element_text(element: Element, ways: Sequence[str]) -> str:
    """A function of one element of each operand: one of each result."""
    results = element.body.results
    needed = element.needed(range(len(results)))
    operands = [f"r{k}" for k in needed if k < len(ways)]
    lines = [f"def element({', '.join([*operands, 'zero'])}):"]
    lines += indented(element.computed(needed))
    return "\n".join([*lines, f"    return ({', '.join(f'r{r}' for r in results)},)"])


def _kernel_text(element: Element, ways: Sequence[str], width: int) -> str:
    body, count = element.body, len(ways)
    needed = [k for k in element.needed(range(len(body.results))) if k < count]
    repeating = [k for k, way in enumerate(ways) if way in (ROW, COLUMN)]
    head = [f"x{k}" for k in range(count)] + [f"y{q}" for q in range(len(body.results))]
    head += ["zero", "n"]
    head += ["inner", "sizes", "count", *(f"s{k}" for k in repeating)] if repeating else []
    lines = [f"at = cuda.grid(1) * {width}", "if at >= n:", "    return"]
    lines += [f"r{k} = x{k}[0]" for k in needed if ways[k] == ONE]
    if body.status >= 0:
        lines.append(f"takes = takes_effect(x{body.status}[0])")
    if repeating:  # rows end where vectors do
        lines += _places(ways, needed, width) + _vector(element, ways, needed, width)
    else:
        lines += [f"if at + {width} <= n:", *indented(_vector(element, ways, needed, width))]
        lines += ["else:", "    for i in range(at, n):"]
        lines += indented(_single(element, ways, needed), 2)
    return "\n".join([f"def fused({', '.join(head)}):", *indented(lines)])


def _places(ways: Sequence[str], needed: Sequence[int], width: int) -> list[str]:
    lines = [f"across = inner // {width}", f"row = div32(at // {width}, across)"]
    lines.append("column = at - row * inner")
    for k in needed:
        if ways[k] in (ROW, COLUMN):
            lines.append(f"q{k} = spot(row, sizes, s{k}, count)")
    return lines


def _vector(element: Element, ways, needed: Sequence[int], width: int) -> list[str]:
    """Loads, computes and stores a vector."""
    lines = []
    for k in needed:
        if ways[k] == COLUMN:
            lines.append(f"r{k} = x{k}[q{k}]")
        elif ways[k] != ONE:
            lines.append(f"a{k} = load(x{k}, {f'q{k} + column' if ways[k] == ROW else 'at'})")
    for e in range(width):
        given = [f"r{k}" if ways[k] in (ONE, COLUMN) else f"a{k}[{e}]" for k in needed]
        lines.append(f"o{e} = element({', '.join([*given, 'zero'])})")
    for q in range(len(element.body.results)):
        values = ", ".join(f"o{e}[{q}]" for e in range(width))
        lines += _guarded(element.body, q, f"store(y{q}, at, ({values},))")
    return lines


def _single(element: Element, ways, needed: Sequence[int]) -> list[str]:
    given = [f"r{k}" if ways[k] == ONE else f"x{k}[i]" for k in needed]
    lines = [f"o = element({', '.join([*given, 'zero'])})"]
    for q in range(len(element.body.results)):
        lines += _guarded(element.body, q, f"y{q}[i] = o[{q}]")
    return lines


def _guarded(body: Body, q: int, line: str) -> list[str]:
    return ["if takes:", f"    {line}"] if body.updates[q] else [line]
