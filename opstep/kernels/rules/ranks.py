"""Ops of sequences, images and volumes, of one declaration."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import Any, TypeVar

from opstep.runtime.ir.op import Op

_T = TypeVar("_T", bound=type[Op])
_LETTERS = (
    {"size": "W", "kernel": "S", "out": "W'"},
    {"size": "H, W", "kernel": "R, S", "out": "H', W'"},
    {"size": "D, H, W", "kernel": "T, R, S", "out": "D', H', W'"},
)


def by_rank(signature: str, doc: str, *others: str, **own: Any) -> Callable[[_T], _T]:
    """Declares three ops that derive from a class, of one, two and three `axes`.

    Docs are one for all ops, or one for each; long lines are wrapped. `own`: more attributes of the
    ops; a tuple has one for each. Texts may name {n}, the axes, {size}, {kernel} and {out}, the
    letters of x, filters and results along them, and {zeros} and {ones}, a number for each.
    """
    given = {"signature": signature, "__doc__": (doc, *others) if others else doc, **own}

    def declare(base: _T) -> _T:
        for n, letters in enumerate(_LETTERS, 1):
            named = {"n": n, "zeros": [0] * n, "ones": [1] * n, **letters}
            fields: dict[str, Any] = {"axes": n, "declared": base, "__module__": base.__module__}
            for key, value in given.items():
                value = value[n - 1] if isinstance(value, tuple) else value
                fields[key] = value.format_map(named) if isinstance(value, str) else value
            lines = (" ".join(line.split()) for line in fields["__doc__"].splitlines())
            fields["__doc__"] = "\n".join(fill(line, 96) for line in lines)
            type(fields["signature"].partition("(")[0], (base,), fields)
        return base

    return declare
