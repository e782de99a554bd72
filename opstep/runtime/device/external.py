"""Memory that somebody else allocated, such as that of a PyTorch tensor."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class ExternalMemory:
    """Bytes of others, there for as long as somebody refers to `owner`. A binding may be told that
    they are elsewhere from now on (`Binding.pointers`): then `address` changes.
    """

    __slots__ = ("address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: Any = None):
        self.address = address
        self.nbytes = nbytes
        self.owner = owner

    @property
    def bytes(self) -> np.ndarray:
        """Those of the host, as an array that keeps the owner."""
        return bytes_at(self.address, self.nbytes, self.owner)


def bytes_at(address: int, nbytes: int, owner: Any = None) -> np.ndarray:
    """u8[nbytes] in memory of the host; nothing is copied."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    memory.owner = owner
    return np.ndarray((nbytes,), np.uint8, memory)
