"""Vectors of words of four bytes, which are multiplied as bytes and added up in i32.

The low bits of integer sums are the same in any order, so every processor takes the instructions
that it has: one for four products and their sum, or pairs of products of 16 bits. Imported only
where something is compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from opstep.runtime.device.cpu import processor
from opstep.runtime.device.cpu.vectors import INDEX, WORD, Vectors, loop

SIGNED_LEFT = 1  # the left factor's bytes are i8, the right one's u8; else the other way around


class Quads(Vectors):
    """Vectors of i32 of which each is four bytes, as factors; sums are what they are elsewhere."""

    def __init__(self, context, builder, number, length: int, kind: int):
        super().__init__(context, builder, number, length)
        self.kind = kind

    def multiply_add(self, a, b, c):
        """c + the sum of a's bytes times b's."""
        signed, unsigned = (a, b) if self.kind == SIGNED_LEFT else (b, a)
        bits, has = self.length * 32, processor.this().has
        if (bits == 512 and has("avx512vnni")) or (bits == 256 and _short_vnni(has)):
            kind = ir.FunctionType(self.type, [self.type] * 3)
            # as LLVM before 21 declares it; a later one reads that, too
            dot = self._function(f"llvm.x86.avx512.vpdpbusd.{bits}", kind)
            return self.builder.call(dot, [c, unsigned, signed])
        pairs = {
            512: "avx512.pmaddw.d.512" * has("avx512bw"),
            256: "avx2.pmadd.wd" * has("avx2"),
            128: "sse2.pmadd.wd" * has("sse2"),
        }.get(bits, "")
        if pairs:
            return self._in_pairs(f"llvm.x86.{pairs}", unsigned, signed, c)
        return self._one_by_one(unsigned, signed, c)

    def _in_pairs(self, name, unsigned, signed, c):
        """By an instruction that multiplies 16 bits and adds neighbours."""
        builder = self.builder
        halves = ir.VectorType(ir.IntType(16), 2 * self.length)
        eight = ir.Constant(halves, [8] * halves.count)
        u, s = (builder.bitcast(x, halves) for x in (unsigned, signed))
        pair = self._function(name, ir.FunctionType(self.type, [halves, halves]))
        even = [
            builder.and_(u, ir.Constant(halves, [255] * halves.count)),
            builder.ashr(builder.shl(s, eight), eight),
        ]
        odd = [builder.lshr(u, eight), builder.ashr(s, eight)]
        both = [builder.call(pair, x) for x in (even, odd)]
        return builder.add(c, builder.add(*both))

    def _one_by_one(self, unsigned, signed, c):
        builder = self.builder

        def constant(value):
            return ir.Constant(self.type, [value] * self.length)

        for k in range(4):
            u = builder.and_(builder.lshr(unsigned, constant(8 * k)), constant(255))
            s = builder.ashr(builder.shl(signed, constant(24 - 8 * k)), constant(24))
            c = builder.add(c, builder.mul(u, s))
        return c


def _short_vnni(has) -> bool:
    return has("avxvnni") or (has("avx512vnni") and has("avx512vl"))


def vectors_of(kind: int, context, builder, number, length: int = 0) -> Vectors:
    """Vectors whose factors are numbers (kind 0), or words of bytes."""
    if kind:
        return Quads(context, builder, number, length, kind)
    return Vectors(context, builder, number, length)


def join_quads():
    """(a, b, c, d, to, count, flips): to[j] is the word of the bytes a[j], b[j], c[j] and d[j],
    with the bits of `flips` turned.
    """

    @intrinsic
    def join(_, a, b, c, d, to, count, flips):
        def generate(context, builder, signature, args):
            *sources, to_pointer, count, flips = args
            word = Vectors(context, builder, types.int32)
            byte = Vectors(context, builder, a.dtype, 4 * word.length)
            short = Vectors(context, builder, a.dtype, word.length)
            turn = word.broadcast(builder.trunc(flips, word.real))

            def whole(k, _):
                at = builder.mul(k, WORD(byte.length))
                parts = interleaved(builder, [byte.load(byte.at(p, at)) for p in sources])
                for j, part in enumerate(parts):
                    place = word.at(to_pointer, builder.add(at, WORD(j * word.length)))
                    word.store(builder.xor(builder.bitcast(part, word.type), turn), place)
                return []

            def some(at, mask):
                loaded = [short.load_under(mask, short.at(p, at)) for p in sources]
                total = turn
                for j, bytes_of in enumerate(loaded):
                    wide = builder.zext(bytes_of, word.type)
                    shift = ir.Constant(word.type, [8 * j] * word.length)
                    total = builder.xor(total, builder.shl(wide, shift))
                word.store_under(mask, total, word.at(to_pointer, at))

            blocks = builder.udiv(count, WORD(byte.length))
            loop(builder, WORD(0), blocks, [], whole)
            done = builder.mul(blocks, WORD(byte.length))
            rest = builder.sub(count, done)

            def piece(k, _):
                some(builder.add(done, builder.mul(k, WORD(word.length))), None)
                return []

            pieces = builder.udiv(rest, WORD(word.length))
            loop(builder, WORD(0), pieces, [], piece)
            done = builder.add(done, builder.mul(pieces, WORD(word.length)))
            with builder.if_then(builder.icmp_signed("<", done, count)):
                some(done, word.mask(builder.sub(count, done)))
            return context.get_dummy_value()

        pointers = (a, a, a, a, types.CPointer(types.int32))
        return types.void(*pointers, types.int64, types.int64), generate

    return join


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
