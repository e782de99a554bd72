"""What drives a run of the interpreter: it waits in place, or lets an event loop do other things
meanwhile, such as drive another context.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from opstep.runtime.device.fence import Fence
from opstep.runtime.device.null import NullDevice
from opstep.runtime.interrupts import Held
from opstep.runtime.ir.diagnostics import OpstepError


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
    fence: Fence | None = Fence((), (), NullDevice())  # nothing to wait for yet
    while True:
        try:
            with Held():
                fence = next(coroutine, None)
            if fence is None:
                return stopped
            await fence.reached()
        except OpstepError:
            raise
        except BaseException as caught:
            stopped = stopped or caught
            if fence is None:  # it came at the end, which is reached
                return stopped
            with Held():
                fence.wait()
