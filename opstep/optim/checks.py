"""What hyperparameters can be: one place that refuses the others, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from opstep.runtime.ir.errors import InputError, SettingError


def number(
    name: str, value: Any, low: float = 0.0, below: float = math.inf, *, above: bool = False
) -> float:
    """`value` as a float from `low` (or, with `above`, beyond it) to less than `below`."""
    if isinstance(value, Real) and not isinstance(value, bool):
        found = float(value)
        if (found > low if above else found >= low) and found < below:
            return found
    if below != math.inf:
        expected = f"from {low:g} to less than {below:g}"
    elif above:
        expected = f"a number above {low:g}"
    else:
        expected = f"a number from {low:g}"
    raise SettingError(name, value, expected)


def whole(name: str, value: Any, low: int) -> int:
    """`value` as an int of at least `low`."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low:
        return int(value)
    raise SettingError(name, value, f"a whole number from {low}")


def pair(name: str, value: Any, below: float = 1.0) -> tuple[float, float]:
    """`value` as two floats from 0 to less than `below`."""
    if isinstance(value, str) or not isinstance(value, Iterable) or len(two := tuple(value)) != 2:
        raise SettingError(name, value, "two numbers, such as (0.9, 0.999)")
    return number(f"{name}[0]", two[0], below=below), number(f"{name}[1]", two[1], below=below)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingError(name, value, "True or False")
    return value


def refuse(message: str, hint: str = "") -> None:
    raise InputError(message, hint=hint)


class Checked:
    """A frozen dataclass that checks its fields when it is made."""

    def _check(self, check: Callable[..., Any], *names: str, **bounds: Any) -> None:
        """Has `check` give the values of these fields. Raises `InputError`."""
        for name in names:
            self._set(name, check(name, getattr(self, name), **bounds))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # as frozen dataclasses do it


def complement(x: float) -> float:
    """1 - x to the last digit: 0.1 for 0.9, where floats give 0.09999999999999998."""
    return float(1 - Decimal(repr(x)))
