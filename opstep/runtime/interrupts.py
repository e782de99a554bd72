"""Signals that wait: what must be done whole or not at all is not cut in two by Ctrl-C.

A handler that Python runs for a signal may raise anywhere in the main thread. Where it has to wait,
it is only noted that the signal came; so a step's updates, the count of finished steps and what is
told of them change together.
"""

from __future__ import annotations

import os
import signal
import sys
from _signal import getsignal  # those of `signal` take 50 times as long
from _signal import signal as set_handler
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
_SIGNALS = tuple(getattr(signal, name).value for name in _NAMES if hasattr(signal, name))
_ENDING = (signal.SIGINT, signal.SIGTERM)  # somebody wants an end

AT_ONCE, NEVER, ONCE = range(3)


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends a run as Ctrl-C does."""


class EndedBySigterm:
    """While the block lasts, SIGTERM raises `error` in the main thread, as Ctrl-C does
    `KeyboardInterrupt`, so that what is under way ends in order. Where the program has a handler
    of its own, or somebody up the stack has one of these, that one stays.
    """

    def __init__(self, error: BaseException):
        self._error = error
        self._process = os.getpid()
        self._handler: Any = None

    def __enter__(self) -> EndedBySigterm:
        is_default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if is_default and get_ident() == main_thread().ident:
            self._handler = self._raise
            signal.signal(signal.SIGTERM, self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        ours = self._handler is not None and signal.getsignal(signal.SIGTERM) is self._handler
        if ours and get_ident() == main_thread().ident:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork has nothing to end in order
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise self._error


class Held:
    """While the block lasts, Python's handlers of signals are called as `when` says: `AT_ONCE`, or
    `NEVER` before `let_go` or the end of the block. `ONCE` is for code of the user's: the first
    Ctrl-C or SIGTERM waits, all that comes behind it does not, for such code may never end.

    After a handler has raised it is `ONCE`, too. Where Python drops what it raised, as in a
    finaliser, `let_go` or the end of the block raises it.

    Nothing changes in threads other than the main one: no handler ever runs there.
    """

    __slots__ = ("_came", "_hook", "_note", "_raised", "_were", "when")

    def __init__(self, when: int = NEVER):
        self.when = when
        self._were: dict[int, Any] = {}
        self._came: list[tuple[int, FrameType | None]] = []
        self._raised: tuple[BaseException, int] | None = None  # last, and by which signal
        self._hook: Any = None  # what was told, before us, of errors that Python drops

    def __enter__(self) -> Held:
        if get_ident() != main_thread().ident:
            return self
        self._note = self._noted  # one object: it is looked for at the end
        try:
            for number in _SIGNALS:
                handler = getsignal(number)
                if callable(handler):
                    self._were[number] = handler
                    set_handler(number, self._note)
        except BaseException:  # from one that was not held yet
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        self._raised = None  # it refers to all that was under way
        self.let_go()

    def let_go(self) -> None:
        """Calls the handlers that have waited; from here on they are called at once."""
        if self._came:
            came, self._came = self._came, []
            for number, frame in came:
                self._were[number](number, frame)
        self.when = AT_ONCE

    def _noted(self, number: int, frame: FrameType | None) -> None:
        when, ends = self.when, number in _ENDING
        if when == NEVER or (when == ONCE and ends and not self._came):
            self._came.append((number, frame))
            return
        self.when = ONCE  # if it raises, the next one does not disturb who cleans up
        try:
            self._were[number](number, frame)
        except BaseException as error:
            self._raised = error, number
            if self._hook is None:
                self._hook, sys.unraisablehook = sys.unraisablehook, self._dropped
            raise
        self.when = when

    def _dropped(self, unraisable: Any) -> None:
        """Nobody gets an error: Python goes on behind a finaliser, `__del__` or callback of C."""
        if self._raised and unraisable.exc_value is self._raised[0]:
            self._came.append((self._raised[1], None))
        elif self._hook is not None:
            self._hook(unraisable)

    def _restore(self) -> None:
        try:
            if self._hook is not None and sys.unraisablehook == self._dropped:
                sys.unraisablehook = self._hook
            for number, handler in self._were.items():
                if getsignal(number) is self._note:  # nobody has put another one there
                    set_handler(number, handler)
        except BaseException:  # from one that is not held any more, while others are
            self._restore()
            raise
