"""The stacks of a stop, and the numbers that frames have in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.dap.debuggee import FIRST_THREAD
from opstep.dap.references import STALE
from opstep.dap.registry import DapError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.debugger.frames import Frame

NO_THREAD = 2001

FrameKey = tuple[int, int | None]  # in a stack: its depth, and the level of Python there


def _key(frame: Frame) -> FrameKey:
    return frame.depth, frame.python.level if frame.python else None


class Stacks:
    """``session.per_stop(Stacks)``: each thread's stack, looked up once a stop."""

    def __init__(self, session: Session):
        self.session = session
        self._stacks: dict[int, list[Frame]] = {}
        self._handles: dict[tuple[int, FrameKey], FrameHandle] = {}

    def of(self, thread: int) -> list[Frame]:
        """Innermost first, of a thread in the protocol's numbers. Raises `DapError`."""
        if thread not in self._stacks:
            number = stream_of(self.session, thread)
            self._stacks[thread] = self.session.debugger.stack(number)
        return self._stacks[thread]

    def number(self, thread: int, frame: Frame) -> int:
        """The ``frameId`` of a frame of that thread."""
        handle = self.handle(thread, frame)
        return self.session.references.add(handle, handle)

    def handle(self, thread: int, frame: Frame) -> FrameHandle:
        """The frame of that thread as what refers to it holds it."""
        return self._handles.setdefault((thread, _key(frame)), FrameHandle(thread, frame))

    def renew(self) -> None:
        """A value was set: the stacks are looked up again. Frames that are still there keep their
        numbers, wherever in the stack they are now; the numbers of others hold no longer.
        """
        before, self._stacks = self._stacks, {}
        for thread, old in before.items():
            current = {_key(frame): frame for frame in self._surviving(thread, old)}
            for key in [key for key in self._handles if key[0] == thread]:
                self._handles[key].update(current.get(key[1]))
                if key[1] not in current:
                    del self._handles[key]

    def _surviving(self, thread: int, old: list[Frame]) -> list[Frame]:
        """The frames of a thread's stack that were in the old one."""
        try:
            now = self.of(thread)
        except DapError:  # another plan is under way, which has fewer streams
            return []
        calls = [list({f.depth: f for f in reversed(frames)}.values()) for frames in (old, now)]
        pairs = zip(*calls, strict=False)
        same = next((f.depth for f, g in pairs if not f.same_call(g)), min(map(len, calls)))
        return [frame for frame in now if frame.depth < same]


class FrameHandle:
    """What a ``frameId`` stands for."""

    __slots__ = ("_frame", "thread")

    def __init__(self, thread: int, frame: Frame):
        self.thread = thread
        self._frame: Frame | None = frame

    @property
    def frame(self) -> Frame:
        """As it is now. Raises `DapError` where what was set has led the run elsewhere."""
        if self._frame is None:
            raise DapError("the frame is no more: what was set leads elsewhere", STALE)
        return self._frame

    @property
    def alive(self) -> bool:
        return self._frame is not None

    def update(self, frame: Frame | None) -> None:
        """It is this one now; None: it is no more."""
        self._frame = frame

    def lookup(self, name: str) -> Node | None:
        """What a name means in the frame, as it is now."""
        return self.frame.lookup(name)

    def of_graph(self) -> FrameHandle:
        """The same, of the graph that is behind a function of Python."""
        return _OfGraph(self)


class _OfGraph(FrameHandle):
    __slots__ = ("_shown",)

    def __init__(self, shown: FrameHandle):
        super().__init__(shown.thread, shown.frame)
        self._shown = shown

    @property
    def frame(self) -> Frame:
        return self._shown.frame._replace(python=None)

    @property
    def alive(self) -> bool:
        return self._shown.alive

    def update(self, frame: Frame | None) -> None:
        self._shown.update(frame)


def frame_of(session: Session, frame_id: int) -> Frame:
    """The frame of that ``frameId``. Raises `DapError` where the run went on since."""
    return handle_of(session, frame_id).frame


def handle_of(session: Session, frame_id: int | None) -> FrameHandle:
    """The same, to be kept; of the innermost frame with values where no frame is named."""
    if frame_id is not None:
        return session.references.get(frame_id, FrameHandle, "frame")
    stop, stacks = session.debugger.stop, session.per_stop(Stacks)
    thread = (stop.thread if stop else 0) + FIRST_THREAD
    for frame in stacks.of(thread):
        return stacks.handle(thread, frame)
    raise DapError("the run has not begun")


def stream_of(session: Session, thread: int) -> int:
    """The debugger's number of a thread. Raises `DapError`."""
    number = thread - FIRST_THREAD
    if not any(number == stream for stream, _ in session.debugger.threads()):
        raise DapError(f"there is no thread {thread}", NO_THREAD)
    return number
