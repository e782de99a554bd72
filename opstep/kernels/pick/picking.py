"""Elements picked and put by index: kernels of all ops that have a reach (`kernels.pick.reach`).

Several indices become one position in x for each of their places first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import ClassVar

import numpy as np

from opstep.kernels.move.copying import (
    advance_odometer,
    as_carriers,
    copy_all,
    copy_block,
    counter_words,
    filled,
    odometer,
    set_odometer,
)
from opstep.kernels.move.cuda_copying import reinterpreted, repeated
from opstep.kernels.pick import cuda_picking, cuda_putting
from opstep.kernels.pick.reach import (
    Index,
    Reach,
    Selection,
    existing,
    from_front,
    joined,
    positions,
    putter,
    read_at,
    strides_of,
    walked,
    written_at,
)
from opstep.kernels.rules.literals import bits_of, nowhere
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Held, Launch, Scratch
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import i64

_NOWHERE = -(1 << 62)  # the position of a place that does not exist, also if x's size is added


def add_elements(old, new):
    return old + new


def replace_element(old, new):
    return new


@cache
def always(value: int | float) -> Callable:
    """In the place of what was there and of what comes there is `value`."""

    def always(old, new):
        return value

    return always


def pick(
    x: Arg, y: Arg, reach: Reach, missing: int | float | None = None, on_gpu: bool = False
) -> Sequence[Launch | Grid]:
    """y, of as many elements as the reach has places, is what stands there; where there is nothing,
    `missing`, by default NaN or the largest integer.
    """
    if not y.size:
        return []
    if not reach.indices:
        return copy_block(x, y, reach.sizes, reach.steps, strides_of(reach.sizes))
    nothing = nowhere(x.dtype) if missing is None else bits_of(missing, x.dtype)
    if on_gpu and (found := cuda_picking.pick(x, y, reach, nothing)):
        return [found]
    launches, i = _one_index(reach)
    dims = joined(reach.sizes, reach.steps, i.steps)
    word = cuda_picking.word_of(dims, (i,), x.dtype.itemsize, 8)
    if word > 1:  # rows of wider elements, or no rows at all
        *above, (count, *near) = dims
        dims = [(n, xs // word, step) for n, xs, step in above]
        dims += [(count // word, *near)] if count > word else []
        nothing = repeated(nothing, x.dtype.itemsize)
    carrier = CARRIERS[word * x.dtype.itemsize]
    *outer, rows, row = [(1, 0, 0), *dims] if len(dims) == 1 else dims
    table, counters = odometer(outer, 0, i.start)
    args = (reinterpreted(x, carrier), i.of, reinterpreted(y, carrier), i.extent, i.along // word)
    args = (*args, *rows, *row, nothing)
    return [*launches, Launch(pick_rows, *args, len(outer), table, counters, units=y.size // word)]


def put(
    combine: Callable, source: Arg | Scratch, y: Arg | Scratch, reach: Reach,
    of: Sequence[int] | None = None, fresh: bool = False, on_gpu: bool = False,
) -> Sequence[Launch | Grid]:  # fmt: skip
    """``y = combine(y, element)`` for each element of the source at its place in y, which is there
    already, or with `fresh` begins at 0. Those that meet in one place do so in row-major order.
    `of`: strides of the source, by default those of a tensor with the sizes of the reach.
    """
    clear = filled(y, 0) if fresh else []
    if not y.size or not prod(reach.sizes):
        return clear
    of = strides_of(reach.sizes) if of is None else of
    if combine is replace_element:
        source, y = as_carriers(source, y)  # pyright: ignore[reportArgumentType] - as they are
    if on_gpu and (found := cuda_putting.put(combine, source, y, reach, of, clear)):
        return found
    launches, i = _one_index(reach)
    launches = [*clear, *launches]
    shared = [k for k, step in enumerate(reach.steps) if step == 0]
    if len(joined(*([v[k] for k in shared] for v in (reach.sizes, of)))) > 1:
        spread, source, of = _spread(source, reach.sizes, of)
        launches += spread
    ((length, *near),) = joined(*([v[k] for k in shared] for v in (reach.sizes, of, i.steps)))
    free = [k for k in range(len(of)) if k not in shared]
    dims = joined(*([v[k] for k in free] for v in (reach.sizes, reach.steps, of, i.steps)))
    walk = (len(dims), *(tuple(d[k] for d in dims) for k in range(4)))
    about = (i.extent, i.along, i.skipped, i.start)
    units, grain = prod(d[0] for d in dims), max(1, 32768 // length)
    kernel = put_columns(combine)
    args = (source, i.of, y, length, *near, *about, *walk)
    return [*launches, Launch(kernel, *args, units=units, grain=grain)]


def _one_index(reach: Reach) -> tuple[list[Launch], Index]:
    """(launches, the index that stands for all): of several, one of positions in x."""
    if len(reach.indices) == 1:
        return [], reach.indices[0]
    axes = [k for k in range(len(reach.sizes)) if any(i.steps[k] for i in reach.indices)]
    sizes = [reach.sizes[k] for k in axes]
    own, total = strides_of(sizes), prod(sizes)
    places, launches = Held(i64, (total,)), []
    if not reach.indices:
        launches += filled(places, 0)
    depth = len(reach.indices)
    if [i.start for i in reach.indices] == list(range(depth)):  # one operand's numbers
        groups = [reach.indices][:depth]
    else:
        groups = [(i,) for i in reach.indices]
    for n, group in enumerate(groups):
        (of, *_, walk, start, _), about = group[0], [(i.extent, i.along) for i in group]
        *outer, (count, step, _) = joined(sizes, [walk[k] for k in axes], own)
        table, counters = odometer(outer, start)
        args = (of, places, int(n == 0), len(group), *zip(*about, strict=True), count, step)
        launches.append(Launch(locate, *args, len(outer), table, counters, units=total))
    steps = [0] * len(reach.sizes)
    for k, step in zip(axes, own, strict=True):
        steps[k] = step
    bound = 1 + sum(max(i.extent - 1, 0) * i.along for i in reach.indices)
    return launches, Index(places, bound, 1, tuple(steps))


def _spread(source: Arg | Scratch, sizes: Sequence[int], of: Sequence[int]):
    """(launches, `source` broadcast to these sizes, its strides)."""
    wide, strides = Scratch(source.dtype, prod(sizes)), strides_of(sizes)
    return copy_block(source, wide, sizes, of, strides), wide, strides  # pyright: ignore[reportArgumentType]


# --- bases of ops --------------------------------------------------------------------------------


class Indexing(Op):
    """Base: of the shape of x, the indices and the attributes `reach` makes what kernels take, and
    `selection` the same for NumPy. ``launches(*operands, *results, **attrs)`` takes `on_gpu`, too.
    """

    reach: ClassVar[Callable[..., Reach]]
    selection: ClassVar[Callable[..., Selection]]
    launches: ClassVar[Callable[..., Sequence[Launch | Grid]]]

    @classmethod
    def cpu(cls, *args, **attrs):
        return cls.launches(*args, **attrs)

    @classmethod
    def cuda(cls, *args, **attrs):
        return cls.launches(*args, on_gpu=True, **attrs)


class Pick(Indexing):
    """Base: what stands in x at the places that indices reach."""

    traits = Traits(picks=True, moves=True)

    @classmethod
    def oracle(cls, x, *indices, missing=None, **attrs):
        return read_at(x, positions(cls.selection(x.shape, *indices, **attrs)), missing)

    @classmethod
    def launches(cls, x, *args, missing=None, on_gpu=False, **attrs):
        return pick(x, args[-1], cls.reach(x.shape, *args[:-1], **attrs), missing, on_gpu)

    @classmethod
    def outside(cls, operands, shape, *, missing=None, **attrs):
        x, *indices = operands
        exists = existing(cls.selection(x.shape, *indices, **attrs))
        return np.broadcast_to(~exists & (missing is None), shape)


class Put(Indexing):
    """Base: x, where what stands at these places meets `source`, one element after the other. The
    op `picks_up` reads what it puts.
    """

    inplace = (0,)
    traits = Traits(overwrites=True)
    combine: ClassVar[Callable]
    picks_up: ClassVar[str]

    @staticmethod
    def taken(x, index, source):
        """(x, what is put, indices) of the operands."""
        return x, source, (index,)

    @classmethod
    def oracle(cls, *operands, **attrs):
        x, source, indices = cls.taken(*operands)
        return written_at(cls.combine, x, cls.selection(x.shape, *indices, **attrs), source)

    @classmethod
    def launches(cls, *args, on_gpu=False, **attrs):
        (x, source, indices), y = cls.taken(*args[:-1]), args[-1]
        reach = cls.reach(x.shape, *indices, **attrs)
        of = None if source.size == prod(reach.sizes) else walked(source, reach.sizes)
        return [*copy_all(x, y), *put(cls.combine, source, y, reach, of, on_gpu=on_gpu)]

    @classmethod
    def outside(cls, operands, shape, **attrs):
        x, _, indices = cls.taken(*operands)
        return np.asarray(not existing(cls.selection(x.shape, *indices, **attrs)).all())

    @classmethod
    def grad(cls, g, operands, results, grads, **attrs):
        x, index, source = operands
        (gy,) = grads
        by_source = getattr(g, cls.picks_up)(gy, index, missing=0.0, **attrs)
        if cls.combine is replace_element:
            zeros = g.full(shape=source.shape, value=0.0, dtype=gy.dtype)
            gy = getattr(g, cls.name)(gy, index, zeros, **attrs)
        return g.to_dtype(gy, x.dtype), None, g.to_dtype(by_source, source.dtype)


class PickGrad(Indexing):
    """Base: the gradient of a `Pick` by x: that of each element, added where it was read."""

    @classmethod
    def launches(cls, gy, index, gx, *, on_gpu=False, **attrs):
        reach = cls.reach(gx.shape, index, **attrs)
        return put(add_elements, gy, gx, reach, fresh=True, on_gpu=on_gpu)

    def flops(gy, index, **attrs):
        return gy.size


# --- kernels --------------------------------------------------------------------------------------


def locate(
    index, positions, first, depth, extents, along, count, step, rank, table, counters, lo, hi, lane
):  # fmt: skip
    """Adds what an operand contributes, `depth` numbers one after the other; units are places."""
    at = offset(counters, lane * counter_words(rank))
    row = lo // count
    column = lo - row * count
    set_odometer(at, row, rank, table)
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        indices = offset(index, at[rank] + column * step)
        target = offset(positions, hi - left)
        for i in range(m):
            place = 0 if first else target[i]
            for d in range(depth):
                k = from_front(indices[i * step + d], extents[d])
                inside = k >= 0 and k < extents[d] and place >= 0
                place = place + k * along[d] if inside else _NOWHERE
            target[i] = place
        left -= m
        column = 0
        advance_odometer(at, rank, table)


def pick_rows(
    x, index, y, n, along, rows, x_apart, apart, count, xs, step, nothing, rank, table, counters,
    lo, hi, lane,
):  # fmt: skip
    """Units are elements of y; the odometer walks planes of x and of the index, of which a row has
    one (`step` is 0), or one for each element.
    """
    at = offset(counters, lane * counter_words(rank))
    plane = lo // (rows * count)
    row = lo // count - plane * rows
    column = lo - (plane * rows + row) * count
    set_odometer(at, plane, rank, table)
    in_x, in_index = at[rank], at[rank + 1]
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        target = offset(y, hi - left)
        source = offset(x, in_x + row * x_apart + column * xs)
        wanted = offset(index, in_index + row * apart + column * step)
        if step != 0:
            for i in range(m):
                k = from_front(wanted[i * step], n)
                target[i] = source[k * along + i * xs] if k >= 0 and k < n else nothing
        else:
            k = from_front(wanted[0], n)
            if k >= 0 and k < n:
                source = offset(source, k * along)
                if xs == 1:
                    for i in range(m):
                        target[i] = source[i]
                else:
                    for i in range(m):
                        target[i] = source[i * xs]
            else:
                for i in range(m):
                    target[i] = nothing
        left -= m
        column = 0
        row += 1
        if row == rows:
            row = 0
            advance_odometer(at, rank, table)
            in_x, in_index = at[rank], at[rank + 1]


def stand(row, rank, sizes, steps):
    """The place of a row: all axes but the last are walked."""
    place = 0
    for back in range(2, rank + 1):
        above = row // sizes[rank - back]
        place += (row - above * sizes[rank - back]) * steps[rank - back]
        row = above
    return place


@cache
def put_columns(combine: Callable) -> Callable:
    """Units are what is not shared of y, columns, of `length` elements each: one lane handles them
    in order. `near`, `index_near`: from one to the next in the source, and in the index.
    """
    put_one = putter(combine)

    def kernel(
        source, index, y, length, near, index_near, n, along, skipped, start, rank, sizes, to, of,
        by_index, lo, hi,
    ):  # fmt: skip
        count, ys, ss, step = sizes[rank - 1], to[rank - 1], of[rank - 1], by_index[rank - 1]
        unit = lo
        while unit < hi:
            row = unit // count
            column = unit - row * count
            m = min(count - column, hi - unit)
            into = offset(y, stand(row, rank, sizes, to) + column * ys)
            values = offset(source, stand(row, rank, sizes, of) + column * ss)
            wanted = offset(index, start + stand(row, rank, sizes, by_index) + column * step)
            # neighbours in memory after each other: across where columns are, else along them
            if ys != 1 or m == 1:
                for i in range(m):
                    target, of_column = offset(into, i * ys), offset(values, i * ss)
                    of_index = offset(wanted, i * step)
                    for j in range(length):
                        k = of_index[j * index_near]
                        put_one(target, k, n, along, skipped, of_column[j * near])
            else:
                for j in range(length):
                    part, of_row = offset(values, j * near), offset(wanted, j * index_near)
                    if step != 0:
                        for i in range(m):
                            put_one(
                                offset(into, i), of_row[i * step], n, along, skipped, part[i * ss]
                            )
                    else:
                        k = from_front(of_row[0], n)
                        if k >= 0 and k < n and k != skipped:
                            target = offset(into, k * along)
                            for i in range(m):
                                target[i] = combine(target[i], part[i * ss])
            unit += m

    kernel.__name__ = f"put_{combine.__name__}"
    return kernel
