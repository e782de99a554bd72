"""The transforms of Winograd's convolution by filters of 3x3 pixels, a vector of tiles at a time.
Imported only where something is compiled.

S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015 (F(2x2, 3x3)).
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu.vectors import INDEX, WORD, Vectors


def winograd_filters():
    """(g, pitch, to, apart, count): to[e*apart + j] from the filters' pixels g[p*pitch + j], for
    j < count, which is a vector at most.
    """

    def transform(v, g, pitch, count):
        read = _reader(v, g, pitch, v.mask(count))
        half = v.broadcast(ir.Constant(v.real, 0.5))

        def along(a, b, c):
            outer = v.add(a, c)
            halves = [v.builder.fmul(half, x) for x in (v.add(outer, b), _less(v, outer, b))]
            return [a, *halves, c]

        rows = [along(*(read(3 * r + s) for r in range(3))) for s in range(3)]
        return [x for r in range(4) for x in along(*(rows[s][r] for s in range(3)))]

    return _apart(transform)


def winograd_images():
    """(x, pitch, to, apart, count): to[e*apart + j] from pixels of a row of tiles. Rows of x are
    `pitch` apart; the first half of each holds every second pixel, the other one those between.
    """

    def transform(v, x, pitch, _):
        builder = v.builder

        def along(a, b, c, d):
            return [_less(v, a, c), v.add(b, c), _less(v, c, b), _less(v, b, d)]

        half = builder.udiv(pitch, WORD(2))
        columns = [WORD(0), half, WORD(1), builder.add(half, WORD(1))]
        reads = [_reader(v, v.at(x, at), pitch) for at in columns]
        seen = [along(*(read(r) for r in range(4))) for read in reads]
        return [y for r in range(4) for y in along(*(seen[s][r] for s in range(4)))]

    return _apart(transform)


def winograd_results():
    """(m, apart, start, y, line, columns, rows): rows, 1 or 2, of `columns` results, two vectors at
    most, from products m[e*apart + j]; `start` is added to each. Gives whether some are infinite or
    NaN.
    """

    @intrinsic
    def results(_, m, apart, start, y, line, columns, rows):
        def generate(context, builder, signature, args):
            v = Vectors(context, builder, m.dtype)
            m_, apart, start, y, line, columns, rows = args
            tiles = builder.udiv(builder.add(columns, WORD(1)), WORD(2))
            live = v.mask(tiles)
            read = _reader(v, m_, apart, live)
            first = v.broadcast(start)

            def along(a, b, c, d):
                return v.add(v.add(a, b), c), _less(v, _less(v, b, c), d)

            seen = [along(*(read(4 * r + s) for r in range(4))) for s in range(4)]
            odd = []
            for i in range(2):
                pair = [v.add(first, x) for x in along(*(seen[s][i] for s in range(4)))]
                differences = [_less(v, x, x) for x in pair]  # 0 unless infinite or NaN
                odd += [builder.fcmp_unordered("uno", d, d) for d in differences]
                with builder.if_then(builder.icmp_signed("<", WORD(i), rows)):
                    _store_in_turns(v, pair, v.at(y, builder.mul(line, WORD(i))), columns)
            some = odd[0]
            for lanes in odd[1:]:
                some = builder.or_(some, lanes)
            bits = builder.bitcast(builder.and_(some, live), ir.IntType(v.length))
            return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

        word = types.int64
        return types.boolean(m, word, m.dtype, m, word, word, word), generate

    return results


def _less(v, a, b):
    return v.builder.fsub(a, b)


def _reader(v, x, pitch, mask=None):
    return lambda k: v.load_under(mask, v.at(x, v.builder.mul(pitch, WORD(k))))


def _apart(transform):
    """Stores `transform(vectors, x, pitch, count)`, 16 vectors that are `apart`."""

    @intrinsic
    def run(_, x, pitch, to, apart, count):
        def generate(context, builder, signature, args):
            v = Vectors(context, builder, x.dtype)
            x_, pitch, to, apart, count = args
            found = transform(v, x_, pitch, count)
            full, some = builder.icmp_signed(">=", count, WORD(v.length)), v.mask(count)
            with builder.if_else(full) as (then, otherwise):
                for branch, mask in ((then, None), (otherwise, some)):
                    with branch:
                        for e, value in enumerate(found):
                            v.store_under(mask, value, v.at(to, builder.mul(apart, WORD(e))))
            return context.get_dummy_value()

        word = types.int64
        return types.void(x, word, x, word, word), generate

    return run


def _store_in_turns(v, pair, to, count):
    """The first `count` elements of both vectors, one of each in turns."""
    n = v.length
    for k in range(2):
        picks = [p for j in range(n // 2) for p in (k * n // 2 + j, n + k * n // 2 + j)]
        pattern = ir.Constant(ir.VectorType(INDEX, n), picks)
        value = v.builder.shuffle_vector(*pair, pattern)
        left = v.builder.sub(count, WORD(k * n))
        full = v.builder.icmp_signed(">=", left, WORD(n))
        with v.builder.if_else(full) as (then, otherwise):
            with then:
                v.store(value, v.at(to, WORD(k * n)))
            with otherwise, v.builder.if_then(v.builder.icmp_signed(">", left, WORD(0))):
                v.store_under(v.mask(left), value, v.at(to, WORD(k * n)))
