"""Sums, extremes and where they are; sorting."""

from __future__ import annotations

from typing import Any

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import add, rule
from opstep.frontends.onnx.values import listed
from opstep.runtime.ir.types import boolean


def _norm(p: float):
    return lambda b, x, **how: b.norm(x, p=p, **how)


def _of_sum(before: str = "", after: str = ""):
    def reduced(b: Body, x: Var, **how: Any) -> Var:
        total = b.sum(getattr(b, before)(x) if before else x, **how)
        return getattr(b, after)(total) if after else total

    return reduced


def _extreme(op: str, logical: str, empty: float):
    def reduced(b: Body, x: Var, axes: list[int], keepdims: bool) -> Var:
        if x.dtype is boolean:
            return getattr(b, logical)(x, axes=axes, keepdims=keepdims)
        if any(x.shape[a] == 0 for a in axes):
            shape = [
                1 if k in axes else d for k, d in enumerate(x.shape) if keepdims or k not in axes
            ]
            if not x.dtype.is_float:
                raise Untranslatable("an extreme of no integers")
            return b.filled(shape, empty, x.dtype)
        return getattr(b, op)(x, axes=axes, keepdims=keepdims)

    return reduced


REDUCTIONS = {
    "ReduceSum": _of_sum(), "ReduceSumSquare": _of_sum("square"),
    "ReduceLogSum": _of_sum("", "log"),
    "ReduceMean": lambda b, x, **how: b.mean(x, **how), "ReduceL1": _of_sum("abs"),
    "ReduceProd": lambda b, x, **how: b.prod(x, **how), "ReduceL2": _norm(2.0),
    "ReduceLogSumExp": lambda b, x, **how: b.logsumexp(x, **how),
    "ReduceMax": _extreme("max", "any", float("-inf")),
    "ReduceMin": _extreme("min", "all", float("inf")),
}  # fmt: skip
# What is left of them where each element is alone.
ALONE = {"ReduceL1": "abs", "ReduceL2": "abs", "ReduceLogSum": "log", "ReduceSumSquare": "square"}


def _reduction(name: str, reduced: Any):
    def translated(b: Body, x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
        chosen = None if axes is None else listed(axes)
        if not chosen and noop_with_empty_axes:
            return getattr(b, ALONE[name])(x) if name in ALONE else x
        rank = x.type.rank
        places = sorted(axis_of(a, rank) for a in chosen) if chosen else list(range(rank))
        if not rank:
            places = []
        return b.to(reduced(b, x, axes=places, keepdims=bool(keepdims)), x.dtype)

    return translated


for _name, _reduced in REDUCTIONS.items():
    _since = 13 if _name == "ReduceSum" else 18
    rule(_name, since=_since, known=[1], before=["axes"])(_reduction(_name, _reduced))


def _place(op: str):
    def translated(b: Body, x, *, axis=0, keepdims=1, select_last_index=0):
        axis = axis_of(axis, x.type.rank)
        if not select_last_index:
            return getattr(b, op)(x, axis=axis, keepdims=bool(keepdims))
        found = getattr(b, op)(b.flip(x, axes=[axis]), axis=axis, keepdims=bool(keepdims))
        last = b.size(x.shape[axis] - 1, found.dtype)
        return b.sub(last, found)

    return translated


add(["ArgMax"], _place("argmax"))
add(["ArgMin"], _place("argmin"))


def _running(op: str):
    def translated(b: Body, x, axis, *, exclusive=0, reverse=0):
        place = axis_of(int(listed(axis)[0]), x.type.rank)
        found = getattr(b, op)(x, axis=place, exclusive=bool(exclusive), reverse=bool(reverse))
        return b.to(found, x.dtype)

    return translated


add(["CumSum"], _running("cumsum"), known=[1])
add(["CumProd"], _running("cumprod"), known=[1])


@rule("TopK", since=10, known=[1], before=["k"])
def top_k(b: Body, x, k, *, axis=-1, largest=1, sorted=1):
    how = {"largest": bool(largest), "sorted": bool(sorted)}
    return b.top_k(x, k=listed(k)[0], axis=axis_of(axis, x.type.rank), **how)


@rule("Einsum")
def einsum(b: Body, *operands, equation):
    xs = list(operands)
    equation = equation.replace(" ", "")
    if "..." in equation:
        equation = _spelled(equation, [x.type.rank for x in xs])
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    once = "".join(c for c in sorted(set(left) - {","}) if left.count(c) == 1)
    for k, term in enumerate(terms):
        for letter in dict.fromkeys(term):
            while terms[k].count(letter) > 1:  # a diagonal, which goes to the end
                first, second = (i for i, c in enumerate(terms[k]) if c == letter)
                xs[k] = b.diagonal(xs[k], axes=[first, second])
                terms[k] = terms[k].replace(letter, "") + letter
    return b.einsum(*xs, equation=f"{','.join(terms)}->{right if arrow else once}")


def _spelled(equation: str, ranks: list[int]) -> str:
    """An equation with letters in place of ellipses."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widths = [r - len(t) + 3 if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    letters = "".join(free[: max(widths)])
    spelled = [
        t.replace("...", letters[len(letters) - w :]) for t, w in zip(terms, widths, strict=True)
    ]
    if not arrow:
        once = [c for c in sorted(set(left) - set(".,")) if left.count(c) == 1]
        right = "..." + "".join(once)
    return ",".join(spelled) + "->" + right.replace("...", letters)


@rule("LpNormalization")
def lp_normalization(b: Body, x, *, axis=-1, p=2):
    total = b.norm(x, p=float(p), axes=[axis_of(axis, x.type.rank)], keepdims=True)
    return b.div(x, b.where(b.equal(total, 0.0), 1.0, total))


@rule("Det")
def det(b: Body, x):
    """By its definition, which is enough for small matrices."""
    n = x.shape[-1]
    if not isinstance(n, int) or n > 4:
        raise Untranslatable("the determinant of a matrix of more than 4 rows")

    def minor(rows: list[int], columns: list[int]) -> Any:
        if not rows:
            return 1.0
        total = None
        for sign, column in enumerate(columns):
            row = b.select(x, index=rows[0], axis=x.type.rank - 2)
            element = b.select(row, index=column, axis=x.type.rank - 2)
            others = minor(rows[1:], [c for c in columns if c != column])
            term = b.mul(element, others) if others != 1.0 else element
            total = term if total is None else (b.sub if sign % 2 else b.add)(total, term)
        return total

    return minor(list(range(n)), list(range(n)))
