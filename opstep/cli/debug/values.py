"""How values are printed: in a line, or as a format of ``print`` asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.cli.debug.registry import Refused
from opstep.runtime.ir.diagnostics import visible

if TYPE_CHECKING:
    from opstep.cli.debug.showing import Paint
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.debugger.frames import Frame

FORMATS = {
    "e": "elements (p/20e: at most 20 an axis)",
    "f": "elements with all their digits",
    "x": "the bits of the elements, hexadecimal",
    "b": "the bits of the elements, binary",
    "s": "all statistics",
    "h": "a histogram of the exponents",
    "t": "the type alone",
}
EDGE = 6  # elements shown at each end of an axis
SMALL = 64  # elements of a computed tensor that are all shown
MOST = 1000  # elements that one can ask for
_BAR = 40  # columns of a histogram
_FORMAT = re.compile(r"/(\d{0,4})([a-z]?)(?:\s+|$)")


def format_of(text: str) -> tuple[str, str]:
    """``/20e x[0]`` as its format and the rest. Raises `Refused`."""
    if not text.startswith("/"):
        return "", text
    match = _FORMAT.match(text)
    if not match or (match[2] and match[2] not in FORMATS):
        listed = "; ".join(f"/{k}: {what}" for k, what in FORMATS.items())
        raise Refused(f"{visible(text.split()[0][:20])} is not a format", listed)
    return f"{match[1]}{match[2] or 'e'}", text[match.end() :].strip()


def value_lines(paint: Paint, value: Any, form: str) -> Iterator[str]:
    """A value's lines."""
    kind, amount = form[-1:], min(int(form[:-1] or 0), MOST)
    if kind == "t":
        yield type_of(value)
    elif kind in ("s", "h"):
        yield from figures(value, kind)
    elif kind:
        yield from elements(array_of(value), kind, amount).splitlines()
    else:
        yield from plain(paint, value)


def plain(paint: Paint, value: Any) -> Iterator[str]:
    """One line; of a table all its rows."""
    from opstep.runtime.expressions.text import value_text

    if isinstance(value, np.ndarray) and value.ndim > 1 and value.size <= SMALL:
        yield from elements(value, "e", 0).splitlines()  # where(…), a part that was asked for
        return
    rows, columns = getattr(value, "rows", None), getattr(value, "columns", ())
    if rows is None or len(rows) < 2:
        yield value_text(value)
        return
    cells = [tuple(map(str, columns)), *(tuple(map(cell, row)) for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    for k, row in enumerate(cells):
        line = "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        yield paint(line, "dim") if not k else line


def cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else visible(str(value))


def is_handle(value: Any) -> bool:
    return hasattr(value, "statistics") and hasattr(value, "array")


def array_of(value: Any) -> np.ndarray:
    """Raises `Refused` for what has no elements."""
    if is_handle(value):
        return value.array()
    if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
        return np.asarray(value)
    raise Refused("this value has no elements", "print it without a format")


def type_of(value: Any) -> str:
    from opstep.runtime.expressions import ValueTable
    from opstep.runtime.expressions.text import type_text
    from opstep.runtime.ir.types import TensorType, dtype_of

    if isinstance(value, ValueTable):
        return "table"
    if is_handle(value):
        return type_text(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return str(TensorType(dtype_of(value.dtype), value.shape))
    return type(value).__name__


def elements(array: np.ndarray, kind: str, amount: int) -> str:
    """Rows of elements, the middle of long axes left out."""
    if kind in ("x", "b"):
        bits, unsigned = array.dtype.itemsize * 8, f"u{array.dtype.itemsize}"
        digits = f"0x{{:0{bits // 4}x}}" if kind == "x" else f"{{:0{bits}b}}"
        array = np.ascontiguousarray(array).view(unsigned).reshape(array.shape)
        how: dict[str, Any] = {"formatter": {"int": lambda v: digits.format(int(v))}}
    elif array.dtype.kind not in "iub" and array.dtype.itemsize <= 2:  # halves: NumPy knows not all
        array = array.astype(np.float32)
        how = {"precision": 5}
    elif kind == "f":
        how = {"floatmode": "unique"}
    else:
        how = {"precision": 6}
    edge = max(amount // 2, 1) if amount else EDGE
    threshold = 0 if max(array.shape, default=0) > (amount or 2 * EDGE) else array.size
    return np.array2string(array, max_line_width=100, threshold=threshold, edgeitems=edge, **how)


def figures(value: Any, kind: str) -> Iterator[str]:
    """All statistics of a tensor, or a histogram. Raises `Refused`."""
    if not is_handle(value):
        raise Refused("only a tensor by name has its figures taken", "write stats(…) or hist(…)")
    s = value.statistics()
    if kind == "h":
        yield from histogram(s)
        return
    yield f"{value.type}, {s.count:,} elements"
    for name in ("min", "max", "mean", "std", "l2", "absmax"):
        number = getattr(s, name)
        yield f"{name:<10} {'-' if number is None else cell(number)}"
    for name in ("nan", "posinf", "neginf", "zero", "subnormal", "unwritten"):
        number = getattr(s, name)
        if number is not None:
            yield f"{name:<10} {number:,}"


def histogram(s: Any) -> Iterator[str]:
    """How many elements have which exponent."""
    from opstep.runtime.statistics import LOWEST

    counts = {k + LOWEST: n for k, n in enumerate(s.histogram) if n}
    if not counts:
        odd = ((s.nan, "NaN"), (s.posinf, "inf"), (s.neginf, "-inf"))
        yield ", ".join(
            [f"{s.zero:,} of {s.count:,} are 0", *(f"{n:,} {what}" for n, what in odd if n)]
        )
        return
    most = max(counts.values())
    before = min(counts)
    for exponent, n in sorted(counts.items()):
        if exponent > before + 1:
            yield "…"
        yield f"2^{exponent:<4} {n:>12,}  {'█' * max(round(n / most * _BAR), 1)}"
        before = exponent
    for name, n in (("0", s.zero), ("inf", s.posinf), ("-inf", s.neginf), ("NaN", s.nan)):
        if n:
            yield f"{name:<6} {n:>12,}"


def named_line(paint: Paint, frame: Frame, name: str, node: Node) -> str:
    """``h = f32[8, 128]  mean 0.01  std 1.2  min -3.1  max 4.2``; trouble in red. Of what ranks
    have parts of the whole.
    """
    from opstep.runtime.debugger.scope import Handle, shown
    from opstep.runtime.expressions.text import value_text

    meant = frame.lookup(name) is node
    value = (shown(frame, name) if meant else None) or Handle(frame.machine.executor, node)
    text = value_text(value)
    odd = re.search(r"\b(NaN|nan|inf|unwritten)\b", text)
    whose = paint(f"  ({value.whose.strip()})", "dim") if value.whose else ""
    return f"{paint(visible(name), 'bold')} = {paint(text, 'red') if odd else text}{whose}"


def array_line(array: np.ndarray) -> str:
    """A result of the run."""
    from opstep.runtime.expressions.text import value_text

    return value_text(array)
