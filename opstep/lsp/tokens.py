"""The meaning of each word of a file as the protocol's semantic tokens: five integers a word.

The types and modifiers are those that the protocol names, so that every theme has colours for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from lsprotocol import types

from opstep.lsp.lines import units
from opstep.lsp.marks import DEFINES, WRITES, Mark, Part, head_of, looks_like, marks_of
from opstep.lsp.occurrences import statement_index
from opstep.runtime.ir.graph import Graph, Span, Statement

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
    "family": "type", "axis": "enumMember", "keyword": "keyword", "constant": "keyword",
    "number": "number", "string": "string", "comment": "comment",
}  # fmt: skip
_CODE = {name: k for k, name in enumerate(TYPES)}
_BIT = {name: 1 << k for k, name in enumerate(MODIFIERS)}
_OWN = {
    "op": _BIT["defaultLibrary"],
    "dtype": _BIT["defaultLibrary"],
    "family": _BIT["defaultLibrary"],
    "param": _BIT["static"] | _BIT["readonly"],
    "state": _BIT["static"],
}

Token = tuple[int, int, int, int, int]  # line in its chunk, column; length, type, modifiers


class _Part(NamedTuple):
    """A statement, declaration or graph's head (None where nothing could be read) and the text that
    is looked at with it.
    """

    node: Part | None
    start: int
    end: int


class _TokenCache(NamedTuple):
    """An item's tokens by the text of the part, for as long as `key` holds."""

    key: object
    parts: dict[str, list[Token]]


_token_caches: WeakKeyDictionary[Item, _TokenCache] = WeakKeyDictionary()


def tokens(file: File, first: int, last: int) -> list[int]:
    """The tokens of the lines from `first` to `last`, both included, as the protocol has them."""
    names = frozenset((name, item.kind) for name, item in file.tensors.items())
    shared = names, frozenset(file.graphs)
    starts = file.lines.starts
    low, high = (starts[k] if k < len(starts) else len(file.text) for k in (first, last + 1))
    data: list[int] = []
    line, column = 0, 0
    for item in file.items:
        if item.end < low or item.start > high:
            continue
        inputs = _inputs(item)
        cached = _cached_tokens(item, (shared, inputs))
        for part in _parts(item, low - item.start, high - item.start):
            start = bisect_right(starts, item.start + part.start) - 1
            for token in _of_part(file, item, part, inputs, cached):
                row = start + token[0]
                if not first <= row <= last:
                    continue
                if row != line:
                    data += (row - line, token[1], *token[2:])
                else:
                    data += (0, token[1] - column, *token[2:])
                line, column = row, token[1]
    return data


def _parts(item: Item, low: int, high: int) -> Iterator[_Part]:
    """An item from about `low` to about `high`: its head, then each statement with what follows it
    up to the line of the next.
    """
    node, text = item.node, item.text
    body = node.body if isinstance(node, Graph) else ()
    number = statement_index(node, low) if isinstance(node, Graph) else -1
    part = body[number] if number >= 0 else node
    start = _line_start(text, body[number]) if number >= 0 else 0
    for s in islice(body, number + 1, None):
        end = _line_start(text, s)
        yield _Part(part, start, end)
        if end > high:
            return
        part, start = s, end
    yield _Part(part, start, len(text))


def _line_start(text: str, statement: Statement) -> int:
    """Where its line begins, or it, where something else stands before it."""
    start = statement.span.start
    line = text.rfind("\n", 0, start) + 1
    return start if text[line:start].strip() else line


def _cached_tokens(item: Item, key: object) -> dict[str, list[Token]]:
    """The tokens that were found out for parts of an item, by their text."""
    cache = _token_caches.get(item)
    if cache is None or cache.key != key:
        cache = _token_caches[item] = _TokenCache(key, {})
    body = item.node.body if isinstance(item.node, Graph) else ()
    if len(cache.parts) > 2 * len(body) + 8:  # mostly of parts that are gone
        cache.parts.clear()
    return cache.parts


def _of_part(
    file: File, item: Item, part: _Part, inputs: frozenset[str], cached: dict[str, list[Token]]
) -> list[Token]:
    text = item.text[part.start : part.end]
    found = cached.get(text)
    if found is None:
        found = list(_tokens(file, item, part, inputs))
        if not part.start or item.text[part.start - 1] == "\n":
            cached[text] = found  # else columns depend on what stands before it on the line
    return found


def _tokens(file: File, item: Item, part: _Part, inputs: frozenset[str]) -> Iterator[Token]:
    text = item.text
    line, begin = 0, text.rfind("\n", 0, part.start) + 1
    following = text.find("\n", begin) + 1 or len(text) + 1
    plain = text.isascii()
    for mark in _marks(file, item, part):
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


def _marks(file: File, item: Item, part: _Part) -> Iterator[Mark]:
    """The marks of a part, in their order: of what was read, and of what was not."""
    position = part.start
    if part.node is not None:
        span = head_of(part.node, item.text) if isinstance(part.node, Graph) else part.node.span
        if not item.text[position : span.start].isspace():
            yield from _unread(file, item, position, span.start)
        position = span.start
        for mark in marks_of(file, item, part.node):
            yield mark
            position = max(position, mark.end)
        position = max(position, span.end)
    yield from _unread(file, item, position, part.end)


def _unread(file: File, item: Item, start: int, end: int) -> Iterator[Mark]:
    """Comments, braces, and lines that could not be read."""
    text = item.text
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop + 1
        if not text[start:stop].isspace():
            yield from looks_like(file, item, Span(start, stop))
        start = stop
