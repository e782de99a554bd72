"""Register tiles: the inner loops of matrix products and convolutions, as LLVM vectors.

LLVM does not find these loops in scalar code: a tile of results must stay in vector registers while
a thousand products are added to it. Two forms, for any number type:

- `outer_tile`: vectors lie along the columns of the result. Each step broadcasts one number a row
  from the left and multiplies it with a few vectors from the right.
- `inner_tile`: vectors lie along the sum. Each step multiplies vectors of left rows with vectors of
  right rows; the lanes are added up at the end. For operands that are both contiguous along the
  sum.

An element of `outer_tile` is one sum in the order of the steps, so its bits depend neither on where
its tile begins nor on the width of the machine's vectors. Imported only where something is
compiled.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_INDEX = ir.IntType(32)
# widths (in vectors) that an outer tile of so many rows comes in; rows * width fit in 32 registers
_WIDTHS = {8: (1, 2, 3), 4: (1, 2, 4, 6), 2: (1, 2, 4, 8), 1: (1, 2, 4, 8)}


@cache
def _registers() -> tuple[int, int]:
    """(bytes of a vector register, number of such registers) of this machine."""
    import llvmlite.binding as llvm

    has = llvm.get_host_cpu_features()
    if has.get("avx512f"):
        return 64, 32
    if has.get("avx2"):
        return 32, 16
    return 16, 16 if "sse2" in has else 32


class _Vectors:
    """Emits vector code for one element type."""

    def __init__(self, context, builder, number):
        self.builder = builder
        self.real = context.get_value_type(number)
        self.size = context.get_abi_sizeof(self.real)
        self.length = _registers()[0] // self.size
        self.type = ir.VectorType(self.real, self.length)
        self.floating = isinstance(number, types.Float)
        zero = 0.0 if self.floating else 0
        self.zero = ir.Constant(self.type, [zero] * self.length)
        self.suffix = f"v{self.length}{'f' if self.floating else 'i'}{self.size * 8}"

    def at(self, pointer, words):
        return self.builder.gep(pointer, [words])

    def load(self, pointer):
        whole = self.builder.bitcast(pointer, self.type.as_pointer())
        return self.builder.load(whole, align=self.size)

    def store(self, value, pointer):
        whole = self.builder.bitcast(pointer, self.type.as_pointer())
        self.builder.store(value, whole, align=self.size)

    def load_under(self, mask, pointer):
        """The elements under the mask (None: all), zeros for others, which are not read."""
        if mask is None:
            return self.load(pointer)
        whole = self.builder.bitcast(pointer, self.type.as_pointer())
        kind = ir.FunctionType(self.type, [whole.type, _INDEX, mask.type, self.type])
        function = self._function(f"llvm.masked.load.{self.suffix}.p0", kind)
        return self.builder.call(function, [whole, _INDEX(self.size), mask, self.zero])

    def store_under(self, mask, value, pointer):
        if mask is None:
            self.store(value, pointer)
            return
        whole = self.builder.bitcast(pointer, self.type.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [self.type, whole.type, _INDEX, mask.type])
        function = self._function(f"llvm.masked.store.{self.suffix}.p0", kind)
        self.builder.call(function, [value, whole, _INDEX(self.size), mask])

    def mask(self, count):
        """Lanes below `count`."""
        b, lanes = self.builder, ir.VectorType(_INDEX, self.length)
        counts = self._spread(b.trunc(count, _INDEX), lanes)
        return b.icmp_signed("<", ir.Constant(lanes, list(range(self.length))), counts)

    def broadcast(self, number):
        return self._spread(number, self.type)

    def _spread(self, number, kind):
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INDEX(0))
        zeros = ir.Constant(ir.VectorType(_INDEX, self.length), [0] * self.length)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def multiply_add(self, a, b, c):
        if not self.floating:
            return self.builder.add(self.builder.mul(a, b), c)
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(self._function(f"llvm.fmuladd.{self.suffix}", kind), [a, b, c])

    def add(self, a, b):
        return self.builder.fadd(a, b) if self.floating else self.builder.add(a, b)

    def total(self, vector):
        """The sum of the lanes: halves on halves."""
        span = self.length
        while span > 1:
            span //= 2
            picks = [(k + span) % self.length for k in range(self.length)]
            pattern = ir.Constant(ir.VectorType(_INDEX, self.length), picks)
            vector = self.add(vector, self.builder.shuffle_vector(vector, vector, pattern))
        return self.builder.extract_element(vector, _INDEX(0))

    def _function(self, name, kind):
        return cgutils.get_or_insert_function(self.builder.module, kind, name)


def _loop(builder, first, stop, start, step):
    """Emits ``values = start; for k in first..stop: values = step(k, values)``; gives the last
    values.
    """
    before = builder.block
    head = builder.append_basic_block("head")
    body = builder.append_basic_block("body")
    done = builder.append_basic_block("done")
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(_WORD)
    k.add_incoming(first, before)
    values = [builder.phi(v.type) for v in start]
    for phi, v in zip(values, start, strict=True):
        phi.add_incoming(v, before)
    builder.cbranch(builder.icmp_signed("<", k, stop), body, done)
    builder.position_at_end(body)
    after = step(k, values)
    k.add_incoming(builder.add(k, _WORD(1)), builder.block)
    for phi, v in zip(values, after, strict=True):
        phi.add_incoming(v, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return values


def _clamped(builder, i: int, live):
    """min(i, live - 1): rows past the last are the last once more."""
    last = builder.sub(live, _WORD(1))
    return builder.select(builder.icmp_signed("<", _WORD(i), last), _WORD(i), last)


def vector_length():
    """(pointer) -> elements in a vector of its type."""

    @intrinsic
    def length(_, pointer):
        def generate(context, builder, signature, args):
            return _WORD(_Vectors(context, builder, pointer.dtype).length)

        return types.int64(pointer), generate

    return length


def copy_run():
    """(to, source, count): to[j] = source[j]. Short runs are what it is for."""
    return _run(lambda v, mask, source: v.load_under(mask, source))


def clear_run():
    """(to, source, count): to[j] = 0; `source` is not looked at."""
    return _run(lambda v, mask, source: v.zero)


def _run(value):
    @intrinsic
    def run(_, pointer, source, count):
        def generate(context, builder, signature, args):
            v = _Vectors(context, builder, pointer.dtype)
            to, source, count = args
            length = _WORD(v.length)

            def step(k, _):
                at = builder.mul(k, length)
                v.store(value(v, None, v.at(source, at)), v.at(to, at))
                return []

            whole = builder.udiv(count, length)
            _loop(builder, _WORD(0), whole, [], step)
            done = builder.mul(whole, length)
            with builder.if_then(builder.icmp_signed("<", done, count)):
                mask = v.mask(builder.sub(count, done))
                v.store_under(mask, value(v, mask, v.at(source, done)), v.at(to, done))
            return context.get_dummy_value()

        return types.void(pointer, pointer, types.int64), generate

    return run


def outer_tile(rows: int):
    """c[i, j] = start + sum over k of a[i*a_row + k*a_step] * b[table[k] + j]

    (steps, a, a_row, a_step, b, table, c, c_row, mode, start, start_row, live, columns): for i <
    live <= rows and j < columns <= `widest(rows)` vectors. Reads b up to a whole vector past
    `columns`. The sum starts from 0 (mode 0), from start[i*start_row + j] (mode 1) or from
    start[i*start_row] (mode 2).
    """

    @intrinsic
    def tile(_, steps, a, a_row, a_step, b, table, c, c_row, mode, start, start_row, live, columns):
        def generate(context, builder, signature, args):
            v = _Vectors(context, builder, a.dtype)
            end = builder.append_basic_block("end")
            sure = 0
            for width in _WIDTHS[rows]:
                fits = builder.icmp_signed("<=", args[-1], _WORD(width * v.length))
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
            *(word, a, word, word, a, table_type, a, word, word, a, word, word, word)
        )
        return signature, generate

    return tile


def _outer(v, rows, width, sure, steps, a, a_row, a_step, b, table, c, c_row, *rest):
    """A tile `width` vectors wide, of which `sure` are full, in bands of as many rows as the
    registers hold.
    """
    mode, start, start_row, live, columns = rest
    builder, number = v.builder, _registers()[1]
    band = next(
        r for r in (8, 4, 2, 1) if r <= rows and (r * width + width + 1 <= number or r == 1)
    )
    masks = [v.mask(builder.sub(columns, _WORD(j * v.length))) for j in range(sure, width)]
    masks = [None] * sure + masks
    whole = builder.icmp_signed(">=", columns, _WORD(width * v.length))
    for first in range(0, rows, band):
        with builder.if_then(builder.icmp_signed("<", _WORD(first), live)):
            rank = [_clamped(builder, i, live) for i in range(first, first + band)]
            left = [v.at(a, builder.mul(a_row, i)) for i in rank]
            origin = [v.at(start, builder.mul(start_row, i)) for i in rank]
            target = [v.at(c, builder.mul(c_row, i)) for i in rank]

            def step(k, sums, left=left):
                base = v.at(b, builder.load(builder.gep(table, [k])))
                right = [v.load(v.at(base, _WORD(j * v.length))) for j in range(width)]
                across = builder.mul(k, a_step)
                after = []
                for i, row in enumerate(left):
                    factor = v.broadcast(builder.load(v.at(row, across)))
                    known = sums[i * width : (i + 1) * width]
                    after += [
                        v.multiply_add(factor, r, s) for r, s in zip(right, known, strict=True)
                    ]
                return after

            sums = _start(v, mode, origin, masks)
            sums = _loop(builder, _WORD(0), steps, sums, step)
            _finish(v, sums, target, masks, whole)


def _start(v, mode, origin, masks):
    """The accumulators' first values, by `mode`."""
    builder = v.builder
    joined = builder.append_basic_block("joined")
    ways = [builder.append_basic_block(f"from{k}") for k in range(3)]
    switch = builder.switch(mode, ways[0])
    for k in (1, 2):
        switch.add_case(_WORD(k), ways[k])
    incoming = []
    for k, block in enumerate(ways):
        builder.position_at_end(block)
        values = []
        for row in origin:
            if k == 0:
                values += [v.zero] * len(masks)
            elif k == 1:
                places = [v.at(row, _WORD(j * v.length)) for j in range(len(masks))]
                values += [v.load_under(m, p) for m, p in zip(masks, places, strict=True)]
            else:
                values += [v.broadcast(builder.load(row))] * len(masks)
        incoming.append((values, builder.block))
        builder.branch(joined)
    builder.position_at_end(joined)
    phis = [builder.phi(v.type) for _ in incoming[0][0]]
    for values, block in incoming:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)
    return phis


