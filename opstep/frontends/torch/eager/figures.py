"""Statistics of tensors on the CPU by the compiled kernels, called on the tensors' own memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.eager.tensors import PLAIN, undispatched
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.ir.types import TensorType
from opstep.runtime.statistics import WORDS, Statistics, decode, step_for

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore
_MOST_SIZES = 256  # of tensors, whose calls are kept
_ROWS = 512  # that are allocated at once


def can_be_had(t: torch.Tensor) -> bool:
    """Whether its elements lie in memory that the kernels can read."""
    if type(t) not in PLAIN or t.dtype not in DTYPES or t.layout is not torch.strided:
        return False
    return t.is_cpu and not (_is_wrapped(t) or t.is_neg() or t._is_zerotensor())


class _Call(NamedTuple):
    """A kernel for tensors of one size. `read`, `write`: what sets its addresses."""

    read: list[Callable[[int], None]]
    write: list[Callable[[int], None]]
    run: Callable[[], None]
    scratch: Any


def statistics_of(t: torch.Tensor) -> Statistics:
    """Of a tensor of floats or integers, wherever it is."""
    figures, held = Figures(), t.detach().cpu()
    figures.add(held)
    return decode(figures.taken()[0], DTYPES[held.dtype])


class Figures:
    """One thread's: rows of `WORDS` words, until they are taken away."""

    def __init__(self) -> None:
        self._device = CpuDevice(1)
        self._enabled = np.ones((), np.int64)
        self._calls: dict[tuple[torch.dtype, int], _Call] = {}
        self._full: list[np.ndarray] = []
        self._rows = np.empty((_ROWS, WORDS), np.int64)
        self._address, self._used = self._rows.ctypes.data, 0

    def add(self, t: torch.Tensor) -> None:
        """One more row."""
        if not t.is_contiguous():
            whole = t.numel() * t.element_size() == t.untyped_storage().nbytes()
            if not whole or t.storage_offset():  # else it is as good in the memory's own order
                with undispatched():
                    t = t.contiguous()
        key = t.dtype, t.numel()
        call = self._calls.get(key) or self._call(*key)
        if self._used == _ROWS:
            self._full.append(self._rows)
            self._rows = np.empty((_ROWS, WORDS), np.int64)
            self._address, self._used = self._rows.ctypes.data, 0
        for set_address in call.read:
            set_address(t.data_ptr())
        for set_address in call.write:
            set_address(self._address + 8 * WORDS * self._used)
        call.run()
        self._used += 1

    def _call(self, dtype: torch.dtype, count: int) -> _Call:
        if len(self._calls) >= _MOST_SIZES:
            self._calls.clear()
        launches, nbytes = self._device.prepare(
            *step_for(TensorType(DTYPES[dtype], (count,)), False)
        )
        scratch = self._device.alloc(nbytes)
        addresses = [self._address, self._enabled.ctypes.data, self._address]
        bound = self._device.bind(launches, addresses, scratch.address)
        read, write = (self._device.pointers(bound, slot) for slot in (0, 2))
        call = _Call(read, write, self._device.capture(bound), scratch)
        self._calls[dtype, count] = call
        return call

    def taken(self) -> np.ndarray:
        """All rows so far, i64[n, WORDS]."""
        found = np.concatenate([*self._full, self._rows[: self._used]])
        self._full, self._used = [], 0
        return found
