"""Where the items of a text begin, found without parsing it.

An item begins with a line that begins with ``param``, ``state``, ``mesh`` or ``graph`` and a name;
the comments above it belong to it. Nothing before that line can reach into it: a graph or a list of
operands that is still open there is broken.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from opstep.runtime.ir.lexer import DOTTED, QUOTED

_ITEM = re.compile(
    rf"^(?:\A\ufeff)?[ \t\r\f\v]*(param|state|mesh|graph)[ \t\r\f\v]*"
    rf"({QUOTED}|(?<=[ \t\r\f\v]){DOTTED})",
    re.MULTILINE | re.ASCII,
)
_TRIVIA_LINE = re.compile(r"(?:\A\ufeff)?[ \t\r\f\v]*(?:#[^\n]*)?\n").match


class Piece(NamedTuple):
    """A part of a text from `start` to `end`. `kind` is "" for what stands before all items."""

    start: int
    end: int
    kind: str
    name: str
    after_name: int

    def is_named_in(self, line: str) -> bool:
        """Whether a line may use what it declares; of a mesh that is not told by its first axis."""
        return self.name in line or (self.kind == "mesh" and "over" in line)

    def moved(self, by: int) -> Piece:
        """The same piece in a text that is longer above it."""
        return Piece(self.start + by, self.end + by, self.kind, self.name, self.after_name + by)


def cut(text: str) -> list[Piece]:
    """The pieces of a text, in order; together they are the text. None for the empty text."""
    begins: list[tuple[int, str, str, int]] = []
    floor = 0
    for match in _ITEM.finditer(text):
        start = _above(text, floor, match.start())
        if start and not begins:
            begins.append((0, "", "", 0))
        begins.append((start, match[1], match[2].strip("`"), match.end()))
        floor = text.find("\n", match.end()) + 1 or len(text)
    if not text:
        return []
    if not begins:
        begins.append((0, "", "", 0))
    ends = [start for start, *_ in begins[1:]] + [len(text)]
    return [Piece(b[0], end, *b[1:]) for b, end in zip(begins, ends, strict=True)]


def _above(text: str, floor: int, start: int) -> int:
    """Where the blank lines and comment lines above a line begin."""
    while start > floor:
        line = text.rfind("\n", floor, start - 1) + 1 or floor
        match = _TRIVIA_LINE(text, line)
        if match is None or match.end() != start:
            break
        start = line
    return start
