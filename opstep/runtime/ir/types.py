"""Element types and tensor types, and how they combine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
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


FAMILIES: dict[str, tuple[DType, ...]] = {  # what a variable may stand for; the widest first
    "any": tuple(DTYPES.values()),
    "number": tuple(t for t in DTYPES.values() if t.kind != "b"),
    "float": tuple(t for t in DTYPES.values() if t.is_float),
    "int": tuple(t for t in DTYPES.values() if t.is_integer),
    "index": (i64, i32),
}
DEFAULT_FAMILY = "any"
MOST_ASSIGNMENTS = 256  # of the variables of a graph: an op is resolved for each


class DependsOnType(Exception):
    """A property of an element type that differs from one instance of a variable to another."""

    def __init__(self, t: GenericDType):
        super().__init__(f"it depends on what {t.of_variables} is")


class GenericDType(DType):
    """An element type that is known once its `variables` are: `table` has it by what these are."""

    __slots__ = ("table", "variables")
    is_generic = True
    has_name = False

    def __init__(self, variables: tuple[TypeVariable, ...], found: Sequence[DType]):
        self.variables = variables
        self.table = dict(zip(product(*(v.instances for v in variables)), found, strict=True))
        self.name = "|".join(t.name for t in self.instances)

    def __reduce__(self) -> Any:
        return _dependent, (self.variables, tuple(self.table.values()))

    @property
    def instances(self) -> tuple[DType, ...]:
        """All that it may be."""
        return tuple(dict.fromkeys(self.table.values()))

    @property
    def of_variables(self) -> str:
        return " and ".join(v.name for v in self.variables)

    def bound(self, types: Mapping[str, Any]) -> DType:
        given = [v.bound(types) for v in self.variables]
        inner = variables_of(given)
        found = [self.table[tuple(g.bound(i) for g in given)] for i in assignments(inner)]
        return generalised(inner, found)

    def _same(self, values: Iterable) -> Any:
        found = set(values)
        if len(found) > 1:
            raise DependsOnType(self)
        return found.pop()

    @property
    def kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._same(t.kind for t in self.instances)

    @property
    def itemsize(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._same(t.itemsize for t in self.instances)

    @property
    def bits(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.itemsize * 8

    @property
    def is_float(self) -> bool:
        return self._same(t.is_float for t in self.instances)

    @property
    def may_be_float(self) -> bool:
        return any(t.is_float for t in self.instances)

    @property
    def is_integer(self) -> bool:
        return self._same(t.is_integer for t in self.instances)

    @property
    def is_half(self) -> bool:
        return self._same(t.is_half for t in self.instances)

    @property
    def numpy(self) -> Any:
        raise DependsOnType(self)


class TypeVariable(GenericDType):
    """``T``, which may be any type of a family. There is one object for each name and family."""

    __slots__ = ("family",)
    has_name = True

    def __init__(self, name: str, family: str):
        self.name = name
        self.family = family
        self.variables = (self,)
        self.table = {(t,): t for t in FAMILIES[family]}

    def __repr__(self) -> str:
        return f"{self.name}: {self.family}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return type_variable, (self.name, self.family)

    @property
    def instances(self) -> tuple[DType, ...]:
        return FAMILIES[self.family]

    def bound(self, types: Mapping[str, Any]) -> DType:
        return types.get(self.name, self)

    def admits(self, t: DType) -> bool:
        """Whether `t`, whatever it may be itself, is of the family."""
        return set(t.instances if isinstance(t, GenericDType) else (t,)) <= {*self.instances}


@cache
def type_variable(name: str, family: str) -> TypeVariable:
    return TypeVariable(name, family)


def default_type(variable: TypeVariable) -> DType:
    """What a variable is where nothing says so."""
    return f32 if variable.admits(f32) else i32


@cache
def _dependent(variables: tuple[TypeVariable, ...], found: tuple[DType, ...]) -> GenericDType:
    return GenericDType(variables, found)


def variables_of(values: Iterable[Any]) -> tuple[TypeVariable, ...]:
    """The type variables that these types, element types or other values depend on."""
    found: dict[TypeVariable, None] = {}
    for value in values:
        t = getattr(value, "dtype", value)
        if isinstance(t, GenericDType):
            found |= dict.fromkeys(t.variables)
    return tuple(found)


def assignments(variables: Sequence[TypeVariable]) -> Iterator[dict[str, DType]]:
    """What the variables may be, all at once: each name with a type."""
    for types in product(*(v.instances for v in variables)):
        yield dict(zip((v.name for v in variables), types, strict=True))


def generalised(variables: tuple[TypeVariable, ...], found: Sequence[DType]) -> DType:
    """The element type that is ``found[k]`` for the k-th of the variables' `assignments`."""
    if len(set(found)) == 1:
        return found[0]
    for v in variables:
        if all(t is i[v.name] for t, i in zip(found, assignments(variables), strict=True)):
            return v
    return _dependent(variables, tuple(found))