def _finish(v, sums, target, masks, whole):
    """Stores the tile; without masks where it is `whole`."""
    with v.builder.if_else(whole) as (then, otherwise):
        for branch, chosen in ((then, [None] * len(masks)), (otherwise, masks)):
            with branch:
                values = iter(sums)
                for row in target:
                    for j, mask in enumerate(chosen):
                        v.store_under(mask, next(values), v.at(row, _WORD(j * v.length)))


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
            v = _Vectors(context, builder, a.dtype)
            band = columns
            while band > 1 and (rows * band + rows + 1 > _registers()[1]):
                band = -(-band // 2)
            for first in range(0, columns, band):
                with builder.if_then(builder.icmp_signed("<", _WORD(first), args[-1])):
                    _inner(v, rows, range(first, min(first + band, columns)), *args)
            return context.get_dummy_value()

        word, table_type = types.int64, types.CPointer(types.int64)
        signature = types.void(*(word, a, word, a, table_type, a, word, word, word, a, word, word))
        return signature, generate

    return tile


def _inner(v, rows, columns, steps, a, a_row, b, table, c, c_row, c_column, mode, start, *live):
    builder = v.builder
    row = [_clamped(builder, i, live[0]) for i in range(rows)]
    column = [_clamped(builder, j, live[1]) for j in columns]
    left = [v.at(a, builder.mul(a_row, i)) for i in row]
    right = [v.at(b, builder.load(builder.gep(table, [j]))) for j in column]

    def add_products(load, place, sums):
        ls = [load(v.at(p, place)) for p in left]
        rs = [load(v.at(p, place)) for p in right]
        products = [(x, y) for x in ls for y in rs]
        return [v.multiply_add(x, y, s) for (x, y), s in zip(products, sums, strict=True)]

    whole = builder.sdiv(steps, _WORD(v.length))
    sums = _loop(
        builder,
        _WORD(0),
        whole,
        [v.zero] * (len(left) * len(right)),
        lambda k, sums: add_products(v.load, builder.mul(k, _WORD(v.length)), sums),
    )
    done = builder.mul(whole, _WORD(v.length))
    mask = v.mask(builder.sub(steps, done))
    rest = builder.icmp_signed("<", done, steps)
    before = builder.block
    with builder.if_then(rest):
        more = add_products(lambda p: v.load_under(mask, p), done, sums)
        tail = builder.block
    joined = [builder.phi(v.type) for _ in sums]
    for phi, old, new in zip(joined, sums, more, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(new, tail)
    totals = [v.total(s) for s in joined]
    _finish_inner(v, totals, row, column, c, c_row, c_column, mode, start)


def _finish_inner(v, totals, row, column, c, c_row, c_column, mode, start):
    """Adds each total to its first value. A clamped row or column writes what the true one did."""
    builder = v.builder
    places, firsts = [], []
    accumulates = builder.icmp_signed("==", mode, _WORD(1))
    biased = builder.icmp_signed("==", mode, _WORD(2))
    zero = ir.Constant(v.real, 0.0 if v.floating else 0)
    for i in row:
        for j in column:
            place = v.at(c, builder.add(builder.mul(i, c_row), builder.mul(j, c_column)))
            source = builder.select(biased, v.at(start, j), place)
            loads = builder.or_(accumulates, biased)
            before = builder.block
            with builder.if_then(loads):
                value = builder.load(source)
                block = builder.block
            first = builder.phi(v.real)
            first.add_incoming(zero, before)
            first.add_incoming(value, block)
            places.append(place)
            firsts.append(first)
    for place, first, total in zip(places, firsts, totals, strict=True):
        builder.store(v.add(first, total), place)
