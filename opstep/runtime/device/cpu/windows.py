"""Convolutions in which each filter sees one channel: rows of an image, read where they are.
Imported only where something is compiled.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu.vectors import WORD, Vectors, loop

_SHORTEST = 4  # elements of a vector, where rows are not shorter


def window_rows(size: int, stride: int):
    """(x, zeros, w, bias, biased, y, rows, columns): y under a filter of `size` by `size`; each
    element is a sum in the order of the filter's.

    `rows`, `columns`: padding before, size of y, size of x. `zeros` are as many as a row of x has.
    """

    @intrinsic
    def slide(_, x, zeros, w, bias, biased, y, rows, columns):
        def generate(context, builder, signature, args):
            longest = Vectors(context, builder, x.dtype).length
            out_w = builder.load(builder.gep(args[-1], [WORD(1)]))
            end = builder.append_basic_block("end")
            for length in _lengths(longest):
                fits = builder.icmp_signed(">=", out_w, WORD(length))
                here = builder.append_basic_block(f"of{length}")
                shorter = builder.append_basic_block("shorter")
                builder.cbranch(fits, here, shorter)
                builder.position_at_end(here)
                _slide(Vectors(context, builder, x.dtype, length), size, stride, *args)
                builder.branch(end)
                builder.position_at_end(shorter)
            shortest = min(longest, _SHORTEST)
            _slide(Vectors(context, builder, x.dtype, shortest), size, stride, *args, short=True)
            builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        word, axis = types.int64, types.CPointer(types.int64)
        return types.void(x, x, x, x, word, x, axis, axis), generate

    return slide


def _lengths(longest: int) -> list[int]:
    """Of vectors that a row is covered with, the longest first."""
    lengths = [longest]
    while lengths[-1] > _SHORTEST:
        lengths.append(lengths[-1] // 2)
    return lengths


def _slide(v, size, stride, x, zeros, w, bias, biased, y, rows, columns, short=False):
    """Rows in vectors, the last of which ends where the row does: no store needs a mask, but where
    rows are shorter than one (`short`).
    """
    b = v.builder
    above, out_h, height = (b.load(b.gep(rows, [WORD(k)])) for k in range(3))
    before, out_w, width = (b.load(b.gep(columns, [WORD(k)])) for k in range(3))
    factors = [v.broadcast(b.load(v.at(w, WORD(k)))) for k in range(size * size)]
    filled = b.icmp_signed("!=", biased, WORD(0))
    start = b.select(filled, v.broadcast(b.load(bias)), v.zero)
    count = b.udiv(b.add(out_w, WORD(v.length - 1)), WORD(v.length))
    kept = v.mask(out_w) if short else None
    reach = WORD((v.length - 1) * stride + size)  # of a vector's windows

    def left_of(j):
        """Where the window of column j begins."""
        return b.sub(b.mul(j, WORD(stride)), before)

    def at_edge(j):
        """The masks of a vector of windows, for each column of the filter."""
        left = left_of(j)
        places = [[b.add(left, WORD(s + k)) for k in v.begins(stride)] for s in range(size)]
        return [[_inside(v, place, width) for place in some] for some in places]

    def add_vector(i, places, j, masks):
        left = left_of(j)
        total = start
        for r, place in enumerate(places):
            for s, under in enumerate(masks):
                seen = v.load_every(stride, under, v.at(place, b.add(left, WORD(s))))
                total = v.multiply_add(factors[r * size + s], seen, total)
        v.store_under(kept, total, v.at(y, b.add(b.mul(i, out_w), j)))

    first, last = WORD(0), b.sub(out_w, WORD(v.length))
    of_first, of_last = at_edge(first), at_edge(last)
    inside = [[None] * stride] * size

    def add_row(i, _):
        top = b.sub(b.mul(i, WORD(stride)), above)
        places = []
        for r in range(size):
            row = b.add(top, WORD(r))
            seen = v.at(x, b.mul(row, width))
            places.append(b.select(b.icmp_unsigned("<", row, height), seen, zeros))

        def add_between(k, _):
            j = b.mul(k, WORD(v.length))
            left = left_of(j)
            ends = b.icmp_signed("<=", b.add(left, reach), width)
            whole = b.and_(b.icmp_signed(">=", left, WORD(0)), ends)
            with b.if_else(whole, likely=True) as (then, otherwise):
                with then:
                    add_vector(i, places, j, inside)
                with otherwise:
                    add_vector(i, places, j, at_edge(j))
            return []

        add_vector(i, places, first, of_first)
        if not short:
            loop(b, WORD(1), b.sub(count, WORD(1)), [], add_between)
            with b.if_then(b.icmp_signed(">", count, WORD(1))):
                add_vector(i, places, last, of_last)
        return []

    loop(b, WORD(0), out_h, [], add_row)


def _inside(v, first, count):
    """The lanes whose elements, from `first` on, are among so many."""
    b = v.builder
    return b.and_(b.not_(v.mask(b.neg(first))), v.mask(b.sub(count, first)))
