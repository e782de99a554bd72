"""How the dims of a result come from operands and attributes: the shape rule of an op, watched.

An op's `infer` is plain arithmetic on dims. It is applied once more, to dims that remember how they
came about; what it gives is compared with what the verifier found, so that nothing is shown that
the op did not compute. Where a rule looks closer than that (is this dim a number?) nothing is said.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from opstep.runtime.ir.calls import symbols_of
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import Application

_MOST = 400  # characters of a formula that anybody reads
_RANK = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_AXES = re.compile(r"\b([a-z]\w*) \[([^\]]*)\]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_LETTER = re.compile(r"[A-Z]'?")


class Step(NamedTuple):
    """Where one dim of a result comes from: ``H - R + 1`` and, with numbers, ``8 - 3 + 1``."""

    result: int
    axis: int
    formula: str
    numbers: str
    value: Dim


class Watched:
    """A dim, or a number of an attribute, that remembers its formula. Never a key of a cache."""

    __slots__ = ("formula", "numbers", "rank", "value")
    __hash__ = None  # pyright: ignore[reportAssignmentType] - a cache must not keep one

    def __init__(self, value: Any, formula: str, numbers: str = "", rank: int = 3):
        self.value = value
        self.formula = formula
        self.numbers = numbers or _shown(value)
        self.rank = rank  # how tightly its outermost operator binds

    def __eq__(self, other) -> bool:
        return self.value == plain(other)

    def __ne__(self, other) -> bool:
        return self.value != plain(other)

    def __lt__(self, other) -> bool:
        return self.value < plain(other)

    def __le__(self, other) -> bool:
        return self.value <= plain(other)

    def __gt__(self, other) -> bool:
        return self.value > plain(other)

    def __ge__(self, other) -> bool:
        return self.value >= plain(other)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return self.value.__index__()  # pyright: ignore[reportAttributeAccessIssue] - or TypeError

    def __int__(self) -> int:
        return self.__index__()

    def __str__(self) -> str:
        return str(self.value)

    def __neg__(self):
        return _apply("-", 0, self)

    def __add__(self, other):
        return _apply("+", self, other)

    def __radd__(self, other):
        return _apply("+", other, self)

    def __sub__(self, other):
        return _apply("-", self, other)

    def __rsub__(self, other):
        return _apply("-", other, self)

    def __mul__(self, other):
        return _apply("*", self, other)

    def __rmul__(self, other):
        return _apply("*", other, self)

    def __floordiv__(self, other):
        return _apply("//", self, other)

    def __rfloordiv__(self, other):
        return _apply("//", other, self)

    def __mod__(self, other):
        return _apply("%", self, other)

    def __rmod__(self, other):
        return _apply("%", other, self)


def plain(value):
    """What a watched dim is; anything else as it is."""
    return value.value if isinstance(value, Watched) else value


def _shown(value: Dim) -> str:
    text = str(value)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _apply(sign: str, left, right):
    """The value of an operation, with its formula. Numbers that change nothing leave no trace."""
    a, b = plain(left), plain(right)
    if sign in "+-" and type(right) is int and right == 0:
        return left
    if (sign == "+" and type(left) is int and left == 0) or (
        sign == "*" and type(left) is int and left == 1
    ):
        return right
    if sign == "*" and type(right) is int and right == 1:
        return left
    value = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
    }[sign]()
    if sign == "+" and type(right) is int and right < 0:
        sign, right = "-", -right
    rank = _RANK[sign]
    space = " " if rank == 1 else ""

    def text(key: str) -> str:
        first, second = _operand(left, key, rank), _operand(right, key, rank + 1)
        if sign == "-" and first == "0":
            return f"-{second}"
        return f"{first}{space}{sign}{space}{second}"

    return Watched(value, text("formula"), text("numbers"), rank)


def _operand(value, key: str, rank: int) -> str:
    if not isinstance(value, Watched):
        return _shown(value)
    text = getattr(value, key)
    return text if value.rank >= rank else f"({text})"


def derive(application: Application) -> list[Step]:
    """Where each dim of the results comes from; [] where that cannot be told."""
    if application.graph is not None:
        return _of_call(application.graph, application)
    op = application.op
    if op is None or op.traits.host:
        return []
    for with_attrs in (True, False):
        try:
            results = op.infer(
                *_operands(op, application.resolved.operands),
                **_attrs(op, application, with_attrs),
            )
        except Exception:  # the rule asks of a dim what only a number can answer: nothing is shown
            continue
        results = (results,) if isinstance(results, TensorType) else tuple(results)
        if _same(results, application.resolved.results):
            return list(_steps(results))
    return []


def _of_call(graph: Graph, application: Application) -> list[Step]:
    """The dims that the callee's head declares, with what its symbols are in this call."""
    symbols = {name: _shown(d) for name, d in application.symbols.items()}
    steps = []
    for k, (declared, t) in enumerate(
        zip(graph.results, application.resolved.results, strict=True)
    ):
        for axis, (d, value) in enumerate(zip(declared.shape, t.shape, strict=True)):
            formula = str(d)
            numbers = _WORD.sub(lambda match: symbols.get(match[0], match[0]), formula)
            steps.append(Step(k, axis, formula, _bare(numbers), value))
    return steps


