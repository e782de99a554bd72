"""Neighbours of an array as a tuple: what a vector store of a kernel is given."""

from __future__ import annotations

from collections.abc import Callable

from opstep.runtime.device.texts import from_text


def _gathered(count: int) -> Callable:
    values = ", ".join(f"values[i + {k}]" for k in range(count))
    text = f"def neighbours(values, i):\n    return ({values},)\n"
    return from_text(text, f"{count} neighbours", "neighbours", {})


# by how many, functions that give neighbours of an array as a tuple
GATHERED = {count: _gathered(count) for count in (1, 2, 4, 8)}
