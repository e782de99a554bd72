"""Sums of what a little arithmetic makes of the elements of runs, without a place for the terms.

Imported only where something is compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from opstep.runtime.device.cpu.vectors import FIXED, Vectors, emits, run_of


def fixed_terms(pointers: int, numbers: int, *steps: int):
    """(pointers, numbers, count) -> the sum of a term of each element, as `fixed_sum` adds.

    Values are the elements, then the numbers, then what each step gives: (operation, value, value),
    where operations are those of `builtin.TERMS`. Each rounds. The last value is the term.
    """

    def generate(context, builder, signature, args):
        number = signature.return_type
        v = Vectors(context, builder, number, FIXED // (number.bitwidth // 8))
        known = [v.broadcast(a) for a in args[pointers:-1]]

        def joined(chain, at, mask=None):
            values = [v.load_under(mask, v.at(p, at)) for p in args[:pointers]] + known
            for operation, a, b in zip(steps[::3], steps[1::3], steps[2::3], strict=True):
                values.append(_applied(builder, operation, values[a], values[b]))
            return v.add(chain, values[-1])

        zero = v.broadcast(ir.Constant(v.real, 0.0))
        return run_of(v, args[-1], zero, joined, v.add)

    def typed(*given):
        number = given[0].dtype
        return number(*given[:pointers], *[number] * numbers, types.int64)

    return emits(typed, pointers + numbers + 1)(generate)


def _applied(builder, operation: int, a, b):
    """In the order of `builtin.TERMS`."""
    apply = (
        builder.fadd,
        builder.fsub,
        builder.fmul,
        lambda a, _: builder.fneg(a),
        lambda a, _: builder.fmul(a, a),
    )
    return apply[operation](a, b)
