"""The kinds of a hunt: NaNs and infinities, other things that arithmetic loses without a sign, and
expressions over the statistics of results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.expressions import Expression, ExpressionError, Nowhere, parse
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.statistics import Statistics

KINDS = ("nan", "inf")
SILENT = ("overflow", "underflow", "index")  # no flag shows them: each step is replayed
FIGURES = (
    "absmax", "min", "max", "mean", "std", "l2", "count", "nan", "posinf", "neginf", "zero",
    "subnormal", "finite",
)  # fmt: skip


class Roles(NamedTuple):
    """Facts that a framework knows about inputs and outputs, by name, and a text does not say.
    `constants`: inputs that the model's text writes; `strict`: inputs that have to be finite,
    gradients and what is trained; `kept`: outputs that only a backward takes: infinities there have
    not come out.
    """

    constants: frozenset[str] = frozenset()
    strict: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()


NO_ROLES = Roles()


@dataclass(frozen=True)
class Criteria:
    """`wanted`: names of values whose infinities are as they should be; `ignored`: of outputs that
    do not count.
    """

    kinds: frozenset[str] = frozenset(KINDS)
    expressions: tuple[tuple[str, Expression], ...] = ()
    wanted: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    roles: Roles = NO_ROLES

    @classmethod
    def parse(cls, kinds: Collection[str] | str, wanted: Collection[str] = ()) -> Criteria:
        """Of kinds by name, and expressions; also as one text, parted by commas. Raises
        `InputError`.
        """
        texts = _parted(kinds) if isinstance(kinds, str) else list(kinds)
        found = [(text, _expression(text)) for text in texts if text not in (*KINDS, *SILENT)]
        if not texts:
            raise InputError("nothing is hunted", hint=f"name some of {', '.join(KINDS + SILENT)}")
        named = frozenset(texts) & frozenset((*KINDS, *SILENT))
        names = wanted.split(",") if isinstance(wanted, str) else wanted
        return cls(named, tuple(found), frozenset(names))

    def __str__(self) -> str:
        named = [k for k in (*KINDS, *SILENT) if k in self.kinds]
        return ",".join([*named, *(text for text, _ in self.expressions)])

    @property
    def within(self) -> bool:
        """Whether overflows within an op count whose result is finite."""
        return bool(self.kinds & {"inf", "overflow"})

    @property
    def nans(self) -> bool:
        return "nan" in self.kinds

    @property
    def infinities(self) -> bool:
        return "inf" in self.kinds

    @property
    def skips_infinities(self) -> bool:
        return not (self.infinities or "overflow" in self.kinds)

    @property
    def slow(self) -> bool:
        """Whether each step has to be run op by op."""
        return bool(self.expressions or self.silent)

    @property
    def silent(self) -> frozenset[str]:
        """Kinds that no NaN and no infinity shows."""
        return self.kinds & frozenset(SILENT)

    def broken(self, statistics: Callable[[], Statistics], value: Any) -> list[str]:
        """The expressions that hold for a result, with its figures. `value`: its `Handle`."""
        texts = []
        for text, expression in self.expressions:
            scope: Any = _Scope(statistics, value)
            try:
                holds = expression.holds(scope)
            except ExpressionError as error:
                raise _wrong(error) from None
            if holds:
                figures = ", ".join(f"{n} is {scope.figures[n]:.6g}" for n in scope.figures)
                texts.append(f"{text}: {figures}" if figures else text)
        return texts


_HINT = f"it may speak of {', '.join(FIGURES)}, and of the tensor as value"


def _parted(text: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _expression(text: str) -> Expression:
    kinds = (*KINDS, *SILENT)
    if text.isidentifier() and text not in FIGURES:
        message = f"{text} is nothing that can be hunted"
        raise UnknownName(message, text, kinds, "the kinds are")
    try:
        expression = parse(text)
    except ExpressionError as error:
        raise _wrong(error) from None
    for name in expression.names:
        if name not in (*FIGURES, "value"):
            at, hint = expression.column_of(name), did_you_mean(name, FIGURES)
            wrong = ExpressionError(f"{name} is no figure of a tensor", at, hint)
            raise _wrong(wrong.of(text))
    return expression


def _wrong(error: ExpressionError) -> InputError:
    return InputError(replace(error.diagnostic, hint=error.hint or _HINT))


class Value:
    """An array, where an expression wants a tensor. `statistics`: of more than a number."""

    def __init__(self, array: Any, statistics: Callable[[], Statistics] | None = None):
        self._array = np.asarray(array)
        self._statistics = statistics

    @property
    def type(self) -> TensorType:
        return TensorType(dtype_of(self._array.dtype), self._array.shape)

    def array(self) -> np.ndarray:
        return self._array

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        return self._array[index]

    def statistics(self) -> Statistics:
        if self._statistics is None:
            raise IndexError("a figure has no statistics")
        return self._statistics()


class _Scope(Nowhere):
    """The figures of one tensor by name, and the tensor as ``value``."""

    def __init__(self, statistics: Callable[[], Statistics], value: Any):
        self.statistics = statistics
        self.value = value
        self.figures: dict[str, float] = {}

    def lookup(self, name: str) -> Any:
        if name == "value":
            return self.value
        if name not in FIGURES:
            return None
        number = getattr(self.statistics(), name)
        self.figures[name] = float("nan") if number is None else float(number)
        return Value(self.figures[name])

    def names(self) -> list[str]:
        return ["value", *FIGURES]
