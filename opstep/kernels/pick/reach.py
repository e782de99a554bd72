"""The elements of a tensor that indices reach: one description for all that pick or put by index.

A reach is a box of places. The place with coordinates p stands in x at ``sum(p[k] * steps[k])``,
and what each index adds: with k the number that the index has for p, ``k * along``. An index below
0 counts from the end; a place with an index out of range does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.rules.axes import around, axes_of, axis_of, strides_of
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


class Index(NamedTuple):
    """Numbers below `extent` (or `skipped`, which is nowhere as well), each of which counts for
    `along` elements of x. That for place p stands at ``start + sum(p[k] * steps[k])`` of `of`.
    """

    of: Any
    extent: int
    along: int
    steps: tuple[int, ...]
    start: int = 0
    skipped: int = -1


class Reach(NamedTuple):
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    indices: tuple[Index, ...]


def slices(shape: Sequence[int], index: Any, axis: int = 0, skipped: int = -1, **_: Any) -> Reach:
    """The slices of a tensor of this shape along an axis."""
    outer, n, inner = around(shape, axis_of(axis, len(shape)))
    of = Index(index, n, inner, (0, 1, 0), skipped=skipped)
    return Reach((outer, index.size, inner), (n * inner, 0, 1), (of,))


def elements(shape: Sequence[int], index: Any, axis: int, **_: Any) -> Reach:
    """An element along an axis for each index, which stands where the element does otherwise."""
    a, steps = axis_of(axis, len(shape)), strides_of(shape)
    of = Index(index, shape[a], steps[a], strides_of(index.shape))
    return Reach(index.shape, (*steps[:a], 0, *steps[a + 1 :]), (of,))


def parts(shape: Sequence[int], index: Any, batch: int) -> Reach:
    """Parts by the last axis of the index, which has a number for each axis after `batch` ones."""
    depth = index.shape[-1]
    sizes, inner = shape[batch : batch + depth], prod(shape[batch + depth :])
    outer, places = prod(shape[:batch]), prod(index.shape[batch:-1])
    steps = (places * depth, depth, 0)
    along = [s * inner for s in strides_of(sizes)]
    named = enumerate(zip(sizes, along, strict=True))
    indices = [Index(index, n, s, steps, d) for d, (n, s) in named]
    return Reach((outer, places, inner), (prod(sizes) * inner, 0, 1), tuple(indices))


def boxes(shape: Sequence[int], *indices: Any, axes: Sequence[int] | None) -> Reach:
    """The elements that several indices, which broadcast, select together as in NumPy."""
    chosen, strides = indexed_axes(len(shape), len(indices), axes), strides_of(shape)
    places = tuple(np.broadcast_shapes(*[i.shape for i in indices]))
    before, rest = axes_before(chosen), [k for k in range(len(shape)) if k not in chosen]
    ahead, behind = rest[:before], rest[before:]
    sizes = (*[shape[k] for k in ahead], *places, *[shape[k] for k in behind])
    steps = (*[strides[k] for k in ahead], *[0] * len(places), *[strides[k] for k in behind])
    found = [
        Index(i, shape[k], strides[k], (*[0] * before, *walked(i, places), *[0] * len(behind)))
        for i, k in zip(indices, chosen, strict=True)
    ]
    return Reach(sizes, steps, tuple(found))


def walked(a: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of what broadcasts to `shape`."""
    own = (1,) * (len(shape) - len(a.shape)) + tuple(a.shape)
    return tuple(0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True))


def joined(sizes: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """(extent, its stride of each) of axes, with neighbours merged; at least one."""
    dims: list[tuple[int, ...]] = []
    for n, *steps in zip(sizes, *strides, strict=True):
        if n == 1:
            continue
        if dims and all(above == n * s for above, s in zip(dims[-1][1:], steps, strict=True)):
            n *= dims.pop()[0]
        dims.append((n, *steps))
    return dims or [(1,) * (1 + len(strides))]


# --- shapes ---------------------------------------------------------------------------------------


def check_aligned(x: TensorType, index: TensorType, axis: int) -> None:
    """Raises Mismatch unless index has x's rank and fits into x along all axes but `axis`."""
    a = axis_of(axis, x.rank)
    if index.rank != x.rank:
        raise Mismatch(f"{index} has {index.rank} axes, {x} has {x.rank}", 1)
    for k, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)):
        if k != a and n != m and not (type(n) is int and type(m) is int and n < m):
            raise Mismatch(f"axis {k} of {index} is {n}, and that of {x} only {m}", 1)


def axes_in_parts(x: TensorType, index: TensorType, batch: int) -> int:
    """The number of axes of x that an index of `parts` names; raises Mismatch."""
    if index.rank == 0 or type(index.shape[-1]) is not int:
        raise Mismatch(f"the last axis of {index} must say how many axes of {x} are indexed", 1)
    depth = index.shape[-1]
    if not 0 <= batch < index.rank or x.shape[:batch] != index.shape[:batch]:
        raise Mismatch(f"{x} and {index} do not share {batch} axes", "batch")
    if batch + depth > x.rank:
        raise Mismatch(f"{index} names {depth} axes, and {x} has {x.rank - batch}", 1)
    return depth


