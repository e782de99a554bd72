"""Tiles of scores in registers: what attention does with a thread's part of a product, between two
products on tensor cores.

A thread has the numbers that `tiles.warp_product` gives for 16 rows: those of a lower and an upper
row, two neighbours of each in every eight columns. `low` and `high` are of the two rows; a pointer
to something of columns is to that of the thread's first one. Scores are powers of 2. Imported only
where something is compiled.
"""

# numba.cuda ships no types, and type checkers find an older one inside numba.
# pyright: reportAttributeAccessIssue=none, reportCallIssue=none

from __future__ import annotations

from llvmlite import ir
from numba.cuda import cgutils, types

from opstep.runtime.device.cuda.compiling.elements import converted, emits, halves
from opstep.runtime.device.cuda.compiling.tiles import (
    descriptors,
    halves_product,
    matrices,
    shared_address,
)

_WHOLE = ir.IntType(32)
_LONG = ir.IntType(64)
_SINGLE = ir.FloatType()
_SHARED = 3  # address space
_NAMES = ("f16", "bf16")
_INFINITY = float("inf")


def _asm(text: str, operands: int):
    kind = ir.FunctionType(_SINGLE, [_SINGLE] * operands)
    constraints = ",".join(["=f"] + ["f"] * operands)
    return ir.InlineAsm(kind, text, constraints, side_effect=False)


_EXP2 = _asm("ex2.approx.ftz.f32 $0, $1;", 1)
_LARGER = _asm("max.NaN.f32 $0, $1, $2;", 2)


def _is_high(k: int) -> int:
    return k // 2 % 2


def _column(k: int) -> int:
    """Of a thread's k-th number, counted from its first one."""
    return k // 4 * 8 + k % 2


def _elementwise(compute):
    """(numbers, low, high) -> a tuple of compute(builder, number, that of its row)."""

    @emits(lambda numbers, low, high: numbers(numbers, types.float32, types.float32))
    def apply(context, builder, signature, args):
        of_row = args[1:]
        made = [
            compute(builder, x, of_row[_is_high(k)])
            for k, x in enumerate(cgutils.unpack_tuple(builder, args[0]))
        ]
        return cgutils.pack_array(builder, made)

    return apply


def _power(builder, score, top):
    return builder.call(_EXP2, [builder.fsub(score, top)])


def scale_rows():
    """(numbers, low, high) -> each times that of its row."""
    return _elementwise(lambda builder, x, factor: builder.fmul(x, factor))


def powers_by_rows():
    """(scores, low, high) -> 2 to each, less that of its row."""
    return _elementwise(_power)


def _with_columns(compute, operands: int):
    """(numbers, ..., pointer) -> a tuple of compute(builder, numbers, that of their column)."""

    def generate(context, builder, signature, args):
        base = builder.addrspacecast(args[-1], ir.PointerType(_SINGLE, _SHARED))
        pair = ir.VectorType(_SINGLE, 2)
        given = [cgutils.unpack_tuple(builder, a) for a in args[:operands]]
        made = []
        for k in range(len(given[0])):
            if k % 4 == 0:
                place = builder.gep(base, [_WHOLE(_column(k))])
                place = builder.bitcast(place, ir.PointerType(pair, _SHARED))
                both = builder.load(place, align=8)
            of_column = builder.extract_element(both, _WHOLE(k % 2))
            made.append(compute(builder, *[numbers[k] for numbers in given], of_column))
        return cgutils.pack_array(builder, made)

    return generate


def powers_by_columns():
    """(scores, pointer to f32 in shared memory) -> 2 to each, less that of its column."""

    typed = emits(lambda scores, pointer: scores(scores, pointer))
    return typed(_with_columns(_power, 1))


def _weighted_difference(builder, weight, number, inner):
    return builder.fmul(weight, builder.fsub(number, inner))


def differences_by_columns():
    """(weights, numbers, pointer) -> each weight times its number less that of the column."""

    typed = emits(lambda weights, numbers, pointer: weights(weights, numbers, pointer))
    return typed(_with_columns(_weighted_difference, 2))


def differences_by_rows():
    """(weights, numbers, low, high) -> each weight times its number less that of the row."""

    def typed(weights, numbers, low, high):
        return weights(weights, numbers, types.float32, types.float32)

    @emits(typed)
    def apply(context, builder, signature, args):
        of_row = args[2:]
        ws, xs = (cgutils.unpack_tuple(builder, a) for a in args[:2])
        made = [
            _weighted_difference(builder, w, x, of_row[_is_high(k)])
            for k, (w, x) in enumerate(zip(ws, xs, strict=True))
        ]
        return cgutils.pack_array(builder, made)

    return apply


