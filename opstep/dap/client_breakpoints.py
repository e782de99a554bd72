"""The breakpoints that a client has asked for.

They are remembered, because it may ask before there is a run, and because one session can see
several runs. Their ids are the session's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from opstep.dap.client import Client

if TYPE_CHECKING:
    from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints, Wanted

NOT_YET = "nothing is running yet"


class Outlet(Protocol):
    """Where a client hears of them: a session."""

    client: Client

    def event(self, event: str, body: Any = None) -> None: ...
    def source(self, path: str, text: str = "") -> dict[str, Any]: ...


@dataclass
class ClientBreakpoint:
    """One: its id, what was asked for, and what the run made of it."""

    id: int
    requested: Wanted
    resolved: Breakpoint | None = None


class ClientBreakpoints:
    """``session.per_session(ClientBreakpoints)``. `of_run`: those of the run, if there is one."""

    def __init__(self, outlet: Outlet):
        self.outlet = outlet
        self.of_run: Breakpoints | None = None
        self.lines: dict[str, list[ClientBreakpoint]] = {}
        self.functions: list[ClientBreakpoint] = []
        self.data: list[ClientBreakpoint] = []
        self.filters: dict[str, str | None] = {}
        self.origin_only: set[str] = set()
        self._ids = itertools.count(1)
        self._by_number: dict[int, ClientBreakpoint] = {}

    def new(self, requested: Wanted) -> ClientBreakpoint:
        return ClientBreakpoint(next(self._ids), requested)

    def set(self, kind: str, path: str = "") -> list[ClientBreakpoint]:
        """Hands those of one kind, or of one file, to the run."""
        breakpoints = self.lines[path] if kind == "lines" else getattr(self, kind)
        if self.of_run is None:
            for one in breakpoints:
                one.resolved = None
            return breakpoints
        requests = [  # a line may have moved since the client named it
            b.requested if b.resolved is None else b.resolved.request._replace(text=b.resolved.text)
            for b in breakpoints
        ]
        if kind == "lines":
            found: Sequence[Breakpoint] = self.of_run.set_lines(path, requests)
        else:
            found = getattr(self.of_run, f"set_{kind}")(requests)
        for one, resolved in zip(breakpoints, found, strict=True):
            one.resolved = resolved
            self._by_number[resolved.number] = one
        return breakpoints

    def set_filters(self) -> None:
        """Hands the exception filters to the run. Raises `ExpressionError`."""
        if self.of_run is not None:
            self.of_run.set_filters(self.filters, self.origin_only)

    def attach(self, of_run: Breakpoints) -> None:
        """There is a new run: hands it everything, and tells the client what came of it."""
        self._by_number.clear()
        self.of_run = of_run
        before = self.snapshot()
        self._set_all()
        self.report_changes(before)

    def detach(self) -> None:
        """The run is over, and another may come."""
        self.of_run = None

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """What the client knows, by id: for `report_changes`."""
        return {b.id: self.body(b) for b in self.all()}

    def report_changes(self, before: dict[int, dict[str, Any]]) -> None:
        """Sends ``breakpoint`` events for those that are not as they were."""
        for one in self.all():
            now = self.body(one)
            if before.get(one.id) != now:
                self.outlet.event("breakpoint", {"reason": "changed", "breakpoint": now})

    def clear(self) -> None:
        """Nothing stops the run any more."""
        self.lines = {path: [] for path in self.lines}
        self.functions, self.data, self.filters = [], [], {}
        self._set_all()

    def _set_all(self) -> None:
        for path in self.lines:
            self.set("lines", path)
        self.set("functions")
        self.set("data")
        self.set_filters()

    def all(self) -> list[ClientBreakpoint]:
        return [*itertools.chain(*self.lines.values()), *self.functions, *self.data]

    def ids(self, numbers: Sequence[int]) -> list[int]:
        """The client's ids of breakpoints that the run names by its own numbers."""
        return [self._by_number[n].id for n in numbers if n in self._by_number]

    def body(self, one: ClientBreakpoint) -> dict[str, Any]:
        """A ``Breakpoint`` of the protocol."""
        found, client = one.resolved, self.outlet.client
        body: dict[str, Any] = {"id": one.id, "verified": bool(found and found.verified)}
        if found is None:
            return body | {"message": NOT_YET, "reason": "pending"}
        if not found.verified and found.request.most is not None:  # it is, in other runs
            line = client.line(found.request.most)
            return body | {"verified": True, "source": self.outlet.source(found.path), "line": line}
        if not found.verified:
            return body | {"message": found.message, "reason": "failed"}
        if found.source is not None and found.span is not None:
            line, column = found.source.locate(found.span.start)
            end_line, end_column = found.source.locate(found.span.end)
            body["source"] = self.outlet.source(found.source.path, found.source.text)
            body |= {"line": client.line(line), "endLine": client.line(end_line)}
            body |= {"column": client.column(column), "endColumn": client.column(end_column)}
        elif found.python_line:
            line = client.line(found.python_line)
            body |= {"source": self.outlet.source(found.path), "line": line}
        if found.message:
            body["message"] = found.message
        return body