def indexed_axes(rank: int, count: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    """The axis that each of `count` indices is for; raises Mismatch."""
    indexed = axes_of(range(count) if axes is None else axes, rank) if rank or axes else ()
    if len(indexed) != count:
        indices = f"{count} {'index' if count == 1 else 'indices'}"
        raise Mismatch(f"{indices} for {len(indexed)} axes", "axes" if axes is not None else None)
    return indexed


def indexed_shape(x: TensorType, indices: Sequence[TensorType], axes) -> tuple:
    """The shape of what `boxes` selects."""
    if axes is None and len(indices) > x.rank:
        raise Mismatch(f"{len(indices)} indices for the {x.rank} axes of {x}")
    chosen = indexed_axes(x.rank, len(indices), axes)
    try:
        places = broadcast_shape(*indices)
    except Mismatch as e:
        at = e.at + 1 if isinstance(e.at, int) else e.at
        raise Mismatch(e.message, at, e.hint) from None
    before = axes_before(chosen)
    rest = [x.shape[k] for k in range(x.rank) if k not in chosen]
    return (*rest[:before], *places, *rest[before:])


def axes_before(axes: Sequence[int]) -> int:
    """The number of axes of what is selected before those of the indices."""
    first, last = min(axes), max(axes)
    return first if last - first == len(axes) - 1 else 0


# --- in kernels -----------------------------------------------------------------------------------


def from_front(index, n):
    """An index as it counts from the front; one that is out of range stays out of it."""
    k = np.int64(index)
    return k + n if k < 0 else k


@cache
def putter(combine: Callable) -> Callable:
    """Combines an element with that at an index."""

    def put_one(y, index, n, along, skipped, value):
        k = from_front(index, n)
        if k >= 0 and k < n and k != skipped:
            y[k * along] = combine(y[k * along], value)

    return put_one


# --- the same in NumPy ----------------------------------------------------------------------------


class Selection(NamedTuple):
    """The same elements as NumPy's advanced indexing takes them: along `axes` of a tensor of this
    shape, by default the first ones, by indices that broadcast.
    """

    shape: Sequence[int]
    indices: Sequence[np.ndarray]
    axes: Sequence[int] | None = None


def sliced(shape: Sequence[int], index: np.ndarray, axis: int = 0, **_: Any) -> Selection:
    """The selection of `slices`."""
    return Selection(shape, [index], [axis])


def boxed(shape: Sequence[int], *indices: np.ndarray, axes: Sequence[int] | None) -> Selection:
    """The selection of `boxes`."""
    return Selection(shape, indices, axes)


def aligned(shape: Sequence[int], index: np.ndarray, axis: int, **_: Any) -> Selection:
    """The selection of `elements`."""
    grid: list = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    grid[axis % len(shape)] = index
    return Selection(shape, grid)


def by_parts(shape: Sequence[int], index: np.ndarray, batch: int) -> Selection:
    """The selection of `parts`."""
    places = index.shape[:-1]
    grid = [np.zeros(places, np.int64), *np.ogrid[tuple(slice(n) for n in places)][:batch]]
    return Selection((1, *shape), [*grid, *np.moveaxis(index, -1, 0)])


def existing(of: Selection) -> np.ndarray:
    """A mask that broadcasts to what is selected: true where all indices are in range."""
    chosen = indexed_axes(len(of.shape), len(of.indices), of.axes)
    behind, exists = len(of.shape) - len(chosen) - axes_before(chosen), np.True_
    for i, k in zip(of.indices, chosen, strict=True):
        inside = (i >= -of.shape[k]) & (i < of.shape[k])
        exists = exists & inside.reshape((*i.shape, *(1,) * behind))
    return np.asarray(exists)


def positions(of: Selection) -> np.ndarray:
    """The position in x of each element that is selected; -1 where there is none."""
    chosen = indexed_axes(len(of.shape), len(of.indices), of.axes)
    before, rest = axes_before(chosen), [k for k in range(len(of.shape)) if k not in chosen]
    count = len(np.broadcast_shapes(*[i.shape for i in of.indices]))
    found, steps = np.int64(0), strides_of(of.shape)
    for i, k in zip(of.indices, chosen, strict=True):
        at = i.astype(np.int64).reshape((*i.shape, *(1,) * (len(rest) - before)))
        found = found + np.where(at < 0, at + of.shape[k], at) * steps[k]
    for j, k in enumerate(rest):
        behind = len(rest) - j - 1 + (count if j < before else 0)
        found = found + (np.arange(of.shape[k]) * steps[k]).reshape(-1, *(1,) * behind)
    return np.where(existing(of), found, -1)


def read_at(x: np.ndarray, places: np.ndarray, missing: int | float | None = None) -> np.ndarray:
    """The elements at these positions; `missing`, by default NaN or the largest integer, where
    there is none.
    """
    if missing is None:
        missing = np.nan
        if x.dtype.kind in "iub":
            missing = True if x.dtype.kind == "b" else np.iinfo(x.dtype).max
    flat = np.append(x.reshape(-1), np.zeros(1, x.dtype))
    return np.where(places >= 0, flat[places], missing).astype(x.dtype)


def written_at(combine: Callable, x: np.ndarray, of: Selection, source: Any) -> np.ndarray:
    """x, where the elements selected met those of the source one after the other."""
    y, places = x.reshape(-1).copy(), positions(of)
    values = np.broadcast_to(source, places.shape)
    for place, value in zip(places[places >= 0], values[places >= 0], strict=True):
        y[place] = combine(y[place], value)
    return y.reshape(x.shape)
