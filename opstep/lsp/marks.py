"""The words of a statement, declaration or graph's head, each with what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.control import CONTROL
from opstep.runtime.ir.foreign import foreign_op, is_foreign_name
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Binding,
    Declaration,
    Graph,
    Literal,
    MeshDeclaration,
    Name,
    Return,
    Span,
    Statement,
    Update,
)
from opstep.runtime.ir.lexer import CONSTANTS, DOTTED, KEYWORDS, NUMBER_NAMES, QUOTED, bare_name
from opstep.runtime.ir.op import OPS, Op
from opstep.runtime.ir.types import DTYPES

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.item import Item

Part = Statement | Declaration | MeshDeclaration | Graph
DEFINES, READS, WRITES = "defines", "reads", "writes"

_WORD = re.compile(
    rf"""(?P<name>{DOTTED}|{QUOTED})
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?)
    | (?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.ASCII,
)
_KIND_OF_VALUE = {
    "graph": "graph", "graphs": "graph", "dtype": "dtype", "dim": "symbol", "dims": "symbol",
    "axes": "axis",
}  # fmt: skip
_UNKNOWN = "?"
_TYPE = "type"  # in place of an attribute's type: the words are those of a type


class Mark(NamedTuple):
    """A word of an item. Offsets count from the beginning of the item.

    Kinds: value (inputs are values, too), graph, op, param, state, attribute, symbol (type
    variables are, too), dtype, family, keyword, constant, number, string, comment, unknown.
    `owner`: of an attribute, its op or graph.
    """

    kind: str
    name: str
    start: int
    end: int
    role: str = READS
    owner: str = ""


def op_named(name: str) -> type[Op] | None:
    """The op of that name; None where programs have none."""
    op = CONTROL.get(name) or OPS.get(name)
    if op is None and is_foreign_name(name):
        return foreign_op(name)
    return None if op is None or op.__module__.startswith("opstep.runtime.plan") else op


def marks_of(file: File, item: Item, part: Part) -> list[Mark]:
    """The words of a statement or declaration or, of a graph, those of its head, in their order."""
    return _Marks(file, item, part).all()


def mark_at(file: File, item: Item, part: Part, start: int) -> Mark | None:
    """The word that begins at an offset."""
    if isinstance(part, Apply):  # the names of nodes, without a look at anything else
        for name in (part.callee, *part.operands):
            if name.span.start == start and isinstance(name, Name):
                is_callee = name is part.callee
                kind = _callee(name) if is_callee else _operand(file, name)
                return Mark(kind, name.text, *name.span)
        for binding in part.results:
            if binding.name.span.start == start:
                return Mark("value", binding.name.text, *binding.name.span, DEFINES)
    return next((m for m in _Marks(file, item, part).all() if m.start == start), None)


def _callee(name: Name) -> str:
    return "op" if op_named(name.text) else "graph"


def _operand(file: File, name: Name) -> str:
    declared = file.tensors.get(name.text)
    return declared.kind if declared else "value"


def head_of(graph: Graph, text: str) -> Span:
    """Where a graph's head stands: up to its brace."""
    end = graph.body[0].span.start if graph.body else graph.span.end
    if graph.results_span.end > graph.results_span.start:  # without results, it is the brace's
        end = min(end, graph.results_span.end)
    return Span(graph.span.start, max(end, graph.name.span.end))


