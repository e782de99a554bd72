"""Memory of the CPU: aligned bytes of this process, and how many more there are to be had."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from opstep.runtime.device.cpu.lowering import ALIGNMENT
from opstep.runtime.ir.amounts import size
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.wording import Argument, Wording

_LARGE = 64 << 20  # bytes; only above this is the system asked first
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class CpuMemory:
    """Aligned bytes of this process. `what` says for whom, in messages. Raises `DeviceError`."""

    __slots__ = ("address", "bytes", "nbytes")

    def __init__(self, nbytes: int, what: str = ""):
        want_memory(nbytes, lambda: what)
        try:
            whole = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):
            raise _out_of_memory(nbytes, available(), what) from None
        start = -whole.ctypes.data % ALIGNMENT
        self.address = whole.ctypes.data + start
        self.bytes = whole[start : start + nbytes]
        self.nbytes = nbytes


def want_memory(nbytes: int, what: Callable[[], str] = str) -> None:
    """Raises `DeviceError` where there is not so much of it. `what`: whose bytes they are."""
    if nbytes > _LARGE and nbytes > (free := available()):
        raise _out_of_memory(nbytes, free, what())


def _out_of_memory(nbytes: int, free: int, what: str) -> DeviceError:
    wanted = f"{size(nbytes)} are wanted{what and f' for {what}'}"
    return DeviceError(
        f"out of memory: {wanted}, {size(free)} are free",
        hint=Wording.any_of(("choose smaller sizes",), (Argument("alloc", "reuse"),)),
    )


def available() -> int:
    """Bytes that can be had without swapping, of the machine and of the control groups that this
    process is in, as those of containers and batch jobs. Linux grants more, and kills who uses it.
    """
    least = sys.maxsize
    with suppress(OSError, ValueError, KeyError):
        least = 1024 * _numbers(Path("/proc/meminfo"))["MemAvailable:"]
    return max(0, min(least, *_left_in_groups(), sys.maxsize))


def _left_in_groups() -> Iterator[int]:
    """The bytes that each limit leaves. Pages of files count as used, but the system frees them
    when it has to: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory
    """
    with suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            root = _GROUPS / "memory" if kinds else _GROUPS
            limit, used, files = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                if kinds
                else ("memory.max", "memory.current", "inactive_file")
            )
            here = root / path.lstrip("/")
            for folder in (here, *here.parents):
                # The root has no limit; and a container sees its own group as the root.
                with suppress(OSError, ValueError, KeyError):
                    most = int((folder / limit).read_text())  # "max" is no number
                    spare = _numbers(folder / "memory.stat")[files]
                    yield most - int((folder / used).read_text()) + spare
                if folder == root:
                    break


def _numbers(path: Path) -> dict[str, int]:
    """The first number behind each word."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
