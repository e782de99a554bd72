"""A conversation at a terminal: reads commands and does them."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import in_switches
from opstep.cli.debug.registry import Command, Refused, Registry, remembered, split
from opstep.runtime.ir.diagnostics import OpstepError, render_all

if TYPE_CHECKING:
    from opstep.cli.debug.reading import Reader
    from opstep.cli.debug.showing import Paint

PROMPT = "(opstep) "
_LONGEST = 10_000  # characters of a command
_DEEPEST = 20  # scripts that run scripts


class Dialogue:
    """`interactive`: whether a person sits there. `registry`: the commands that there are."""

    registry: Registry

    def __init__(self, paint: Paint, interactive: bool):
        self.paint = paint
        self.interactive = interactive
        self.over = False  # whether the session is
        self.failed = False  # whether a command of -x or -ex could not be done
        self.interrupted = threading.Event()
        self.command = ""  # the name of the latest
        self._previous = ""
        self._pending: deque[str] = deque()  # commands of a breakpoint
        self._readers: list[Reader] = []

    @property
    def prompt(self) -> str:
        return PROMPT

    def on_interrupt(self) -> None:
        """Ctrl-C was pressed while a command is done; called from the signal's handler."""

    def understood(self, line: str) -> tuple[Command, str]:
        """The command of a line, and the text after its name. Raises `Refused`."""
        name, text = split(line)
        return self.registry.find(name), text

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """In it Ctrl-C pauses what runs; it never ends what a command does midway, which could
        leave values half computed.
        """
        self.interrupted.clear()
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, at: Any) -> None:
            self.interrupted.set()
            self.on_interrupt()

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # --- output ---

    def say(self, text: str = "") -> None:
        click.echo(text)

    def write(self, text: str) -> None:
        """Without a line end."""
        click.echo(text, nl=False)

    def complain(self, message: str, hint: str = "") -> None:
        self.say(f"{self.paint('error:', 'bold red')} {message}")
        if hint:
            self.say(f"{self.paint('hint:', 'cyan')} {hint}")

    # --- reading and doing commands ---

    def loop(self, reader: Reader) -> None:
        """Until the reader's end, or ``quit``."""
        if len(self._readers) >= _DEEPEST:
            raise Refused(f"scripts are nested more than {_DEEPEST} deep")
        self._readers.append(reader)
        try:
            while self.reads():
                try:
                    line = reader.read(self.prompt)
                except KeyboardInterrupt:
                    self.say("Quit")
                    continue
                if line is None:
                    return
                done = self.do(line)
                self._do_pending()
                if reader.stops_at_error and (not done or self.interrupted.is_set()):
                    self.say(f"{reader.name}: the commands that follow are left out")
                    self.failed = True
                    return
        finally:
            self._readers.pop()

    def reads(self) -> bool:
        """Whether more commands are wanted."""
        return not self.over

    def read(self, prompt: str) -> str | None:
        """A further line of whoever gave the command."""
        return self._readers[-1].read(prompt) if self._readers else None

    def do(self, line: str) -> bool:
        """One command; whether it could be done. An empty line repeats the one before."""
        line = line.strip()
        if line.startswith("#"):
            return True
        if not line:
            line = self._previous
            if not line:
                return True
        try:
            if len(line) > _LONGEST:
                raise Refused(f"a command has at most {_LONGEST:,} characters")
            found, text = self.understood(line)
            self.command, self._previous = found.name, remembered(found, line)
            with self.undisturbed():
                found.function(self, text)
        except KeyboardInterrupt:
            self.say("Quit")
            return False
        except Exception as error:
            self.explain(error)
            return False
        return True

    def _do_pending(self) -> None:
        """The commands of the breakpoint that stopped."""
        while self._pending and self.reads():
            line = self._pending.popleft()
            previous = self._previous
            if not self.do(line) or self.interrupted.is_set():
                self._pending.clear()
            self._previous = previous

    def explain(self, error: Exception) -> None:
        """Says why a command could not be done."""
        if isinstance(error, Refused):
            self.complain(error.message, error.hint)
        elif isinstance(error, OpstepError):
            self.say(render_all(error.diagnostics, self.paint.on, in_switches))
        elif isinstance(error, MemoryError):
            self.complain("out of memory", "print a part of it: x[0, :8]")
        else:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.complain(f"internal error: {what}: this is a bug in opstep, please report it")
