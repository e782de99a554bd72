"""The meaning of each word of a file as the protocol's semantic tokens: five integers a word.

The types and modifiers are those that the protocol names, so that every theme has colours for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lsprotocol import types

from opstep.lsp.lines import units
from opstep.lsp.occurrences import DEFINES, WRITES, Mark, head_of, looks_like, marks_of
from opstep.runtime.ir.graph import Declaration, Graph, Span

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.item import Item

TYPES = (
    "function", "method", "parameter", "variable", "property", "type", "typeParameter", "keyword",
    "number", "string", "comment", "enumMember",
)  # fmt: skip
MODIFIERS = ("declaration", "readonly", "static", "modification", "defaultLibrary")
LEGEND = types.SemanticTokensLegend(list(TYPES), list(MODIFIERS))

# A graph is a function and an op one of the language's own. Inputs are parameters, attributes
# properties, symbols the parameters of types. Params and states, which outlive a call, are static;
# what is computed is written once and read only ever after, so only params say so.
_TYPE = {
    "op": "function", "graph": "function", "value": "variable", "param": "variable",
    "state": "variable", "attribute": "property", "symbol": "typeParameter", "dtype": "type",
    "keyword": "keyword", "constant": "keyword", "number": "number", "string": "string",
    "comment": "comment",
}  # fmt: skip
_CODE = {name: k for k, name in enumerate(TYPES)}
_BIT = {name: 1 << k for k, name in enumerate(MODIFIERS)}
_OWN = {
    "op": _BIT["defaultLibrary"],
    "dtype": _BIT["defaultLibrary"],
    "param": _BIT["static"] | _BIT["readonly"],
    "state": _BIT["static"],
}

Token = tuple[int, int, int, int, int]  # line and column, in the item; length, type, modifiers
_kept: WeakKeyDictionary[Item, tuple[object, list[Token]]] = WeakKeyDictionary()


def tokens(file: File, first: int, last: int) -> list[int]:
    """The tokens of the lines from `first` to `last`, both included, as the protocol has them."""
    declared = frozenset((name, item.kind) for name, item in file.tensors.items())
    key = declared, frozenset(file.graphs)
    data: list[int] = []
    line, column = 0, 0
    for item in file.items:
        start = file.position(item.start).line
        if start > last or start + item.text.count("\n") < first:
            continue
        for token in _of_item(file, item, key, first - start, last - start):
            row = start + token[0]
            if not first <= row <= last:
                continue
            if row != line:
                data += (row - line, token[1], *token[2:])
            else:
                data += (0, token[1] - column, *token[2:])
            line, column = row, token[1]
    return data


def _of_item(file: File, item: Item, key: object, first: int, last: int) -> Iterable[Token]:
    """An item's tokens. Of a part of it that was never asked for whole, only that part's."""
    kept = _kept.get(item)
    if kept is not None and kept[0] == key:
        return kept[1]
    whole = first <= 0 and last >= item.text.count("\n")
    if not whole:
        return _tokens(file, item, *_window(item.text, first, last))
    found = list(_tokens(file, item, 0, len(item.text)))
    _kept[item] = key, found
    return found


def _window(text: str, first: int, last: int) -> tuple[int, int]:
    """Offsets of the first and behind the last of some lines."""
    starts = _line_starts(text)
    begin = starts[max(0, min(first, len(starts) - 1))]
    return begin, starts[last + 1] if last + 1 < len(starts) else len(text)


def _line_starts(text: str) -> list[int]:
    starts, position = [0], text.find("\n")
    while position >= 0:
        starts.append(position + 1)
        position = text.find("\n", position + 1)
    return starts


def _tokens(file: File, item: Item, begin: int, end: int) -> Iterator[Token]:
    text = item.text
    starts = _line_starts(text)
    inputs = _inputs(item)
    line = 0
    plain = text.isascii()
    for mark in _marks(file, item, begin, end):
        kind = _TYPE.get(mark.kind)
        if kind is None:
            continue
        while line + 1 < len(starts) and starts[line + 1] <= mark.start:
            line += 1
        column, length = mark.start - starts[line], mark.end - mark.start
        if not plain:
            column = units(text[starts[line] : mark.start])
            length = units(text[mark.start : mark.end])
        modifiers = _OWN.get(mark.kind, 0)
        if mark.role == DEFINES:
            modifiers |= _BIT["declaration"]
        elif mark.role == WRITES:
            modifiers |= _BIT["modification"]
        if mark.kind == "value" and mark.name in inputs:
            kind = "parameter"
        elif mark.kind == "graph" and mark.name not in file.graphs:
            modifiers |= _BIT["defaultLibrary"]
        yield line, column, length, _CODE[kind], modifiers


def _inputs(item: Item) -> frozenset[str]:
    node = item.node
    return frozenset(b.name.text for b in node.inputs) if isinstance(node, Graph) else frozenset()


def _marks(file: File, item: Item, begin: int, end: int) -> Iterator[Mark]:
    """The marks between two offsets, in their order: of what was read, and of what was not."""
    text = item.text
    position = begin
    for part, span in _parts(item, begin, end):
        if span.start > position and not text[position : span.start].isspace():
            yield from _unread(file, item, position, min(span.start, end))
        position = max(position, span.start)
        for mark in marks_of(file, item, part):
            if mark.start >= position:
                yield mark
                position = max(position, mark.end)
        position = max(position, span.end)
    if position < end:
        yield from _unread(file, item, position, end)


def _parts(item: Item, begin: int, end: int):
    node = item.node
    if isinstance(node, Declaration):
        yield node, node.span
        return
    if not isinstance(node, Graph):
        return
    head = head_of(node, item.text)
    if head.end >= begin:
        yield node, head
    from opstep.lsp.occurrences import statement_index

    for statement in node.body[max(0, statement_index(node, begin)) :]:
        if statement.span.start >= end:
            return
        if statement.span.end > begin:
            yield statement, statement.span


def _unread(file: File, item: Item, start: int, end: int) -> Iterator[Mark]:
    """Comments, braces, and lines that could not be read."""
    text = item.text
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop + 1
        if not text[start:stop].isspace():
            yield from looks_like(file, item, Span(start, stop))
        start = stop
