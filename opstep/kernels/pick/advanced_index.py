"""NumPy's advanced indexing: several index tensors at once, and writes to what they select.

An index below 0 counts from the end. A place that does not exist reads NaN (for integers, the
largest value), or `missing`; what is written there is dropped. Several writes to one element are
applied in row-major order of the indices.

The indices become one position in x for each of their places first; x is then read and written by
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from opstep.kernels.move.copying import (
    advance_odometer,
    as_carrier,
    as_carriers,
    copy_all,
    copy_block,
    copy_segment,
    counter_words,
    merged,
    odometer,
    set_odometer,
)
from opstep.kernels.pick import cuda_index as gpu
from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.index import add_elements, bits_read, unread
from opstep.kernels.pick.scatter import replace_element
from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import axes_of, strides_of
from opstep.kernels.rules.literals import check_value
from opstep.kernels.rules.pitfalls import INDEX
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType, i64

_NOWHERE = -(1 << 62)  # the position of a place that does not exist, also if x's size is added


class index(Op):
    """The elements of x that several index tensors select together, as x[i, j] or x[:, i, :, j].

    The indices broadcast to one shape; the first is for the first of `axes` (by default 0, 1, …),
    and so on. Their shape replaces the axes where these are neighbours in x, else it comes first.
    An index out of range reads `missing`, if set.
    """

    signature = "index(x: T, indices: X*, *, axes: ints = none, missing: number = none)"
    source = "torch's x[i, j] (ATen index.Tensor), numpy's advanced indexing"
    outside = lost.indexed
    faults = INDEX
    traits = Traits(moves=True)

    def infer(x, *indices, axes, missing):
        check_value(missing or 0, x.dtype, "missing")
        return x.with_shape(indexed_shape(x, indices, axes))

    def oracle(x, *indices, axes, missing):
        places, exists = _picture(x, indices, axes)
        flat = np.append(x.reshape(-1), np.zeros(1, x.dtype))
        return np.where(exists, flat[places], unread(x, missing)).astype(x.dtype)

    def cpu(*args, axes, missing):
        x, *indices, y = args
        if not y.size:
            return []
        layout = _layout(x.shape, indices, axes)
        launches, positions = _positions(x, indices, layout)
        *outer, (count, xs, ps) = merged(layout.shape, layout.x_strides, layout.p_strides)
        table, counters = odometer(outer)
        args = (as_carrier(x), positions, as_carrier(y), count, xs, ps, bits_read(missing, x.dtype))
        return [*launches, Launch(pick_at, *args, len(outer), table, counters, units=y.size)]

    def cuda(*args, axes, missing):
        x, *indices, y = args
        if not y.size:
            return []
        return _picked(x, indices, y, axes, missing) or index.cpu(*args, axes=axes, missing=missing)

    def grad(g, operands, results, grads, *, axes, missing):
        x, *indices = operands
        gx = g.index_put_add(g.zeros_like(x), grads[0], *indices, axes=axes)
        return gx, *[None] * len(indices)


class IndexPut(Op):
    """Base: what `index` selects of x meets `source`."""

    inplace = (0,)
    traits = Traits(overwrites=True)
    outside = lost.index_written

    def infer(x, source, *indices, axes):
        selected = x.with_shape(indexed_shape(x, indices, axes))
        if broadcast_shape(selected, source) != selected.shape:
            raise Mismatch(f"{source} does not broadcast to the {selected} that are selected", 1)
        return x


class index_put(IndexPut):
    """x with the elements that `index` selects replaced by `source`, which broadcasts to them.

    The gradient with respect to source assumes that no element is selected twice.
    """

    signature = "index_put(x: T, source: T, indices: X*, *, axes: ints = none)"
    source = "torch.index_put, torch.index_copy and index_fill, numpy's x[i, j] = source"
    traits = Traits(moves=True)

    def oracle(x, source, *indices, axes):
        y, places, values = _updates(x, source, indices, axes)
        y[places] = values
        return y.reshape(x.shape)

    def cpu(*args, axes):
        return _put(replace_element, *args, axes=axes)

    def cuda(*args, axes):
        return _put(replace_element, *args, axes=axes, on_gpu=True)

    def grad(g, operands, results, grads, *, axes):
        x, source, *indices = operands
        gx = g.index_put(grads[0], 0.0, *indices, axes=axes)
        g_source = g.index(grads[0], *indices, axes=axes, missing=0.0)
        by_x = g.to_dtype(gx, x.dtype) if hasattr(x, "dtype") else None
        return by_x, g.sum_to(g_source, source), *[None] * len(indices)


class index_put_add(IndexPut):
    """x with `source` added to the elements that `index` selects, as often as they are selected.

    `source` broadcasts to what is selected.
    """

    signature = "index_put_add(x: N, source: N, indices: X*, *, axes: ints = none)"
    source = "torch.index_put(accumulate=True), torch.index_add, numpy.add.at"

    def oracle(x, source, *indices, axes):
        y, places, values = _updates(x, source, indices, axes)
        np.add.at(y, places, values)
        return y.reshape(x.shape)

    def cpu(*args, axes):
        return _put(add_elements, *args, axes=axes)

    def cuda(*args, axes):
        return _put(add_elements, *args, axes=axes, on_gpu=True)

    def flops(x, source, *indices, axes):
        return x.with_shape(indexed_shape(x, indices, axes)).size

    def grad(g, operands, results, grads, *, axes):
        x, source, *indices = operands
        g_source = g.index(grads[0], *indices, axes=axes, missing=0.0)
        by_x = g.to_dtype(grads[0], x.dtype) if hasattr(x, "dtype") else None
        return by_x, g.sum_to(g_source, source), *[None] * len(indices)


# --- shapes and oracles ---------------------------------------------------------------------------


def indexed_axes(rank: int, count: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Which axis each of `count` indices is for; raises Mismatch."""
    indexed = axes_of(range(count) if axes is None else axes, rank) if rank or axes else ()
    if len(indexed) != count:
        indices = f"{count} {'index' if count == 1 else 'indices'}"
        raise Mismatch(f"{indices} for {len(indexed)} axes", "axes" if axes is not None else None)
    return indexed


