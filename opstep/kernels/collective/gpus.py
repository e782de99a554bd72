"""Launches of collectives on a GPU: calls of NCCL, and kernels of ours before and after them.

NCCL adds and multiplies in an order of its own, the same in each run, so that is what sums of f32,
f64 and integers are left to. What it would compute differently is exchanged, computed by a kernel
in the order of the ranks, and collected: means of halves and their sums over more than two ranks,
which it rounds on the way, and extremes of floats, in which it loses NaNs.

Nothing here depends on which rank this is: plans know none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

from opstep.kernels.move.copying import carrier, copy_all
from opstep.kernels.pointwise.arithmetic import add, maximum, minimum, mul
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.device.cuda.vendor import nccl
from opstep.runtime.device.launch import Arg, Call, Launch, Scratch
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.types import DType, TensorType, u8

Launches = list[Call | Launch]

_TERMS = {"sum": add, "mean": add, "prod": mul, "max": maximum, "min": minimum}


def all_reduced(x: Arg, y: Arg, over: Group, reduction: str) -> Launches:
    if not x.size:
        return []
    if is_nccls(x.stored, reduction, over.size):
        call = nccl.all_reduce(over, x.stored.name, x.size, _added(reduction))
        return [Call(call, x, y), *_divided(y, over.size, reduction)]
    part = -(-x.size // over.size)  # elements that a rank computes
    whole, own = x.stored.itemsize * x.size, x.stored.itemsize * part
    theirs, mine = _parts(x, over.size * part), _parts(x, part)
    return [
        Call(nccl.exchange(over, whole, own), x, theirs),
        _reduced(theirs, mine, part, over.size, reduction),
        Call(nccl.collect(over, whole, own), mine, y),
    ]


def reduce_scattered(x: Arg, y: Arg, axis: int, over: Group, reduction: str) -> Launches:
    if not y.size:
        return []
    before, parts = _parted(x, axis, over.size)
    if is_nccls(x.stored, reduction, over.size):
        call = nccl.reduce_scatter(over, x.stored.name, y.size, _added(reduction))
        return [*before, Call(call, parts, y), *_divided(y, over.size, reduction)]
    itemsize, theirs = x.stored.itemsize, _parts(x, x.size)
    exchange = nccl.exchange(over, itemsize * x.size, itemsize * y.size)
    return [
        *before,
        Call(exchange, parts, theirs),
        _reduced(theirs, y, y.size, over.size, reduction),
    ]


def gathered(x: Arg, y: Arg, axis: int, over: Group) -> Launches:
    if not x.size:
        return []
    call = nccl.all_gather(over, x.size * x.stored.itemsize)
    outer = prod(x.shape[: axis_of(axis, x.rank)])
    return _joined(call, x, y, outer, over.size)


def exchanged(x: Arg, y: Arg, split: int, concat: int, over: Group) -> Launches:
    if not x.size:
        return []
    before, parts = _parted(x, split, over.size)
    itemsize = x.stored.itemsize
    call = nccl.exchange(over, x.size * itemsize, x.size // over.size * itemsize)
    shape = list(x.shape)
    shape[axis_of(split, x.rank)] //= over.size
    outer = prod(shape[: axis_of(concat, x.rank)])
    return [*before, *_joined(call, parts, y, outer, over.size)]


def broadcast(x: Arg, y: Arg, root: int, over: Group) -> Launches:
    return [Call(nccl.broadcast(over, _nbytes(x), root), x, y)] if x.size else []


def sent(x: Arg, y: Arg, to: int, over: Group) -> Launches:
    return [Call(nccl.send(over, _nbytes(x), to), x), *copy_all(x, y)] if x.size else []


def received(x: Arg, y: Arg, source: int, over: Group) -> Launches:
    return [Call(nccl.receive(over, _nbytes(y), source), y)] if y.size else []


def met(x: Arg, y: Arg, over: Group) -> Launches:
    """A byte of each, which nobody looks at, is reduced: nobody has that before all came."""
    byte = Scratch(u8, 1)
    return [Call(nccl.all_reduce(over, "u8", 1, "max"), byte, byte), *copy_all(x, y)]


def place(y: Arg, over: Group) -> Launches:
    return [Call(nccl.PlaceInGroup(over), y)]


def is_nccls(dtype: DType, reduction: str, ranks: int) -> bool:
    """Whether NCCL's own reduction gives what ours does, but for the order of the terms."""
    if dtype.is_float and reduction in ("max", "min"):
        return False  # a NaN would be lost
    if dtype.is_half and (ranks > 2 or reduction == "mean"):
        return False  # each step would be rounded
    return nccl.reduces(dtype.name, _added(reduction))


