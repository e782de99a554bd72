"""Places in memory, and the named tensors of a program, which all contexts that run it share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.protocols import Device, Memory, Own
from opstep.runtime.ir.types import TensorType


class Address(NamedTuple):
    """A place in memory, `offset` bytes from its beginning."""

    memory: Memory
    offset: int

    @property
    def address(self) -> int:
        return self.memory.address + self.offset


class Store:
    """Memory of each param and state, by name."""

    def __init__(self, device: Device, types: dict[str, TensorType]):
        self.device = device
        self.types = types
        self._memory: dict[str, Memory] = {}
        self.moves = 0  # how often a tensor got other memory

    def adopt(self, name: str, memory: Memory) -> None:
        """The tensor is in this memory from now on; plans that are bound are to be bound anew."""
        self._memory[name] = memory
        self.moves += 1

    def release(self, name: str) -> None:
        """The tensor gets memory of its own when it is next asked for."""
        del self._memory[name]
        self.moves += 1

    def memory(self, name: str) -> Memory:
        """Its memory, made (but not filled) when first asked for."""
        if name not in self._memory:
            self._memory[name] = self.device.alloc(self.types[name].nbytes, "named tensors")
        return self._memory[name]

    def __contains__(self, name: str) -> bool:
        return name in self._memory

    def write(self, name: str, array: np.ndarray) -> None:
        """Sets a tensor; the array must have its shape and dtype."""
        self.device.write(self.memory(name), 0, self.types[name], array)

    def copy_from(self, name: str, other: Store) -> None:
        """Gives a tensor the value that it has in another store: from GPU to GPU directly."""
        source, target = other.memory(name), self.memory(name)
        if not self.device.copy_from(other.device, source, target):
            self.write(name, other.read(name))

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor."""
        return self.device.read(self.memory(name), 0, self.types[name]).copy()


class Before:
    """Copies of named tensors from before a run that may change them. `names`: tensors that have
    a copy now.
    """

    def __init__(self, device: Device, store: Store):
        self.device = device
        self.store = store
        self.names: Sequence[str] = ()
        self._memory: dict[str, Memory] = {}

    def copies(self, names: Sequence[str]) -> list[Own]:
        """Work for a stream that copies these tensors here."""
        for name in names:
            if name not in self._memory:
                nbytes = self.store.memory(name).nbytes
                self._memory[name] = self.device.alloc(nbytes, "named tensors, to go back to")
        return [self._copy(self.store.memory(n), self._memory[n]) for n in names]

    def read(self, name: str) -> np.ndarray:
        """The value of a tensor here, until the next `copies`: a view where it can be one."""
        return self.device.read(self._memory[name], 0, self.store.types[name])

    def back(self) -> list[Own]:
        """Work for a stream that restores the tensors, and forgets the copies."""
        names, self.names = self.names, ()
        return [self._copy(self._memory[n], self.store.memory(n)) for n in names]

    def _copy(self, source: Memory, target: Memory) -> Own:
        return self.device.copy(source.address, target.address, target.nbytes)
