"""What is known of a value at import: its elements, where no run decides them.

Sizes that are symbols are elements, too: `Shape` of a tensor f32[N, 8] is [N, 8].
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.frontends import constants
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.reading import array_of, type_of
from opstep.frontends.onnx.rules.registry import Same
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.types import DType, TensorType, dtype_of, i64
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from onnx import TensorProto


class Known:
    """A value that is the same in every run. `name`: what the file calls it; `tensor`: where it
    stands there; `is_weight`: whether it is to be a named tensor, which a user may change.
    """

    def __init__(
        self, type: TensorType, name: str = "", elements: np.ndarray | None = None,
        tensor: TensorProto | None = None, folder: Path | None = None, is_weight: bool = False,
    ):  # fmt: skip
        self.type, self.name, self.tensor, self.is_weight = type, name, tensor, is_weight
        self.made: Var | None = None  # as a named tensor
        self._folder = folder
        if elements is not None:
            self.elements = elements

    @cached_property
    def elements(self) -> np.ndarray:
        assert self.tensor is not None
        return array_of(self.tensor, self._folder)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape  # pyright: ignore[reportReturnType]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=object))

    @property
    def is_symbolic(self) -> bool:
        return self.elements.dtype == object

    @property
    def is_of_a_layer(self) -> bool:
        """Whether elements are computed with it: a scale, a quantised weight; it is no shape."""
        if self.is_weight or self.dtype.name in ("i64", "bool"):
            return False
        return self.type.rank == 0 or not self.dtype.is_float

    def number(self) -> Scalar | None:
        """As it stands in a text: the only element, where it is one and no symbol."""
        found = number(self.elements.reshape(-1)[0]) if self.size == 1 else None
        if found is None:
            return None
        return Fraction(found, self) if isinstance(found, float) else Whole(found, self)

    @property
    def key(self) -> tuple:
        """Equal where the elements are."""
        if self.is_symbolic:
            return self.type, tuple(map(str, self.elements.flat))
        return self.type, self.elements.tobytes()


class _OfModel:
    """A number of the model, with its type there. Where a statement gives it another one, it is
    written as a tensor instead.
    """

    known: Known

    def __new__(cls, number: Any, known: Known):
        made = super().__new__(cls, number)  # pyright: ignore[reportCallIssue]
        made.known = known
        return made

    @property
    def dtype(self) -> DType:
        return self.known.dtype


class Whole(_OfModel, int):
    """An integer or a bool."""


class Fraction(_OfModel, float):
    """A float."""


Scalar = Whole | Fraction
Value = Var | Known


def number(element: Any) -> int | float | None:
    """An element as a number that stands in a text; None for a size."""
    if isinstance(element, Expr):
        return None
    if np.asarray(element).dtype.kind == "O":
        return element if isinstance(element, int) else None
    return constants.number(element)


def same_of(value: Any) -> Same | None:
    """The number that all its elements are."""
    if not isinstance(value, Known) or value.is_weight or value.is_symbolic or not value.size:
        return None
    first = number(value.elements.reshape(-1)[0])
    is_one = first is not None and (value.elements == value.elements.reshape(-1)[0]).all()
    return Same(first, value.dtype) if is_one and first is not None else None


def weight(tensor: TensorProto, folder: Path | None) -> Known:
    """An initializer. Those with axes and fractions are weights."""
    type = type_of(tensor)
    is_weight = type.dtype.is_float and type.rank > 0
    return Known(type, tensor.name, tensor=tensor, folder=folder, is_weight=is_weight)


def known(array: Any, dtype: DType | None = None, name: str = "") -> Known:
    """A value with these elements. Integers that are Python's own are i64."""
    array = np.asarray(array)
    if dtype is None:
        dtype = i64 if array.dtype == object else dtype_of(array.dtype)
    if array.dtype != object:
        array = array.astype(dtype.numpy, copy=False)
    elif all(not isinstance(e, Expr) for e in array.flat):
        try:
            array = array.astype(dtype.numpy)
        except OverflowError:
            raise Untranslatable(f"a size is beyond {dtype}") from None
    return Known(TensorType(dtype, array.shape), name, array)


def dims(shape: Iterable[Any]) -> Known:
    """A shape as a value."""
    listed = list(shape)
    array = np.empty(len(listed), object)
    array[:] = listed
    return known(array)


def listed(array: Any) -> list[Any]:
    """Elements as Python's numbers and dims."""
    return np.asarray(array).reshape(-1).tolist()