def indexed_shape(x: TensorType, indices: Sequence[TensorType], axes) -> tuple:
    """The shape of what is selected."""
    if axes is None and len(indices) > x.rank:
        raise Mismatch(f"{len(indices)} indices for the {x.rank} axes of {x}")
    chosen = indexed_axes(x.rank, len(indices), axes)
    try:
        places = broadcast_shape(*indices)
    except Mismatch as e:
        at = e.at + 1 if isinstance(e.at, int) else e.at
        raise Mismatch(e.message, at, e.hint) from None
    before = _before(chosen)
    rest = [x.shape[k] for k in range(x.rank) if k not in chosen]
    return (*rest[:before], *places, *rest[before:])


def _before(axes: Sequence[int]) -> int:
    """How many axes of the result stand before those of the indices."""
    first, last = min(axes), max(axes)
    return first if last - first == len(axes) - 1 else 0


def _picture(x, indices, axes):
    """(the position in x of each element that is selected, x.size where there is none; which
    elements exist).
    """
    chosen = indexed_axes(x.ndim, len(indices), axes)
    shape = np.broadcast_shapes(*[i.shape for i in indices])
    before, rest = _before(chosen), [k for k in range(x.ndim) if k not in chosen]
    rank = len(rest) + len(shape)
    places, exists = np.zeros((1,) * rank, np.int64), np.ones((1,) * rank, bool)
    steps = strides_of(x.shape)
    for i, axis in zip(indices, chosen, strict=True):
        n = x.shape[axis]
        at = np.where(i < 0, i + n, i).astype(np.int64)
        inside = ((at >= 0) & (at < n)).reshape((1,) * (len(shape) - i.ndim) + i.shape)
        wide = (*inside.shape, *(1,) * (len(rest) - before))
        places = places + (at * steps[axis]).reshape(wide)
        exists = exists & inside.reshape(wide)
    for k, axis in enumerate(rest):
        behind = len(rest) - k - 1 + (len(shape) if k < before else 0)
        places = places + (np.arange(x.shape[axis]) * steps[axis]).reshape(-1, *(1,) * behind)
    selected = [x.shape[k] for k in rest]
    selected = (*selected[:before], *shape, *selected[before:])
    exists = np.broadcast_to(exists, selected)
    return np.where(exists, places, x.size), exists


def _updates(x, source, indices, axes):
    """(x's elements, positions to write to, what to write), one after the other."""
    places, exists = _picture(x, indices, axes)
    return x.reshape(-1).copy(), places[exists], np.broadcast_to(source, places.shape)[exists]


