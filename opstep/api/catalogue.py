"""What a program can call without writing it, and what its declarations say of it."""

from __future__ import annotations

import inspect
import sys

from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import OPS, Op

Entry = type[Op] | Graph


def catalogue() -> dict[str, Entry]:
    """What a program can call without writing it: ops, and graphs of the standard library."""
    import opstep.kernels
    import opstep.runtime.ir.control  # noqa: F401 - and those of control flow
    from opstep.kernels.stdlib import library

    graphs: dict[str, Entry] = {}
    for module in library():
        graphs |= module.graphs
    return graphs | {n: op for n, op in OPS.items() if public(op)}


def public(op: type[Op]) -> bool:
    """Whether programs may use it; plans have a few of their own."""
    return not op.__module__.startswith("opstep.runtime.plan")


def family_of(entry: Entry) -> str:
    return "library" if isinstance(entry, Graph) else entry.family


def text_of(entry: Entry) -> str:
    """The documentation: an op's, or the comment right above a graph."""
    if isinstance(entry, Graph):
        lines = "\n".join(line.strip() for line in entry.comments.above)
        return " ".join(lines.rpartition("\n\n")[2].split())
    return inspect.getdoc(entry) or ""


def summary(entry: Entry) -> str:
    """The first paragraph of the documentation, on one line."""
    return " ".join(text_of(entry).partition("\n\n")[0].split())


def family_notes(op: type[Op]) -> str:
    """What holds for all ops of the family: its text behind the first paragraph."""
    text = inspect.cleandoc(sys.modules[op.__module__].__doc__ or "")
    return text.partition("\n\n")[2]
