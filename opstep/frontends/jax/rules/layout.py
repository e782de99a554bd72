"""Primitives that move elements, or make new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.frontends.jax.body import Body, Dim, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.registry import rule
from opstep.frontends.jax.types import dtype_of, size, sizes
from opstep.frontends.jax.values import Known, Spread, known
from opstep.runtime.ir.graph import Name
from opstep.runtime.ir.types import boolean


@rule("reshape")
def reshape(b: Body, x: Var, *, new_sizes: Any, dimensions: Any = None) -> Any:
    if dimensions is not None:
        x = b.transposed(x, [*dimensions, *range(len(dimensions), x.type.rank)])
    shape = b.out.shape  # keys have an axis more
    if shape[len(shape) - x.type.rank :] == x.shape and all(
        d == 1 for d in shape[: len(shape) - x.type.rank]
    ):
        return Spread(x, shape)
    return b.reshaped(x, shape)


@rule("squeeze")
def squeeze(b: Body, x: Var, *, dimensions: Any) -> Var:
    return b.reshaped(x, b.out.shape)


@rule("expand_dims")
def expand_dims(b: Body, x: Var, *, dimensions: Any) -> Var:
    return b.reshaped(x, b.out.shape)


@rule("broadcast_in_dim")
def broadcast_in_dim(b: Body, x: Var, *more: Any, shape: Any, broadcast_dimensions: Any) -> Any:
    shape = b.out.shape
    axes = [int(a) for a in broadcast_dimensions]
    if len(axes) < x.type.rank:  # a key's own axis
        axes.append(len(shape) - 1)
    sizes = dict(zip(axes, x.shape, strict=True))
    first = axes[0] if axes else len(shape)
    inner = [sizes.get(axis, 1) for axis in range(first, len(shape))]
    return Spread(b.reshaped(x, inner), shape)


@rule("transpose")
def transpose(b: Body, x: Var, *, permutation: Sequence[int]) -> Var:
    perm = [int(p) for p in permutation]
    made = b.made_by(x)
    if made is not None and made.callee.text == "matmul" and perm == [1, 0]:
        left, right = (b.known_types.get(o.text) for o in made.operands if isinstance(o, Name))
        if left is not None and right is not None and left.type.rank == right.type.rank == 2:
            is_turned = {a.name.text: a.value for a in made.attrs}
            return b.matmul(
                right, left, transpose_a=not is_turned.get("transpose_b", False),
                transpose_b=not is_turned.get("transpose_a", False),
            )  # fmt: skip
    return b.transposed(x, [*perm, *range(len(perm), x.type.rank)])


@rule("rev")
def rev(b: Body, x: Var, *, dimensions: Sequence[int]) -> Var:
    axes = [int(d) for d in dimensions]
    return b.flip(x, axes=axes) if axes else x


@rule("concatenate")
def concatenate(b: Body, *xs: Var, dimension: int) -> Var:
    return xs[0] if len(xs) == 1 else b.concat(*xs, axis=dimension)


@rule("stack")
def stack(b: Body, *xs: Var, axis: int) -> Var:
    return b.stack(*xs, axis=axis)


@rule("unstack")
def unstack(b: Body, x: Var, *, axis: int) -> Any:
    return tuple(b.select(x, index=k, axis=axis) for k in range(len(b.outs)))


@rule("split")
def split(b: Body, x: Var, *, sizes: Any, axis: int) -> Any:
    found = b.split(x, sizes=[size(s) for s in sizes], axis=axis)
    return found if isinstance(found, tuple) and not isinstance(found, Var) else (found,)


@rule("slice")
def slice_(b: Body, x: Var, *, start_indices: Any, limit_indices: Any, strides: Any) -> Var:
    starts, ends = sizes(start_indices), sizes(limit_indices)
    steps = [1] * len(starts) if strides is None else [int(s) for s in strides]
    axes = [
        k
        for k in range(len(starts))
        if steps[k] != 1 or starts[k] != 0 or ends[k] != x.shape[k]
    ]  # fmt: skip
    if not axes:
        return x
    attrs: dict[str, Any] = {"steps": [steps[k] for k in axes]}
    if all(s == 1 for s in attrs["steps"]):
        attrs = {}
    return b.slice(
        x, starts=[starts[k] for k in axes], ends=[ends[k] for k in axes], axes=axes, **attrs
    )


@rule("pad", numbers=True)
def pad(b: Body, x: Any, value: Any, *, padding_config: Any) -> Var:
    x = b.broadcasted(x, b.out.shape) if not isinstance(x, Var) else x
    config = [tuple(map(size, c)) for c in padding_config]
    if any(inner for *_, inner in config):
        x = spaced(b, x, [inner for *_, inner in config], value)
    lows, highs = [c[0] for c in config], [c[1] for c in config]
    return padded(b, x, lows, highs, value)


def spaced(b: Body, x: Var, inner: Sequence[Dim], value: Any) -> Var:
    """x with so many elements between neighbours."""
    for axis, n in enumerate(inner):
        if n == 0 or x.shape[axis] == 1:
            continue
        if not isinstance(n, int):
            raise Untranslatable("a number of elements between others that is a symbol")
        rank, extent = x.type.rank, x.shape[axis]
        shape = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
        wide = b.reshape(x, shape=shape)
        pads: list[Dim] = [0] * (2 * (rank + 1))
        pads[rank + 1 + axis + 1] = n
        wide = filled_pad(b, wide, pads, value)
        merged = [*x.shape]
        merged[axis] = extent * (n + 1)
        wide = b.reshape(wide, shape=merged)
        x = b.slice(wide, starts=[0], ends=[extent * (n + 1) - n], axes=[axis])
    return x


def padded(b: Body, x: Var, lows: Sequence[Dim], highs: Sequence[Dim], value: Any) -> Var:
    """x with elements before and behind; below 0, it is cropped."""
    if all(d == 0 for d in (*lows, *highs)):
        return x
    return filled_pad(b, x, [*lows, *highs], value)


def filled_pad(b: Body, x: Var, pads: Sequence[Dim], value: Any) -> Var:
    if not isinstance(value, Var):
        return b.pad(x, pads=list(pads), value=value)
    # where there is padding, the value
    ones = b.ones(shape=list(x.shape), dtype=boolean)
    inside = b.pad(ones, pads=list(pads))
    return b.where(inside, b.pad(x, pads=list(pads)), value)


@rule("tile")
def tile(b: Body, x: Var, *, reps: Any) -> Var:
    return b.tile(x, repeats=[size(r) for r in reps])


@rule("platform_index")
def platform_index(b: Body, *, platforms: Any, **_: Any) -> Known:
    """Which of several functions that do the same is for a processor like those here."""
    places = [k for k, names in enumerate(platforms) if names is None or "cpu" in names]
    return known(np.asarray(places[0], b.out.dtype.numpy))


@rule("iota")
def iota(b: Body, *_: Any, dtype: Any, shape: Any, dimension: int) -> Var:
    return b.iota(shape=list(sizes(shape)), axis=dimension, dtype=dtype_of(dtype))


@rule("empty", "empty2")
def empty(b: Body, *_: Any, **__: Any) -> Var:
    """What nobody reads: branches have results that only others of them give."""
    return b.zeros(shape=list(b.out.shape), dtype=b.out.dtype)


@rule("dim_as_value")
def dim_as_value(b: Body, *, dim: Any) -> Var:
    return b.extent(of=[size(dim)], dtype=b.out.dtype)


@rule("random_wrap", "random_unwrap", "random_clone")
def same_key(b: Body, x: Var, *, impl: Any = None) -> Var:
    return x
