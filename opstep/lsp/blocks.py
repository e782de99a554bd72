"""The body of a graph in blocks of statements, so that an edit in one leaves the others alone.

Offsets count from the beginning of the graph's item. A block that only moved, as text above it
changed, moves its statements when they are looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple, overload

from opstep.runtime.ir.diagnostics import Diagnostic, Note
from opstep.runtime.ir.graph import Apply, Assert, Name, Return, Span, Statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import Application

BLOCK = 128  # statements


class Before(NamedTuple):
    """What a block's check depends on, beside the types of the values it uses."""

    returned: bool
    over: bool
    updated: tuple[str, ...]


class Checked(NamedTuple):
    """What the verifier found in a block."""

    before: Before
    defined: dict[str, TensorType | None]  # also the named tensors that are used here first
    applications: list[Application | None]
    problems: list[Diagnostic]
    updates: dict[str, Any]  # its own
    returned: Return | None  # the first so far
    over: bool


class Block:
    """Some statements; `syntax`: what is wrong in their text."""

    __slots__ = (
        "_defines", "_moved", "_names", "_statements", "_syntax", "_uses", "callees", "checked",
        "end", "start",
    )  # fmt: skip

    def __init__(self, start: int, end: int, statements: list[Statement], syntax: list[Diagnostic]):
        self.start = start
        self.end = end
        self._statements = statements
        self._syntax = syntax
        self._moved = 0
        self._uses: frozenset[str] | None = None
        self._defines: frozenset[str] | None = None
        self._names: frozenset[str] | None = None
        self.callees = Counter(s.callee.text for s in statements if isinstance(s, Apply))
        self.checked: Checked | None = None

    def __len__(self) -> int:
        return len(self._statements)

    def move(self, by: int) -> None:
        """Text above it has become longer."""
        self.start += by
        self.end += by
        self._moved += by

    def settle(self) -> None:
        """Moves its statements now."""
        by, self._moved = self._moved, 0
        if not by:
            return
        for s in self._statements:
            _move(s, by)
        self._syntax = [moved(d, by) for d in self._syntax]

    @property
    def tells_of_head(self) -> bool:
        """Whether a message of its is about text above it: a brace that is not closed."""
        return any(d.span is not None and d.span.start < self.start for d in self.syntax)

    @property
    def statements(self) -> list[Statement]:
        self.settle()
        return self._statements

    @property
    def syntax(self) -> list[Diagnostic]:
        if self._syntax:
            self.settle()
        return self._syntax

    def take_syntax(self, found: list[Diagnostic]) -> None:
        """Sets its syntax errors."""
        self._syntax = found

    @property
    def uses(self) -> frozenset[str]:
        """Values and named tensors that are read here, or updated."""
        if self._uses is None:
            self._uses = frozenset(_uses(self._statements))
        return self._uses

    @property
    def names(self) -> frozenset[str]:
        """All that are used or defined here."""
        if self._names is None:
            self._names = self.uses | self.defines
        return self._names

    @property
    def defines(self) -> frozenset[str]:
        """The values that are defined here."""
        if self._defines is None:
            self._defines = frozenset(
                [b.name.text for s in self._statements if isinstance(s, Apply) for b in s.results]
            )
        return self._defines

    @property
    def unsettled(self) -> list[Statement]:
        """The statements, maybe with places from before it moved."""
        return self._statements

    def settled(self, span: Span) -> Span:
        """Where such a place is now."""
        return Span(span.start + self._moved, span.end + self._moved)

    def definition(self, name: str) -> Name | None:
        """Where a value is defined here first."""
        for k, s in enumerate(self._statements):
            if isinstance(s, Apply):
                for j, b in enumerate(s.results):
                    if b.name.text == name:
                        found = self.statements[k]
                        assert isinstance(found, Apply)
                        return found.results[j].name
        return None


class Body(Sequence[Statement]):
    """The statements of all blocks; those of a block that moved are moved when one is taken."""

    def __init__(self, blocks: list[Block]):
        self.blocks = blocks
        self._ends = list(accumulate(map(len, blocks)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Statement: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Statement, ...]: ...
    def __getitem__(self, index: int | slice) -> Statement | tuple[Statement, ...]:
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._ends, index)
        block = self.blocks[number]
        return block.statements[index - self._ends[number]]  # counted from the block's end

    def number_at(self, offset: int) -> int:
        """Which statement begins nearest above an offset; -1 where none does."""
        number = bisect_right(self.blocks, offset, key=lambda block: block.start) - 1
        while number >= 0:
            block = self.blocks[number]
            within = bisect_right(block.statements, offset, key=lambda s: s.span.start)
            if within:  # comments may stand before its first
                return self._ends[number] - len(block) + within - 1
            number -= 1
        return -1

    def __iter__(self) -> Iterator[Statement]:
        for block in self.blocks:
            yield from block.statements

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Body, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _uses(statements: list[Statement]) -> Iterator[str]:
    for s in statements:
        if isinstance(s, Apply):
            for o in s.operands:
                if isinstance(o, Name):
                    yield o.text
        elif isinstance(s, Assert):
            yield s.condition.text
        elif isinstance(s, Return):
            yield from (v.text for v in s.values)
        else:
            yield s.target.text
            if isinstance(s.value, Name):
                yield s.value.text


# --- moving ---------------------------------------------------------------------------------------

_span = tuple.__new__  # a Span without going through its Python-level constructor


def _move(s: Any, by: int) -> None:
    """Moves a statement and all names in it, in place: what it says stays the same."""
    a, b = s.span
    s.span = _span(Span, (a + by, b + by))
    if isinstance(s, Apply):
        _move_one(s.callee, by)
        for result in s.results:
            _move_binding(result, by)
        for operand in s.operands:
            _move_one(operand, by)
        for attr in s.attrs:
            _move_one(attr.name, by)
            _move_one(attr, by)
    elif isinstance(s, Assert):
        _move_one(s.condition, by)
    elif isinstance(s, Return):
        for value in s.values:
            _move_one(value, by)
    else:
        _move_one(s.target, by)
        _move_one(s.value, by)


def _move_one(node: Any, by: int) -> None:
    a, b = node.span
    node.span = _span(Span, (a + by, b + by))


def _move_binding(binding: Any, by: int) -> None:
    _move_one(binding.name, by)
    if binding.type is not None:
        a, b = binding.type_span
        binding.type_span = _span(Span, (a + by, b + by))


def moved(d: Diagnostic, by: int) -> Diagnostic:
    """A message about the same text elsewhere in the same source."""

    def shifted(span: Span | None) -> Any:
        return None if span is None else Span(span.start + by, span.end + by)

    notes = tuple(
        Note(n.message, shifted(n.span), n.source) if n.source in (None, d.source) else n
        for n in (Note(*note) for note in d.notes)
    )
    return replace(d, span=shifted(d.span), notes=notes)
