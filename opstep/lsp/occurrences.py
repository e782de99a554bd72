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

from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Binding,
    Declaration,
    Graph,
    Literal,
    Name,
    Return,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.lexer import DOTTED, KEYWORDS, NUMBER_WORDS, WORDS
from opstep.runtime.ir.op import OPS, Op
from opstep.runtime.ir.types import DTYPES

if TYPE_CHECKING:
    from opstep.lsp.file import File, Item

Part = Statement | Declaration | Graph
DEFINES, READS, WRITES = "defines", "reads", "writes"

_WORD = re.compile(
    rf"""(?P<name>{DOTTED})
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?)
    | (?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.ASCII,
)
_LOCAL = ("value", "symbol")


class Mark(NamedTuple):
    """A word of an item. Offsets count from the beginning of the item.

    Kinds: value (inputs are values, too), graph, op, param, state, attribute, symbol, dtype,
    keyword, constant, number, string, comment. `owner`: of an attribute, its op or graph.
    """

    kind: str
    name: str
    start: int
    end: int
    role: str = READS
    owner: str = ""


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


def op_named(name: str) -> type[Op] | None:
    """The op of that name; None where programs have none."""
    import opstep.kernels  # noqa: F401 - fills OPS

    op = CONTROL.get(name) or OPS.get(name)
    return None if op is None or op.__module__.startswith("opstep.runtime.plan") else op


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


def part_at(node: Graph | Declaration, offset: int) -> Part:
    """The statement that is nearest above `offset`; the node itself where none is."""
    if isinstance(node, Declaration) or not node.body:
        return node
    k = statement_index(node, offset)
    return node.body[k] if k >= 0 else node


def _start(statement: Statement) -> int:
    return statement.span.start


def occurrences(file: File, thing: Thing) -> Iterator[Occurrence]:
    """Where `thing` stands in the file, in its order."""
    word = re.compile(rf"(?<![\w.]){re.escape(thing.name)}(?![\w.])", re.ASCII)
    for item in file.items:
        if item.node is None or (thing.kind in _LOCAL and item.name != thing.scope):
            continue
        part, marks = None, {}
        for match in word.finditer(item.text):
            found = part_at(item.node, match.start())
            if found is not part:
                part, marks = found, {m.start: m for m in marks_of(file, item, found)}
            mark = marks.get(match.start())
            if mark is not None and thing_of(item, mark) == thing:
                yield Occurrence(file, item, mark, found)


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
    before, behind = text[: mark.start].rstrip(), text[mark.end :].lstrip()
    return before[-1:] in "[," and behind[:1] in "],"


# --- the marks of a part --------------------------------------------------------------------------


def marks_of(file: File, item: Item, part: Part) -> list[Mark]:
    """The words of a statement or declaration or, of a graph, those of its head, in their order."""
    return _Marks(file, item, part).all()


def looks_like(file: File, item: Item, span: Span) -> Iterator[Mark]:
    """What the words of a text that could not be read look like: for people in mid-sentence."""
    text = item.text
    nested, callee = False, ""
    for match in _WORD.finditer(text, span.start, span.end):
        word, start, end = match[0], match.start(), match.end()
        if match.lastgroup != "name":
            yield Mark(match.lastgroup or "", word, start, end)
            continue
        behind = text[end : span.end].lstrip()
        kind, role, owner = "value", READS, ""
        tensor = file.tensors.get(word)
        if word in KEYWORDS:
            kind = "keyword"
        elif word in WORDS:
            kind = "constant"
        elif word in NUMBER_WORDS:
            kind = "number"
        elif word in DTYPES and behind.startswith("["):
            kind = "dtype"
        elif behind.startswith("(") and not nested:
            kind, nested, callee = ("op" if op_named(word) else "graph"), True, word
        elif nested and behind.startswith("="):
            kind, owner = "attribute", callee
        elif tensor is not None:
            kind = tensor.kind
        elif not nested and behind[:1] in ("=", ",", ":"):
            role = DEFINES
        yield Mark(kind, word, start, end, role, owner)


def head_of(graph: Graph, text: str) -> Span:
    """Where a graph's head stands: up to its brace."""
    end = graph.body[0].span.start if graph.body else graph.span.end
    if graph.results:
        end = min(end, graph.results_span.end)
    elif graph.results_span.end > graph.results_span.start:
        end = min(end, graph.results_span.end)  # without results, it is the brace's
    return Span(graph.span.start, max(end, graph.name.span.end))


class _Marks:
    """Collects the marks of one part."""

    def __init__(self, file: File, item: Item, part: Part):
        self.file = file
        self.text = item.text
        self.part = part
        self.named: dict[int, Mark] = {}  # by where they begin

    def all(self) -> list[Mark]:
        part = self.part
        self.symbols: list[Span] = []  # where names are symbols or element types
        self.values: list[tuple[Span, str]] = []  # values of attributes, with their type
        span = part.span
        if isinstance(part, Graph):
            span = head_of(part, self.text)
            self._graph(part)
        elif isinstance(part, Declaration):
            self._declaration(part)
        elif isinstance(part, Apply):
            self._apply(part)
        elif isinstance(part, Assert):
            self._use(part.condition)
        elif isinstance(part, Update):
            self._tensor(part.target, WRITES)
            self._use(part.value)
        elif isinstance(part, Return):
            for name in part.values:
                self._use(name)
        return list(self._words(span))

    def _words(self, span: Span) -> Iterator[Mark]:
        """All words of the part: those that its nodes name, and what is found between them."""
        named = self.named
        for match in _WORD.finditer(self.text, span.start, self._line_end(span.end)):
            start = match.start()
            mark = named.get(start)
            if mark is not None:
                yield mark
            elif match.lastgroup == "name":
                yield self._name(match[0], start, match.end())
            else:
                yield Mark(match.lastgroup or "", match[0], start, match.end())

    def _line_end(self, end: int) -> int:
        """The end of the comment behind, which belongs to what it stands behind."""
        stop = self.text.find("\n", end)
        stop = len(self.text) if stop < 0 else stop
        return stop if self.text[end:stop].lstrip(" \t{").startswith("#") else end

    def _name(self, text: str, start: int, end: int) -> Mark:
        """A word that no node names: of a type, of an attribute's value, or a keyword."""
        kind = "unknown"
        if text in KEYWORDS:
            kind = "keyword"
        elif text in NUMBER_WORDS:
            kind = "number"
        elif text in WORDS:
            kind = "constant"
        else:
            wanted = next((t for s, t in self.values if s.start <= start < s.end), None)
            if wanted is not None:
                kind = self._of_value(text, wanted)
            elif any(s.start <= start < s.end for s in self.symbols):
                kind = "dtype" if text in DTYPES and self.text[end : end + 1] == "[" else "symbol"
        return Mark(kind, text, start, end)

    def _of_value(self, text: str, wanted: str) -> str:
        """What a name is as the value of an attribute of type `wanted`."""
        known = {"graph": "graph", "graphs": "graph", "dtype": "dtype", "dim": "symbol",
                 "dims": "symbol"}.get(wanted)  # fmt: skip
        if known:
            return known
        if text in DTYPES:
            return "dtype"
        return "graph" if text in self.file.graphs else "symbol"

    # --- what the nodes name ----------------------------------------------------------------------

    def _add(self, kind: str, name: Name, role: str = READS, owner: str = "") -> None:
        start, end = name.span
        self.named[start] = Mark(kind, name.text, start, end, role, owner)

    def _graph(self, graph: Graph) -> None:
        self._add("graph", graph.name, DEFINES)
        for binding in graph.inputs:
            self._binding(binding)
        if graph.results:
            self.symbols.append(graph.results_span)

    def _binding(self, binding: Binding) -> None:
        self._add("value", binding.name, DEFINES)
        if binding.type is not None:
            self.symbols.append(binding.type_span)

    def _declaration(self, d: Declaration) -> None:
        self._add(d.kind, d.name, DEFINES)
        self.symbols.append(d.type_span)
        if d.init is not None:
            self._callee(d.init)
            self._attrs(d.init.text, d.attrs)

    def _apply(self, s: Apply) -> None:
        for binding in s.results:
            self._binding(binding)
        self._callee(s.callee)
        for operand in s.operands:
            self._use(operand)
        self._attrs(s.callee.text, s.attrs)

    def _callee(self, name: Name) -> None:
        self._add("op" if op_named(name.text) else "graph", name)

    def _use(self, name: Name | Literal) -> None:
        if isinstance(name, Name):
            declared = self.file.tensors.get(name.text)
            self._add(declared.kind if declared else "value", name)

    def _tensor(self, name: Name, role: str) -> None:
        declared = self.file.tensors.get(name.text)
        self._add(declared.kind if declared else "state", name, role)

    def _attrs(self, callee: str, attrs: tuple[Attr, ...]) -> None:
        op = op_named(callee)
        types = {spec.name: spec.type for spec in op.attrs} if op else {}
        for attr in attrs:
            self._add("attribute", attr.name, READS, callee)
            self.values.append((attr.span, types.get(attr.name.text, "")))
