"""bf16 tensors of other libraries, which NumPy reads neither as arrays nor by DLPack."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from opstep.runtime.ir.types import bf16

_CPU = 1  # kDLCPU
_BFLOAT = (4, 16, 1)  # kDLBfloat, bits, lanes


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


def read_bf16(value: Any) -> np.ndarray | None:
    """A copy of a bf16 tensor in the CPU's memory that offers `__dlpack__`; None of anything else.

    Only the protocol is used, so nothing is imported for it.
    """
    try:
        if value.__dlpack_device__()[0] != _CPU:
            return None
        capsule = value.__dlpack__()
    except Exception:  # whatever a foreign object raises when asked for its elements
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    except ValueError:  # another kind of capsule
        return None
    if (tensor.code, tensor.bits, tensor.lanes) != _BFLOAT:
        return None
    shape = tuple(tensor.shape[: tensor.rank])
    if 0 in shape:
        return np.empty(shape, bf16.numpy)
    steps = [2 * s for s in tensor.strides[: tensor.rank]] if tensor.strides else None
    steps = steps or [2 * prod(shape[k + 1 :]) for k in range(tensor.rank)]
    ends = [(n - 1) * step for n, step in zip(shape, steps, strict=True)]
    before = -sum(e for e in ends if e < 0)
    nbytes = before + sum(e for e in ends if e > 0) + 2
    start = (tensor.data or 0) + tensor.byte_offset - before
    memory: Any = (ctypes.c_char * nbytes).from_address(start)
    bits = np.ndarray(shape, np.uint16, memory, before, steps)
    return bits.copy().view(bf16.numpy)  # the capsule gives the memory back when it goes