# --- launches -------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """What is selected: its axes, with all of the indices' as one, and what a step along each is in
    x and among the places of the indices.
    """

    axes: tuple[int, ...]
    places: tuple[int, ...]  # the shape of the indices
    shape: tuple[int, ...]
    x_strides: tuple[int, ...]
    p_strides: tuple[int, ...]
    at: int  # which axis the indices' one is


def _layout(shape: Sequence[int], indices: Sequence[Arg], axes) -> _Layout:
    chosen = indexed_axes(len(shape), len(indices), axes)
    places = np.broadcast_shapes(*[i.shape for i in indices])
    before, steps = _before(chosen), strides_of(shape)
    rest = [k for k in range(len(shape)) if k not in chosen]
    sizes, strides = [shape[k] for k in rest], [steps[k] for k in rest]
    sizes.insert(before, prod(places))
    strides.insert(before, 0)
    along = tuple(int(k == before) for k in range(len(sizes)))
    return _Layout(chosen, places, tuple(sizes), tuple(strides), along, before)


def _positions(x: Arg, indices: Sequence[Arg], layout: _Layout) -> tuple[list[Launch], Scratch]:
    """Launches that write the position in x of each place of the indices; there is one at least."""
    total, steps = prod(layout.places), strides_of(x.shape)
    positions = Scratch(i64, total)
    launches = []
    for k, (i, axis) in enumerate(zip(indices, layout.axes, strict=True)):
        walked = _walked(i, layout.places)
        *outer, (count, xs, _) = merged(layout.places, walked, strides_of(layout.places))
        table, counters = odometer(outer)
        args = (i, positions, int(k == 0), x.shape[axis], steps[axis], count, xs, len(outer))
        launches.append(Launch(locate, *args, table, counters, units=total))
    return launches, positions


def _picked(x: Arg, indices: Sequence[Arg], y: Arg, axes, missing) -> list[Grid] | None:
    """On CUDA: neighbouring axes are one, along which rows are picked."""
    layout, nothing = _layout(x.shape, indices, axes), bits_read(missing, x.dtype)
    n, first, steps = prod(layout.places), min(layout.axes), strides_of(x.shape)
    if n >= LIMIT:
        return None
    if layout.at == first and max(layout.axes) - first == len(indices) - 1:
        last = max(layout.axes)
        rows, inner = prod(x.shape[first : last + 1]), steps[last]
        located, keys = [], indices[0]
        if len(indices) > 1:
            along = [steps[k] // inner for k in layout.axes]
            located, keys = gpu.located(_places(x, indices, layout, along), layout.places, rows, n)
        found = gpu.gather_rows(x, keys, y, prod(x.shape[:first]), rows, inner, nothing)
    else:
        along = [steps[k] for k in layout.axes]
        located, keys = gpu.located(_places(x, indices, layout, along), layout.places, x.size, n)
        dims = merged(layout.shape, layout.x_strides, layout.p_strides)
        found = gpu.pick(x, keys, y, dims, nothing)
    return [*located, found] if found else None


def _places(x: Arg, indices: Sequence[Arg], layout: _Layout, along: Sequence[int]) -> list:
    """The indices as `cuda_index` takes them; a step along the axis of each is `along`."""
    return [
        gpu.Index(i, x.shape[axis], step, _walked(i, layout.places))
        for i, axis, step in zip(indices, layout.axes, along, strict=True)
    ]


def _walked(a: Arg, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of what broadcasts to `shape`."""
    own = (1,) * (len(shape) - a.rank) + a.shape
    return tuple(0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True))


def _target(x: Arg, source: Arg, indices: Sequence[Arg], layout: _Layout) -> cuda_segments.Target:
    """The target of the parts of `source`, which broadcasts to what is selected."""
    axes, steps, at = sorted(layout.axes), strides_of(x.shape), layout.at
    extents = [x.shape[k] for k in axes]
    radix = dict(zip(axes, strides_of(extents), strict=True))
    own = [steps[k] for k in axes]
    free, strides = list(layout.shape), list(layout.x_strides)
    del free[at], strides[at]
    of = list(_walked(source, (*free[:at], *layout.places, *free[at:])))
    along = tuple(of[at : at + len(layout.places)])
    del of[at : at + len(layout.places)]
    return cuda_segments.Target(
        layout.places,
        (0,) * len(layout.places),
        _places(x, indices, layout, [radix[k] for k in layout.axes]),
        prod(extents),
        cuda_segments.walk(extents, own, own),
        cuda_segments.walk(free, strides, of),
        along,
    )


