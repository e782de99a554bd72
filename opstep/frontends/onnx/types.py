"""Element types of ONNX and ours. Nothing here needs onnx: the numbers are those of the format."""

from __future__ import annotations

from opstep.runtime.ir import types
from opstep.runtime.ir.types import DType

# By the number that stands in a file (`TensorProto.DataType`).
DTYPES: dict[int, DType] = {
    1: types.f32, 2: types.u8, 3: types.i8, 5: types.i16, 6: types.i32, 7: types.i64,
    9: types.boolean, 10: types.f16, 11: types.f64, 16: types.bf16,
}  # fmt: skip
NUMBERS: dict[DType, int] = {dtype: number for number, dtype in DTYPES.items()}
# What the others are called, which have no counterpart.
OTHERS: dict[int, str] = {
    0: "undefined", 4: "uint16", 8: "string", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2",
    20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1", 24: "float8e8m0",
    25: "uint2", 26: "int2",
}  # fmt: skip


def name_of(number: int) -> str:
    """What an element type that has no counterpart is called."""
    return OTHERS.get(number, f"element type {number}")
