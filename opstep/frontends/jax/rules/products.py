"""Sums of products, and what solves systems of them."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.rules.pointwise import converted
from opstep.frontends.jax.rules.registry import rule


@rule("dot_general")
def dot_general(b: Body, x: Var, y: Var, *, dimension_numbers: Any) -> Var:
    (xs, ys), (xb, yb) = dimension_numbers
    xs, ys, xb, yb = ([int(a) for a in axes] for axes in (xs, ys, xb, yb))
    x, y = (converted(b, v, a, b.out.dtype) for v, a in zip((x, y), b.ins, strict=True))
    return _matmul(b, x, y, xs, ys, xb, yb) or _einsum(b, x, y, xs, ys, xb, yb)


def _matmul(
    b: Body, x: Var, y: Var, xs: Sequence[int], ys: Sequence[int], xb: Sequence[int],
    yb: Sequence[int],
) -> Var | None:  # fmt: skip
    """As a product of matrices, where the axes lie so; else None."""
    batch = len(xb)
    if len(xs) != 1 or list(xb) != list(range(batch)) or list(yb) != list(range(batch)):
        return None
    free_x, free_y = x.type.rank - batch - 1, y.type.rank - batch - 1
    place_x, place_y = xs[0] - batch, ys[0] - batch
    if free_y > 1 or (batch and free_x > 1) or (free_x == 0 and batch) or (free_y == 0 and batch):
        return None
    if free_x > 1 and place_x != free_x:  # leading axes stay where they are
        return None
    attrs: dict[str, Any] = {}
    if free_x == 1 and place_x == 0:
        attrs["transpose_a"] = True
    if free_y == 1 and place_y == 1:
        attrs["transpose_b"] = True
    source = b.source(y, "transpose") if free_y == 1 and not batch else None
    if source is not None:  # JAX transposes what it could read otherwise
        y = source[0]
        attrs["transpose_b"] = not attrs.get("transpose_b", False)
    return b.matmul(x, y, **attrs)


def _einsum(
    b: Body, x: Var, y: Var, xs: Sequence[int], ys: Sequence[int], xb: Sequence[int],
    yb: Sequence[int],
) -> Var:  # fmt: skip
    letters = iter(string.ascii_letters)
    of_x = [next(letters) for _ in x.shape]
    of_y = [""] * y.type.rank
    for a, c in (*zip(xs, ys, strict=True), *zip(xb, yb, strict=True)):
        of_y[c] = of_x[a]
    of_y = [letter or next(letters) for letter in of_y]
    left_x = [of_x[k] for k in range(len(of_x)) if k not in (*xs, *xb)]
    left_y = [of_y[k] for k in range(len(of_y)) if k not in (*ys, *yb)]
    out = "".join([*(of_x[k] for k in xb), *left_x, *left_y])
    return b.einsum(x, y, equation=f"{''.join(of_x)},{''.join(of_y)}->{out}")


@rule("cholesky")
def cholesky(b: Body, x: Var, *, symmetrize_input: bool = False) -> Var:
    if symmetrize_input:
        perm = [*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2]
        x = b.mul(b.add(x, b.transpose(x, perm=perm)), 0.5)
    return b.cholesky(x)


@rule("triangular_solve")
def triangular_solve(
    b: Body, a: Var, y: Var, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
    unit_diagonal: bool,
) -> Var:  # fmt: skip
    perm = [*range(y.type.rank - 2), y.type.rank - 1, y.type.rank - 2]
    if left_side:
        return b.solve_triangular(a, y, upper=not lower, transpose=transpose_a, unit=unit_diagonal)
    found = b.solve_triangular(
        a, b.transpose(y, perm=perm), upper=not lower, transpose=not transpose_a,
        unit=unit_diagonal,
    )  # fmt: skip
    return b.transpose(found, perm=perm)
