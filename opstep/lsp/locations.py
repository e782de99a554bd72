"""Where things are that a file names: in itself, in the standard library, in opstep's own code."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lsprotocol import types

from opstep.lsp.occurrences import op_named
from opstep.runtime.ir.graph import Graph

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item
    from opstep.lsp.project import Project


class ItemInFile(NamedTuple):
    """An item and its file."""

    file: File
    item: Item


def graph_item(project: Project, file: File, name: str) -> ItemInFile | None:
    """The graph that a file means by a name: its own, or that of the standard library."""
    for holder in (file, *project.library):
        item = holder.graphs.get(name)
        if item is not None and isinstance(item.node, Graph):
            return ItemInFile(holder, item)
    return None


def is_library(project: Project, file: File) -> bool:
    """Whether a file belongs to the standard library, which nobody edits."""
    return any(file is own or file.path == own.path for own in project.library)


@cache
def op_location(name: str) -> tuple[Path, types.Range] | None:
    """Where the class that declares an op stands: its file and the range of the class's name."""
    op = op_named(name)
    if op is None:
        return None
    op = op.__dict__.get("declared", op)  # several ops may be one declaration
    try:
        path = inspect.getsourcefile(op)
        lines, first = inspect.getsourcelines(op)
    except (OSError, TypeError):
        return None
    if path is None:
        return None
    for k, line in enumerate(lines):  # decorators stand above
        column = line.find(op.__name__)
        if line.lstrip().startswith("class ") and column >= 0:
            row = first - 1 + k
            end = column + len(op.__name__)
            return Path(path), types.Range(types.Position(row, column), types.Position(row, end))
    return None
