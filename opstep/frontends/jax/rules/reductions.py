"""Reductions and running ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.registry import add, rule
from opstep.frontends.jax.types import dtype_of
from opstep.runtime.ir.types import boolean

REDUCTIONS = {"reduce_sum": "sum", "reduce_prod": "prod"}
EXTREMES = {"reduce_max": "max", "reduce_min": "min"}
RUNNING = {"cummax": "cummax", "cummin": "cummin", "cumlogsumexp": "logcumsumexp"}


def _reduction(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Var, *, axes: Sequence[int]) -> Var:
        if all(x.shape[a] == 1 for a in axes):
            return b.reshaped(x, b.out.shape)
        if x.dtype is boolean and op in ("max", "min"):
            return b.op("any" if op == "max" else "all", x, axes=[int(a) for a in axes])
        return b.to(b.op(op, x, axes=[int(a) for a in axes]), x.dtype)

    return made


for _name, _op in REDUCTIONS.items():
    add(_name, _reduction(_op))
for _name, _op in EXTREMES.items():
    add(_name, _reduction(_op), values=True)


def _of_bools(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Var, *, axes: Sequence[int]) -> Var:
        if x.dtype is not boolean:
            raise Untranslatable("the bits of many integers together")
        return b.op(op, x, axes=[int(a) for a in axes]) if axes else x

    return made


add("reduce_and", _of_bools("all"))
add("reduce_or", _of_bools("any"))


@rule("reduce_xor")
def reduce_xor(b: Body, x: Var, *, axes: Sequence[int]) -> Var:
    if x.dtype is not boolean:
        raise Untranslatable("the bits of many integers together")
    i32 = dtype_of("int32")
    count = b.sum(b.to(x, i32), axes=[int(a) for a in axes])
    return b.to(b.bitwise_and(b.to(count, i32), 1), boolean)


def _extreme_place(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Var, *, axes: Sequence[int], index_dtype: Any) -> Var:
        (axis,) = axes
        x = b.to(x, dtype_of("uint8")) if x.dtype is boolean else x
        return b.to(b.op(op, x, axis=int(axis)), dtype_of(index_dtype))

    return made


add("argmax", _extreme_place("argmax"), values=True)
add("argmin", _extreme_place("argmin"), values=True)


def _sums(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Var, *, axis: int, reverse: bool) -> Var:
        return b.to(b.op(op, x, axis=axis, reverse=reverse), x.dtype)

    return made


add("cumsum", _sums("cumsum"))
add("cumprod", _sums("cumprod"))


def _running(op: str) -> Callable[..., Any]:
    def made(b: Body, x: Var, *, axis: int, reverse: bool) -> Var:
        x = b.flip(x, axes=[axis]) if reverse else x
        found = b.op(op, x, axis=axis)
        found = found if isinstance(found, Var) else found[0]
        return b.flip(found, axes=[axis]) if reverse else found

    return made


for _name, _op in RUNNING.items():
    add(_name, _running(_op), values=True)
