"""Lines in which the texts of two scripts differ, and those of them that a line takes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from linecache import getlines
from typing import NamedTuple

from opstep.frontends.torch.sources import Frame

_WORD = re.compile(r"[A-Za-z_]\w+")
_NAMED = re.compile(r"(\w+)\s*(?:=(?!=)|:)|[\"']-*(\w+)[\"']")  # also keys and keywords
_BLOCK = ("def ", "class ", "for ", "with ", "import ", "from ")
_OF_ALL = {"self", "torch", "nn", "None", "True", "False"}


class Change(NamedTuple):
    """Lines of a file of a, and those of a file of b in their place; the ends are excluded."""

    files: tuple[str, str]
    starts: tuple[int, int]
    ends: tuple[int, int]

    def frame(self, side: int, offset: int = 0) -> Frame:
        """The line that follows, if there are none."""
        lines = _lines(self.files[side])
        line = min(self.starts[side] + offset, max(self.ends[side] - 1, self.starts[side]))
        while line < len(lines) and not lines[line - 1]:
            line += 1
        return Frame(self.files[side], line, "")

    def texts(self) -> Iterator[str]:
        for file, start, end in zip(self.files, self.starts, self.ends, strict=True):
            yield from _lines(file)[start - 1 : end - 1]


class Changes:
    """`a`, `b`: the files that each script is made of, in the order in which they were begun."""

    def __init__(self, a: Sequence[str], b: Sequence[str]):
        shared = set(a) & set(b)
        pairs = zip(*([f for f in files if f not in shared] for files in (a, b)), strict=False)
        self._files = list(pairs)
        imports = _BLOCK[-2:]
        found = self._found()
        self._changes = sorted(found, key=lambda c: all(t.startswith(imports) for t in c.texts()))

    def _found(self) -> Iterator[Change]:
        for files in self._files:
            matcher = SequenceMatcher(None, *map(_lines, files), autojunk=False)
            for tag, i, i1, j, j1 in matcher.get_opcodes():
                one = Change(files, (i + 1, j + 1), (i1 + 1, j1 + 1))
                if tag != "equal" and any(one.texts()):
                    yield one

    def across(self, side: int, line: Frame | None) -> Frame | None:
        """The line of the other side in place of one that differs."""
        for c in self._changes:
            if line and c.files[side] == line.file and c.starts[side] <= line.line < c.ends[side]:
                return c.frame(1 - side, line.line - c.starts[side])
        return None

    def source_of(self, a: Frame | None, b: Frame | None) -> tuple[Frame, Frame] | None:
        """Lines that differ and give names, or change what has names, that these lines read, or
        what those are made of; where there is no other difference, that one.
        """
        lines = [t for f in self._files for one in f for t in _lines(one)]
        reads = {w for f in (a, b) if f for w in _words(_lines(f.file)[f.line - 1])}
        while len(self._changes) > 1:
            for c in self._changes:
                if any(_gives(t) & reads for t in c.texts()):
                    return c.frame(0), c.frame(1)
            grown = reads.union(*(_words(t) for t in lines if _gives(t) & reads))
            if grown == reads:
                return None
            reads = grown
        return (self._changes[0].frame(0), self._changes[0].frame(1)) if self._changes else None


@cache
def _lines(file: str) -> list[str]:
    """Without comments and space around."""
    return [text.partition("#")[0].strip() for text in getlines(file)]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text)) - _OF_ALL


def _gives(text: str) -> set[str]:
    """The names that a line gives a value; of one without an assignment all that it has."""
    left = text.partition("=")[0]
    named = {w for pair in _NAMED.findall(text) for w in pair if w}
    if not named or text.startswith(_BLOCK):
        return _words(text)
    return (named | (_words(left) if "(" not in left else set())) - _OF_ALL