def hide_columns():
    """(scores, low, low_end, high, high_end): -inf but from columns low (high) to low_end
    (high_end), all counted from the thread's first one.
    """

    @emits(lambda scores, *ends: scores(scores, *[types.int64] * 4), 5)
    def hide(context, builder, signature, args):
        ends = [builder.trunc(v, _WHOLE) for v in args[1:]]
        made = []
        for k, score in enumerate(cgutils.unpack_tuple(builder, args[0])):
            first, end = ends[2 * _is_high(k) : 2 * _is_high(k) + 2]
            column = _WHOLE(_column(k))
            inside = builder.and_(
                builder.icmp_signed(">=", column, first), builder.icmp_signed("<", column, end)
            )
            made.append(builder.select(inside, score, _SINGLE(-_INFINITY)))
        return cgutils.pack_array(builder, made)

    return hide


def mask_scores(is_bool: int, paired: int = 0):
    """(scores, mask, low, high, step, last, factor): masked by element low (high) + column * step,
    where columns beyond `last` take its element. Bools hide; numbers are added, times `factor`.
    `paired`: bools of a column and the next are read as one, for low, high and last + 1 are even,
    and the step is 1.
    """
    pair, byte = ir.IntType(16), ir.IntType(8)

    def two(builder, memory, start, last, k):
        column = _LONG(_column(k))
        inside = builder.icmp_signed("<", column, last)
        column = builder.select(inside, column, builder.sub(last, _LONG(1)))
        at = builder.gep(memory, [builder.add(start, column)])
        found = builder.load(builder.bitcast(at, pair.as_pointer()))
        return builder.trunc(found, byte), builder.trunc(builder.lshr(found, pair(8)), byte)

    def typed(scores, mask, *numbers):
        return scores(scores, mask, *[types.int64] * 4, types.float32)

    @emits(typed, 7)
    def apply(context, builder, signature, args):
        mask, starts, (stride, final, times) = signature.args[1], args[2:4], args[4:]
        made, held = [], ()
        for k, score in enumerate(cgutils.unpack_tuple(builder, args[0])):
            hidden = builder.fadd(score, _SINGLE(-_INFINITY))  # NaN stays, and inf becomes it
            if paired:
                if k % 2 == 0:
                    held = two(builder, args[1], starts[_is_high(k)], final, k)
                seen = builder.icmp_unsigned("!=", held[k % 2], byte(0))
                made.append(builder.select(seen, score, hidden))
                continue
            column = _LONG(_column(k))
            column = builder.select(builder.icmp_signed("<", column, final), column, final)
            at = builder.add(starts[_is_high(k)], builder.mul(column, stride))
            found = builder.load(builder.gep(args[1], [at]))
            if is_bool:
                seen = builder.icmp_unsigned("!=", found, found.type(0))
                made.append(builder.select(seen, score, hidden))
            else:
                number = converted(context, builder, mask, found)
                number = context.cast(builder, number, mask.dtype, types.float32)
                made.append(builder.fma(number, times, score))
        return cgutils.pack_array(builder, made)

    return apply


# --- along rows -----------------------------------------------------------------------------------


def _by_row(numbers: list) -> tuple[list, list]:
    rows: tuple[list, list] = [], []
    for k, x in enumerate(numbers):
        rows[_is_high(k)].append(x)
    return rows


