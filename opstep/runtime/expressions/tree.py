"""The syntax tree of an expression. `at` is the column at which errors of a part are shown."""

from __future__ import annotations

from typing import NamedTuple


class Number(NamedTuple):
    value: bool | int | float
    at: int


class Text(NamedTuple):
    value: str
    at: int


class Name(NamedTuple):
    """A tensor, or, where a function takes one, an element type."""

    text: str
    at: int


class Items(NamedTuple):
    """``[1, 2, 3]``"""

    items: tuple[Tree, ...]
    at: int


class Unary(NamedTuple):
    sign: str  # - + not
    operand: Tree
    at: int


class Binary(NamedTuple):
    sign: str
    left: Tree
    right: Tree
    at: int


class Compare(NamedTuple):
    """``a < b <= c``: `signs` stand between `operands`."""

    signs: tuple[str, ...]
    operands: tuple[Tree, ...]
    at: int


class Call(NamedTuple):
    name: str
    arguments: tuple[Tree, ...]
    keywords: tuple[tuple[str, Tree], ...]
    at: int


class Slice(NamedTuple):
    start: Tree | None
    stop: Tree | None
    step: Tree | None
    at: int


class Rest(NamedTuple):
    """``...`` among indices."""

    at: int


class Index(NamedTuple):
    operand: Tree
    items: tuple[Tree | Slice | Rest, ...]
    at: int


class Field(NamedTuple):
    """``stats(x).std``"""

    operand: Tree
    name: str
    at: int


class AtStep(NamedTuple):
    """``x@-1``, some steps away, or ``x@"3f2a:12"``, in another run."""

    operand: Tree
    steps: int
    run: str | None
    step: int | None
    at: int


class AtRank(NamedTuple):
    """``x@2``, on another rank."""

    operand: Tree
    rank: int
    at: int


Tree = (
    Number | Text | Name | Items | Unary | Binary | Compare | Call | Index | Field | AtStep | AtRank
)  # fmt: skip


def parts(tree: Tree | tuple) -> list[Tree]:
    """The trees directly below one: its fields, and what is in its lists, slices and keywords."""
    found: list[Tree] = []
    for one in tree:
        if isinstance(one, Tree):
            found.append(one)
        elif isinstance(one, tuple):
            found += parts(one)
    return found
