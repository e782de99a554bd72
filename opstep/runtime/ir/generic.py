"""Element types of generic graphs: type variables, and what depends on them.

``graph double<T: number>(x: T[N]) -> T[N]`` is checked once, for all that T may be: an op is
resolved for each of these, and what comes out is put together again. A result is of type T, of one
type whatever T is, or of a type that depends on T and has no name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from opstep.runtime.ir.types import DTYPES, DType, f32, i32, i64

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