def _halved(combine, numbers: list):
    """Combined in pairs, so that few wait for each other."""
    while len(numbers) > 1:
        rest = numbers[len(numbers) // 2 * 2 :]
        numbers = [combine(*numbers[k : k + 2]) for k in range(0, len(numbers) - 1, 2)] + rest
    return numbers[0]


def _of_four_lanes(builder, combine, number):
    """With those of the lanes that have other columns of the same rows."""
    kind = ir.FunctionType(_WHOLE, [_WHOLE])
    for mask in (1, 2):
        text = f"shfl.sync.bfly.b32 $0, $1, {mask}, 31, 0xffffffff;"
        asm = ir.InlineAsm(kind, text, "=r,r", side_effect=True)
        other = builder.call(asm, [builder.bitcast(number, _WHOLE)])
        number = combine(number, builder.bitcast(other, _SINGLE))
    return number


def soften():
    """(scores, low_top, high_top), with the largest score of each row so far -> (2 to each score
    less the largest, low_top, high_top, what earlier powers are to be multiplied with: low_factor,
    high_factor, the thread's sums of powers: low_sum, high_sum). All is 0 while all is hidden.
    """

    def typed(scores, low_top, high_top):
        singles = [types.float32] * 6
        return types.Tuple((scores, *singles))(scores, *singles[:2])

    @emits(typed)
    def apply(context, builder, signature, args):
        numbers, befores = cgutils.unpack_tuple(builder, args[0]), args[1:]

        def larger(a, b):
            return builder.call(_LARGER, [a, b])

        tops, factors, shifts = [], [], []
        for row, before in zip(_by_row(numbers), befores, strict=True):
            top = larger(before, _of_four_lanes(builder, larger, _halved(larger, row)))
            hidden = builder.fcmp_ordered("==", top, _SINGLE(-_INFINITY))
            shift = builder.select(hidden, _SINGLE(0.0), top)
            tops.append(top)
            shifts.append(shift)
            factors.append(_power(builder, before, shift))
        made = [_power(builder, x, shifts[_is_high(k)]) for k, x in enumerate(numbers)]
        sums = [_halved(builder.fadd, row) for row in _by_row(made)]
        weights = cgutils.pack_array(builder, made)
        return context.make_tuple(builder, signature.return_type, [weights, *tops, *factors, *sums])

    return apply


def row_products():
    """(a, b) -> the thread's sums of a[k] * b[k] of each row."""

    @emits(lambda a, b: types.UniTuple(types.float32, 2)(a, b))
    def apply(context, builder, signature, args):
        xs, ys = (cgutils.unpack_tuple(builder, v) for v in args)
        products = [builder.fmul(x, y) for x, y in zip(xs, ys, strict=True)]
        sums = [_halved(builder.fadd, row) for row in _by_row(products)]
        return cgutils.pack_array(builder, sums)

    return apply


def sum_of_four():
    """x -> its sum over the lanes that have other columns of the same rows."""

    @emits(lambda x: x(x))
    def apply(context, builder, signature, args):
        return _of_four_lanes(builder, builder.fadd, args[0])

    return apply


# --- products with what is in registers -----------------------------------------------------------


def _words(builder, weights: list, bf16: int) -> list:
    """For every 16 terms the four words that `mma` and `wgmma` take of a left operand."""
    pairs = halves(builder, _NAMES[bf16], weights)
    return [pairs[k : k + 4] for k in range(0, len(pairs), 4)]


def warp_weighted(n_tiles: int, steps: int, extent: int, bf16: int):
    """(sums, weights, b) -> sums + weights·b for a warp: 16 rows by 8*n_tiles columns, over
    16*steps terms. `weights` are numbers as of `warp_product`, which become halves; lines of b are
    terms, `extent` of each 64 columns.
    """

    @emits(lambda sums, weights, b: sums(sums, weights, b))
    def multiply(context, builder, signature, args):
        total = cgutils.unpack_tuple(builder, args[0])
        words = _words(builder, cgutils.unpack_tuple(builder, args[1]), bf16)
        base, mma = shared_address(builder, args[2]), halves_product(bf16)
        for s in range(steps):
            for j in range(0, n_tiles, 2):
                four = matrices(builder, base, s, j // 2, 1, extent)
                for half in range(2):
                    at = 4 * (j + half)
                    column = four[2 * half : 2 * half + 2]
                    made = builder.call(mma, [*words[s], *column, *total[at : at + 4]])
                    total[at : at + 4] = [builder.extract_value(made, r) for r in range(4)]
        return cgutils.pack_array(builder, total)

    return multiply


def warpgroup_weighted(columns: int, steps: int, bf16: int):
    """(sums, weights, b) -> sums + weights·b for four warps, when it is done: like `warp_weighted`,
    for 64 rows by `columns`. Architecture 9.0 alone.
    """
    name, count = _NAMES[bf16], columns // 2
    outputs = ",".join(f"${r}" for r in range(count))
    lines = ["{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.fence.sync.aligned;"]
    for s in range(steps):
        words = ",".join(f"${count + 4 * s + r}" for r in range(4))
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {{{outputs}}}, "
            f"{{{words}}}, ${count + 4 * steps + s}, p, 1, 1, 1;"
        )
    lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
    held = ir.LiteralStructType([_SINGLE] * count)
    kind = ir.FunctionType(held, [_WHOLE] * (4 * steps) + [_LONG] * steps + [_SINGLE] * count)
    inputs = ["r"] * (4 * steps) + ["l"] * steps + [str(r) for r in range(count)]
    constraints = ",".join(["=f"] * count + inputs + ["~{memory}"])

    @emits(lambda sums, weights, b: sums(sums, weights, b))
    def multiply(context, builder, signature, args):
        four = _words(builder, cgutils.unpack_tuple(builder, args[1]), bf16)
        given = [word for words in four for word in words]
        given += descriptors(builder, args[2], steps, 1)
        asm = ir.InlineAsm(kind, " ".join(lines), constraints, side_effect=True)
        made = builder.call(asm, [*given, *cgutils.unpack_tuple(builder, args[0])])
        return cgutils.pack_array(builder, [builder.extract_value(made, r) for r in range(count)])

    return multiply
