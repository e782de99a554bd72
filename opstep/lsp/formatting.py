"""A file in the standard layout, as edits of the lines that differ.

What can be read takes the form that ``opstep fmt`` gives it. Items with syntax errors stay as they
are, to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from opstep.lsp.file import File
from opstep.runtime.ir.cutting import cut
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.parser import parse_with_diagnostics
from opstep.runtime.ir.printer import print_module, print_parts

_MANY = 2_000  # lines; from here on differences are found quickly rather than best


class Change(NamedTuple):
    """Lines in place of others. Offsets count in the file."""

    start: int
    end: int
    text: str


def changes(file: File) -> Iterator[Change]:
    """What must change, from the beginning to the end."""
    text = file.text
    mark = 1 if text.startswith("\ufeff") else 0
    returns = "\r\n" in text
    module, faults = parse_with_diagnostics(text, file.path)
    for start, end, new in _faulty(file) if faults else _whole(text, module):
        start = max(start, mark)
        if returns:  # the editor keeps its line ends
            new = new.replace("\n", "\r\n")
        yield from _differences(text[start:end], new, start)


def _whole(text: str, module: Module) -> Iterator[Change]:
    """Each part of a file that can be read, and what it becomes."""
    pieces = cut(text)
    parts = print_parts(module)
    for k, piece in enumerate(pieces):
        last = k == len(pieces) - 1
        yield Change(piece.start, piece.end, "".join(parts[k:] if last else parts[k : k + 1]))


def _faulty(file: File) -> Iterator[Change]:
    """Those items of a file that can be read. How they are set apart stays as it is."""
    for item in file.items:
        if item.syntax or item.node is None:
            continue
        module, _ = parse_with_diagnostics(item.text, file.path)
        blank = len(item.text) - len(item.text.lstrip("\ufeff \t\r\n\f\v"))
        begin = item.text.rfind("\n", 0, blank) + 1
        yield Change(item.start + begin, item.end, print_module(module))


def _differences(old: str, new: str, start: int) -> Iterator[Change]:
    """The lines that differ."""
    if old == new:
        return
    a, b = _lines(old), _lines(new)
    same = SequenceMatcher(None, a, b, autojunk=len(a) > _MANY)
    offsets = [start]
    for line in a:
        offsets.append(offsets[-1] + len(line))
    for kind, i, j, k, m in same.get_opcodes():
        if kind != "equal":
            yield Change(offsets[i], offsets[j], "".join(b[k:m]))


def _lines(text: str) -> list[str]:
    """The lines with their ends."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
