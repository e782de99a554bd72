"""The standard library: graphs that every program can call and step into."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from opstep.runtime.ir.graph import Module


@cache
def library() -> tuple[Module, ...]:
    """Its modules, one a file of this folder, parsed when first asked for."""
    from opstep.runtime.ir.parser import load

    return tuple(load(path) for path in sorted(Path(__file__).parent.glob("*.opg")))
