"""Tensors of other libraries where they lie, and ours for other libraries: DLPack.

Only the protocol is used, so nothing is imported for it. NumPy's own DLPack knows neither bf16 nor
GPUs: capsules are read here, and those that NumPy makes are corrected.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from opstep.api.devices import HOST, device_named
from opstep.runtime.device.external import ExternalMemory, bytes_at
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES, DType, TensorType, bf16, dtype_of

_CPU, _CUDA = 1, 2  # kDLCPU, kDLCUDA; others are memory of theirs that we do not tell apart
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # kDLInt, kDLUInt, kDLFloat, kDLBool
_BFLOAT = 4


def _code(t: DType) -> tuple[int, int, int]:
    """As DLPack calls an element type: code, bits, lanes."""
    return (_BFLOAT if t is bf16 else _CODES[t.kind], t.bits, 1)


_DTYPES = {_code(t): t for t in DTYPES.values()}


class _Tensor(ctypes.Structure):
    """DLTensor, with which a DLManagedTensor begins (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; NULL: row after row
        ("byte_offset", ctypes.c_uint64),
    )


_VERSIONED = 32  # bytes before the DLTensor of a DLManagedTensorVersioned
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class ExternalTensor:
    """A contiguous, row-major tensor at `address` on `device` (its canonical name), whoever
    allocated it; `owner` keeps it there. `readonly`: nothing may be written to it. It is an input
    of anything that takes inputs, and other libraries take it without a copy by `__dlpack__`, and
    in the host's memory by `__array__`.
    """

    __slots__ = ("address", "device", "owner", "readonly", "type")

    def __init__(
        self, address: int, type: TensorType, device: str = HOST, owner: Any = None,
        readonly: bool = False,
    ):  # fmt: skip
        self.address = address
        self.type = type
        self.device = device
        self.owner = owner
        self.readonly = readonly

    @staticmethod
    def of(value: Any) -> ExternalTensor:
        """A tensor that offers `__dlpack__`, or a NumPy array, where it lies. One of the host that
        is not contiguous is copied, and the copy is readonly: what is written there would be lost.
        On a GPU nothing is waited for: whoever uses the tensor sees to it that its elements are
        there. Raises `InputError`.
        """
        if isinstance(value, ExternalTensor):
            return value
        value = without_gradient(value)
        if isinstance(value, np.ndarray):
            return _of_array(value)
        try:
            tensor, capsule, readonly = _exported(value)
        except Exception as error:  # whatever a foreign object raises when asked for its elements
            raise InputError(f"the tensor cannot be used where it is: {error}") from None
        if tensor.device == _CPU:
            return _of_array(_array(tensor, capsule), readonly)
        t = TensorType(_dtype(tensor), tuple(tensor.shape[: tensor.rank]))
        if tensor.device != _CUDA or not _is_contiguous(tensor):
            where = "contiguous" if tensor.device == _CUDA else "on the CPU or a CUDA GPU"
            raise InputError(f"the tensor, {t}, is not {where}", hint="copy it")
        device = f"cuda:{tensor.device_id}" if tensor.device_id else "cuda"
        address = (tensor.data or 0) + tensor.byte_offset
        return ExternalTensor(address, t, device, capsule, readonly)

    @property
    def nbytes(self) -> int:
        nbytes: Any = self.type.nbytes  # concrete here
        return nbytes

    @property
    def memory(self) -> ExternalMemory:
        """Its bytes, for devices."""
        return ExternalMemory(self.address, self.nbytes, self.owner)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.device == HOST:
            array = self._view(self.type.dtype.numpy)
        else:
            array = device_named(self.device).read(self.memory, 0, self.type)
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device == HOST:
            return _CPU, 0
        return _CUDA, int(self.device.partition(":")[2] or 0)

    def __dlpack__(self, **options: Any) -> Any:
        """`options` that ask for another device or a copy are refused; a GPU's elements are there
        when the work that writes them is done.
        """
        where = self.__dlpack_device__()
        if self.readonly:
            raise BufferError("the tensor is readonly")
        if options.get("copy") or options.get("dl_device") not in (None, where):
            raise BufferError("a tensor is handed over where it lies")
        like = np.dtype(f"u{self.type.dtype.itemsize}")
        # NumPy frees what it keeps itself, from any thread and at any time; it never reads it
        capsule = self._view(like).__dlpack__()
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
        tensor.data, (tensor.device, tensor.device_id) = self.address, where
        tensor.code, tensor.bits, tensor.lanes = _code(self.type.dtype)
        return capsule

    def _view(self, dtype: Any) -> np.ndarray:
        shape: Any = self.type.shape  # concrete here
        return bytes_at(self.address, self.nbytes, self.owner).view(dtype).reshape(shape)

    def __repr__(self) -> str:
        return f"<ExternalTensor {self.type} at {self.address:#x} on {self.device}>"


