"""What a run of the interpreter waits for, and what drives it: in place, or in an event loop that
does other things meanwhile, such as drive another context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

from opstep.runtime.device.protocols import Device, Stream
from opstep.runtime.interrupts import Held
from opstep.runtime.ir.diagnostics import OpstepError

_ROUNDS = 200  # of an event loop, before it is told by a thread


class Fence:
    """Streams whose queued work the host must see done; `others` are streams that they may wait
    for.
    """

    def __init__(self, streams: Sequence[Stream], others: Sequence[Stream], device: Device):
        self.streams = streams
        self.others = others
        self.device = device

    def wait(self) -> None:
        """Blocks; the calling thread takes over work that has not begun."""
        for stream in self.others:
            if stream is not self.streams[0]:
                stream.start()
        for stream in self.streams:
            stream.synchronize()

    def done(self) -> bool | None:
        """Whether all is done; None where the device cannot tell without being waited for."""
        for stream in self.streams:
            if not (done := stream.done()):
                return done
        return True

    def on_done(self, callback: Callable[[], Any]) -> None:
        """Calls back once all is done, from a thread of the device."""
        left = len(self.streams)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                callback()

        for stream in self.streams:
            event = self.device.event()
            event.on_done(one_done)
            stream.record(event)
        for stream in self.others:
            stream.start()

    async def reached(self) -> None:
        """Returns when all is done; the event loop is free meanwhile."""
        if await self._soon():
            return
        loop = asyncio.get_running_loop()
        reached = asyncio.Event()
        self.on_done(lambda: loop.call_soon_threadsafe(reached.set))
        await reached.wait()

    async def _soon(self) -> bool:
        """Whether it is reached while the loop goes round a few times: most are, on a GPU, and to
        be told by a thread takes longer than that. The loop goes round once at least: in debug mode
        each op was waited for, and nothing else would let other tasks run.
        """
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
            reached = self.done()
            if reached or reached is None:
                return bool(reached)
        return False


def drive(
    coroutine: Generator[Fence, None, None], between: Callable[[], Any] = lambda: None
) -> None:
    """Runs to the end, waiting in place. `between` is called whenever that is over."""
    for fence in coroutine:
        fence.wait()
        between()


async def drive_async(coroutine: Generator[Fence, None, None]) -> None:
    """Runs to the end; while the device works, the event loop is free."""
    for fence in coroutine:
        await fence.reached()


async def drive_through(coroutine: Generator[Fence, None, None]) -> BaseException | None:
    """`drive_async` that nothing cuts short: when the task is cancelled, or Ctrl-C ends its loop,
    the rest is waited for in place. What it was gives the caller to raise.
    """
    stopped: BaseException | None = None
    fence: Fence | None = None
    ended = False
    while True:
        try:
            with Held():
                fence = next(coroutine, None)
                ended = fence is None
            if fence is None:
                return stopped
            await fence.reached()
        except OpstepError:
            raise
        except BaseException as caught:
            stopped = stopped or caught
            if ended:
                return stopped
            if fence is not None:
                with Held():
                    fence.wait()
