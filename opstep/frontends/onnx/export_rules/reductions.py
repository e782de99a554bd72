"""Reductions over axes."""

from __future__ import annotations

from math import inf, nan

from opstep.frontends.onnx.export_rules import RULES, rule
from opstep.kernels.rules.axes import axes_of, volume
from opstep.runtime.ir.types import boolean

_SAME = {
    "sum": "ReduceSum", "prod": "ReduceProd", "mean": "ReduceMean", "max": "ReduceMax",
    "min": "ReduceMin", "logsumexp": "ReduceLogSumExp",
}  # fmt: skip


def _reduce(b, op_type, t, x, axes, keepdims):
    """ONNX takes no axes as all of them."""
    if axes is not None and not len(axes):
        axes = None
        if x.type.rank:
            return b.onnx(op_type, x, out=t, noop_with_empty_axes=1)
    given = None if axes is None else b.value(axes_of(axes, x.type.rank))
    return b.onnx(op_type, x, given, out=t, keepdims=int(keepdims))


def _reduction(op_type):
    def write(b, t, x, axes, keepdims):
        if op_type == "ReduceMean" and _count(x, axes) == 0:  # ONNX Runtime gives 0
            return b.full(shape=t.shape, value=nan, dtype=t.dtype)
        return _reduce(b, op_type, t, b.to(x, t.dtype), axes, keepdims)

    return write


def _count(x, axes):
    """How many elements are reduced to one."""
    rank = x.type.rank
    return volume([x.shape[k] for k in (range(rank) if axes is None else axes_of(axes, rank))])


RULES.update({name: _reduction(op_type) for name, op_type in _SAME.items()})


def _logical(op_type):
    def write(b, t, x, axes, keepdims):
        if _count(x, axes) == 0:  # ONNX Runtime refuses it
            return b.full(shape=t.shape, value=int(op_type == "ReduceMin"), dtype=boolean)
        return _reduce(b, op_type, t, b.to(x, boolean), axes, keepdims)

    return write


RULES.update(all=_logical("ReduceMin"), any=_logical("ReduceMax"))


@rule("norm")
def _norm(b, t, x, p, axes, keepdims):
    if p == inf:
        return b.max(b.abs(x), axes=axes, keepdims=keepdims)
    return _reduce(b, "ReduceL1" if p == 1 else "ReduceL2", t, x, axes, keepdims)


def _argument(op_type):
    def write(b, t, x, axis, keepdims):
        if axis is None:
            if not x.type.rank:
                return b.zeros(shape=t.shape, dtype=t.dtype)
            x = b.shaped(x, (volume(x.shape),))
            found = b.onnx(op_type, x, out=t.with_shape(()), axis=0, keepdims=0)
            return b.shaped(found, t.shape)
        return b.onnx(op_type, x, out=t, axis=axis, keepdims=int(keepdims))

    return write


RULES.update(argmax=_argument("ArgMax"), argmin=_argument("ArgMin"))


@rule("cumsum")
def _cumsum(b, t, x, axis, exclusive, reverse):
    return b.onnx(
        "CumSum", b.to(x, t.dtype), b.value(axis), out=t, exclusive=int(exclusive),
        reverse=int(reverse),
    )  # fmt: skip
