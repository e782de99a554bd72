"""NumPy's scalar functions that numba.cuda lacks, as libdevice has them.

Imported only where something is compiled.
"""

# numba.cuda ships no types, and type checkers find an older one inside numba.
# pyright: reportAttributeAccessIssue=none

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.cuda import cgutils, ufuncs

_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_LIBDEVICE = {
    np.absolute: "fabs",
    np.sqrt: "sqrt",
    np.floor: "floor",
    np.ceil: "ceil",
    np.trunc: "trunc",
    np.rint: "rint",
    np.fmod: "fmod",
}


def _call(name: str, kind):
    def generate(context, builder, signature, args):
        function = ir.FunctionType(kind, [kind] * len(args))
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)

    return generate


def _magnitude(context, builder, signature, args):
    (x,) = args
    return builder.select(builder.icmp_signed("<", x, x.type(0)), builder.neg(x), x)


def _same(context, builder, signature, args):
    return args[0]


def install() -> None:
    """Makes them known to numba.cuda."""
    known = ufuncs.ufunc_db()
    for function, name in _LIBDEVICE.items():
        single, double = "f" * function.nin, "d" * function.nin
        known.setdefault(function, {}).update(
            {
                f"{single}->f": _call(f"__nv_{name}f", _FLOAT),
                f"{double}->d": _call(f"__nv_{name}", _DOUBLE),
            }
        )
    known[np.absolute].update({f"{c}->{c}": _magnitude for c in "bhilq"})
    known[np.absolute].update({f"{c}->{c}": _same for c in "BHILQ"})
