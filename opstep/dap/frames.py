"""The stacks of a stop, and the numbers that frames have in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.dap.debuggee import FIRST_THREAD
from opstep.dap.registry import DapError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame

NO_THREAD = 2001


class Stacks:
    """``session.here(Stacks)``: each thread's stack, looked up once a stop."""

    def __init__(self, session: Session):
        self.session = session
        self._stacks: dict[int, list[Frame]] = {}

    def of(self, thread: int) -> list[Frame]:
        """Innermost first, of a thread in the protocol's numbers. Raises `DapError`."""
        if thread not in self._stacks:
            number = stream_of(self.session, thread)
            self._stacks[thread] = self.session.debugger.stack(number)
        return self._stacks[thread]

    def number(self, thread: int, frame: Frame) -> int:
        """The ``frameId`` of a frame of that thread."""
        held = Held(thread, frame)
        return self.session.references.add(held, ("frame", thread, frame.number))


class Held:
    """What a ``frameId`` stands for."""

    __slots__ = ("frame", "thread")

    def __init__(self, thread: int, frame: Frame):
        self.thread = thread
        self.frame = frame


def frame_of(session: Session, frame_id: int) -> Frame:
    """The frame of that ``frameId``. Raises `DapError` where the run went on since."""
    return session.references.get(frame_id, Held, "frame").frame


def stream_of(session: Session, thread: int) -> int:
    """The debugger's number of a thread. Raises `DapError`."""
    number = thread - FIRST_THREAD
    if not any(number == known for known, _ in session.debugger.threads()):
        raise DapError(f"there is no thread {thread}", NO_THREAD)
    return number
