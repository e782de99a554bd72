"""Sums, means, products and extremes of elements that an index brings to one place.

Indices are those of `scatter_add`. What meets in a place is taken in row-major order of the index.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.move.copying import copy_all, filled
from opstep.kernels.pick.picking import add_elements, always, put, replace_element
from opstep.kernels.pick.reach import aligned, elements, written_at
from opstep.kernels.pick.scatter import Scatter
from opstep.runtime.device.launch import Held, Launch, thread_a_unit
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import i64


def multiply_elements(old, new):
    return old * new


def larger_element(old, new):
    return new if new > old or new != new else old


def smaller_element(old, new):
    return new if new < old or new != new else old


# of each, how an element meets that of its place, and what begins a place whose own element does
# not count in; an extreme begins with any of its elements
_REDUCTIONS: dict[str, tuple[Callable, Callable]] = {
    "add": (add_elements, always(0)),
    "mean": (add_elements, always(0)),
    "mul": (multiply_elements, always(1)),
    "max": (larger_element, replace_element),
    "min": (smaller_element, replace_element),
}


class scatter_reduce(Scatter):
    """x with y[index[i, j, k], j, k] replaced by its sum, mean, product, maximum or minimum with
    source[i, j, k].

    `reduction`: "add", "mean" (of integers rounded down), "mul", or "max" and "min", which give NaN
    if one of the two is NaN. With `include_self=false`, x's own element only stays where nothing
    is scattered. Equal largest or smallest elements share the gradient equally.
    """

    signature = (
        "scatter_reduce(x: N, index: X, source: N, *, reduction: str, axis: int = 0,"
        " include_self: bool = true)"
    )
    choices = {"reduction": tuple(_REDUCTIONS)}
    source = "torch.scatter_reduce, ONNX ScatterElements(reduction=...)"

    def infer(x, index, source, *, reduction, axis, include_self):
        if reduction not in _REDUCTIONS:
            hint = f"there are {', '.join(_REDUCTIONS)}"
            raise Mismatch(f"no reduction {reduction!r}", "reduction", hint=hint)
        return Scatter.infer(x, index, source, axis=axis)

    def oracle(x, index, source, *, reduction, axis, include_self):
        of = aligned(x.shape, index, axis)
        combine, begin = _REDUCTIONS[reduction]
        begun = x if include_self else written_at(begin, x, of, source)
        y = written_at(combine, begun, of, source)
        if reduction != "mean":
            return y
        count = written_at(add_elements, np.full(x.shape, int(include_self)), of, 1)
        count = np.maximum(count, 1)
        return y // count if y.dtype.kind in "iu" else y / count

    @staticmethod
    def launches(x, index, source, y, *, reduction, axis, include_self, on_gpu=False):
        reach, launches = elements(x.shape, index, axis), copy_all(x, y)
        combine, begin = _REDUCTIONS[reduction]
        if not include_self:
            launches += put(begin, source, y, reach, on_gpu=on_gpu)
        launches += put(combine, source, y, reach, on_gpu=on_gpu)
        if reduction != "mean" or not y.size or not index.size:
            return launches
        counts, one = Held(i64, y.shape), Held(i64, ())
        return [
            *launches,
            *filled(counts, int(include_self)),
            *filled(one, 1),
            *put(add_elements, one, counts, reach, (0,) * x.rank, on_gpu=on_gpu),
            Launch(divide(y.dtype.is_float), y, counts, units=y.size, cuda=thread_a_unit),
        ]

    def flops(x, index, source, **attrs):
        return index.size

    def grad(g, operands, results, grads, *, reduction, axis, include_self):
        x, index, source = operands
        rule = {"add": _add_grad, "mean": _mean_grad, "mul": _product_grad}.get(reduction)
        by_x, by_source = (rule or _extreme_grad)(
            g, x, index, source, results[0], grads[0], reduction, axis, include_self
        )
        if not include_self:
            by_x = g.scatter(by_x, index, g.zeros_like(by_source), axis=axis)
        return g.to_dtype(by_x, x.dtype), None, g.to_dtype(by_source, source.dtype)


@cache
def divide(floats: bool) -> Callable:
    """Means of sums and how many went into them."""

    def divide_floats(y, counts, lo, hi):
        for i in range(lo, hi):
            if counts[i] > 1:
                y[i] /= counts[i]

    def divide_integers(y, counts, lo, hi):
        for i in range(lo, hi):
            if counts[i] > 1:
                y[i] = y[i] // counts[i]

    return divide_floats if floats else divide_integers


# --- gradients by x, as if it counted in, and by the source ---------------------------------------


def _add_grad(g, x, index, source, y, gy, reduction, axis, include_self):
    return gy, g.gather_elements(gy, index, axis=axis, missing=0.0)


def _mean_grad(g, x, index, source, y, gy, reduction, axis, include_self):
    ones = [g.full(shape=v.shape, value=1.0, dtype=gy.dtype) for v in (y, source)]
    own = ones[0] if include_self else g.zeros_like(gy)
    count = g.maximum(g.scatter_add(own, index, ones[1], axis=axis), 1.0)
    share = g.div(gy, count)
    return share, g.gather_elements(share, index, axis=axis, missing=0.0)


def _extreme_grad(g, x, index, source, y, gy, reduction, axis, include_self):
    """Equal elements share; what leads to a NaN gets a NaN, as nothing equals it."""
    mine = g.equal(x, y)
    selected = g.equal(source, g.gather_elements(y, index, axis=axis, missing=0))
    ones = [g.cast(v, dtype=y.dtype) for v in (mine, selected)]
    if not include_self:
        ones[0] = g.scatter(ones[0], index, g.zeros_like(ones[1]), axis=axis)
    share = g.div(gy, g.scatter_add(ones[0], index, ones[1], axis=axis))
    picked = g.gather_elements(share, index, axis=axis, missing=0)
    return g.mul(ones[0], share), g.mul(ones[1], picked)


def _product_grad(g, x, index, source, y, gy, reduction, axis, include_self):
    """No division by what may be 0: of a place with one 0 only that one has a gradient."""

    def product(of, by):
        attrs = {"reduction": "mul", "axis": axis, "include_self": include_self}
        return g.scatter_reduce(of, index, by, **attrs)

    def gathered(v):
        return g.gather_elements(v, index, axis=axis, missing=0)

    zero = g.equal(source, 0.0)
    others = g.where(zero, 1.0, source)
    zeros = g.scatter_add(g.zeros_like(y), index, g.cast(zero, dtype=y.dtype), axis=axis)
    alone = g.equal(gathered(zeros), g.cast(zero, dtype=y.dtype))
    by_source = g.div(gathered(g.mul(gy, product(x, others))), others)
    factors = product(g.full(shape=x.shape, value=1.0, dtype=y.dtype), source)
    return g.mul(gy, factors), g.where(alone, by_source, 0.0)