def without_gradient(value: Any) -> Any:
    """The elements alone of a tensor that a library takes derivatives by: no run adds to those."""
    if getattr(value, "requires_grad", False) is True and hasattr(value, "detach"):
        return value.detach()
    return value


def array_of(value: Any) -> np.ndarray | None:
    """A tensor in the CPU's memory that offers `__dlpack__`, where it lies; None of anything else,
    or where no tensor of ours has such elements.
    """
    try:
        if value.__dlpack_device__()[0] == _CPU:
            return _array(*_exported(value)[:2])
    except Exception:  # whatever a foreign object raises when asked for its elements
        return None
    return None


def _exported(value: Any) -> tuple[_Tensor, Any, bool]:
    """What a library says of its tensor, the capsule that keeps that, whether it is readonly."""
    if getattr(value, "is_neg", bool)():  # PyTorch hands over the elements without their sign
        raise ValueError("its elements are negated when they are read; call resolve_neg()")
    options = {} if value.__dlpack_device__()[0] == _CPU else {"stream": -1}  # nobody waits
    try:
        capsule = value.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # an older library
        capsule = value.__dlpack__(**options)
    try:
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), capsule, False
    except ValueError:
        address = _pointer(capsule, b"dltensor_versioned") + _VERSIONED
    flags = ctypes.c_uint64.from_address(address - 8).value
    return _Tensor.from_address(address), capsule, bool(flags & 1)


def _dtype(tensor: _Tensor) -> DType:
    found = _DTYPES.get((tensor.code, tensor.bits, tensor.lanes))
    if found is None:
        raise InputError("it has elements of a type that no tensor has")
    return found


def _steps(tensor: _Tensor) -> list[int]:
    """Its strides, in elements."""
    shape = tensor.shape[: tensor.rank]
    rows = [prod(shape[k + 1 :]) for k in range(tensor.rank)]
    return tensor.strides[: tensor.rank] if tensor.strides else rows


def _is_contiguous(tensor: _Tensor) -> bool:
    shape, expected = tensor.shape[: tensor.rank], 1
    if 0 in shape:
        return True
    for n, step in reversed(list(zip(shape, _steps(tensor), strict=True))):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


def _array(tensor: _Tensor, capsule: Any) -> np.ndarray:
    """Its elements where they lie; the array keeps the capsule."""
    dtype = _dtype(tensor)
    shape, size = tuple(tensor.shape[: tensor.rank]), dtype.itemsize
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    steps = [size * step for step in _steps(tensor)]
    ends = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
    before = -sum(e for e in ends if e < 0)
    nbytes = before + sum(e for e in ends if e > 0) + size
    start = (tensor.data or 0) + tensor.byte_offset - before
    memory: Any = bytes_at(start, nbytes, capsule)
    carrier = np.dtype(f"u{size}")
    return np.ndarray(shape, carrier, memory, before, steps).view(dtype.numpy)


def _of_array(array: np.ndarray, readonly: bool = False) -> ExternalTensor:
    try:
        t = TensorType(dtype_of(array.dtype), array.shape)
    except KeyError:
        raise InputError(f"no tensor has elements of type {array.dtype}") from None
    there = np.asarray(array, order="C")
    readonly = readonly or there is not array or not array.flags.writeable
    return ExternalTensor(there.__array_interface__["data"][0], t, HOST, there, readonly)
