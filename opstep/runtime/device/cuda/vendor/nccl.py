"""Collectives of ranks on GPUs, by NCCL: communicators of groups, and calls on a stream.

A communicator is made where a plan is bound, by all ranks of its group, which meet over the
transport that connects them. From then on a call only puts a kernel onto a stream, and is captured
with others into a CUDA graph. NCCL waits in that kernel: for a rank that never comes, for ever. So
whoever learns that one is gone (`Transport.when_lost`) has the communicators let go of the GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opstep.runtime.device.cuda.driver.driver import LostDevice, current, driver, gpu
from opstep.runtime.device.cuda.vendor.libraries import Refused, library
from opstep.runtime.device.ranks import Transport, connected, located
from opstep.runtime.device.routine import Enqueue
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.mesh import Group

OLDEST = 22_100  # that of the oldest PyTorch that we take
_BYTES = 1  # ncclUint8: what is only moved
_TYPES = {
    "i8": 0, "u8": 1, "i32": 2, "i64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip  # ncclDataType_t
_REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}  # ncclRedOp_t
_LOOK_S = 0.1
_UUID = 16  # bytes

Send = tuple[int, int, int]
"""The place of the other in the group, an address, and bytes: also of what is received."""


def reduces(dtype: str, reduction: str) -> bool:
    return dtype in _TYPES and reduction in _REDUCTIONS


@dataclass(frozen=True)
class Routine:
    """A call of the library: `put` enqueues it, given the communicator of `group`, addresses and a
    stream.
    """

    name: str
    group: Group
    put: Callable[[Communicator, Sequence[int], int], Any]
    workspace: int = 0

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        communicator, put, cuda = communicator_of(self.group), self.put, driver()
        transport = connected()
        members = self.group.members(transport.rank)

        def enqueue(stream: int) -> None:
            if cuda.lost:
                raise cuda.lost
            transport.wait_for(members)  # to call a function for the first time connects them
            try:
                put(communicator, pointers, stream)
            except Refused:
                if cuda.lost:
                    raise cuda.lost from None
                raise
            finally:
                transport.wait_for(())

        return enqueue


def all_reduce(group: Group, dtype: str, count: int, reduction: str) -> Routine:
    """Of x into y, which may be x. It has one communicator's order of sums: see `docs`."""
    how = (ctypes.c_size_t(count), _TYPES[dtype], _REDUCTIONS[reduction])

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.call("AllReduce", pointers, how, stream)

    return Routine("nccl all_reduce", group, put)


def reduce_scatter(group: Group, dtype: str, count: int, reduction: str) -> Routine:
    """Of x into y, this rank's part of so many elements."""
    how = (ctypes.c_size_t(count), _TYPES[dtype], _REDUCTIONS[reduction])

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.call("ReduceScatter", pointers, how, stream)

    return Routine("nccl reduce_scatter", group, put)


def all_gather(group: Group, nbytes: int) -> Routine:
    """Of x, of so many bytes, into y."""
    how = (ctypes.c_size_t(nbytes), _BYTES)

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.call("AllGather", pointers, how, stream)

    return Routine("nccl all_gather", group, put)


def broadcast(group: Group, nbytes: int, root: int) -> Routine:
    """The x of one rank into the y of all."""
    how = (ctypes.c_size_t(nbytes), _BYTES, root)

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.call("Broadcast", pointers, how, stream)

    return Routine("nccl broadcast", group, put)


def send(group: Group, nbytes: int, to: int) -> Routine:
    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.swap([(to, pointers[0], nbytes)], [], stream)

    return Routine("nccl send", group, put)


def receive(group: Group, nbytes: int, source: int) -> Routine:
    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        on.swap([], [(source, pointers[0], nbytes)], stream)

    return Routine("nccl receive", group, put)


def exchange(group: Group, nbytes: int, part: int) -> Routine:
    """Parts of x, each of so many bytes but for the last ones, to the ranks in their order; into y
    what each gives this one, `part` bytes apart.
    """

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        x, y = pointers
        sizes = _parts(nbytes, part, on.size)
        own = sizes[on.index]
        on.swap(
            [(k, x + k * part, size) for k, size in enumerate(sizes)],
            [(k, y + k * part, own) for k in range(on.size)],
            stream,
        )

    return Routine("nccl exchange", group, put)


def collect(group: Group, nbytes: int, part: int) -> Routine:
    """The x of all into y, one behind the other: parts as `exchange` has them."""

    def put(on: Communicator, pointers: Sequence[int], stream: int) -> None:
        x, y = pointers
        sizes = _parts(nbytes, part, on.size)
        on.swap(
            [(k, x, sizes[on.index]) for k in range(on.size)],
            [(k, y + k * part, size) for k, size in enumerate(sizes)],
            stream,
        )

    return Routine("nccl collect", group, put)


def _parts(nbytes: int, part: int, count: int) -> list[int]:
    return [max(0, min(part, nbytes - k * part)) for k in range(count)]