def _bare(text: str) -> str:
    """A lone dim needs no parentheses."""
    inner = text[1:-1]
    return inner if text == f"({inner})" and "(" not in inner and ")" not in inner else text


def _same(found, expected) -> bool:
    if len(found) != len(expected):
        return False
    return all(
        f.dtype is w.dtype and tuple(map(plain, f.shape)) == w.shape
        for f, w in zip(found, expected, strict=True)
    )


def _steps(results) -> Iterator[Step]:
    for k, t in enumerate(results):
        for axis, dim in enumerate(t.shape):
            if not isinstance(dim, Watched):
                yield Step(k, axis, str(dim), str(dim), dim)
            elif len(dim.formula) <= _MOST:
                yield Step(k, axis, dim.formula, dim.numbers, dim.value)


def _operands(op: type[Op], types) -> list:
    letters = axis_letters(op)
    symbols = symbols_of([d for t in types if t is not None for d in t.shape])
    watched = []
    for k, t in enumerate(types):
        if t is None:
            watched.append(None)
            continue
        spec = op.operands[min(k, len(op.operands) - 1)]
        name = f"{spec.name}[{k - len(op.operands) + 1}]" if spec.variadic else spec.name
        axes = letters.get(spec.name, ())
        named = axes if len(axes) == t.rank else ("",) * t.rank
        # A letter that is also a symbol of the graph, and stands for something else, would mislead.
        named = [
            letter if letter not in symbols or letter == str(d) else ""
            for letter, d in zip(named, t.shape, strict=True)
        ]
        watched.append(
            TensorType(
                t.dtype,
                tuple(
                    Watched(d, letter or f"{name}.shape[{axis}]")
                    for axis, (d, letter) in enumerate(zip(t.shape, named, strict=True))
                ),  # pyright: ignore[reportArgumentType] - it stands for a dim
            )
        )
    return watched


def _attrs(op: type[Op], application: Application, watch: bool) -> dict[str, Any]:
    attrs = dict(application.attrs)
    if not watch:
        return attrs
    for spec in op.attrs:
        value = attrs[spec.name]
        if value is None:
            continue
        if spec.type in ("int", "dim"):
            attrs[spec.name] = Watched(value, spec.name)
        elif spec.type in ("ints", "dims"):
            attrs[spec.name] = tuple(Watched(v, f"{spec.name}[{k}]") for k, v in enumerate(value))
    return attrs


def axis_letters(op: type[Op]) -> dict[str, tuple[str, ...]]:
    """The letters that the op's text gives to axes of its operands: ``x [N, C, H, W]``.

    A letter is left out where the text has it twice: which one is meant would be a guess.
    """
    names = {spec.name for spec in op.operands}
    found: dict[str, tuple[str, ...]] = {}
    for name, axes in _AXES.findall(" ".join((inspect.getdoc(op) or "").split())):
        if name in names and name not in found:
            found[name] = tuple(a if _LETTER.fullmatch(a) else "" for a in axes.split(", "))
    return found
