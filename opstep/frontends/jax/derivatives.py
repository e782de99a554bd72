"""Which equations compute derivatives, not what Python's lines say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core

from opstep.frontends.jax.origins import Origins, is_transposed, transforms


def derivatives(equations: Sequence[Any], results: Sequence[Any], origins: Origins) -> set[int]:
    """Their places: those of transposed functions, and of each line what nothing but these reads,
    where others read something else of the line.
    """
    found = {k for k, e in enumerate(equations) if is_transposed(e)}
    lines: dict[int, Any] = {}
    for place, equation in enumerate(equations):
        at = None if place in found else origins.of(equation)
        if at is not None:
            lines[place] = at.frames
    readers: dict[Any, set[int]] = {}
    for place, equation in enumerate(equations):
        for v in equation.invars:
            if place not in found and isinstance(v, core.Var):
                readers.setdefault(v, set()).add(place)
    given = {v for v in results if isinstance(v, core.Var)}
    by_line: dict[Any, list[int]] = {}
    for place, line in lines.items():
        by_line.setdefault(line, []).append(place)
    for line, places in by_line.items():
        needed: set[int] = set()
        for place in reversed(places):
            outs = equations[place].outvars
            read = set().union(*(readers.get(v, ()) for v in outs))
            outside = any(lines.get(r) != line for r in read) or any(v in given for v in outs)
            if outside or read & needed:
                needed.add(place)
        if needed:
            rest = set(places) - needed
            found |= {k for k in rest if transforms(equations[k], "jvp")}
    return found