@dataclass(frozen=True)
class PlaceInGroup:
    """Writes the place of this rank in a group, an i32. Plans know no rank: what is bound does."""

    group: Group
    name: str = "rank"
    workspace: int = 0

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        index, fill = self.group.index(connected().rank), driver().cuMemsetD32Async
        return lambda stream: fill(pointers[0], index, 1, stream)


# --- communicators --------------------------------------------------------------------------------


class _Identity(ctypes.Structure):
    """An ncclUniqueId: where its ranks find each other."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Communicator:
    """The ranks of a group, each on its GPU. All of them make it at the same time. Raises
    `DeviceError` where NCCL does not connect them.
    """

    def __init__(self, group: Group):
        ranks = connected().ranks(group)
        self.index, self.size = ranks.index, ranks.size
        self._lib = library("nccl")
        self.handle = ctypes.c_void_p()
        self._check(group)
        identity = _Identity()
        if self.index == 0:
            self._lib.ncclGetUniqueId(ctypes.byref(identity))
        told = ranks.broadcast(np.frombuffer(bytes(identity), np.uint8), 0)
        self._meet(_Identity.from_buffer_copy(told.tobytes()))

    def call(
        self, function: str, pointers: Sequence[int], how: tuple[Any, ...], stream: int
    ) -> None:
        x, y = map(ctypes.c_void_p, pointers)
        call = getattr(self._lib, f"nccl{function}")
        call(x, y, *how, self.handle, ctypes.c_void_p(stream))

    def swap(self, out: Iterable[Send], into: Iterable[Send], stream: int) -> None:
        """Sends and receives, all at once."""
        lib, end = self._lib, (self.handle, ctypes.c_void_p(stream))
        lib.ncclGroupStart()
        try:
            for call, some in ((lib.ncclSend, out), (lib.ncclRecv, into)):
                for other, address, nbytes in some:
                    if nbytes:
                        count = ctypes.c_size_t(nbytes)
                        call(ctypes.c_void_p(address), count, _BYTES, other, *end)
        finally:
            lib.ncclGroupEnd()

    def let_go(self) -> None:
        """Its kernels end, whatever they wait for; it may wait for graphs that have some."""
        abort = self._lib.loaded.ncclCommAbort
        threading.Thread(target=abort, args=(self.handle,), daemon=True).start()

    def _check(self, group: Group) -> None:
        """Raises `DeviceError` where NCCL would refuse to begin, or never do."""
        version = ctypes.c_int()
        self._lib.ncclGetVersion(ctypes.byref(version))
        on, cuda = gpu(current()), driver()
        uuid = np.frombuffer(bytes(cuda.cuDeviceGetUuid(on.handle).bytes), np.uint8)
        own = np.concatenate([np.array([version.value], np.int64).view(np.uint8), uuid])
        every = connected().ranks(group).gather(own)
        check_alike(
            group.members(connected().rank),
            [int(one[:-_UUID].view(np.int64)[0]) for one in every],
            [one[-_UUID:].tobytes() for one in every],
        )

    def _meet(self, identity: _Identity) -> None:
        """In a thread of its own: the library waits for a rank that is gone by then, too."""
        on, problems = gpu(current()), []

        def meet() -> None:
            try:
                on.enter()
                self._lib.ncclCommInitRank(
                    ctypes.byref(self.handle), self.size, identity, self.index
                )
            except DeviceError as error:
                problems.append(error)

        thread = threading.Thread(target=meet, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
            if on.driver.lost:
                raise on.driver.lost
        if problems:
            raise problems[0]


def check_alike(members: Sequence[int], versions: Sequence[int], gpus: Sequence[bytes]) -> None:
    """Raises `DeviceError` where ranks have libraries of different versions, or share a GPU."""
    first = versions[0]
    for member, version in zip(members, versions, strict=True):
        if version != first:
            raise DeviceError(
                f"rank {members[0]} has NCCL {_named(first)} and rank {member} has "
                f"{_named(version)}: they do not speak with each other",
                hint="install the same version of PyTorch for all ranks",
            )
    if first < OLDEST:
        raise Refused(
            f"NCCL {_named(first)} is too old: {_named(OLDEST)} is needed",
            hint="install a newer PyTorch",
        )
    seen: dict[bytes, int] = {}
    for member, one in zip(members, gpus, strict=True):
        if one in seen:
            raise DeviceError(
                f"ranks {seen[one]} and {member} are on one GPU, and NCCL wants one for each",
                hint="start as many ranks on a machine as it has GPUs, and let each see its own",
            )
        seen[one] = member


def _named(version: int) -> str:
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


_made: dict[tuple[Transport, tuple[int, ...]], Communicator] = {}


def communicator_of(group: Group) -> Communicator:
    """That of this rank's group; all of its ranks ask for it for the first time together."""
    transport = connected()
    key = (transport, group.members(transport.rank))
    if key not in _made:
        if not _made:
            transport.when_lost(_end)
        _made[key] = Communicator(group)
    return _made[key]


def _end(why: str) -> None:
    """Ranks that are waited for never come: the process can do nothing more on its GPU."""
    cuda = driver()
    if cuda.lost is None:
        cuda.lost = located(LostDevice(why))
    for communicator in list(_made.values()):
        communicator.let_go()
