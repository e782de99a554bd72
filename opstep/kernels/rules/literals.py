"""Numbers written as attributes: whether an element type holds them, and their bits."""

from __future__ import annotations

import numpy as np

from opstep.runtime.ir.calls import literal_fault
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import DType


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer type or bool."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "u":
        return 0, (1 << dtype.bits) - 1
    return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1


def check_value(value: int | float, dtype: DType, attribute: str = "value") -> None:
    """Raises Mismatch where a tensor of `dtype` cannot hold the number; a float that is whole is an
    integer.
    """
    if dtype.is_integer and value % 1 == 0:
        value = int(value)
    if fault := literal_fault(value, dtype):
        raise Mismatch(f"{attribute}={fault}", attribute)


def bits_of(value: int | float, dtype: DType) -> int:
    """An element of `dtype` as a signed integer of its width."""
    element = np.array(value).astype(dtype.numpy).reshape(1)
    return int(element.view(f"i{dtype.itemsize}")[0])


def nowhere(dtype: DType) -> int:
    """The bits of what is read at an index that does not exist: NaN, or the largest integer."""
    return bits_of(float("nan") if dtype.is_float else limits(dtype)[1], dtype)
