"""JAX's types and sizes, and ours.

Unsigned integers that the language lacks are held as the signed ones of their width, bit for bit;
keys of random numbers as the integers in them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from opstep.frontends.jax.errors import Untranslatable
from opstep.runtime.ir import types
from opstep.runtime.ir.dims import Dim, symbol
from opstep.runtime.ir.types import DType, TensorType

DTYPES: dict[str, DType] = {
    "float64": types.f64, "float32": types.f32, "float16": types.f16, "bfloat16": types.bf16,
    "int64": types.i64, "int32": types.i32, "int16": types.i16, "int8": types.i8,
    "uint8": types.u8, "bool": types.boolean,
    "uint64": types.i64, "uint32": types.i32, "uint16": types.i16,
}  # fmt: skip
UNSIGNED = {"uint64": 64, "uint32": 32, "uint16": 16}  # those that are held as signed: their bits


def is_key(dtype: Any) -> bool:
    """Whether an element type is that of keys of random numbers."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)  # pyright: ignore[reportPrivateImportUsage]


def dtype_of(dtype: Any) -> DType:
    """Raises `Untranslatable` where there is none."""
    if is_key(dtype):
        return types.i32
    found = DTYPES.get(str(dtype))
    if found is None:
        raise Untranslatable(f"{dtype} has no counterpart")
    return found


def type_of(aval: Any) -> TensorType:
    """The type of a value that JAX describes so. Raises `Untranslatable`."""
    if not hasattr(aval, "dtype"):
        raise Untranslatable(f"{aval} is no array")
    shape = aval.shape
    if is_key(aval.dtype):
        shape = (*shape, *key_shape(aval.dtype))
    return TensorType(dtype_of(aval.dtype), sizes(shape))


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of a key's integers. Raises `Untranslatable` for keys of other generators."""
    if "fry" not in str(dtype):
        raise Untranslatable(f"keys of {dtype}: only those of threefry are known")
    return (2,)


def sizes(shape: Iterable[Any]) -> tuple[Dim, ...]:
    return tuple(map(size, shape))


def size(dim: Any) -> Dim:
    """A size, which may have symbols. Raises `Untranslatable`."""
    if isinstance(dim, int | np.integer):
        return int(dim)
    return _size(ast.parse(str(dim), mode="eval").body)


def _size(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_size(x)
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            return _size(a) + _size(b)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            return _size(a) - _size(b)
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            return _size(a) * _size(b)
        case ast.BinOp(left=a, op=ast.Pow(), right=ast.Constant(value=int(n))):
            found: Any = 1
            for _ in range(n):
                found = found * _size(a)
            return found
        case ast.Call(func=ast.Name(id="floordiv"), args=[a, b]):
            return _size(a) // _size(b)
        case ast.Call(func=ast.Name(id="mod"), args=[a, b]):
            return _size(a) % _size(b)
    raise Untranslatable(f"the size {ast.unparse(node)} has no counterpart")


def held(array: Any) -> np.ndarray:
    """Elements as they are held here. Raises `Untranslatable`."""
    dtype = getattr(array, "dtype", None)
    if dtype is not None and is_key(dtype):
        key_shape(dtype)
        array = jax.random.key_data(array)
    array = np.asarray(array)
    wanted = dtype_of(array.dtype)
    return array.view(wanted.numpy) if array.dtype.name in UNSIGNED else array
