"""The breakpoints of a session on a script, numbered from 1, and how the adapter is given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opstep.cli.debug.registry import Refused
from opstep.cli.debug.showing import shown_path

_PASSING = 0  # the number of what is no breakpoint of the user's

Request = Callable[..., dict[str, Any]]


@dataclass
class Entry:
    """A line of a file; without a path, a function of any module, an op (``op softmax``) or a
    module (``module encoder.0``); with `data`, an expression that is watched, as the adapter knows
    it. `id`: the adapter's number. `message`: what the adapter says of it.
    """

    number: int
    path: str
    line: int
    function: str = ""
    data: str = ""
    condition: str | None = None
    temporary: bool = False
    enabled: bool = True
    id: int | None = None
    message: str = ""
    stops: int = 0

    @property
    def title(self) -> str:
        if self.data:
            return "Watchpoint"
        return "Temporary breakpoint" if self.temporary else "Breakpoint"

    @property
    def place(self) -> str:
        return f"{shown_path(self.path)}:{self.line}" if self.path else self.function

    @property
    def request(self) -> tuple[str, str]:
        """The command that sets it together with the others of its kind, or of its file."""
        if self.data:
            return "setDataBreakpoints", ""
        return ("setBreakpoints", self.path) if self.path else ("setFunctionBreakpoints", "")

    def asked(self) -> dict[str, Any]:
        """For the adapter."""
        what = {"line": self.line} if self.path else {"name": self.function}
        what = {"dataId": self.data} if self.data else what
        return what | ({"condition": self.condition} if self.condition else {})


class Points:
    """`request`: to the adapter, while there is a run."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.request: Request | None = None
        self._next = 1

    @contextmanager
    def passing(self, path: str, line: int, function: str) -> Iterator[None]:
        """While the block lasts, the script stops at a place, too."""
        entry = self.entries[_PASSING] = Entry(_PASSING, path, line, function)
        try:
            self.send([entry])
            yield
        finally:
            self.remove([entry])

    def add(self, path: str, line: int, **details: Any) -> Entry:
        entry = Entry(self._next, path, line, **details)
        self._next += 1
        self.entries[entry.number] = entry
        self.send([entry])
        return entry

    def get(self, number: int) -> Entry:
        """Raises `Refused`."""
        if number not in self.entries:
            raise Refused(f"there is no breakpoint {number}", "info breakpoints lists them")
        return self.entries[number]

    def remove(self, entries: list[Entry]) -> None:
        for entry in entries:
            del self.entries[entry.number]
        self.send(entries)

    def send(self, changed: list[Entry] | None = None) -> None:
        """Gives the adapter those of the files, and the functions, that changed; else all."""
        if self.request is None:
            return
        for command, path in dict.fromkeys(e.request for e in self._of(changed)):
            every = self.entries.values()
            entries = [e for e in every if e.enabled and e.request == (command, path)]
            asked = [e.asked() for e in entries]
            source = {"source": {"path": path}} if path else {}
            answer = self.request(command, **source, breakpoints=asked)
            for entry, found in zip(entries, answer.get("breakpoints", []), strict=False):
                self.settle(entry, found)

    def _of(self, changed: list[Entry] | None) -> list[Entry]:
        return list(self.entries.values()) if changed is None else changed

    def settle(self, entry: Entry, found: dict[str, Any]) -> None:
        """Takes over what the adapter says of one."""
        entry.id = found.get("id", entry.id)
        entry.message = "" if found.get("verified", True) else found.get("message", "")
        if entry.path and isinstance(found.get("line"), int):
            entry.line = found["line"]

    def changed(self, found: dict[str, Any]) -> None:
        """Takes in what an event says of a breakpoint."""
        for entry in self.entries.values():
            if entry.id is not None and entry.id == found.get("id"):
                self.settle(entry, found)

    def hit(self, stop: dict[str, Any]) -> list[Entry]:
        """Those that a stop is at; temporary ones are gone then."""
        hits = stop.get("hitBreakpointIds") or ()
        own = [e for e in self.entries.values() if e.enabled and e.number != _PASSING]
        found = [e for e in own if e.id is not None and e.id in hits]
        for entry in found:
            entry.stops += 1
        if gone := [e for e in found if e.temporary]:
            self.remove(gone)
        return found
