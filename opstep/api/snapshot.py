"""Named tensors as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opstep.api.devices import HOST
from opstep.runtime.device.store import Before
from opstep.runtime.ir.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program


class Snapshot:
    """A copy of all params and states that have values, or get theirs from an initialiser.

    `take` copies them within the memory of their device, so that the run goes on soon; `read` may
    bring them to the host later, on another thread. The memory is used again by the next `take`.
    What ranks have parts of is put together, on the host: `others_take` is for the other ranks.
    """

    def __init__(self, program: Program):
        self._program = program
        self._copies: dict[str, Before] = {}  # by device
        self._device: dict[str, str] = {}  # by name
        self._wholes: dict[str, np.ndarray] = {}  # of shards

    def take(self) -> int:
        """Between two steps; gives the bytes of all tensors."""
        params = self._program.params
        places = params.places()
        self._wholes = params.whole([n for n in places if n in params.shards])
        for device in dict.fromkeys(places.values()):
            names = [n for n, d in places.items() if d == device and n not in params.shards]
            try:
                self._copy(device, names)
            except DeviceError:  # no room there for a second one
                if device == HOST:
                    raise
                for name in names:
                    _ = params[name]  # a copy on the host, which is the tensor's own
                self._copies.pop(device, None)
                self._copy(HOST, names)
                places |= dict.fromkeys(names, HOST)
        self._device = places
        declared = self._program.module.tensors
        nbytes: Any = [declared[n].type.nbytes for n in places]
        return sum(nbytes)

    def _copy(self, device: str, names: Sequence[str]) -> None:
        store = self._program._store(device)
        if device not in self._copies:
            self._copies[device] = Before(store.device, store)
        store.device.work_now(self._copies[device].copies(names))

    def __iter__(self) -> Iterator[str]:
        return iter(self._device)

    def read(self, name: str) -> np.ndarray:
        """One of them, as it was; a view of memory that the next `take` writes."""
        if name in self._wholes:
            return self._wholes[name]
        return self._copies[self._device[name]].read(name)


def others_take(program: Program) -> None:
    """What another rank than the one that takes a `Snapshot` does meanwhile."""
    params = program.params
    params.whole([n for n in params.places() if n in params.shards])
