"""Kernels' loops as LLVM vectors: what the compiler does not find in scalar code, or would find
in another shape on every machine.

Vectors are as long as the machine's registers where each element has a result of its own. Where
elements become one number (sums), vectors are of one length on every machine (`FIXED`), so that the
order of the additions, and with it every bit, is the same.

Imported only where something is compiled.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from opstep.runtime.device.cpu import processor
from opstep.runtime.device.shared_intrinsics import emitting

emits = partial(emitting, intrinsic)

WORD = ir.IntType(64)
INDEX = ir.IntType(32)
FIXED = 64  # bytes of the vectors that sums are made in


class Vectors:
    """Emits code for vectors of one element type: of `length` elements, or as many as a register
    holds.
    """

    spare = 0  # registers that `multiply_add` needs beside those of its operands

    def __init__(self, context, builder, number, length: int = 0):
        self.builder = builder
        self.real = context.get_value_type(number)
        self.size = context.get_abi_sizeof(self.real)
        self.length = length or processor.this().registers[0] // self.size
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
        kind = ir.FunctionType(self.type, [whole.type, INDEX, mask.type, self.type])
        function = self._function(f"llvm.masked.load.{self.suffix}.p0", kind)
        return self.builder.call(function, [whole, INDEX(self.size), mask, self.zero])

    def store_under(self, mask, value, pointer):
        if mask is None:
            self.store(value, pointer)
            return
        whole = self.builder.bitcast(pointer, self.type.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [self.type, whole.type, INDEX, mask.type])
        function = self._function(f"llvm.masked.store.{self.suffix}.p0", kind)
        self.builder.call(function, [value, whole, INDEX(self.size), mask])

    def begins(self, stride):
        """Where the vectors that `load_every` loads begin: it reads none behind its last."""
        return (0, self.length - 1)[:stride]

    def load_every(self, stride, masks, pointer):
        """Every element, or every second one; a mask for each vector."""
        begins = zip(masks, self.begins(stride), strict=True)
        parts = [self.load_under(mask, self.at(pointer, WORD(k))) for mask, k in begins]
        if stride == 1:
            return parts[0]
        n = self.length
        pattern = ir.Constant(ir.VectorType(INDEX, n), [*range(0, n, 2), *range(n + 1, 2 * n, 2)])
        return self.builder.shuffle_vector(*parts, pattern)

    def mask(self, count):
        """Lanes below `count`."""
        b, lanes = self.builder, ir.VectorType(INDEX, self.length)
        counts = self._spread(b.trunc(count, INDEX), lanes)
        return b.icmp_signed("<", ir.Constant(lanes, list(range(self.length))), counts)

    def broadcast(self, number):
        return self._spread(number, self.type)

    def _spread(self, number, kind):
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, INDEX(0))
        zeros = ir.Constant(ir.VectorType(INDEX, self.length), [0] * self.length)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def multiply_add(self, a, b, c):
        if not self.floating:
            return self.builder.add(self.builder.mul(a, b), c)
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(self._function(f"llvm.fma.{self.suffix}", kind), [a, b, c])

    def clamped(self, vectors, floor, low, high):
        """As `launch.Clamp` says."""
        b, found = self.builder, []
        for x in vectors:
            x = b.select(b.fcmp_ordered("<=", x, floor), low, x)
            found.append(b.select(b.fcmp_ordered(">", x, high), high, x))
        return found

    def from_bits(self, word):
        """The number of which a word holds the bits, as f64."""
        number = self.builder.bitcast(word, ir.DoubleType())
        return number if self.size == 8 else self.builder.fptrunc(number, self.real)

    def add(self, a, b):
        return self.builder.fadd(a, b) if self.floating else self.builder.add(a, b)

    def total(self, vector, join=None):
        """The sum of the lanes, or what `join` makes of them: halves on halves."""
        span = self.length
        while span > 1:
            span //= 2
            picks = [(k + span) % self.length for k in range(self.length)]
            pattern = ir.Constant(ir.VectorType(INDEX, self.length), picks)
            other = self.builder.shuffle_vector(vector, vector, pattern)
            vector = (join or self.add)(vector, other)
        return self.builder.extract_element(vector, INDEX(0))

    def totals(self, vectors):
        """`total` of each, with the same bits: halves of two vectors are added at once."""
        count, span = len(vectors), self.length
        while span > 1:
            span //= 2
            groups = range(0, self.length, 2 * span)  # in each vector; what a total is made of
            first = [at + k for at in groups for k in range(span)]
            vectors = [
                self.add(*(self._picked(a, b, first, by) for by in (0, span)))
                for a, b in zip(vectors[::2], [*vectors[1::2], vectors[-1]], strict=False)
            ]
        lanes = [(v, INDEX(k)) for v in vectors for k in range(self.length)]
        return [self.builder.extract_element(*lane) for lane in lanes[:count]]

    def _picked(self, a, b, lanes, by):
        """These lanes of a, moved by `by`, then those of b."""
        picks = [k + by + start for start in (0, self.length) for k in lanes]
        pattern = ir.Constant(ir.VectorType(INDEX, self.length), picks)
        return self.builder.shuffle_vector(a, b, pattern)

    def _function(self, name, kind):
        return cgutils.get_or_insert_function(self.builder.module, kind, name)


def loop(builder, first, stop, start, step):
    """Emits ``values = start; for k in first..stop: values = step(k, values)``; gives the last
    values.
    """
    before = builder.block
    head = builder.append_basic_block("head")
    body = builder.append_basic_block("body")
    done = builder.append_basic_block("done")
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(WORD)
    k.add_incoming(first, before)
    values = [builder.phi(v.type) for v in start]
    for phi, v in zip(values, start, strict=True):
        phi.add_incoming(v, before)
    builder.cbranch(builder.icmp_signed("<", k, stop), body, done)
    builder.position_at_end(body)
    after = step(k, values)
    k.add_incoming(builder.add(k, WORD(1)), builder.block)
    for phi, v in zip(values, after, strict=True):
        phi.add_incoming(v, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return values


def merged(builder, ways):
    """The values of the block that was left for this one; `ways`: [(block, values)]."""
    phis = [builder.phi(value.type) for value in ways[0][1]]
    for block, values in ways:
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, block)
    return phis


def vector_length():
    """(pointer) -> elements in a vector of its type."""

    @emits(lambda pointer: types.int64(pointer))
    def length(context, builder, signature, args):
        pointer = signature.args[0]
        return WORD(Vectors(context, builder, pointer.dtype).length)

    return length


def transpose(n: int):
    """(x, x_row, y, y_row): y[j*y_row + i] = x[i*x_row + j] for i and j below n, a power of 2."""

    @emits(lambda x, x_row, y, y_row: types.void(x, types.int64, x, types.int64))
    def block(context, builder, signature, args):
        x = signature.args[0]
        v = Vectors(context, builder, x.dtype, n)
        source, x_row, to, y_row = args
        rows = [v.load(v.at(source, builder.mul(x_row, WORD(i)))) for i in range(n)]
        rows = transposed(builder, rows)
        for j, row in enumerate(rows):
            v.store(row, v.at(to, builder.mul(y_row, WORD(j))))

    return block


def transposed(builder, rows):
    """A power of 2 of vectors, transposed: all together, where they have as many lanes, or each
    group of as many lanes.
    """
    for d in (1 << k for k in range(len(rows).bit_length() - 1)):
        rows = _exchanged(builder, rows, rows[0].type.count, d)
    return rows


def _exchanged(builder, rows, n: int, d: int):
    """Rows i and i + d swap the lanes whose bit d does not stand where it belongs."""
    after = list(rows)
    for i in (i for i in range(len(rows)) if not i & d):
        for to, picks in (
            (i, [n + k - d if k & d else k for k in range(n)]),
            (i + d, [n + k if k & d else k + d for k in range(n)]),
        ):
            pattern = ir.Constant(ir.VectorType(INDEX, n), picks)
            after[to] = builder.shuffle_vector(rows[i], rows[i + d], pattern)
    return after


def joined(builder, vectors):
    """A power of 2 of vectors behind each other, as one."""
    while len(vectors) > 1:
        n = 2 * vectors[0].type.count
        pattern = ir.Constant(ir.VectorType(INDEX, n), list(range(n)))
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.shuffle_vector(a, b, pattern) for a, b in pairs]
    return vectors[0]


# --- runs of elements that become one number ------------------------------------------------------

_CHAINS = 4  # vectors side by side: the next addition need not wait for the last


def fixed_sum(bits: int = 0):
    """(pointer, count) -> the sum of the elements, in f64 where `bits` is 64."""
    return _fixed(1, bits == 64, lambda v, read, _: read(0), lambda v: v.add)


def fixed_product():
    """(pointer, count) -> the product of the elements."""
    return _fixed(1, False, lambda v, read, _: read(0), lambda v: v.builder.fmul, start=1.0)


def fixed_largest():
    """(pointer, count > 0) -> the largest element; of some that are NaN, any."""

    def join(v):
        def larger(a, b):
            return v.builder.select(v.builder.fcmp_ordered(">", b, a), b, a)

        return larger

    return _fixed(1, False, lambda v, read, _: read(0), join, start=None)


def fixed_greatest():
    """(pointer, count > 0) -> the largest element, or NaN if there is one."""
    return _fixed(1, False, lambda v, read, _: read(0), _outermost(">"), start=None)


def fixed_least():
    """The same of the smallest."""
    return _fixed(1, False, lambda v, read, _: read(0), _outermost("<"), start=None)


def _outermost(beyond: str):
    def join(v):
        def outer(a, b):
            found = v.builder.select(v.builder.fcmp_ordered(beyond, b, a), b, a)
            return v.builder.select(v.builder.fcmp_unordered("uno", b, b), b, found)

        return outer

    return join


def fixed_squares(bits: int = 0):
    """(pointer, centre, count) -> the sum of (x - centre)**2, in f64 where `bits` is 64."""

    def term(v, read, centre):
        d = v.builder.fsub(read(0), centre)
        return d, d

    return _fixed(1, bits == 64, term, lambda v: v.add, centred=True)


def fixed_dot():
    """(a, x, centre, count) -> the sum of a * (x - centre)."""

    def term(v, read, centre):
        return read(0), v.builder.fsub(read(1), centre)

    return _fixed(2, False, term, lambda v: v.add, centred=True)


def _fixed(runs: int, in_f64: bool, term, join, start: float | None = 0.0, centred: bool = False):
    """(pointers, centre where it is `centred`, count) -> one number.

    Element i is joined to lane i modulo `_CHAINS` vectors of `FIXED` bytes, in the order of i; then
    chains are joined to chains and lanes to lanes, halves on halves. Two values from `term` are
    multiplied and added with one rounding.
    """

    def generate(context, builder, signature, args):
        number, kind = signature.return_type, signature.args[0].dtype
        v = Vectors(context, builder, number, FIXED // (number.bitwidth // 8))
        stored = v if kind == number else Vectors(context, builder, kind, v.length)
        pointers, count = args[:runs], args[-1]
        centre = v.broadcast(args[runs]) if centred else None

        def joined(chain, at, mask=None):
            def read(k):
                found = stored.load_under(mask, stored.at(pointers[k], at))
                return found if stored is v else builder.fpext(found, v.type)

            value = term(v, read, centre)
            if isinstance(value, tuple):
                a, b = value
                return v.multiply_add(a, b, chain)
            return join(v)(chain, value)

        first = v.broadcast(
            builder.load(pointers[0]) if start is None else ir.Constant(v.real, start)
        )
        return run_of(v, count, first, joined, join(v))

    return _typed(runs, in_f64, centred, generate)


def run_of(v, count, first, joined, join):
    """The number that a run of elements comes to. Chains begin as `first`, and
    ``joined(chain, at, mask)`` adds a vector to one.
    """
    chains = _chains(v, count, first, joined)
    while len(chains) > 1:
        half = len(chains) // 2
        chains = [join(a, b) for a, b in zip(chains[:half], chains[half:], strict=True)]
    return v.total(chains[0], join)


def _chains(v, count, first, joined):
    """The chains after all elements, each of which begins as `first`."""
    builder, together = v.builder, WORD(_CHAINS * v.length)

    def at(begin, j):
        return builder.add(begin, WORD(j * v.length))

    whole = builder.udiv(count, together)
    chains = loop(
        builder,
        WORD(0),
        whole,
        [first] * _CHAINS,
        lambda k, cs: [joined(c, at(builder.mul(k, together), j)) for j, c in enumerate(cs)],
    )
    done = builder.mul(whole, together)
    rest = builder.sub(count, done)
    before, after = builder.block, []
    with builder.if_then(builder.icmp_signed(">", rest, WORD(0))):
        for j, chain in enumerate(chains):
            mask = v.mask(builder.sub(rest, WORD(j * v.length)))
            after.append(builder.select(mask, joined(chain, at(done, j), mask), chain))
        tail = builder.block
    return merged(builder, [(before, chains), (tail, after)])


def _typed(runs: int, in_f64: bool, centred: bool, generate):
    """The intrinsic of so many pointers."""

    def typed(pointer, *rest):
        number = types.float64 if in_f64 else pointer.dtype
        return number(*(pointer,) * runs, *(number,) * centred, types.int64)

    return emits(typed, runs + centred + 1)(generate)


def count_bytes():
    """(bytes, vectors, counts, first, last): counts[k] += how many bytes are k, for each k from
    `first` to `last`, and for those beside them that make `_TOGETHER` at once. `vectors`: how many
    of 64 bytes there are, at most 255: a lane counts to no more.
    """

    @emits(
        lambda data, vectors, counts, first, last: types.void(
            data, types.int64, counts, types.int64, types.int64
        )
    )
    def count(context, builder, signature, args):
        data, vectors, counts, first, last = args
        v = Vectors(context, builder, types.uint8, FIXED)
        group = WORD(_TOGETHER)

        def step(k, _):
            _count_together(v, data, vectors, counts, builder.mul(k, group))
            return []

        stop = builder.add(builder.udiv(last, group), WORD(1))
        loop(builder, builder.udiv(first, group), stop, [], step)

    return count


_TOGETHER = 4  # values that are counted in one pass: as many as registers hold everywhere


def _count_together(v, data, vectors, counts, first):
    """Of `_TOGETHER` values from `first` on."""
    b = v.builder
    places = [b.add(first, WORD(j)) for j in range(_TOGETHER)]
    wanted = [v.broadcast(b.trunc(place, v.real)) for place in places]

    def step(k, found):
        these = v.load(v.at(data, b.mul(k, WORD(v.length))))
        return [
            b.sub(n, b.sext(b.icmp_unsigned("==", these, one), v.type))
            for n, one in zip(found, wanted, strict=True)
        ]

    found = loop(b, WORD(0), vectors, [v.zero] * _TOGETHER, step)
    wide = ir.VectorType(ir.IntType(16), v.length)
    kind = ir.FunctionType(wide.element, [wide])
    total = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.add.v{v.length}i16")
    for place, lanes in zip(places, found, strict=True):
        count = b.zext(b.call(total, [b.zext(lanes, wide)]), WORD)
        at = v.at(counts, place)
        b.store(b.add(b.load(at), count), at)


def buffer(bits: int, count: int):
    """() -> a pointer to so many floats of so many bits of the function's own, not written yet."""
    number = types.float32 if bits == 32 else types.float64

    @emits(lambda: types.CPointer(number)())
    def own(context, builder, signature, args):
        kind = context.get_value_type(number)
        words = cgutils.alloca_once(builder, kind, size=count)
        words.align = FIXED
        return words

    return own
