"""Register tiles: the inner loops of matrix products and convolutions, as LLVM vectors.

LLVM does not find these loops in scalar code: a tile of results must stay in vector registers while
a thousand products are added to it. Three forms, for any number type:

- `outer_tile`: vectors lie along the columns of the result. Each step broadcasts one number a row
  from the left and multiplies it with a few vectors from the right.
- `column_tile`: vectors lie along the rows of the result. For the few columns that fill no vector:
  pieces of left rows are transposed in registers.
- `inner_tile`: vectors lie along the sum. Each step multiplies vectors of left rows with vectors of
  right rows; the lanes are added up at the end. For operands that are both contiguous along the
  sum.

The first two also come in a `kind` that takes words of bytes (`packed`): a product is then the sum
of those of their bytes.

Every product is added with one rounding (`fma`). An element of `outer_tile` is one sum in the order
of the steps, whatever the width of the machine's vectors, and so is one of `column_tile`; the
vectors of `inner_tile` have one length on all machines. So bits depend neither on where a tile
begins nor on the processor. Imported only where something is compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu import processor
from opstep.runtime.device.cpu.packed import vectors_of
from opstep.runtime.device.cpu.vectors import (
    FIXED,
    INDEX,
    WORD,
    Vectors,
    emits,
    joined,
    loop,
    merged,
    transposed,
)

# widths (in vectors) that an outer tile of so many rows comes in
_WIDTHS = {128: (1, 2, 3), 8: (1, 2, 3), 4: (1, 2, 4, 6), 2: (1, 2, 4, 8), 1: (1, 2, 4, 8)}
_SIDE_BY_SIDE = 2  # groups of rows that one column is computed for: sums that need not wait
_TOGETHER = 4  # steps between two tests for the end, where factors follow each other


def _clamped(builder, i: int, live):
    """min(i, live - 1): rows past the last are the last once more."""
    last = builder.sub(live, WORD(1))
    return builder.select(builder.icmp_signed("<", WORD(i), last), WORD(i), last)


def _pinned(builder, word):
    """The same word, which LLVM may not look at before it is needed: it would prepare each tile for
    ways that it does not take.
    """
    same = ir.FunctionType(word.type, [word.type])
    return builder.asm(same, "", "=r,0", [word], side_effect=True)


def outer_tile(rows: int, kind: int = 0):
    """c[i, j] = start + sum over k of a[i*a_row + k*a_step] * b[table[k] + j]

    (steps, a, a_row, a_step, b, table, c, c_row, mode, start, start_row, live, columns, limited,
    limits): for i < live <= rows and j < columns <= `widest(rows)` vectors. Reads b up to the end
    of the tile's last vector, and computes with what stands there. The sum starts from 0 (mode 0),
    from start[i*start_row + j] (mode 1) or from start[i*start_row] (mode 2). If `limited`, results
    are clamped by `limits` (`launch.Launch` says how).
    """

    @intrinsic
    def tile(
        _, steps, a, a_row, a_step, b, table, c, c_row, mode, start, start_row, live, columns,
        limited, limits,
    ):  # fmt: skip
        def generate(context, builder, signature, args):
            v = vectors_of(kind, context, builder, a.dtype)
            end = builder.append_basic_block("end")
            columns = args[12]
            sure = 0
            for width in _WIDTHS[rows]:
                fits = builder.icmp_signed("<=", columns, WORD(width * v.length))
                here = builder.append_basic_block(f"width{width}")
                wider = builder.append_basic_block("wider")
                builder.cbranch(fits, here, wider)
                builder.position_at_end(here)
                _outer(v, rows, width, sure, *args)
                sure = width
                builder.branch(end)
                builder.position_at_end(wider)
            builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        word, table_type = types.int64, types.CPointer(types.int64)
        signature = types.void(
            *(word, a, word, word, a, table_type, a, word, word, a, word, word, word),
            *(word, table_type),
        )
        return signature, generate

    return tile


def _outer(v, rows, width, sure, steps, a, a_row, a_step, b, table, c, c_row, *rest):
    """A tile `width` vectors wide, of which `sure` are full, in bands of as many rows as the
    registers hold. Rows past the most are another tile's.
    """
    mode, start, start_row, live, columns, *limits = rest
    builder, registers = v.builder, processor.this().registers[1]
    live = builder.select(builder.icmp_signed("<", live, WORD(rows)), live, WORD(rows))
    band = next(
        r for r in (8, 4, 2, 1) if r <= rows and (r * width + width + 1 <= registers or r == 1)
    )
    masks = [v.mask(builder.sub(columns, WORD(j * v.length))) for j in range(sure, width)]
    masks = [None] * sure + masks
    full = builder.icmp_signed(">=", columns, WORD(width * v.length))
    # where registers do not suffice, the last right vector is an operand in memory for each row, at
    # an offset that LLVM does not know to be the same
    crowded = v.spare > 0 and band * width + width + 1 + v.spare > registers
    last = [_pinned(builder, WORD((width - 1) * v.length)) for _ in range(band * crowded)]
    regular = builder.icmp_signed("==", a_step, WORD(1))
    blocks = builder.select(regular, builder.udiv(steps, WORD(_TOGETHER)), WORD(0))

    def add_up(k, none):
        first = builder.mul(k, WORD(band))
        here = builder.sub(live, first)
        rank = [builder.add(first, _clamped(builder, i, here)) for i in range(band)]
        left = [v.at(a, builder.mul(a_row, i)) for i in rank]
        origin = [v.at(start, builder.mul(start_row, i)) for i in rank]
        target = [v.at(c, builder.mul(c_row, i)) for i in rank]

        def step(k, sums, across=None):
            base = v.at(b, builder.load(builder.gep(table, [k])))
            right = [v.load(v.at(base, WORD(j * v.length))) for j in range(width - crowded)]
            across = across or builder.mul(k, a_step)
            after = []
            for i, row in enumerate(left):
                factor = v.broadcast(builder.load(v.at(row, across)))
                whole = [*right, v.load(v.at(base, last[i]))] if crowded else right
                known = sums[i * width : (i + 1) * width]
                after += [v.multiply_add(factor, r, s) for r, s in zip(whole, known, strict=True)]
            return after

        def steps_together(block, sums):
            for u in range(_TOGETHER):
                k = builder.add(builder.mul(block, WORD(_TOGETHER)), WORD(u))
                sums = step(k, sums, k)
            return sums

        sums = _start(v, mode, origin, masks)
        sums = loop(builder, WORD(0), blocks, sums, steps_together)
        sums = loop(builder, builder.mul(blocks, WORD(_TOGETHER)), steps, sums, step)
        _finish(v, _limited(v, sums, *limits), target, masks, full)
        return none

    bands = builder.sdiv(builder.add(live, WORD(band - 1)), WORD(band))
    loop(builder, WORD(0), bands, [], add_up)


def _start(v, mode, origin, masks):
    """The accumulators' first values, by `mode`."""
    builder = v.builder
    joined = builder.append_basic_block("joined")
    ways = [builder.append_basic_block(f"from{k}") for k in range(3)]
    switch = builder.switch(mode, ways[0])
    for k in (1, 2):
        switch.add_case(WORD(k), ways[k])
    incoming = []
    for k, block in enumerate(ways):
        builder.position_at_end(block)
        values = []
        for row in origin:
            if k == 0:
                values += [v.zero] * len(masks)
            elif k == 1:
                places = [v.at(row, WORD(j * v.length)) for j in range(len(masks))]
                values += [v.load_under(m, p) for m, p in zip(masks, places, strict=True)]
            else:
                values += [v.broadcast(builder.load(row))] * len(masks)
        incoming.append((builder.block, values))
        builder.branch(joined)
    builder.position_at_end(joined)
    return merged(builder, incoming)


