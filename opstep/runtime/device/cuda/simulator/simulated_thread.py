"""A simulated thread of a block, as numba's `cuda` and our intrinsics use it."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from opstep.runtime.device.cuda.lowering import Prepared

Three = tuple[int, int, int]


class Dim3(NamedTuple):
    """As kernels see places and sizes."""

    x: int
    y: int
    z: int


def places(sizes: Three) -> list[Three]:
    """All there are, x first."""
    return [(x, y, z) for z, y, x in product(*map(range, reversed(sizes)))]


class Together:
    """What the threads of a block share beside memory."""

    def __init__(self) -> None:
        self.exchanges: dict[int, dict[int, Any]] = {}  # by their number in the kernel's course


class BlockThread:
    """What a thread of a block is asked for, whatever it is in Python."""

    def put(self, launch: Prepared, together: Together, block: Three, place: Three) -> None:
        """Says which one it is."""
        x, y, _ = launch.block
        self.blockIdx = Dim3(*block)
        self.threadIdx = Dim3(*place)
        self.thread_id = place[0] + x * (place[1] + y * place[2])
        self.title = f"block {written(block)}, thread {written(place)}"
        self._together = together
        self._exchanges = 0

    def syncthreads(self) -> None:
        """Waits until every thread of the block that still runs is at a barrier."""
        raise NotImplementedError

    def exchanged(self, value: Any) -> dict[int, Any]:
        """What each thread of the block gave, by its number; a barrier."""
        exchanges, number = self._together.exchanges, self._exchanges
        given = exchanges.setdefault(number, {})
        given[self.thread_id] = value
        self._exchanges += 1
        self.syncthreads()
        exchanges.pop(number - 1, None)
        return given


def written(three: Three) -> str:
    """As labels of blocks and threads have it."""
    return f"({three[0]},{three[1]},{three[2]})"
