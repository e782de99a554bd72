"""What stands at a place of a file, and where else the same thing stands.

A *mark* is one word of an item (a graph or a declaration) and what it is there. Marks are made for
one statement at a time, from its node and, inside types and values of attributes, from its text: so
to look at one place costs the same in a graph of ten statements and of ten thousand. A *thing* is
what a word means: two marks with one thing are the same value, graph, param and so on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from opstep.lsp.marks import (
    DEFINES,
    READS,
    WRITES,
    Mark,
    Part,
    head_of,
    looks_like,
    mark_at,
    marks_of,
    op_named,
)
from opstep.runtime.ir.graph import Declaration, Graph, MeshDeclaration, Span, Statement

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.item import Item

__all__ = [
    "DEFINES", "READS", "WRITES", "Mark", "Occurrence", "Part", "Thing", "at", "definition",
    "head_of", "looks_like", "marks_of", "occurrences", "op_named", "part_at",
    "statement_index",
]  # fmt: skip

_LOCAL = ("value", "symbol")
_NO_NAMES = (
    "comment",
    "string",
)  # what they say stands for nothing, and may be as long as the text


class Thing(NamedTuple):
    """What a word means. `scope`: the graph of a value or symbol, the op of an attribute."""

    kind: str  # as of marks, but tensor for params and states
    name: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A mark in its file. `part`: the statement, declaration or graph (its head) that holds it;
    None where the text around could not be read, and the mark is what it looks like.
    """

    file: File
    item: Item
    mark: Mark
    part: Part | None

    @property
    def kind(self) -> str:
        return self.mark.kind

    @property
    def name(self) -> str:
        return self.mark.name

    @property
    def start(self) -> int:
        """Offset in the file."""
        return self.item.start + self.mark.start

    @property
    def end(self) -> int:
        return self.item.start + self.mark.end

    @property
    def thing(self) -> Thing:
        return thing_of(self.item, self.mark)


def thing_of(item: Item, mark: Mark) -> Thing:
    """What the word means."""
    if mark.kind in ("param", "state"):
        return Thing("tensor", mark.name)
    if mark.kind in _LOCAL:
        return Thing(mark.kind, mark.name, item.name)
    return Thing(mark.kind, mark.name, mark.owner)


# --- where ----------------------------------------------------------------------------------------


def at(file: File, offset: int) -> Occurrence | None:
    """The word at `offset`, or the one that ends there; None where there is none.

    Where a word ends as the next begins, the next is meant.
    """
    item = file.item_at(offset)
    if item is None:
        return None
    offset -= item.start
    if item.node is not None:
        part = part_at(item.node, offset)
        mark = _at(marks_of(file, item, part), offset)
        if mark is not None:
            return Occurrence(file, item, mark, part)
    mark = _at(looks_like(file, item, _line_at(item.text, offset)), offset)
    return mark and Occurrence(file, item, mark, None)


def _at(marks: Iterable[Mark], offset: int) -> Mark | None:
    touching = None
    for mark in marks:
        if mark.start <= offset < mark.end:
            return mark
        if mark.end == offset:
            touching = mark
    return touching


def _line_at(text: str, offset: int) -> Span:
    end = text.find("\n", offset)
    return Span(text.rfind("\n", 0, offset) + 1, len(text) if end < 0 else end)


def statement_index(graph: Graph, offset: int) -> int:
    """Which statement of the body begins nearest above `offset`; -1 where none does."""
    return bisect_right(graph.body, offset, key=_start) - 1


def part_at(node: Graph | Declaration | MeshDeclaration, offset: int) -> Part:
    """The statement that is nearest above `offset`; the node itself where none is."""
    if not isinstance(node, Graph):
        return node
    k = statement_index(node, offset)
    return node.body[k] if k >= 0 else node


def _start(statement: Statement) -> int:
    return statement.span.start


def occurrences(file: File, thing: Thing, within: Span | None = None) -> Iterator[Occurrence]:
    """Where `thing` stands in the file, or in a part of it, in its order."""
    if thing.kind in _NO_NAMES:
        return
    low, high = within or Span(0, len(file.text))
    for item in file.items:
        if (thing.kind in _LOCAL and item.name != thing.scope) or item.end < low:
            continue
        if item.start > high:
            return
        for start in hits(item.text, thing.name, max(0, low - item.start), high - item.start):
            if item.node is None:
                break
            part = part_at(item.node, start)
            mark = mark_at(file, item, part, start)
            if mark is not None and thing_of(item, mark) == thing:
                yield Occurrence(file, item, mark, part)


def hits(text: str, name: str, low: int, high: int) -> Iterator[int]:
    """Where a name stands as a word of its own between two offsets, whatever it means there."""
    # The pattern begins with what is searched for: regular expressions are quick then.
    word = re.compile(rf"{re.escape(name)}(?![\w.])", re.ASCII)
    for match in word.finditer(text, low, min(high, len(text))):
        start = match.start()
        before = text[start - 1] if start else ""
        if before == "`":
            yield start - 1
        elif not (before.isalnum() or (before and before in "_.")):
            yield start


def defines(found: Occurrence) -> bool:
    """Whether the thing gets its name here."""
    return found.mark.role == DEFINES


def definition(file: File, thing: Thing) -> Occurrence | None:
    """Where the thing gets its name in the file; None where it does not, as an op."""
    if thing.kind == "symbol":  # an input that has it alone as a dim binds it; the first counts
        return next(_bindings(file, thing), None) or next(occurrences(file, thing), None)
    return next(filter(defines, occurrences(file, thing)), None)


def _bindings(file: File, thing: Thing) -> Iterator[Occurrence]:
    for found in occurrences(file, thing):
        if isinstance(found.part, Graph):
            yield from (
                found
                for binding in found.part.inputs
                if binding.type_span.start <= found.mark.start < binding.type_span.end
                and _alone(found.item.text, found.mark)
            )


def _alone(text: str, mark: Mark) -> bool:
    before, after = text[: mark.start].rstrip(), text[mark.end :].lstrip()
    return before[-1:] in "[," and after[:1] in "],"