def _added(reduction: str) -> str:
    return "sum" if reduction == "mean" else reduction


def _nbytes(x: Arg) -> int:
    return x.size * x.stored.itemsize


# --- kernels --------------------------------------------------------------------------------------


def swap_leading(x, y, a, b, row, lo, hi):
    """x, [a, b, row], as y, [b, a, row]."""
    for i in range(lo, hi):
        at = i // row
        k = at // a
        y[i] = x[((at - k * a) * b + k) * row + i - at * row]


def divide(y, by, lo, hi):
    for i in range(lo, hi):
        y[i] = y[i] / by


def _divided(y: Arg, count: int, reduction: str) -> list[Launch]:
    return [Launch(divide, y, float(count), units=y.size)] if reduction == "mean" else []


def _over(total, by):
    return total / by


def _undivided(total, by):
    return total


@cache
def _rows(term: Callable, name: str) -> Callable:
    """A kernel that puts rows of elements together, from the first to the last; `by` divides their
    mean.
    """

    def reduce_rows(rows, y, count, length, by, lo, hi):
        for i in range(lo, hi):
            total = rows[i]
            for k in range(1, count):
                total = term(total, rows[k * length + i])
            y[i] = ended(total, by)

    ended = _over if name == "mean" else _undivided
    reduce_rows.__name__ = f"{name}_of_ranks"
    return reduce_rows


def _reduced(rows: Scratch, y: Arg | Scratch, length: int, count: int, reduction: str) -> Launch:
    term: Any = _TERMS[reduction].scalar
    args = (rows, y, count, length, float(count))
    return Launch(_rows(term, reduction), *args, units=length)


def _parts(x: Arg, size: int) -> Scratch:
    """Working memory for elements of x: so many."""
    return Scratch(x.dtype, size, stored=x.stored)


def _parted(x: Arg, axis: int, count: int) -> tuple[list[Launch], Arg | Scratch]:
    """x as equal parts along an axis, one after the other."""
    a = axis_of(axis, x.rank)
    outer = prod(x.shape[:a])
    if outer == 1:
        return [], x
    parts = Scratch(carrier(x.stored), x.size)
    return [_swapped(x, parts, outer, count, x.size)], parts


def _joined(call: nccl.Routine, x: Arg | Scratch, y: Arg, outer: int, count: int) -> Launches:
    """A call on x, whose result, parts one after the other, becomes parts along an axis of y."""
    if outer == 1:
        return [Call(call, x, y)]
    parts = Scratch(carrier(y.stored), y.size)
    return [Call(call, x, parts), _swapped(parts, y, count, outer, y.size)]


def _swapped(x: Arg | Scratch, y: Arg | Scratch, a: int, b: int, size: int) -> Launch:
    x, y = (_carried(one) for one in (x, y))
    return Launch(swap_leading, x, y, a, b, size // (a * b), units=size)


def _carried(x: Arg | Scratch) -> Arg | Scratch:
    """With elements as they are stored, as integers of their width."""
    if isinstance(x, Scratch):
        return x
    return Arg(TensorType(carrier(x.stored), x.shape), x.slot)
