"""The meaning of each word of a file as the protocol's semantic tokens: five integers a word.

The types and modifiers are those that the protocol names, so that every theme has colours for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from lsprotocol import types

from opstep.lsp.lines import units
from opstep.lsp.marks import DEFINES, WRITES, Mark, Part, head_of, looks_like, marks_of
from opstep.lsp.occurrences import statement_index
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

Token = tuple[int, int, int, int, int]  # line in its chunk, column; length, type, modifiers


class _Chunk(NamedTuple):
    """A part of an item that is looked at as a whole. While `identity` is the same, so is it."""

    start: int
    end: int
    identity: object


class _Kept(NamedTuple):
    """An item's tokens by the chunk's identity, for as long as `key` holds."""

    key: object
    chunks: dict[object, list[Token]]


_kept: WeakKeyDictionary[Item, _Kept] = WeakKeyDictionary()


def tokens(file: File, first: int, last: int) -> list[int]:
    """The tokens of the lines from `first` to `last`, both included, as the protocol has them."""
    names = frozenset((name, item.kind) for name, item in file.tensors.items())
    shared = names, frozenset(file.graphs)
    data: list[int] = []
    line, column = 0, 0
    for item in file.items:
        if file.position(item.end).line < first or file.position(item.start).line > last:
            continue
        for chunk in _chunks(item):
            start = file.position(item.start + chunk.start).line
            if start > last or file.position(item.start + chunk.end).line < first:
                continue
            for token in _of_chunk(file, item, chunk, shared):
                row = start + token[0]
                if not first <= row <= last:
                    continue
                if row != line:
                    data += (row - line, token[1], *token[2:])
                else:
                    data += (0, token[1] - column, *token[2:])
                line, column = row, token[1]
    return data


def _chunks(item: Item) -> list[_Chunk]:
    """The head of a graph and its blocks, or all of the item: an edit makes those anew that it
    touches.
    """
    text, graph = item.text, item.graph_text
    if item.node is None or graph is None or not graph.blocks:
        return [_Chunk(0, len(text), text)]
    starts = [block.start for block in graph.blocks]
    ends = [*starts[1:], len(text)]
    blocks = zip(starts, ends, graph.blocks, strict=True)
    head = _Chunk(0, starts[0], text[: starts[0]])
    return [head, *(_Chunk(start, end, block) for start, end, block in blocks)]


def _of_chunk(file: File, item: Item, chunk: _Chunk, shared: object) -> list[Token]:
    inputs = _inputs(item)
    if item not in _kept or _kept[item].key != (shared, inputs):
        _kept[item] = _Kept((shared, inputs), {})
    kept = _kept[item].chunks
    if chunk.identity not in kept:
        found = list(_tokens(file, item, chunk, inputs))
        if chunk.start and item.text[chunk.start - 1] != "\n":
            return found  # columns depend on what stands before it on the line
        if len(kept) > 2 * len(_chunks(item)) + 8:  # mostly of chunks that are gone
            kept.clear()
        kept[chunk.identity] = found
    return kept[chunk.identity]


def _tokens(file: File, item: Item, chunk: _Chunk, inputs: frozenset[str]) -> Iterator[Token]:
    text = item.text
    line, begin = 0, text.rfind("\n", 0, chunk.start) + 1
    following = text.find("\n", begin) + 1 or len(text) + 1
    plain = text.isascii()
    for mark in _marks(file, item, chunk.start, chunk.end):
        kind = _TYPE.get(mark.kind)
        if kind is None:
            continue
        while following <= mark.start:
            line, begin = line + 1, following
            following = text.find("\n", begin) + 1 or len(text) + 1
        column, length = mark.start - begin, mark.end - mark.start
        if not plain:
            column = units(text[begin : mark.start])
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


def _parts(item: Item, begin: int, end: int) -> Iterator[tuple[Part, Span]]:
    """What was read between two offsets, and where."""
    node = item.node
    if isinstance(node, Declaration):
        yield node, node.span
        return
    if not isinstance(node, Graph):
        return
    head = head_of(node, item.text)
    if head.end > begin:
        yield node, head
    for k in range(max(0, statement_index(node, begin)), len(node.body)):
        statement = node.body[k]
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
