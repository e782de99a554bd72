"""Kernels as Python functions: what marks them, what their cache key covers, and the copy of them
that a target compiles.

The copy has float literals in the kernel's dtype and, in place of the functions that it calls, what
the target makes of them.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from opstep.runtime.ir.types import DTYPES, DType

# --- marks ----------------------------------------------------------------------------------------


def by_dtype(**bodies: Callable):
    """Gives a function a body for each dtype named; the function itself is that of all others.

    ``@by_dtype(f32=key_f32)``: where a kernel of that dtype calls the function, the body given is
    compiled in its place.
    """

    def mark(function):
        function.by_dtype = bodies
        return function

    return mark


def vectorised(**bodies: Callable):
    """Gives a scalar function, which says plainly what it computes, bodies that LLVM can vectorise.

    Like `by_dtype`, for the CPU alone: other targets compile the plain function.
    """

    def mark(function):
        function.vectorised = bodies
        return function

    return mark


def pinned(name: str):
    """Keeps a function's float literals in the dtype of that name, whatever the kernel's is."""

    def mark(function):
        function.pinned = DTYPES[name]
        return function

    return mark


def distinct(function):
    """Promises of a helper what every kernel promises: no pointer written through reaches what
    another one reads, other than element i of a result in an operand's place. A helper is compiled
    by itself, and LLVM would send its loops to the scalar ones where x and y are one buffer.
    """
    function.distinct = True
    return function


def swaps(function):
    """Marks a kernel of which a result may stand in the place of an operand that only another one
    is computed from: ``y[i], z[i] = f(b[i]), g(a[i])`` where y is a. It reads all that it needs of
    element i before it writes any. So the compiler may do several elements at once, as many as the
    longest registers hold, but not take a read past a write.
    """
    function.swaps = True
    return function


def dtype_within(function: FunctionType, dtype: DType) -> DType:
    """The dtype of a function's float literals in a kernel of `dtype`."""
    return getattr(function, "pinned", dtype)


class Intrinsic:
    """A function that kernels may call and that only exists compiled; each target finds its own by
    `name` and `shape`, which stand for it in cache keys.
    """

    def __init__(self, name: str, *shape: int):
        self.name = name
        self.shape = shape
        self.digest = "_".join([name, *map(str, shape)])

    def __call__(self, *args) -> Any:
        raise TypeError(f"{self.name} exists only inside a compiled kernel")


class Target(Protocol):
    """What compiles kernels."""

    def body(self, function: FunctionType, dtype: DType) -> FunctionType | Intrinsic:
        """What is compiled in the place of a function that is called."""
        ...

    def callee(self, function: FunctionType, dtype: DType) -> Any:
        """A function that a kernel of `dtype` calls, as something that the target can call."""
        ...

    def value(self, value: Any, dtype: DType) -> Any:
        """Anything else that a kernel refers to."""
        ...


# --- what the key covers --------------------------------------------------------------------------

_digests: dict[tuple, str] = {}


def digest(function: FunctionType, dtype: DType, target: Target) -> str:
    """Of the function's code and of all that it reaches."""
    dtype = dtype_within(function, dtype)
    key = (function, dtype.name, target)
    if key not in _digests:
        _digests[key] = "recursive"
        code = function.__code__
        consts = [c.co_code if isinstance(c, CodeType) else c for c in code.co_consts[:]]
        if function.__doc__ in consts:
            consts.remove(function.__doc__)
        parts = [code.co_code.hex(), repr(consts), repr(code.co_names)]
        parts += [m for m in ("distinct", "swaps") if hasattr(function, m)]
        for name, value in referenced(function).items():
            value = target.body(value, dtype) if isinstance(value, FunctionType) else value
            if isinstance(value, FunctionType):
                parts.append(f"{name}={digest(value, dtype, target)}")
            elif not isinstance(value, ModuleType):
                parts.append(f"{name}={_source_of(value)}")
        _digests[key] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return _digests[key]


def _source_of(value) -> str:
    """What stands for a referenced object in the key: a digest, or a constant's value."""
    return getattr(value, "digest", None) or repr(value)


def referenced(function: FunctionType) -> dict[str, Any]:
    """Globals and closure cells that a function's code names, by name."""
    names = _loaded_globals(function.__code__)
    found = {n: function.__globals__[n] for n in sorted(names) if n in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return found | {name: cell.cell_contents for name, cell in cells}


@cache
def _loaded_globals(code: CodeType) -> frozenset[str]:
    """Names of globals only: `co_names` also holds attributes, and `exp` may call `math.exp`."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    names = frozenset(i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    return names.union(*map(_loaded_globals, inner))


def has_loop(code: CodeType) -> bool:
    return any(
        "JUMP_BACKWARD" in i.opname or i.opname == "FOR_ITER" for i in dis.get_instructions(code)
    )


# --- the copy that is compiled --------------------------------------------------------------------


def specialise(function: FunctionType, dtype: DType, target: Target) -> FunctionType:
    """A copy whose float literals are `dtype` and whose callees are the target's."""

    def compiled(value):
        value = target.body(value, dtype) if isinstance(value, FunctionType) else value
        whole = isinstance(value, FunctionType)
        return target.callee(value, dtype) if whole else target.value(value, dtype)

    code = function.__code__
    code = code.replace(co_consts=tuple(_literal(c, dtype) for c in code.co_consts))
    scope = dict(function.__globals__)
    for name, value in referenced(function).items():
        scope[name] = compiled(value)
    cells = tuple(CellType(compiled(c.cell_contents)) for c in function.__closure__ or ())
    return FunctionType(code, scope, function.__name__, function.__defaults__, cells)


def _literal(value, dtype: DType):
    """A float literal as the kernel's dtype: `0.5` in an f32 kernel must not make the sum f64."""
    if type(value) is not float or dtype.name == "f64":
        return value
    if dtype.is_float:
        return DTYPES["f32"].numpy.type(value)
    return dtype.numpy.type(value) if value == int(value) else value
