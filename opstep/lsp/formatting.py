"""A file in the standard layout, as edits of the lines that differ.

What can be read takes the form that ``opstep fmt`` gives it. Items with syntax errors stay as they
are, to the letter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from opstep.lsp.file import File
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.lexer import cut
from opstep.runtime.ir.parser import parse_with_diagnostics
from opstep.runtime.ir.printer import print_module, print_parts

_MANY = 2_000  # lines; from here on differences are found quickly rather than best
_FAR = 24  # changes around those of a range that may belong to them
_WORD = re.compile(r'"(?:\\.|[^"\\\n])*"?|#[^\n]*|[^\s"#]')


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
    for start, end, new in _faulty(file) if faults else _changes(text, module):
        start = max(start, mark)
        if returns:  # the editor keeps its line ends
            new = new.replace("\n", "\r\n")
        yield from _differences(text[start:end], new, start)


def changes_within(file: File, start: int, end: int) -> list[Change]:
    """Those that touch a part of the file, with those that belong to them: a comment may move to
    another line, and would be lost, or be there twice, if one of the two places was left as it is.
    """
    found = list(changes(file))
    chosen = [k for k, c in enumerate(found) if c.start <= end and start <= c.end]
    if not chosen:
        return []
    balances = _Balances(file.text, found)
    first, last = chosen[0], chosen[-1] + 1
    for more in range(_FAR):
        for above in range(more + 1):
            low, high = max(0, first - above), min(len(found), last + more - above)
            if balances.hold(low, high):
                return found[low:high]
    return found


class _Balances:
    """Whether some changes, one after the other, put in what they take out."""

    def __init__(self, text: str, found: list[Change]):
        self._text = text
        self._found = found
        self._cached: dict[int, tuple[str, str, Counter[str]]] = {}

    def hold(self, first: int, last: int) -> bool:
        formatted = [self._formatted(k) for k in range(first, last)]
        if "".join(old for old, _, _ in formatted) != "".join(new for _, new, _ in formatted):
            return False
        comments: Counter[str] = Counter()
        for _, _, more in formatted:
            comments.update(more)
        return not any(comments.values())

    def _formatted(self, k: int) -> tuple[str, str, Counter[str]]:
        """What a change takes out and puts in, without blanks and commas, and how often more it has
        each comment.
        """
        if k not in self._cached:
            change = self._found[k]
            old, removed = _content(self._text[change.start : change.end])
            new, added = _content(change.text)
            added.subtract(removed)
            self._cached[k] = old, new, added
        return self._cached[k]


def _content(text: str) -> tuple[str, Counter[str]]:
    words = _WORD.findall(text)
    comments = Counter("".join(word.split()) for word in words if word[0] == "#")
    return "".join(word for word in words if word[0] not in "#,"), comments


def _changes(text: str, module: Module) -> Iterator[Change]:
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