def _put(combine: Callable, x: Arg, *args: Arg, axes, on_gpu: bool = False) -> list:
    source, *indices, y = args
    layout = _layout(x.shape, indices, axes)
    size = prod(layout.shape)
    launches = copy_all(x, y)
    if not size or not y.size:
        return launches
    if combine is replace_element:
        source, y = as_carriers(source, y)
    if on_gpu:
        found = cuda_segments.combined(combine, source, y, _target(x, source, indices, layout))
        if found is not None:
            return [*launches, *found]
    if source.size < size:
        spread, values = _spread(source, layout)
        launches += spread
    else:
        values = source
    located, positions = _positions(x, indices, layout)
    launches += located
    inner = strides_of(layout.shape)
    free = [k for k in range(len(layout.shape)) if k != layout.at]
    *outer, (count, ys, ss) = merged(
        *([values[k] for k in free] for values in (layout.shape, layout.x_strides, inner))
    )
    table, counters = odometer(outer)
    walk = (positions.size, inner[layout.at], count, ys, ss, len(outer), table, counters)
    units, grain = size // positions.size, max(1, 32768 // positions.size)
    return [
        *launches,
        Launch(put_columns(combine), values, positions, y, *walk, units=units, grain=grain),
    ]


def _spread(source: Arg, layout: _Layout) -> tuple[list[Launch], Scratch]:
    """`source` broadcast to all that is selected."""
    shape = (*layout.shape[: layout.at], *layout.places, *layout.shape[layout.at + 1 :])
    wide = Scratch(source.dtype, prod(shape))
    strides = _walked(source, shape)
    return copy_block(source, wide, shape, strides, strides_of(shape)), wide  # pyright: ignore[reportArgumentType]


# --- kernels --------------------------------------------------------------------------------------


def locate(index, positions, first, n, along, count, xs, rank, table, counters, lo, hi, lane):
    """Adds what one index of n, `along` apart in x, contributes; units are places."""
    at = offset(counters, lane * counter_words(rank))
    row = lo // count
    column = lo - row * count
    set_odometer(at, row, rank, table)
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        indices = offset(index, at[rank] + column * xs)
        target = offset(positions, hi - left)
        for i in range(m):
            k = np.int64(indices[i * xs])
            k = k + n if k < 0 else k
            before = 0 if first else target[i]
            inside = k >= 0 and k < n and before >= 0
            target[i] = before + k * along if inside else _NOWHERE
        left -= m
        column = 0
        advance_odometer(at, rank, table)


def pick_at(
    x, positions, y, count, xs, ps, nothing, rank, table, counters, lo, hi, lane
):  # fmt: skip
    """Units are elements of y; the odometer walks x and the positions, of which a row has one
    (`ps` is 0), or one for each element.
    """
    at = offset(counters, lane * counter_words(rank))
    row = lo // count
    column = lo - row * count
    set_odometer(at, row, rank, table)
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        target = offset(y, hi - left)
        source = offset(x, at[rank] + column * xs)
        of_row = offset(positions, at[rank + 1] + column * ps)
        if ps == 0 and of_row[0] >= 0:
            copy_segment(offset(source, of_row[0]), xs, target, 1, m)
        else:
            for i in range(m):
                p = of_row[i * ps]
                target[i] = source[p] if p >= 0 else nothing
        left -= m
        column = 0
        advance_odometer(at, rank, table)


@cache
def put_columns(combine: Callable) -> Callable:
    """Units are what is not indexed of x: for each, one lane handles all places in order. The
    odometer walks y and the source, in which places are `step` apart.
    """

    def kernel(
        source, positions, y, places, step, count, ys, ss, rank, table, counters, lo, hi, lane
    ):
        at = offset(counters, lane * counter_words(rank))
        row = lo // count
        column = lo - row * count
        set_odometer(at, row, rank, table)
        left = hi - lo
        while left > 0:
            m = min(count - column, left)
            # neighbours in memory after each other: across where columns are, else along places
            turns, wide = (1, m) if ys == 1 else (m, 1)
            for turn in range(turns):
                into = at[rank] + (column + turn) * ys
                of = at[rank + 1] + (column + turn) * ss
                for j in range(places):
                    p = positions[j]
                    if p >= 0:
                        target, values = offset(y, p + into), offset(source, j * step + of)
                        if wide == 1:
                            target[0] = combine(target[0], values[0])
                        else:
                            for i in range(wide):
                                target[i] = combine(target[i], values[i * ss])
            left -= m
            column = 0
            advance_odometer(at, rank, table)

    kernel.__name__ = f"put_{combine.__name__}"
    return kernel
