"""Element types and tensor types, and how they combine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

from opstep.runtime.ir.dims import Dim, evaluate


class DType:
    """An element type: its name in the language, its size in bytes, its kind and its range.

    Kinds: ``f`` floating, ``i`` signed integer, ``u`` unsigned integer, ``b`` bool.
    """

    __slots__ = ("bits", "itemsize", "kind", "name")
    is_generic = False  # see `ir.generic`
    has_name = True

    def __init__(self, name: str, kind: str, itemsize: int):
        self.name = name
        self.kind = kind
        self.itemsize = itemsize
        self.bits = itemsize * 8

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def may_be_float(self) -> bool:
        return self.is_float

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """Two-byte floats: computed in f32 and rounded once, as PyTorch does on a CPU."""
        return self.kind == "f" and self.itemsize == 2

    @property
    def numpy(self):
        """The NumPy dtype (bf16 comes from ml_dtypes)."""
        return _numpy_dtype(self)

    def bound(self, types: Mapping[str, Any]) -> DType:
        """This type where type variables are what `types` has for their names."""
        return self


f64 = DType("f64", "f", 8)
f32 = DType("f32", "f", 4)
f16 = DType("f16", "f", 2)
bf16 = DType("bf16", "f", 2)
i64 = DType("i64", "i", 8)
i32 = DType("i32", "i", 4)
i16 = DType("i16", "i", 2)
i8 = DType("i8", "i", 1)
u8 = DType("u8", "u", 1)
boolean = DType("bool", "b", 1)

DTYPES = {t.name: t for t in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean)}
_FLOAT_RANK = {f16: 0, bf16: 0, f32: 1, f64: 2}


def dtype(name: str) -> DType:
    """The element type of that name; KeyError where there is none."""
    return DTYPES[name]


@cache
def _numpy_dtype(t: DType):
    import numpy as np

    if t is bf16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    if t is boolean:
        return np.dtype(bool)
    return np.dtype(f"{t.kind}{t.itemsize}")


def dtype_of(array_dtype) -> DType:
    """The element type of a NumPy dtype; KeyError where the language has none."""
    import numpy as np

    numpy_dtype = np.dtype(array_dtype)
    for t in DTYPES.values():
        if t.numpy == numpy_dtype:
            return t
    raise KeyError(str(numpy_dtype))


@cache
def promote(a: DType, b: DType) -> DType:
    """The common type of two operands.

    bool < integers < floats. Two integers take the wider; signed and unsigned of one width take the
    next wider signed. Two floats take the wider; f16 with bf16 gives f32. An integer with a float
    takes the float. (NumPy widens i32 with f32 to f64; like PyTorch and JAX, we do not.)
    """
    if a is b:
        return a
    if a.kind == "b":
        return b
    if b.kind == "b":
        return a
    if a.is_float and b.is_float:
        if _FLOAT_RANK[a] == _FLOAT_RANK[b]:
            return f32
        return a if _FLOAT_RANK[a] > _FLOAT_RANK[b] else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    return signed if signed.itemsize > unsigned.itemsize else i16


class TensorType(NamedTuple):
    """An element type and a shape of integer or symbolic dims; rank 0 is ``f32[]``."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        n: Dim = 1
        for d in self.shape:
            n = n * d
        return n

    @property
    def nbytes(self) -> Dim:
        return self.size * self.dtype.itemsize

    @property
    def fits(self) -> bool:
        """Whether some memory could hold a tensor of this concrete type.

        Sizes of 0 are passed over, as no array library counts with more than 64 bits either.
        """
        return prod(d or 1 for d in self.shape) * self.dtype.itemsize < 2**63  # pyright: ignore

    @property
    def is_concrete(self) -> bool:
        """Whether every dim is a number, and the element type known."""
        return all(type(d) is int for d in self.shape) and not self.dtype.is_generic

    def with_dtype(self, t: DType) -> TensorType:
        return self if t is self.dtype else TensorType(t, self.shape)

    def with_shape(self, shape) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def bind(self, symbols: dict[str, Any]) -> TensorType:
        """This type with its symbols and type variables replaced."""
        if self.is_concrete:
            return self
        shape = tuple(evaluate(d, symbols) for d in self.shape)
        return TensorType(self.dtype.bound(symbols), shape)
