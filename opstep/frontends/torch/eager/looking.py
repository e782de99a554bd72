"""Looks at tensors: finite, infinite or NaN. On the CPU by the kernels that raise flags."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch

from opstep.frontends.torch.eager.tensors import FINITE, INFINITE, NAN, level_of
from opstep.runtime.device.cpu import jit
from opstep.runtime.device.flagging import raiser
from opstep.runtime.ir.types import bf16, f16, f32, f64

Look = Callable[[torch.Tensor], int]
_DTYPES = {torch.float32: f32, torch.float64: f64, torch.float16: f16, torch.bfloat16: bf16}
_MOST_SUMMED = 1 << 12  # elements that are not contiguous: of more a sum is taken first


class Looks:
    """One thread's: its kernels write flags to memory of its own. Until kernels are compiled
    PyTorch looks, which takes ten times as long.
    """

    watched = frozenset((*_DTYPES, torch.complex64, torch.complex128))

    def __init__(self) -> None:
        # Objects of ctypes, which a call takes as they are: it would convert numbers each time.
        word = ctypes.c_int64
        flags = (word * 2)()
        self._nan, self._inf = word.from_buffer(flags), word.from_buffer(flags, 8)
        words = (word * 2)(0, ctypes.addressof(flags))
        self._pointer, self._count = word.from_buffer(words), word()
        address = ctypes.c_void_p(ctypes.addressof(words))
        self._given = None, None, address, word(0), self._count, word(0)
        self._calls = {d: self._call(d) for d in _DTYPES}

    def _call(self, dtype: torch.dtype) -> Callable[..., None] | None:
        kernel = _kernel(dtype)
        return ctypes.CFUNCTYPE(None)(kernel.address()) if kernel.is_compiled() else None

    def level(self, t: torch.Tensor) -> int:
        """Of a strided tensor, FINITE, INFINITE or NAN. A GPU's is waited for."""
        if not t.numel():
            return FINITE
        if t.is_cuda:
            if not t.data_ptr():  # zeros that have no memory, or a storage that was emptied
                return FINITE
            most = float(torch.linalg.vector_norm(t.detach(), math.inf))
            return NAN if most != most else INFINITE if most == math.inf else FINITE
        call = self._calls.get(t.dtype)
        if call is None:
            return level_of(t)
        if not t.is_contiguous():
            return self._scattered(t)
        self._pointer.value = pointer = t.data_ptr()
        if not pointer:  # zeros that have no memory
            return FINITE
        self._count.value = t.numel()
        call(*self._given)
        if not (self._nan.value or self._inf.value):
            return FINITE
        level = NAN if self._nan.value else INFINITE
        self._nan.value = self._inf.value = 0
        return level

    def _scattered(self, t: torch.Tensor) -> int:
        """Memory without gaps is looked at in its own order; else a sum says that all is finite."""
        if t.numel() * t.element_size() == t.untyped_storage().nbytes() and not t.storage_offset():
            flat = torch.as_strided(t, (t.numel(),), (1,))
            return self.level(flat)
        if t.numel() > _MOST_SUMMED and torch.isfinite(t.sum()):
            return FINITE
        return level_of(t)


def _kernel(dtype: torch.dtype) -> jit.Kernel:
    own = _DTYPES[dtype]
    return jit.Kernel(raiser(own), (f"*{own.name}", "*i64"), own)


def compile_kernels() -> None:
    """Those that are not yet kept on disk."""
    for dtype in _DTYPES:
        _kernel(dtype).address()
