"""Ops of sequences, images and volumes, of one declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from opstep.runtime.ir.op import Op

SHAPES = ("", "[N, C, W]", "[N, C, H, W]", "[N, C, D, H, W]")


_T = TypeVar("_T", bound=type[Op])


def by_rank(
    signature: str, *docs: str, source: str | tuple[str, ...] = "", **own: Callable[[int], object]
) -> Callable[[_T], _T]:
    """Declares three ops that derive from a class, of one, two and three `axes`.

    Texts may name {n}, the axes, {x}, the shape, {y}, that of a result, and {zeros} and {ones},
    lists with a number for each axis. `docs`, and `source` where it is a tuple, have a text for
    each op. `own`: attributes of the ops beyond these, by functions of the number of axes.
    """

    def declare(base: _T) -> _T:
        for n, doc in enumerate(docs, 1):
            named = {
                "n": n,
                "x": SHAPES[n],
                "y": SHAPES[n].translate({ord(c): c + "'" for c in "DHW"}),
            }
            named |= {"zeros": [0] * n, "ones": [1] * n}
            fields = {key: make(n) for key, make in own.items()}
            fields |= {"__doc__": doc.format_map(named), "__module__": base.__module__}
            fields |= {"axes": n, "declared": base, "signature": signature.format_map(named)}
            found = source[n - 1] if isinstance(source, tuple) else source
            fields |= {"source": found.format_map(named)} if found else {}
            type(fields["signature"].partition("(")[0], (base,), fields)
        return base

    return declare