class _Marks:
    """Collects the marks of one part: names from its nodes, all else from the text between them."""

    def __init__(self, file: File, item: Item, part: Part):
        self.file = file
        self.text = item.text
        self.part = part
        self.found: list[Mark] = []
        self.position = part.span.start  # up to where the text has been looked at

    def all(self) -> list[Mark]:
        part, text = self.part, self.text
        end = part.span.end
        if isinstance(part, Apply):
            self._apply(part)
        elif isinstance(part, Return):
            for name in part.values:
                self._use(name)
        elif isinstance(part, Update):
            declared = self.file.tensors.get(part.target.text)
            self._name(declared.kind if declared else "state", part.target, WRITES)
            self._use(part.value)
        elif isinstance(part, Assert):
            self._use(part.condition)
        elif isinstance(part, Declaration):
            self._declaration(part)
        elif isinstance(part, MeshDeclaration):
            self._words(Span(part.span.start, part.span.start + len("mesh")), "mesh")
            for axis in part.axes:
                self._name("axis", axis.name, DEFINES)
        else:
            end = head_of(part, text).end
            self._name("graph", part.name, DEFINES)
            for parameter in part.type_parameters:
                self._name("symbol", parameter.name, DEFINES)
                if parameter.family.span != parameter.name.span:
                    self._name("family", parameter.family)
            for binding in part.inputs:
                self._binding(binding)
            if part.results:
                self._words(part.results_span, _TYPE)
        # What stands behind on the line belongs to it: a brace and a comment.
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        comment = text.find("#", end, stop)
        self._between(stop if comment >= 0 and not text[end:comment].strip(" \t{") else end)
        return self.found

    # --- names, in the order of the text ----------------------------------------------------------

    def _name(self, kind: str, name: Name, role: str = READS, owner: str = "") -> None:
        start, end = name.span
        self._between(start)
        self.found.append(Mark(kind, name.text, start, end, role, owner))
        self.position = end

    def _use(self, operand: Name | Literal) -> None:
        if isinstance(operand, Name):
            self._name(_operand(self.file, operand), operand)
        else:
            self._words(operand.span, "")

    def _binding(self, binding: Binding) -> None:
        self._name("value", binding.name, DEFINES)
        if binding.type is not None:
            self._words(binding.type_span, _TYPE)

    def _apply(self, s: Apply) -> None:
        for binding in s.results:
            self._binding(binding)
        self._name(_callee(s.callee), s.callee)
        for operand in s.operands:
            self._use(operand)
        if s.attrs:
            self._attrs(s.callee.text, s.attrs)

    def _declaration(self, d: Declaration) -> None:
        self._name(d.kind, d.name, DEFINES)
        self._words(d.type_span, _TYPE)
        if d.sharding is not None:
            names = d.sharding.over
            self._words(Span(d.type_span.end, names[0].span.start), "mesh")
            for axis in names:
                self._name("axis", axis)
            self._words(Span(names[-1].span.end, max(d.sharding.axis_span)), "mesh")
        if d.init is not None:
            self._name(_callee(d.init), d.init)
            self._attrs(d.init.text, d.attrs)

    def _attrs(self, callee: str, attrs: tuple[Attr, ...]) -> None:
        op = op_named(callee)
        types = {spec.name: spec.type for spec in op.attrs} if op else {}
        for attr in attrs:
            self._name("attribute", attr.name, READS, callee)
            self._words(attr.span, types.get(attr.name.text, _UNKNOWN))

    # --- what no node names -----------------------------------------------------------------------

    def _between(self, end: int) -> None:
        """Keywords, strings and comments up to an offset: mostly there are signs alone."""
        start = self.position
        if end - start > 3 or (end > start and self.text[start:end].isalnum()):
            self._words(Span(start, end), "")

    def _words(self, span: Span, attribute_type: str) -> None:
        """The words of a stretch of text; `attribute_type`: of the attribute whose value it is."""
        text = self.text
        if span.start > self.position:
            self._between(span.start)
        for match in _WORD.finditer(text, max(span.start, self.position), span.end):
            kind, (start, end) = match.lastgroup or "", match.span()
            if kind == "name":
                kind = self._kind(match[0], end, attribute_type)
            self.found.append(Mark(kind, match[0], start, end))
        self.position = max(self.position, span.end)

    def _kind(self, word: str, end: int, attribute_type: str) -> str:
        """What a word is that no node names."""
        if word in KEYWORDS or attribute_type == "mesh":
            return "keyword"
        if word == "in" and not attribute_type:  # of an origin
            return "keyword"
        if word in NUMBER_NAMES:
            return "number"
        if word in CONSTANTS:
            return "constant"
        if attribute_type == _TYPE:
            return "dtype" if word in DTYPES and self.text[end : end + 1] == "[" else "symbol"
        if attribute_type == "dtype" and word not in DTYPES:
            return "symbol"
        if attribute_type in _KIND_OF_VALUE:
            return _KIND_OF_VALUE[attribute_type]
        if attribute_type and word in DTYPES:
            return "dtype"
        if attribute_type:
            return "graph" if word in self.file.graphs else "symbol"
        return "unknown"


# --- texts that could not be read -----------------------------------------------------------------


def looks_like(file: File, item: Item, span: Span) -> Iterator[Mark]:
    """What the words of a text that could not be read look like: for people in mid-sentence."""
    text = item.text
    nested, callee = False, ""
    for match in _WORD.finditer(text, span.start, span.end):
        word, start, end = match[0], match.start(), match.end()
        if match.lastgroup != "name":
            yield Mark(match.lastgroup or "", word, start, end)
            continue
        rest = text[end : span.end].lstrip()
        kind, role, owner = "value", READS, ""
        tensor = file.tensors.get(bare_name(word))
        if word in KEYWORDS or (word == "in" and rest.startswith('"')):
            kind = "keyword"
        elif word in CONSTANTS:
            kind = "constant"
        elif word in NUMBER_NAMES:
            kind = "number"
        elif word in DTYPES and rest.startswith("["):
            kind = "dtype"
        elif rest.startswith("(") and not nested:
            kind, nested, callee = ("op" if op_named(word) else "graph"), True, word
        elif nested and rest.startswith("="):
            kind, owner = "attribute", callee
        elif tensor is not None:
            kind = tensor.kind
        elif not nested and rest[:1] in ("=", ",", ":"):
            role = DEFINES
        yield Mark(kind, bare_name(word), start, end, role, owner)
