"""Bytes between ranks by Gloo, through PyTorch: from one to another is all that is used of it.

A rank that is gone closes its connections, so whoever waits for it is told at once.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Any

import numpy as np

from opstep.distributed.checking import Check
from opstep.distributed.lookout import Lookout, say
from opstep.distributed.meeting import interruptible, meet
from opstep.distributed.place import Place
from opstep.distributed.watch import Losses, Watch, said
from opstep.runtime.device.ranks import connect, standing
from opstep.runtime.ir.diagnostics import first_line
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.mesh import WORLD, Group, Mesh

_MEET_S = 300.0  # to find each other
WAIT_S = 1800.0  # for a rank that lives, as PyTorch has it
_BEFORE = "before the first op that ranks do together"


@contextmanager
def joined(
    place: Place, wait_s: float = WAIT_S, on_gpus: bool = False, checked: bool = False
) -> Iterator[GlooTransport]:
    """This process as one of the ranks, with collectives over Gloo, in which it waits so long for
    others. `on_gpus`: each waits on a GPU for the others, too; `checked`: before each collective
    ranks compare what they are at. Raises `DeviceError`.
    """
    transport = GlooTransport(place, wait_s, on_gpus)
    check = Check(transport.rank, transport.swap) if checked else None
    connect(transport, check)
    if check is not None:
        transport.world = CheckedRanks(transport, check)
    failed = True
    try:
        yield transport
        failed = False
    except KeyboardInterrupt:
        say(f"rank {transport.rank} stood {standing() or _BEFORE}")
        raise
    finally:
        transport.part(failed)
        connect(None)
        transport.close()


class GlooTransport:
    def __init__(self, place: Place, wait_s: float = WAIT_S, on_gpus: bool = False):
        try:
            torch: Any = importlib.import_module("torch")
            self._dist: Any = importlib.import_module("torch.distributed")
        except ImportError as error:
            raise DeviceError(
                f"ranks are connected by Gloo, which is part of PyTorch: {error}",
                hint="pip install 'opstep[ranks]'",
            ) from None
        torch.set_num_threads(1)
        self._torch = torch
        self.rank = place.rank
        self.wait_s = wait_s
        if place.local_ranks == place.ranks:  # one machine: nobody else is let in
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        store = meet(place, _MEET_S)
        try:
            interruptible(
                lambda: self._dist.init_process_group(
                    "gloo",
                    store=self._dist.PrefixStore("gloo", store),
                    rank=place.rank,
                    world_size=place.ranks,
                    timeout=timedelta(seconds=_MEET_S),
                )
            )
        except RuntimeError as error:
            message = f"rank {place.rank} cannot connect to the others: {first_line(error)}"
            raise DeviceError(message) from None
        self.all = Group(Mesh(((WORLD, place.ranks),)), (WORLD,))
        self.world = GlooRanks(self, self.all)
        self._lost = Losses()
        limit_s, tell = (wait_s, self._lost.tell) if on_gpus else (inf, None)
        self._lookout = Lookout(self._dist.PrefixStore("at", store), place.rank, limit_s, tell)
        self._watch = Watch(torch, place.rank, place.ranks, self._gone) if on_gpus else None

    def ranks(self, group: Group) -> GlooRanks:
        return GlooRanks(self, group)

    def wait_for(self, others: Collection[int]) -> None:
        self._lookout.wait_for([other for other in others if other != self.rank])

    def when_lost(self, call: Callable[[str], Any]) -> None:
        self._lost.ask(call)

    def part(self, failed: bool) -> None:
        """This rank ends: the others are told, where they wait for it on GPUs."""
        if self._watch is not None:
            self._watch.part(failed)

    def _gone(self, other: int, reason: str) -> None:
        self._lost.tell(f"rank {self.rank} waits for rank {other}, which is gone ({reason})")

    def close(self) -> None:
        self._lookout.close()
        self._dist.destroy_process_group()

    def swap(self, out: dict[int, np.ndarray], into: dict[int, np.ndarray], tag: int = 0) -> None:
        """Sends and receives contiguous arrays, by rank, all at once. Raises `DeviceError`."""
        dist, work, kept = self._dist, [], []
        self._lookout.wait_for({*out, *into})
        began = time.monotonic()
        try:
            for other, array in into.items():
                if array.nbytes:
                    work.append((other, dist.irecv(self._bytes(array), other, tag=tag)))
            for other, array in out.items():
                if array.nbytes:
                    kept.append(self._bytes(array))
                    work.append((other, dist.isend(kept[-1], other, tag=tag)))
            for other, one in work:  # noqa: B007 - told below
                one.wait(timedelta(seconds=self.wait_s))
        except RuntimeError as error:
            if time.monotonic() - began >= self.wait_s:
                message = f"after {self.wait_s:g} s {self._lookout.missing()}"
                raise DeviceError(message) from None
            message = f"rank {self.rank} waits for rank {other}, which is gone ({said(error)})"
            if not (at := standing()) or at.startswith("behind"):  # else the error points at it
                message += f"; it stands {at or _BEFORE}"
            raise DeviceError(message) from None
        finally:
            self._lookout.wait_for(())

    def _bytes(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(array.reshape(-1).view(np.uint8))


class GlooRanks:
    """A group, as `runtime.device.ranks` has it."""

    def __init__(self, transport: GlooTransport, group: Group):
        self._swap = transport.swap
        self._members = group.members(transport.rank)
        self.index = group.index(transport.rank)
        self.size = group.size

    def exchange(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        own = np.array(parts[self.index])
        got = [own if k == self.index else np.empty_like(own) for k in range(self.size)]
        self._swap(
            {m: np.array(p) for m, p in self._others(parts)},
            dict(self._others(got)),
        )
        return got

    def gather(self, array: np.ndarray, sizes: Sequence[int] = ()) -> list[np.ndarray]:
        own = np.array(array)
        shapes = [(n,) for n in sizes] or [own.shape] * self.size
        got = [np.empty(s, own.dtype) for s in shapes]
        got[self.index] = own
        self._swap(dict(self._others([own] * self.size)), dict(self._others(got)))
        return got

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        own = np.array(array)
        if root == self.index:
            self._swap(dict(self._others([own] * self.size)), {})
        else:
            self._swap({}, {self._members[root]: own})
        return own

    def send(self, array: np.ndarray, to: int) -> None:
        self._swap({self._members[to]: np.array(array)}, {})

    def recv(self, like: np.ndarray, source: int) -> np.ndarray:
        got = np.empty_like(like, order="C")
        self._swap({}, {self._members[source]: got})
        return got

    def barrier(self) -> None:
        self.gather(np.zeros(1, np.uint8))

    def _others(self, arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """The arrays by the numbers of the ranks, without this one's own."""
        for k, (member, array) in enumerate(zip(self._members, arrays, strict=True)):
            if k != self.index:
                yield member, array


class CheckedRanks(GlooRanks):
    """All ranks, which speak to each other between graphs: so none is to be at a collective."""

    def __init__(self, transport: GlooTransport, check: Check):
        super().__init__(transport, transport.all)
        self.check = check

    def gather(self, array: np.ndarray, sizes: Sequence[int] = ()) -> list[np.ndarray]:
        self.check.between(self._members)
        return super().gather(array, sizes)
