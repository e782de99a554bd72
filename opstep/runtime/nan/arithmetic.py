"""Looks on while an oracle computes: which operation made a NaN or an infinity, and of what.

`Arithmetic.watch` gives an array that NumPy computes with as with any other, but that looks at what
each operation gives. A NaN that an operation made of numbers gets a number of its own as its
payload, which arithmetic hands on; so a result's element still tells where it was born.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

INF_MINUS_INF, ZERO_TIMES = "inf - inf", "0 times infinity"
NEGATIVE, FRACTIONAL = "log of a negative number", "negative number to a fractional power"
BEYOND = "beyond -1 … 1, where it is defined"
REMAINDERS = ("remainder of a division by 0", "remainder of an infinity")

# What a NaN of an operation on numbers means: of any, or of a divisor of 0 and of others.
UNDEFINED: dict[str, str | tuple[str, str]] = {
    "add": INF_MINUS_INF,
    "subtract": INF_MINUS_INF,
    "logaddexp": INF_MINUS_INF,
    "multiply": ZERO_TIMES,
    "divide": ("0 / 0", "inf / inf"),
    "floor_divide": ("0 / 0", REMAINDERS[1]),
    "remainder": REMAINDERS,
    "fmod": REMAINDERS,
    "sqrt": "square root of a negative number",
    **dict.fromkeys(("log", "log2", "log10"), NEGATIVE),
    "log1p": f"{NEGATIVE}, 1 + x",
    "power": FRACTIONAL,
    "float_power": FRACTIONAL,
    **dict.fromkeys(("arccos", "arcsin", "arctanh"), BEYOND),
    "arccosh": "less than 1, where it is defined",
    **dict.fromkeys(("sin", "cos", "tan"), "of an infinity"),
}
# What an infinity of an operation on finite numbers means, if not that it is too large.
POLES = {
    "divide": "division by 0",
    "floor_divide": "division by 0",
    "reciprocal": "1 / 0",
    **dict.fromkeys(("log", "log2", "log10"), "log of 0"),
    "log1p": "log of 0, 1 + x",
    "power": "0 to a negative power",
    "arctanh": "atanh of 1 or -1",
}
SHRINKING = frozenset(("multiply", "divide", "square", "power", "exp", "exp2", "float_power"))
PRODUCTS = frozenset(("einsum", "dot", "inner", "tensordot", "vdot"))


class Arithmetic:
    """Everything that was born, in order: `nans` and `infinities` in words; an overflow is "".
    `underflow_first`: a number that is not 0 became 0 before anything else was born.
    """

    def __init__(self) -> None:
        self.nans: list[str] = []
        self.infinities: list[str] = []
        self.underflow_first = False

    def watch(self, array: Any) -> Any:
        """The same elements; integers and bools are not looked at."""
        if not isinstance(array, (np.ndarray, np.floating)) or array.dtype.kind in "iub":
            return array
        watched = np.asarray(array).view(Watched)
        watched.arithmetic = self
        return watched

    def reason(self, element: Any) -> str:
        """Why an element of a result is NaN or infinite; "" where nobody knows, or where it is too
        large.
        """
        if np.isnan(element):
            number = _payload(np.asarray(element, np.float64))
            named = self.nans[number - 1 : number] if number else self.nans[:1]
            return named[0] if named else ""
        return next(filter(None, self.infinities), "") if np.isinf(element) else ""

    # --- an operation ---

    def check_result(self, name: str, result: np.ndarray, operands: list, spread: Callable) -> None:
        """`spread` makes a mask over an operand one over the result."""
        floats = [np.asarray(o) for o in operands]
        floats = [o for o in floats if o.dtype.kind not in "iub"]
        if not np.isfinite(result).all():
            odd = [spread(np.isnan(o)) for o in floats]
            self._nan(name, result, np.isnan(result) & ~_any(odd), operands)
            odd = [spread(~np.isfinite(o)) for o in floats]
            if (np.isinf(result) & ~_any(odd)).any():
                self.infinities.append(self._pole(name, operands))
        if name in SHRINKING and not (self.nans or self.infinities or self.underflow_first):
            vanishing = [spread((o == 0) | ~np.isfinite(o)) for o in map(np.asarray, operands)]
            self.underflow_first = bool(((result == 0) & ~_any(vanishing)).any())

    def _nan(self, name: str, result: np.ndarray, born: Any, operands: list) -> None:
        if not np.any(born):
            return
        rule = UNDEFINED.get(name, f"{name} is not defined there")
        if isinstance(rule, tuple):
            zero = np.broadcast_to(np.asarray(operands[1]) == 0, result.shape)
            self._born(result, born & zero, rule[0])
            self._born(result, born & ~zero, rule[1])
        else:
            self._born(result, np.broadcast_to(born, result.shape), rule)

    def products(self, sum_up: Callable, result: np.ndarray, operands: list) -> None:
        """Of sums of products: `sum_up` makes them of other operands of these shapes."""

        def meet(marks: dict[int, np.ndarray]) -> Any:
            """Whether elements that are marked, of all these operands, are multiplied."""
            arrays = [marks.get(j, np.ones(o.shape)) for j, o in enumerate(operands)]
            return sum_up([a.astype(np.float64) for a in arrays]) > 0

        each = range(len(operands))
        if not np.isfinite(result).all():
            nan = np.isnan(result) & ~_any([meet({j: np.isnan(operands[j])}) for j in each])
            pairs = permutations(each, 2)
            met = _any([meet({j: operands[j] == 0, k: np.isinf(operands[k])}) for j, k in pairs])
            self._born(result, nan & met, ZERO_TIMES)
            self._born(result, nan & ~np.asarray(met), INF_MINUS_INF)
            if np.isinf(result).any() and all(np.isfinite(o).all() for o in operands):
                self.infinities.append("")

    def _born(self, result: np.ndarray, born: np.ndarray, text: str) -> None:
        if born.any():
            if text not in self.nans:
                self.nans.append(text)
            result[born] = _nan_of(self.nans.index(text) + 1, result.dtype)

    def _pole(self, name: str, operands: list) -> str:
        a = np.asarray(operands[1 if name in ("divide", "floor_divide") else 0])
        at = {"log1p": -1.0, "arctanh": 1.0}.get(name, 0.0)
        return POLES[name] if name in POLES and bool((np.abs(a) == abs(at)).any()) else ""


class Watched(np.ndarray):
    """Floats whose arithmetic is looked at."""

    arithmetic: Arithmetic | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.arithmetic = getattr(source, "arithmetic", None)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return self.arithmetic.watch(found) if self.arithmetic else found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arithmetic = next(b for i in (*inputs, *kwargs.get("out", ())) if (b := _arithmetic(i)))
        out = kwargs.pop("out", None)
        operands = [_plain(i) for i in inputs]
        kwargs = {k: _plain(v) for k, v in kwargs.items()}
        with np.errstate(all="ignore"):
            if method == "at":
                return _add_at(arithmetic, ufunc, operands, kwargs)
            if out is not None and "where" in kwargs:
                kwargs["out"] = tuple(o if o is None else np.array(o) for o in out)
            found = getattr(ufunc, method)(*operands, **kwargs)
            results = found if isinstance(found, tuple) else (found,)
            outputs = [
                arithmetic.watch(self._checked(arithmetic, ufunc, method, r, operands, kwargs))
                for r in results
            ]
            for target, watched in zip(out or (), outputs, strict=False):
                if target is not None:
                    np.copyto(_plain(target), _plain(watched), casting="unsafe")
        outputs = list(out) if out is not None else outputs
        return tuple(outputs) if isinstance(found, tuple) else outputs[0]

    @staticmethod
    def _checked(
        arithmetic: Arithmetic, ufunc, method: str, result: Any, operands: list, kwargs: dict
    ) -> Any:
        result = np.asarray(result)
        if result.dtype.kind != "f":
            return result
        if ufunc.signature is not None:  # matmul
            arithmetic.products(lambda arrays: np.asarray(ufunc(*arrays)), result, operands)
        elif method == "__call__":
            arithmetic.check_result(
                ufunc.__name__, result, operands, lambda m: np.broadcast_to(m, result.shape)
            )
        else:
            axes = {k: v for k, v in kwargs.items() if k in ("axis", "keepdims")}
            fold = getattr(np.logical_or, method, None)
            spread = (lambda m: fold(m, *operands[1:], **axes)) if fold else np.any
            arithmetic.check_result(ufunc.__name__, result, operands[:1], spread)
        return result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ in PRODUCTS and self.arithmetic:
            arguments, named = [_plain(a) for a in args], {k: _plain(v) for k, v in kwargs.items()}
            at = [j for j, a in enumerate(arguments) if isinstance(a, np.ndarray)]

            def sum_up(arrays: list) -> np.ndarray:
                there = dict(zip(at, arrays, strict=True))
                return np.asarray(
                    func(*[there.get(j, a) for j, a in enumerate(arguments)], **named)
                )

            with np.errstate(all="ignore"):
                result = sum_up(operands := [arguments[j] for j in at])
                self.arithmetic.products(sum_up, result, operands)
            return self.arithmetic.watch(result)
        found = super().__array_function__(func, types, args, kwargs)
        return _watched(found, self.arithmetic)


def _add_at(arithmetic: Arithmetic, ufunc: Any, operands: list, kwargs: dict) -> None:
    """``ufunc.at``: what is born there is a matter of the target and all that meets it."""
    before = np.isnan(operands[0])
    ufunc.at(*operands, **kwargs)
    if operands[0].dtype.kind == "f" and not np.isnan(operands[-1]).any():
        arithmetic._nan(ufunc.__name__, operands[0], np.isnan(operands[0]) & ~before, operands)


def _arithmetic(value: Any) -> Arithmetic | None:
    return value.arithmetic if isinstance(value, Watched) else None


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Watched) else value


def _watched(found: Any, arithmetic: Arithmetic | None) -> Any:
    if isinstance(found, (list, tuple)):
        return type(found)(_watched(f, arithmetic) for f in found)
    return arithmetic.watch(found) if arithmetic and not isinstance(found, Watched) else found


def _any(masks: list) -> Any:
    found: Any = False
    for mask in masks:
        found = found | mask
    return found


# A NaN's payload: bits that f64 and f32 both have.
def _nan_of(number: int, dtype: np.dtype) -> Any:
    bits = np.uint64(0x7FF8 << 48 | number << 40)
    return bits.view(np.float64).astype(dtype)


def _payload(element: np.ndarray) -> int:
    return int(element.view(np.uint64)) >> 40 & 0x7FF