def _limited(v, sums, limited, limits):
    """The sums, clamped if `limited`."""
    if not v.floating:
        return sums
    builder = v.builder
    before = builder.block
    with builder.if_then(builder.icmp_signed("!=", limited, WORD(0))):
        bits = [builder.load(builder.gep(limits, [WORD(k)])) for k in (1, 2, 3)]
        found = v.clamped(sums, *(v.broadcast(v.from_bits(b)) for b in bits))
        after = builder.block
    return merged(builder, [(before, sums), (after, found)])


def _finish(v, sums, target, masks, full):
    """Stores the tile; without masks where it is `full`."""
    with v.builder.if_else(full) as (then, otherwise):
        for branch, chosen in ((then, [None] * len(masks)), (otherwise, masks)):
            with branch:
                values = iter(sums)
                for row in target:
                    for j, mask in enumerate(chosen):
                        v.store_under(mask, next(values), v.at(row, WORD(j * v.length)))


def column_tile(columns: int, kind: int = 0):
    """c[i, j] = start + sum over k of a[i*a_row + k] * b[table[k] + j]

    (steps, a, a_row, b, table, c, c_row, mode, start, start_row, live, live_columns, limited,
    limits): for i < live <= `column_rows` and j < live_columns <= `columns`. The start and the
    limits are those of `outer_tile`.
    """

    @intrinsic
    def tile(
        _, steps, a, a_row, b, table, c, c_row, mode, start, start_row, live, live_columns, limited,
        limits,
    ):  # fmt: skip
        def generate(context, builder, signature, args):
            v = _of_rows(context, builder, a.dtype, kind)
            piece = Vectors(context, builder, a.dtype, min(v.length, 16 // v.size))
            live, some = args[10:12]
            one = builder.icmp_signed("==", some, WORD(1))
            with builder.if_else(one) as (then, otherwise):
                with then:
                    _columns(v, piece, 1, range(_SIDE_BY_SIDE), *args)
                with otherwise:
                    for group in range(_SIDE_BY_SIDE):
                        first = WORD(group * v.length)
                        with builder.if_then(builder.icmp_signed("<", first, live)):
                            _columns(v, piece, columns, range(group, group + 1), *args)
            return context.get_dummy_value()

        word, table_type = types.int64, types.CPointer(types.int64)
        signature = types.void(
            *(word, a, word, a, table_type, a, word, word, a, word, word, word, word, table_type)
        )
        return signature, generate

    return tile


def column_rows():
    """(pointer) -> rows of a `column_tile` of its type."""

    @emits(lambda pointer: types.int64(pointer))
    def rows(context, builder, signature, args):
        number = signature.args[0].dtype
        return WORD(_SIDE_BY_SIDE * _of_rows(context, builder, number).length)

    return rows


def _of_rows(context, builder, number, kind=0):
    """Vectors of as many rows as registers can transpose at once."""
    size, count = processor.this().registers
    itemsize = context.get_abi_sizeof(context.get_value_type(number))
    return vectors_of(kind, context, builder, number, min(size // itemsize, count // 2))


def _columns(
    v, piece, columns, groups, steps, a, a_row, b, table, c, c_row, mode, start, start_row, live,
    some, limited, limits,
):  # fmt: skip
    """The tile of these `groups` of rows, each a vector's."""
    builder, n = v.builder, v.length
    live = _pinned(builder, live)
    row = [[_clamped(builder, g * n + i, live) for i in range(n)] for g in groups]
    column = [_clamped(builder, j, some) for j in range(columns)]
    left = [[v.at(a, builder.mul(a_row, i)) for i in rows] for rows in row]

    def add_products(k, kk, turned, sums):
        base = v.at(b, builder.load(builder.gep(table, [builder.add(k, WORD(kk))])))
        right = [v.broadcast(builder.load(v.at(base, j))) for j in column]
        return [v.multiply_add(turned[kk], x, s) for x, s in zip(right, sums, strict=True)]

    def add_block(block, sums):
        k = builder.mul(block, WORD(n))
        after = []
        for g, rows in enumerate(left):
            known = sums[g * columns : (g + 1) * columns]
            turned = _turned(v, piece, [v.at(p, k) for p in rows], None)
            for kk in range(n):
                known = add_products(k, kk, turned, known)
            after += known
        return after

    blocks = builder.sdiv(steps, WORD(n))
    begin = [_start_columns(v, mode, start, start_row, rows, column) for rows in row]
    sums = loop(builder, WORD(0), blocks, [s for group in begin for s in group], add_block)
    done = builder.mul(blocks, WORD(n))
    rest = builder.sub(steps, done)
    for g, rows in enumerate(left):
        known = sums[g * columns : (g + 1) * columns]
        end = builder.append_basic_block("end")
        exits, turned = [], []
        for kk in range(n - 1):
            exits.append((builder.block, known))
            more = builder.append_basic_block("more")
            builder.cbranch(builder.icmp_signed("<", WORD(kk), rest), more, end)
            builder.position_at_end(more)
            turned = turned or _turned(v, piece, [v.at(p, done) for p in rows], rest)
            known = add_products(done, kk, turned, known)
        exits.append((builder.block, known))
        builder.branch(end)
        builder.position_at_end(end)
        totals = _limited(v, merged(builder, exits), limited, limits)
        for lane, i in enumerate(row[g]):
            target = v.at(c, builder.mul(c_row, i))
            for j, total in zip(column, totals, strict=True):
                builder.store(builder.extract_element(total, INDEX(lane)), v.at(target, j))


def _turned(v, piece, rows, count):
    """Vectors of the elements 0, 1, … of all rows; of the first `count`, if given. Processors
    transpose faster within 16 bytes, so what is put together are pieces of rows that far apart.
    """
    n, e = v.length, piece.length
    found = []
    for first in range(0, n, e):
        place = [v.at(p, WORD(first)) for p in rows]
        mask = None if count is None else piece.mask(v.builder.sub(count, WORD(first)))
        parts = [piece.load_under(mask, p) for p in place]
        found += transposed(v.builder, [joined(v.builder, parts[q::e]) for q in range(e)])
    return found


def _start_columns(v, mode, start, start_row, row, column):
    """A vector of first values for each column, by `mode`."""
    builder = v.builder
    apart = builder.select(builder.icmp_signed("==", mode, WORD(1)), WORD(1), WORD(0))
    before = builder.block
    with builder.if_then(builder.icmp_signed("!=", mode, WORD(0))):
        found = []
        for j in column:
            vector = v.zero
            for lane, i in enumerate(row):
                place = builder.add(builder.mul(start_row, i), builder.mul(apart, j))
                value = builder.load(v.at(start, place))
                vector = builder.insert_element(vector, value, INDEX(lane))
            found.append(vector)
        after = builder.block
    return merged(builder, [(before, [v.zero] * len(found)), (after, found)])


def inner_tile(rows: int, columns: int):
    """c[i*c_row + j*c_column] = start + sum over k < steps of a[i*a_row + k] * b[table[j] + k]

    (steps, a, a_row, b, table, c, c_row, c_column, mode, start, live_rows, live_columns): for i <
    live_rows <= rows, j < live_columns <= columns. `start` is 0 (mode 0), the old c (mode 1) or
    start[j] (mode 2).
    """

    @intrinsic
    def tile(
        _, steps, a, a_row, b, table, c, c_row, c_column, mode, start, live_rows, live_columns
    ):
        def generate(context, builder, signature, args):
            size = context.get_abi_sizeof(context.get_value_type(a.dtype))
            v = Vectors(context, builder, a.dtype, FIXED // size)
            high, wide = _bands(rows, columns)
            for i in range(0, rows, high):
                for j in range(0, columns, wide):
                    corner = [builder.icmp_signed("<", WORD(i), args[-2])]
                    corner += [builder.icmp_signed("<", WORD(j), args[-1])]
                    with builder.if_then(builder.and_(*corner)):
                        inside = range(i, i + high), range(j, min(j + wide, columns))
                        _inner(v, *inside, *args)
            return context.get_dummy_value()

        word, table_type = types.int64, types.CPointer(types.int64)
        signature = types.void(*(word, a, word, a, table_type, a, word, word, word, a, word, word))
        return signature, generate

    return tile


def _bands(rows: int, columns: int) -> tuple[int, int]:
    """The rows and columns of an inner tile whose sums the machine's registers hold at once."""
    size, number = processor.this().registers
    parts = FIXED // size  # registers that a vector takes
    heights = [h for h in (4, 2, 1) if h <= rows]
    widths = sorted({-(-columns // d) for d in (1, 2, 4, 8)}, reverse=True)
    fitting = [(h, w) for h in heights for w in widths if (h * w + min(h, w)) * parts <= number]
    return max(fitting, key=lambda band: band[0] * band[1], default=(1, 1))


def _inner(v, rows, columns, steps, a, a_row, b, table, c, c_row, c_column, mode, start, *live):
    builder = v.builder
    row = [_clamped(builder, i, live[0]) for i in rows]
    column = [_clamped(builder, j, live[1]) for j in columns]
    left = [v.at(a, builder.mul(a_row, i)) for i in row]
    right = [v.at(b, builder.load(builder.gep(table, [j]))) for j in column]

    def add_products(load, place, sums):
        ls = [load(v.at(p, place)) for p in left]
        rs = [load(v.at(p, place)) for p in right]
        products = [(x, y) for x in ls for y in rs]
        return [v.multiply_add(x, y, s) for (x, y), s in zip(products, sums, strict=True)]

    blocks = builder.sdiv(steps, WORD(v.length))
    sums = loop(
        builder,
        WORD(0),
        blocks,
        [v.zero] * (len(left) * len(right)),
        lambda k, sums: add_products(v.load, builder.mul(k, WORD(v.length)), sums),
    )
    done = builder.mul(blocks, WORD(v.length))
    mask = v.mask(builder.sub(steps, done))
    rest = builder.icmp_signed("<", done, steps)
    before = builder.block
    with builder.if_then(rest):
        more = add_products(lambda p: v.load_under(mask, p), done, sums)
        tail = builder.block
    totals = v.totals(merged(builder, [(before, sums), (tail, more)]))
    _finish_inner(v, totals, row, column, c, c_row, c_column, mode, start)


def _finish_inner(v, totals, row, column, c, c_row, c_column, mode, start):
    """Adds each total to its first value. A clamped row or column writes what the true one did."""
    builder = v.builder
    places, firsts = [], []
    accumulates = builder.icmp_signed("==", mode, WORD(1))
    biased = builder.icmp_signed("==", mode, WORD(2))
    zero = ir.Constant(v.real, 0.0 if v.floating else 0)
    for i in row:
        for j in column:
            address = v.at(c, builder.add(builder.mul(i, c_row), builder.mul(j, c_column)))
            source = builder.select(biased, v.at(start, j), address)
            loads = builder.or_(accumulates, biased)
            before = builder.block
            with builder.if_then(loads):
                value = builder.load(source)
                block = builder.block
            places.append(address)
            firsts += merged(builder, [(before, [zero]), (block, [value])])
    for address, first, total in zip(places, firsts, totals, strict=True):
        builder.store(v.add(first, total), address)
