"""Order."""

from __future__ import annotations

from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.rules.pointwise import ordered
from opstep.frontends.jax.rules.registry import rule
from opstep.frontends.jax.types import UNSIGNED, dtype_of


@rule("sort")
def sort(b: Body, *xs: Var, dimension: int, is_stable: bool, num_keys: int) -> Any:
    """By several keys, the last is sorted by first: the order of equal ones stays."""
    keys = [_ordered(b, x, k) for k, x in enumerate(xs[:num_keys])]
    if len(xs) == 1 and keys[0] is xs[0]:
        return (b.sort(xs[0], axis=dimension)[0],)
    order: Any = None
    for key in reversed(keys):
        if order is None:
            order = b.argsort(key, axis=dimension)
        else:
            moved = b.gather_elements(key, order, axis=dimension)
            again = b.argsort(moved, axis=dimension)
            order = b.gather_elements(order, again, axis=dimension)
    return tuple(b.gather_elements(x, order, axis=dimension) for x in xs)


def _ordered(b: Body, x: Var, place: int) -> Var:
    """What is in the same order; unsigned integers are held as signed ones."""
    bits = UNSIGNED.get(str(b.ins[place].dtype))
    return b.bitwise_xor(x, -(1 << (bits - 1))) if bits else x


@rule("top_k", values=True)
def top_k(b: Body, x: Var, *, k: int, operand_axis: int = -1, axis: int = -1) -> Any:
    axis = axis if axis != -1 else operand_axis
    if not x.dtype.is_float:
        values, places = b.top_k(x, k=k, axis=axis)
        return values, b.to(places, dtype_of("int32"))
    _, places = b.top_k(ordered(b, x), k=k, axis=axis)
    return b.gather_elements(x, places, axis=axis), b.to(places, dtype_of("int32"))
