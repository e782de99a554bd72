"""Vectors of words of 32 bits, each some bytes that follow each other along a sum.

The low bits of integer sums are the same in any order, so every processor takes the instructions
that it has: one for the products of four bytes and their sum, where words hold four, or one for two
of 16 bits, where they hold two, and nothing has to be taken apart. Imported only where something is
compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu import processor
from opstep.runtime.device.cpu.vectors import INDEX, WORD, Vectors, loop

SIGNED_LEFT = 1  # the left factor's bytes are i8, the right one's u8; else the other way around


class Packed(Vectors):
    """Vectors of i32 that are words of bytes, as factors; sums are what they are elsewhere."""

    def __init__(self, context, builder, number, length: int, kind: int):
        super().__init__(context, builder, number, length)
        self.kind = kind
        self.pairs = not processor.this().multiplies_bytes
        self.spare = int(self.pairs)

    def multiply_add(self, a, b, c):
        """c + the sum of a's bytes times b's."""
        return self._of_pairs(a, b, c) if self.pairs else self._of_fours(a, b, c)

    def _of_fours(self, a, b, c):
        signed, unsigned = (a, b) if self.kind == SIGNED_LEFT else (b, a)
        kind = ir.FunctionType(self.type, [self.type] * 3)
        # as LLVM before 21 declares it; a later one reads that, too
        dot = self._function(f"llvm.x86.avx512.vpdpbusd.{self.length * 32}", kind)
        return self.builder.call(dot, [c, unsigned, signed])

    def _of_pairs(self, a, b, c):
        """In the form that LLVM makes one instruction of, where the processor has it (pmaddwd)."""
        builder, n = self.builder, self.length
        halves, wide = (ir.VectorType(ir.IntType(bits), 2 * n) for bits in (16, 32))
        factors = [builder.sext(builder.bitcast(x, halves), wide) for x in (a, b)]
        products = builder.mul(*factors)
        none = ir.Constant(wide, ir.Undefined)
        even, odd = (ir.Constant(ir.VectorType(INDEX, n), list(range(k, 2 * n, 2))) for k in (0, 1))
        pair = [builder.shuffle_vector(products, none, picks) for picks in (even, odd)]
        return self._settled(builder.add(c, builder.add(*pair)))

    def _settled(self, total):
        """The same sum, which LLVM may not look through: it would add up the products of several
        steps first, and hold them in registers that there are not.
        """
        if not processor.this().has("sse2"):  # x86's letter for a vector register is no one else's
            return total
        same = ir.FunctionType(self.type, [self.type])
        return self.builder.asm(same, "", "=v,0", [total], side_effect=True)


def vectors_of(kind: int, context, builder, number, length: int = 0) -> Vectors:
    """Vectors whose factors are numbers (kind 0), or words of bytes."""
    if kind:
        return Packed(context, builder, number, length, kind)
    return Vectors(context, builder, number, length)


def pack_rows():
    """(a, b, c, d, to, count, flips): to[j] is the word of the bytes a[j], b[j], c[j] and d[j],
    with the bits of `flips` turned. Where words hold two, c and d are not read.
    """

    @intrinsic
    def pack(_, a, b, c, d, to, count, flips):
        def generate(context, builder, signature, args):
            *sources, to_pointer, count, flips = args
            word = Vectors(context, builder, types.int32)
            short = Vectors(context, builder, a.dtype, word.length)
            turn = word.broadcast(builder.trunc(flips, word.real))
            fours = processor.this().multiplies_bytes
            bits = 8 if fours else 16

            def constant(value):
                return ir.Constant(word.type, [value] * word.length)

            byte = Vectors(context, builder, a.dtype, 4 * word.length)

            def many(k, _):
                at = builder.mul(k, WORD(byte.length))
                parts = interleaved(builder, [byte.load(byte.at(p, at)) for p in sources])
                for j, part in enumerate(parts):
                    place = word.at(to_pointer, builder.add(at, WORD(j * word.length)))
                    word.store(builder.xor(builder.bitcast(part, word.type), turn), place)
                return []

            def some(at, mask):
                total = turn
                for j, source in enumerate(sources[: 32 // bits]):
                    loaded = short.load_under(mask, short.at(source, at))
                    extend = builder.sext if a.dtype.signed else builder.zext
                    wide = builder.shl(extend(loaded, word.type), constant(32 - bits))
                    wide = builder.lshr(wide, constant(32 - bits - bits * j))
                    total = builder.xor(total, wide)
                word.store_under(mask, total, word.at(to_pointer, at))

            def piece(k, _):
                some(builder.add(done, builder.mul(k, WORD(word.length))), None)
                return []

            done = WORD(0)
            if fours:
                blocks = builder.udiv(count, WORD(byte.length))
                loop(builder, WORD(0), blocks, [], many)
                done = builder.mul(blocks, WORD(byte.length))
            pieces = builder.udiv(builder.sub(count, done), WORD(word.length))
            loop(builder, WORD(0), pieces, [], piece)
            done = builder.add(done, builder.mul(pieces, WORD(word.length)))
            with builder.if_then(builder.icmp_signed("<", done, count)):
                some(done, word.mask(builder.sub(count, done)))
            return context.get_dummy_value()

        pointers = (a, a, a, a, types.CPointer(types.int32))
        return types.void(*pointers, types.int64, types.int64), generate

    return pack


def interleaved(builder, rows):
    """Four vectors' elements, one of each after the other, in as many vectors."""
    n = rows[0].type.count
    low = [k // 2 + n * (k % 2) for k in range(n)]
    high = [k + n // 2 for k in low]

    def pair(a, b):
        patterns = [ir.Constant(ir.VectorType(INDEX, n), picks) for picks in (low, high)]
        return [builder.shuffle_vector(a, b, p) for p in patterns]

    a, b, c, d = rows
    evens, odds = pair(a, c), pair(b, d)
    return [part for x, y in zip(evens, odds, strict=True) for part in pair(x, y)]
