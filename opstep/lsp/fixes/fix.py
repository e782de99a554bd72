"""What a fix is, and what it is made from."""

from __future__ import annotations

import importlib
import pkgutil
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from opstep.lsp.item import Item
from opstep.lsp.unused import used_names
from opstep.runtime.ir.body import BodyChecker
from opstep.runtime.ir.diagnostics import Diagnostic, Reporter
from opstep.runtime.ir.graph import Apply, Binding, Graph, Literal, Name, Span, Statement
from opstep.runtime.ir.lexer import bare_name, identifier
from opstep.runtime.ir.types import TensorType


class Edit(NamedTuple):
    """Text in place of another. Offsets count from the beginning of the item."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Fix:
    """One way to mend what a message is about.

    `likely`: it is what was meant, most probably. `safe`: it can be done unseen, with others.
    """

    title: str
    edits: tuple[Edit, ...]
    likely: bool = False
    safe: bool = False


Maker = Callable[["MessageSite"], Iterator[Fix]]
_makers: dict[str, list[Maker]] = {}


def makes(*codes: str) -> Callable[[Maker], Maker]:
    """Declares the function below as one that makes fixes for messages of these codes."""

    def declare(function: Maker) -> Maker:
        for code in codes:
            _makers.setdefault(code, []).append(function)
        return function

    return declare


@cache
def _load() -> None:
    package = importlib.import_module("opstep.lsp.fixes")
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)


def fixes(item: Item, d: Diagnostic) -> list[Fix]:
    """What can be done about a message, best first. `d` is about the item."""
    _load()
    if d.span is None:
        return []
    site = MessageSite(item, d)
    makers = [*_makers[""], *(_makers.get(d.code, ()) if d.code else ())]
    found = [f for make in makers for f in make(site)]
    return sorted(found, key=lambda f: not f.likely)


class MessageSite:
    """Where a message is: its item, and the statement."""

    def __init__(self, item: Item, d: Diagnostic):
        assert d.span is not None
        self.item = item
        self.message = d
        self.span: Span = d.span
        node = item.node
        self.graph = node if isinstance(node, Graph) else None
        self.number, self.statement = self._statement()

    def _statement(self) -> tuple[int, Statement | None]:
        body = self.graph.body if self.graph is not None else ()
        number = bisect_right(body, self.span.start, key=lambda s: s.span.start) - 1
        if number < 0 or body[number].span.end < self.span.end:
            return -1, None
        return number, body[number]

    @property
    def text(self) -> str:
        """What the message is about."""
        return self.item.text[self.span.start : self.span.end]

    @property
    def types(self) -> dict[str, TensorType]:
        """The types of values, those defined below among them."""
        return self.item.verified.types if self.item.verified is not None else {}

    def before(self) -> set[str]:
        """The values that are defined above the statement, inputs and named tensors among them."""
        assert self.graph is not None
        names = {b.name.text for b in self.graph.inputs} | self.item.file.environment.tensors.keys()
        stop = len(self.graph.body) if self.statement is None else self.number
        for s in self.graph.body[:stop]:
            if isinstance(s, Apply):
                names.update(b.name.text for b in s.results)
        return names

    def fresh(self, name: str) -> str:
        """`name` as an identifier, or with a number behind it that makes it one of its own."""
        name = identifier(bare_name(name))
        file = self.item.file
        used = self.types.keys() | file.environment.tensors.keys()
        if self.graph is not None:
            used |= used_names(self.graph)
            used |= {
                b.name.text for s in self.graph.body if isinstance(s, Apply) for b in s.results
            }
        base, number = name, 2
        while name in used:
            name, number = f"{base}{'_' if base[-1:].isdigit() else ''}{number}", number + 1
        return name

    def line_above(self, text: str) -> Edit:
        """A statement on a line of its own, above that of the message."""
        at = self.item.text.rfind("\n", 0, self._begin()) + 1
        return Edit(at, at, f"  {text}\n")

    def _begin(self) -> int:
        return self.statement.span.start if self.statement is not None else self.span.start

    def is_only_on_line(self) -> bool:
        """Whether nothing but blanks stands before the statement on its line."""
        begin = self._begin()
        return not self.item.text[self.item.text.rfind("\n", 0, begin) + 1 : begin].strip()

    # --- trying -----------------------------------------------------------------------------------

    def tried(self, s: Apply, types: dict[str, TensorType]) -> tuple[TensorType, ...] | None:
        """The results of a statement, where it is right once values have these types; None where it
        is wrong.
        """
        assert self.graph is not None
        environment, reporter = self.item.file.environment, Reporter()
        checker = BodyChecker(
            self.graph, self.item.source, environment.tensors, environment.applier, reporter
        )
        checker.types.update(self.types)
        checker.types.update(types)
        found = checker.apply(s)
        if found is None or reporter.diagnostics:
            return None
        results = found.resolved.results
        declared = [b.type for b in s.results]
        fits = len(results) == len(declared) and all(
            w is None or w == r for w, r in zip(declared, results, strict=True)
        )
        return results if fits else None


def with_operand(s: Apply, number: int, name: str) -> Apply:
    """The statement with another value as one of its operands."""
    operands = list(s.operands)
    operands[number] = Name(name, operands[number].span)
    return replace(s, operands=tuple(operands))


def without_types(s: Apply) -> Apply:
    """The statement without the types that are written behind its results."""
    return replace(s, results=tuple(Binding(b.name, None) for b in s.results))


def operand_at(s: Statement | None, span: Span) -> int | None:
    """The operand that stands at a place; None where that is none, or a number."""
    if isinstance(s, Apply):
        for k, o in enumerate(s.operands):
            if o.span == span and not isinstance(o, Literal):
                return k
    return None
