"""Convolutions in which each filter sees one channel: columns of an image as wide as a vector, read
where they are. Imported only where something is compiled.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu.vectors import WORD, Vectors, loop


def window_columns(size: int, stride: int):
    """(x, zeros, w, bias, biased, y, rows, columns, j): a vector of columns of y, from j on, under
    a filter of `size` by `size`; each element is a sum in the order of the filter's.

    `rows`, `columns`: padding before, size of y, size of x. `zeros` are as many as two vectors and
    a filter. Windows stand in registers, row by row: what the next one sees, too, is not read anew.
    """

    @intrinsic
    def slide(_, x, zeros, w, bias, biased, y, rows, columns, j):
        def generate(context, builder, signature, args):
            _slide(Vectors(context, builder, x.dtype), size, stride, *args)
            return context.get_dummy_value()

        word, axis = types.int64, types.CPointer(types.int64)
        return types.void(x, x, x, x, word, x, axis, axis, word), generate

    return slide


def _slide(v, size, stride, x, zeros, w, bias, biased, y, rows, columns, j):
    b = v.builder
    above, out_h, height = (b.load(b.gep(rows, [WORD(k)])) for k in range(3))
    before, out_w, width = (b.load(b.gep(columns, [WORD(k)])) for k in range(3))
    left = b.sub(b.mul(j, WORD(stride)), before)
    masks = [
        [_inside(v, b.add(left, WORD(s + k)), width) for k in v.begins(stride)] for s in range(size)
    ]
    kept = v.mask(b.sub(out_w, j))
    factors = [v.broadcast(b.load(v.at(w, WORD(k)))) for k in range(size * size)]
    filled = b.icmp_signed("!=", biased, WORD(0))
    start = b.select(filled, v.broadcast(b.load(bias)), v.zero)

    def seen(row):
        """What each column of the filter sees of a row; zeros beyond the image."""
        place = v.at(x, b.add(b.mul(row, width), left))
        place = b.select(b.icmp_unsigned("<", row, height), place, zeros)
        return [v.load_every(stride, masks[s], v.at(place, WORD(s))) for s in range(size)]

    def add_row(i, window):
        top = b.sub(b.mul(i, WORD(stride)), above)
        for r in range(size - stride, size):
            window = window + seen(b.add(top, WORD(r)))
        total = start
        for factor, pixels in zip(factors, window, strict=True):
            total = v.multiply_add(factor, pixels, total)
        v.store_under(kept, total, v.at(y, b.add(b.mul(i, out_w), j)))
        return window[stride * size :]

    first = [p for r in range(size - stride) for p in seen(b.sub(WORD(r), above))]
    loop(b, WORD(0), out_h, first, add_row)


def _inside(v, first, count):
    """The lanes whose elements, from `first` on, are among so many."""
    b = v.builder
    return b.and_(b.not_(v.mask(b.neg(first))), v.mask(b.sub(count, first)))
