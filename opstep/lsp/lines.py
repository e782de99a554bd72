"""Offsets in a text, and positions as editors count them: lines, and UTF-16 units in a line."""

from __future__ import annotations

import re
from bisect import bisect_right

from lsprotocol import types

_END = re.compile(r"\r\n|\n|\r")


class Lines:
    """Where the lines of a text begin."""

    def __init__(self, text: str):
        self.text = text
        self.starts = [0, *_ends(text)]

    def offset(self, position: types.Position) -> int:
        """The character at a position. Beyond the end of a line it is the line's end, beyond that
        of the text the text's.
        """
        if position.line < 0:
            return 0
        if position.line >= len(self.starts):
            return len(self.text)
        start = self.starts[position.line]
        line = self._line(position.line)
        if line.isascii():
            return start + max(0, min(position.character, len(line)))
        units = 0
        for k, c in enumerate(line):
            if units >= position.character:
                return start + k
            units += 2 if c > "\uffff" else 1
        return start + len(line)

    def position(self, offset: int) -> types.Position:
        """The position of a character."""
        return types.Position(*self.line_and_column(offset))

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """The same as two numbers."""
        offset = max(0, min(offset, len(self.text)))
        number = bisect_right(self.starts, offset) - 1
        before = self.text[self.starts[number] : offset]
        return number, units(before)

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def _line(self, number: int) -> str:
        """A line without what ends it."""
        following = number + 1
        end = self.starts[following] if following < len(self.starts) else len(self.text)
        return self.text[self.starts[number] : end].rstrip("\r\n")

    def replace(self, start: int, end: int, new: str) -> None:
        """Puts `new` in place of a part of the text."""
        old, starts = self.text, self.starts
        self.text = old[:start] + new + old[end:]
        # A line end may be joined or split at the borders: CR before, LF behind.
        first = bisect_right(starts, max(0, start - 1))
        last = bisect_right(starts, end + 1)
        begin = starts[first - 1]
        stop = starts[last] if last < len(starts) else len(old)
        moved = len(new) - (end - start)
        inner = [begin + s for s in _ends(self.text[begin : stop + moved])]
        if stop == len(old) and last >= len(starts):
            self.starts = starts[:first] + inner
        else:
            self.starts = starts[:first] + inner + [s + moved for s in starts[last + 1 :]]


def units(text: str) -> int:
    """The length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text) + sum(c > "\uffff" for c in text)


def _ends(text: str) -> list[int]:
    """Where each line but the first begins."""
    return [match.end() for match in _END.finditer(text)]
