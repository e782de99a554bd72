"""Runs of elements that are moved a vector at a time. Imported only where something is compiled."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from opstep.runtime.device.cpu.vectors import INDEX, WORD, Vectors, emits, loop


def copy_run():
    """(to, source, count): to[j] = source[j]. Short runs are what it is for."""
    return _run(lambda v, left, p, at: v.load_under(left and v.mask(left), v.at(p, at)))


def clear_run():
    """(to, source, count): to[j] = 0; `source` is not looked at."""
    return _run(lambda v, left, source, at: v.zero)


def thin_run():
    """(to, source, count): to[j] = source[2 * j]."""

    def value(v, left, source, at):
        seen = left and v.builder.shl(left, WORD(1))
        masks = [seen and v.mask(v.builder.sub(seen, WORD(k + 1))) for k in v.begins(2)]
        return v.load_every(2, masks, v.at(source, v.builder.shl(at, WORD(1))))

    return _run(value)


def copy_vectors(count: int):
    """(to, source): copies so many vectors."""

    @emits(lambda to, source: types.void(to, source))
    def copy(context, builder, signature, args):
        v = Vectors(context, builder, signature.args[0].dtype)
        places = [WORD(k * v.length) for k in range(count)]
        found = [v.load(v.at(args[1], at)) for at in places]
        for at, vector in zip(places, found, strict=True):
            v.store(vector, v.at(args[0], at))

    return copy


def _run(value):
    """Stores `value(vectors, elements left, source, index)`; None are left of a whole vector. The
    last vector ends where the run does: masked stores take some processors a dozen cycles.
    """

    @emits(lambda pointer, source, count: types.void(pointer, pointer, types.int64))
    def run(context, builder, signature, args):
        v = Vectors(context, builder, signature.args[0].dtype)
        to, source, count = args
        length = WORD(v.length)

        def step_at(at):
            v.store(value(v, None, source, at), v.at(to, at))

        def step(k, _):
            step_at(builder.mul(k, length))
            return []

        whole = builder.udiv(count, length)
        loop(builder, WORD(0), whole, [], step)
        done = builder.mul(whole, length)
        rest = builder.icmp_signed("<", done, count)
        short = builder.icmp_signed("<", count, length)
        with builder.if_then(builder.and_(rest, builder.not_(short))):
            step_at(builder.sub(count, length))
        with builder.if_then(builder.and_(rest, short)):
            v.store_under(v.mask(count), value(v, count, source, WORD(0)), to)

    return run


def prefetch_run():
    """(pointer, count): asks for the memory of so many elements; no address is wrong."""

    @emits(lambda pointer, count: types.void(pointer, types.int64))
    def ask(context, builder, signature, args):
        pointer = signature.args[0]
        v = Vectors(context, builder, pointer.dtype)
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INDEX, INDEX, INDEX])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        line = WORD(64 // v.size)

        def step(k, _):
            where = builder.bitcast(v.at(args[0], builder.mul(k, line)), byte)
            builder.call(function, [where, INDEX(0), INDEX(3), INDEX(1)])
            return []

        lines = builder.udiv(builder.add(args[1], builder.sub(line, WORD(1))), line)
        loop(builder, WORD(0), lines, [], step)

    return ask
