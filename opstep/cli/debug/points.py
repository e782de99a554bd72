"""The breakpoints of a session, numbered from 1 as people know them, and how the debugger is told.

The debugger takes all breakpoints of a kind at once, and knows nothing of disabled ones, of those
that are ignored some more times, or of those that go when they have stopped once: that is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from opstep.cli.debug.registry import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints
    from opstep.runtime.debugger.checks import Stop


class Location(NamedTuple):
    """A line of a file; or a name, of a graph, an op or a value."""

    path: str = ""
    line: int = 0
    name: str = ""

    def __str__(self) -> str:
        from opstep.cli.debug.showing import shown_path

        return self.name or f"{shown_path(self.path)}:{self.line}"


NOWHERE = Location()
KINDS = {"break": "breakpoint", "watch": "watchpoint", "catch": "catchpoint", "log": "dprintf"}


@dataclass
class Entry:
    """`kind`: a key of `KINDS`. `location`: of breakpoints; else `name` is that of a tensor, or the
    kind of trouble. `what`: as it was asked for. `ignore`: hits that do not stop. `commands` are
    run where it stops. `core`: what the debugger made of it.
    """

    number: int
    kind: str
    what: str
    location: Location = NOWHERE
    name: str = ""
    condition: str | None = None
    log: str | None = None
    origin: bool = False  # a catchpoint: only where operands are fine
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0
    stops: int = 0
    passed: int = 0  # hits that did not stop, of breakpoints that the debugger has no more
    commands: list[str] = field(default_factory=list)
    core: Breakpoint | None = None

    @property
    def title(self) -> str:
        kind = KINDS[self.kind]
        return f"temporary {kind}" if self.temporary else kind

    @property
    def hits(self) -> int:
        """How often it was reached, where its condition held."""
        return self.stops + self.passed + self._passed_now()

    @property
    def left(self) -> int:
        """How many hits are still ignored."""
        return self.ignore if self.kind == "log" else self.ignore - self._passed_now()

    def _passed_now(self) -> int:
        if self.core is None:
            return 0
        return self.core.count if self.kind == "log" else min(self.core.count, self.ignore)

    @property
    def note(self) -> str:
        """What is to be known of where it is."""
        return self.core.message if self.core else ""

    def settle(self) -> None:
        """Takes over what the debugger counted, before it gets a new breakpoint."""
        passed = self._passed_now()
        self.passed += passed
        self.ignore = max(0, self.ignore - passed)
        if self.core is not None:
            self.core.counts.clear()


class BreakpointTable:
    """All breakpoints of a session; `debugger` is given its by `apply`."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._next = 1
        self._paths: set[str] = set()
        self._applied: dict[str, list] = {}  # what the debugger knows, by kind or file

    def add(self, breakpoints: Breakpoints, kind: str, what: str, **details) -> Entry:
        """A new one, which the debugger knows from then on. Raises `Refused`, `ExpressionError`."""
        from opstep.runtime.debugger.breakpoints import FILTERS
        from opstep.runtime.expressions import parse

        if details.get("condition"):
            parse(details["condition"])
        entry = Entry(self._next, kind, what, **details)
        if kind == "catch" and entry.name in (e.name for e in self.of("catch")):
            raise Refused(f"{entry.name} is caught already", "info breakpoints has its number")
        self.entries[entry.number] = entry
        self.apply(breakpoints)
        if entry.core is not None and not entry.core.verified:
            del self.entries[entry.number]
            self.apply(breakpoints)
            name = entry.location.name
            hint = f"catch {name} stops where it happens" if name in FILTERS else ""
            raise entry.core.invalid or Refused(entry.core.message, hint)
        self._next += 1
        return entry

    def of(self, *kinds: str) -> list[Entry]:
        return [e for e in self.entries.values() if e.kind in kinds]

    def get(self, number: int) -> Entry:
        """Raises `Refused`."""
        if number not in self.entries:
            listed = ", ".join(map(str, self.entries)) or "none"
            raise Refused(f"there is no breakpoint {number}", f"there are: {listed}")
        return self.entries[number]

    # --- what the debugger is told ---

    def apply(self, breakpoints: Breakpoints) -> None:
        """Tells the debugger of all that are enabled. Of a kind where nothing is new, nothing: to
        find lines takes a while in a large program.
        """
        for entry in self.entries.values():
            entry.settle()
        self._apply_lines(breakpoints)
        named = [e for e in self.of("break", "log") if e.location.name]
        self._apply("functions", named, breakpoints.set_functions)
        self._apply("data", self.of("watch"), breakpoints.set_data)
        caught = [e for e in self.of("catch") if e.enabled]
        origin = {e.name for e in caught if e.origin}
        breakpoints.set_filters({e.name: e.condition for e in caught}, origin)

    def _apply_lines(self, breakpoints: Breakpoints) -> None:
        by_path: dict[str, list[Entry]] = {path: [] for path in self._paths}
        for entry in self.of("break", "log"):
            if not entry.location.name:
                by_path.setdefault(entry.location.path, []).append(entry)
        self._paths = {path for path, entries in by_path.items() if entries}
        for path, entries in by_path.items():
            self._apply(path, entries, lambda found, path=path: breakpoints.set_lines(path, found))

    def _apply(
        self, kind: str, entries: list[Entry], setter: Callable[..., list[Breakpoint]]
    ) -> None:
        """Gives the debugger those of a kind, or of a file, that are enabled."""
        enabled = [e for e in entries if e.enabled]
        requests = [(e.number, request(e)) for e in enabled]
        if requests == self._applied.get(kind, []):
            return
        self._applied[kind] = requests
        for entry in entries:
            entry.core = None
        for entry, core in zip(enabled, setter([w for _, w in requests]), strict=True):
            entry.core = core

    # --- what the debugger tells ---

    def stopped(self, stop: Stop) -> list[Entry]:
        """Those that a stop is about; each has stopped once more."""
        found = [e for e in self.entries.values() if e.core and e.core.number in stop.hits]
        if stop.reason == "exception" and stop.exception is not None:
            found += [e for e in self.of("catch") if e.enabled and e.name == stop.exception.kind]
        for entry in found:
            entry.stops += 1
        return found


def request(entry: Entry):
    """An entry in the debugger's words."""
    from opstep.runtime.debugger.breakpoints import Wanted

    hits = f">={entry.ignore + 1}" if entry.ignore else None
    name = entry.location.name or entry.name
    return Wanted(entry.location.line, name, entry.condition, hits, entry.log)
