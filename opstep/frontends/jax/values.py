"""Values of a graph under construction that are not tensors yet: what is known at import, and what
is broadcast, which most ops do by themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.types import held
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.types import DType, TensorType, dtype_of
from opstep.runtime.transforms.builder import Var


class Known(NamedTuple):
    """Elements that are the same in every run; equal ones are views of one. `name`: what they are
    called, where they have a name; `is_weight`: whether they are a named tensor that users change.
    """

    elements: np.ndarray
    shape: tuple[Dim, ...]
    name: str = ""
    is_weight: bool = False

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def dtype(self) -> DType:
        return dtype_of(self.elements.dtype)

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are one number."""
        return self.elements.ndim == 0

    @property
    def is_number(self) -> bool:
        """Whether an op takes it as a literal."""
        return self.is_uniform and not self.is_weight and self.elements.dtype.kind != "b"

    @property
    def key(self) -> tuple:
        """Equal where the elements are."""
        return self.type, self.elements.ndim, self.elements.tobytes()


class Spread(NamedTuple):
    """A tensor that is to be broadcast."""

    var: Var
    shape: tuple[Dim, ...]

    @property
    def type(self) -> TensorType:
        return TensorType(self.var.dtype, self.shape)

    @property
    def dtype(self) -> DType:
        return self.var.dtype


Value = Var | Known | Spread
Entry = Value | Untranslatable | None  # why there is none; None: its equation was not translated


def known(array: np.ndarray, name: str = "", is_weight: bool = False) -> Known:
    """A value with these elements; one number where all are equal."""
    array = np.asarray(array)
    if array.size and not is_weight and array.ndim:
        first = array.reshape(-1)[0]
        if array.tobytes() == first.tobytes() * array.size:
            return Known(np.asarray(first), array.shape, name)
    return Known(array, array.shape, name, is_weight)


def constant(array: Any, name: str = "", is_weight: bool = False) -> Entry:
    """An array that a jaxpr closes over. One without a counterpart may be one that nothing uses."""
    try:
        return known(held(array), name, is_weight)
    except Untranslatable as error:
        return error
