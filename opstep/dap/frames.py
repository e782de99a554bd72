"""The stacks of a stop, and the numbers that frames have in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.dap.debuggee import FIRST_THREAD
from opstep.dap.registry import DapError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.debugger.node import Node

NO_THREAD = 2001


class Stacks:
    """``session.here(Stacks)``: each thread's stack, looked up once a stop."""

    def __init__(self, session: Session):
        self.session = session
        self._stacks: dict[int, list[Frame]] = {}
        self._held: dict[tuple[int, int], Held] = {}

    def of(self, thread: int) -> list[Frame]:
        """Innermost first, of a thread in the protocol's numbers. Raises `DapError`."""
        if thread not in self._stacks:
            number = stream_of(self.session, thread)
            self._stacks[thread] = self.session.debugger.stack(number)
        return self._stacks[thread]

    def number(self, thread: int, frame: Frame) -> int:
        """The ``frameId`` of a frame of that thread."""
        held = self.held(thread, frame)
        return self.session.references.add(held, ("frame", thread, frame.number))

    def held(self, thread: int, frame: Frame) -> Held:
        """The frame of that thread as what refers to it holds it."""
        return self._held.setdefault((thread, frame.number), Held(thread, frame))

    def renew(self) -> None:
        """A value was set: the stacks are looked up again. Frames keep their numbers as far as
        there are as many; others show what they showed.
        """
        self._stacks.clear()
        for thread in {thread for thread, _ in self._held}:
            for frame in self.of(thread):
                held = self._held.get((thread, frame.number))
                if held is not None:
                    held.frame = frame


class Held:
    """What a ``frameId`` stands for."""

    __slots__ = ("frame", "thread")

    def __init__(self, thread: int, frame: Frame):
        self.thread = thread
        self.frame = frame

    def lookup(self, name: str) -> Node | None:
        """What a name means in the frame, as it is now."""
        return self.frame.lookup(name)


def frame_of(session: Session, frame_id: int) -> Frame:
    """The frame of that ``frameId``. Raises `DapError` where the run went on since."""
    return held_of(session, frame_id).frame


def held_of(session: Session, frame_id: int | None) -> Held:
    """The same, to be kept; of the innermost frame with values where no frame is named."""
    if frame_id is not None:
        return session.references.get(frame_id, Held, "frame")
    stop, stacks = session.debugger.stop, session.here(Stacks)
    thread = (stop.thread if stop else 0) + FIRST_THREAD
    for frame in stacks.of(thread):
        if frame.imported is None:
            return stacks.held(thread, frame)
    raise DapError("the run has not begun")


def stream_of(session: Session, thread: int) -> int:
    """The debugger's number of a thread. Raises `DapError`."""
    number = thread - FIRST_THREAD
    if not any(number == known for known, _ in session.debugger.threads()):
        raise DapError(f"there is no thread {thread}", NO_THREAD)
    return number
