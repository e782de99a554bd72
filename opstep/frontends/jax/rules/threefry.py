"""Random numbers as JAX draws them: the same integers, by the same rounds."""

from __future__ import annotations

from math import prod
from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.registry import rule
from opstep.runtime.ir.types import i32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@rule("threefry2x32")
def threefry2x32(b: Body, k0: Var, k1: Var, x0: Var, x1: Var) -> Any:
    """Salmon et al. 2011: a bijection of two words, for each key another."""
    shape = b.out.shape
    k0, k1, x0, x1 = (b.broadcasted(v, shape) if shape != v.shape else v for v in (k0, k1, x0, x1))
    flat = [b.reshaped(v, [prod(shape)]) for v in (k0, k1, x0, x1)]
    names = ("key_0", "key_1", "x_0", "x_1")
    found = b.part("threefry2x32", list(zip(names, flat, strict=True)), _rounds)
    return tuple(b.reshaped(v, shape) for v in found)


def _rounds(b: Body, k0: Var, k1: Var, x0: Var, x1: Var) -> tuple[Var, Var]:
    keys = [k0, k1, b.bitwise_xor(b.bitwise_xor(k0, k1), PARITY)]
    x0, x1 = b.add(x0, k0), b.add(x1, k1)
    for turn in range(5):
        for distance in ROTATIONS[turn % 2]:
            x0 = b.add(x0, x1)
            low = b.bitwise_and(b.shift_right(x1, 32 - distance), (1 << distance) - 1)
            x1 = b.bitwise_xor(b.bitwise_or(b.shift_left(x1, distance), low), x0)
        x0 = b.add(x0, keys[(turn + 1) % 3])
        x1 = b.add(b.add(x1, keys[(turn + 2) % 3]), turn + 1)
    return x0, x1


@rule("iota_2x32_shape")
def iota_2x32_shape(b: Body, *, shape: Any) -> Any:
    """The places of elements, as high and low words."""
    if not all(isinstance(d, int) for d in b.out.shape) or prod(b.out.shape) >= 1 << 32:  # pyright: ignore
        raise Untranslatable("random numbers without a fixed size below 2**32")
    low = b.iota(shape=[prod(b.out.shape)], dtype=i32)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return b.zeros(shape=list(b.out.shape), dtype=i32), b.reshaped(low, b.out.shape)
