"""Breakpoints: on lines, on graphs, ops and values by name, on tensors, on kinds of trouble.

What a client wants is remembered, because it may say so before there is a run, and because one
session can see several runs. Their ids are the session's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opstep.dap.client import Source
from opstep.dap.registry import BAD_ARGUMENTS, KNOWN, DapError, request

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.breakpoints import Breakpoint, Breakpoints, Wanted

MOST = 100_000  # breakpoints of one request
NOT_YET = "nothing is running yet"

# Exception filters: id -> label, whether it is on by default, what its condition is about.
FILTERS: dict[str, tuple[str, bool, str]] = {
    "nan": ("NaN: any op that computes one", False, "nan"),
    "nan-origin": ("NaN, only where it is born", False, "nan"),
    "inf": ("Infinity: any op that computes one", False, "inf"),
    "inf-origin": ("Infinity, only where it is born", False, "inf"),
    "uninitialised": ("Elements that an op never wrote", True, "uninitialised"),
    "assert": ("Failed asserts", True, "assert"),
    "device": ("Errors of the device", True, "device"),
}


class Wishes:
    """``session.kept(Wishes)``: all breakpoints that the client wants, with their ids."""

    def __init__(self, session: Session):
        self.session = session
        self.lines: dict[str, list[Wish]] = {}
        self.functions: list[Wish] = []
        self.data: list[Wish] = []
        self.filters: dict[str, str | None] = {}
        self.origin_only: set[str] = set()
        self._ids = itertools.count(1)
        self._by_number: dict[int, Wish] = {}

    def new(self, wanted: Wanted) -> Wish:
        return Wish(next(self._ids), wanted)

    @property
    def breakpoints(self) -> Breakpoints | None:
        """Those of the run, if there is one."""
        debuggee = self.session.debuggee
        return debuggee.debugger.breakpoints if debuggee and debuggee.debugger else None

    def set(self, kind: str, path: str = "") -> list[Wish]:
        """Hands those of one kind, or of one file, to the run."""
        wishes = self.lines[path] if kind == "lines" else getattr(self, kind)
        breakpoints = self.breakpoints
        if breakpoints is None:
            for wish in wishes:
                wish.made = None
            return wishes
        wanted = [  # a line may have moved since the client named it
            w.wanted if w.made is None else w.made.wanted._replace(text=w.made.text) for w in wishes
        ]
        if kind == "lines":
            found: Sequence[Breakpoint] = breakpoints.set_lines(path, wanted)
        else:
            found = getattr(breakpoints, f"set_{kind}")(wanted)
        for wish, made in zip(wishes, found, strict=True):
            wish.made = made
            self._by_number[made.number] = wish
        return wishes

    def set_filters(self) -> None:
        """Hands the exception filters to the run. Raises `ExpressionError`."""
        if self.breakpoints is not None:
            self.breakpoints.set_filters(self.filters, self.origin_only)

    def apply(self) -> None:
        """There is a new run: hands it everything, and tells the client what came of it."""
        self._by_number.clear()
        before = self.told_all()
        for path in self.lines:
            self.set("lines", path)
        self.set("functions")
        self.set("data")
        self.set_filters()
        self.tell_changes(before)

    def told_all(self) -> dict[int, dict[str, Any]]:
        """What the client knows, by id: for `tell_changes`."""
        return {w.id: self.told(w) for w in self.all()}

    def tell_changes(self, before: dict[int, dict[str, Any]]) -> None:
        """Sends ``breakpoint`` events for those that are not as they were."""
        for wish in self.all():
            now = self.told(wish)
            if before.get(wish.id) != now:
                self.session.event("breakpoint", {"reason": "changed", "breakpoint": now})

    def clear(self) -> None:
        """Nothing stops the run any more."""
        for path in self.lines:
            self.lines[path] = []
            self.set("lines", path)
        self.functions, self.data, self.filters = [], [], {}
        self.set("functions")
        self.set("data")
        self.set_filters()

    def all(self) -> list[Wish]:
        return [*itertools.chain(*self.lines.values()), *self.functions, *self.data]

    def ids(self, numbers: Sequence[int]) -> list[int]:
        """The client's ids of breakpoints that the run names by its own numbers."""
        return [self._by_number[n].id for n in numbers if n in self._by_number]

    def told(self, wish: Wish) -> dict[str, Any]:
        """A ``Breakpoint``."""
        made, client = wish.made, self.session.client
        body: dict[str, Any] = {"id": wish.id, "verified": bool(made and made.verified)}
        if made is None:
            return body | {"message": NOT_YET, "reason": "pending"}
        if not made.verified:
            return body | {"message": made.message, "reason": "failed"}
        if made.source is not None and made.span is not None:
            line, column = made.source.locate(made.span.start)
            end_line, end_column = made.source.locate(made.span.end)
            body["source"] = self.session.source(made.source.path, made.source.text)
            body |= {"line": client.line(line), "endLine": client.line(end_line)}
            body |= {"column": client.column(column), "endColumn": client.column(end_column)}
        if made.message:
            body["message"] = made.message
        return body


@dataclass
class Wish:
    """One breakpoint: its id, what is wanted, and what the run made of it."""

    id: int
    wanted: Wanted
    made: Breakpoint | None = None


# --- lines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceBreakpoint:
    line: int
    column: int | None = None
    condition: str | None = None
    hit_condition: str | None = None
    log_message: str | None = None


@dataclass(frozen=True)
class SetBreakpointsArguments:
    source: Source
    breakpoints: list[SourceBreakpoint] | None = None
    lines: list[int] | None = None


@request(
    "setBreakpoints",
    capability=(
        "supportsConditionalBreakpoints",
        "supportsHitConditionalBreakpoints",
        "supportsLogPoints",
    ),
    states=KNOWN,
)
def set_breakpoints(session: Session, arguments: SetBreakpointsArguments) -> dict[str, Any]:
    """Those of one file, in place of those that it had."""
    from opstep.runtime.debugger.breakpoints import Wanted

    wishes = session.kept(Wishes)
    path = path_of(session, arguments.source)
    given = arguments.breakpoints
    if given is None:
        given = [SourceBreakpoint(line) for line in arguments.lines or []]
    check_count(given)
    line = session.client.our_line
    wishes.lines[path] = [
        wishes.new(
            Wanted(line(b.line), "", text(b.condition), text(b.hit_condition), text(b.log_message))
        )
        for b in given
    ]
    told = [wishes.told(w) for w in wishes.set("lines", path)]
    if not wishes.lines[path]:
        del wishes.lines[path]
    return {"breakpoints": told}


def path_of(session: Session, source: Source) -> str:
    """The path that a client's ``Source`` means: of a file, or of a text that it was shown."""
    if source.source_reference:
        return session.sources.name(source.source_reference)
    if not source.path:
        raise DapError("a source needs a path or a sourceReference", BAD_ARGUMENTS)
    return session.client.our_path(source.path)


def text(given: str | None) -> str | None:
    """Clients send "" for none."""
    return given if given and given.strip() else None


def check_count(given: Sequence[Any]) -> None:
    if len(given) > MOST:
        raise DapError(f"{len(given):,} breakpoints; at most {MOST:,} are taken", BAD_ARGUMENTS)


@dataclass(frozen=True)
class BreakpointLocationsArguments:
    source: Source
    line: int
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None


@request("breakpointLocations", capability="supportsBreakpointLocationsRequest", states=KNOWN)
def breakpoint_locations(
    session: Session, arguments: BreakpointLocationsArguments
) -> dict[str, Any]:
    """The statements between two lines."""
    breakpoints = session.kept(Wishes).breakpoints
    if breakpoints is None:
        return {"breakpoints": []}
    client, path = session.client, path_of(session, arguments.source)
    first = client.our_line(arguments.line)
    last = first if arguments.end_line is None else client.our_line(arguments.end_line)
    return {
        "breakpoints": [
            {
                "line": client.line(line),
                "column": client.column(column),
                "endLine": client.line(end_line),
                "endColumn": client.column(end_column),
            }
            for line, column, end_line, end_column in breakpoints.places(path, first, last)
        ]
    }


# --- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionBreakpoint:
    name: str
    condition: str | None = None
    hit_condition: str | None = None


@dataclass(frozen=True)
class SetFunctionBreakpointsArguments:
    breakpoints: list[FunctionBreakpoint]


@request("setFunctionBreakpoints", capability="supportsFunctionBreakpoints", states=KNOWN)
def set_function_breakpoints(
    session: Session, arguments: SetFunctionBreakpointsArguments
) -> dict[str, Any]:
    """On graphs, ops and values by their names."""
    from opstep.runtime.debugger.breakpoints import Wanted

    check_count(arguments.breakpoints)
    wishes = session.kept(Wishes)
    wishes.functions = [
        wishes.new(Wanted(0, b.name.strip(), text(b.condition), text(b.hit_condition)))
        for b in arguments.breakpoints
    ]
    return {"breakpoints": [wishes.told(w) for w in wishes.set("functions")]}


# --- tensors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataBreakpoint:
    data_id: str
    access_type: str | None = None
    condition: str | None = None
    hit_condition: str | None = None


@dataclass(frozen=True)
class SetDataBreakpointsArguments:
    breakpoints: list[DataBreakpoint]


PREDICATE = " if "


@request("setDataBreakpoints", capability="supportsDataBreakpoints", states=KNOWN)
def set_data_breakpoints(
    session: Session, arguments: SetDataBreakpointsArguments
) -> dict[str, Any]:
    """Predicates on tensors. A ``dataId`` is a tensor's name or ``*``, as ``dataBreakpointInfo``
    tells it, and may bring its predicate: ``loss if nan(value)``. A condition is a predicate, too.
    """
    from opstep.runtime.debugger.breakpoints import Wanted

    check_count(arguments.breakpoints)
    wishes = session.kept(Wishes)
    wishes.data = []
    for b in arguments.breakpoints:
        name, _, predicate = b.data_id.partition(PREDICATE)
        both = [c for c in (text(predicate), text(b.condition)) if c]
        condition = both[0] if len(both) == 1 else " and ".join(f"({c})" for c in both)
        wanted = Wanted(0, name.strip(), condition or None, text(b.hit_condition))
        wishes.data.append(wishes.new(wanted))
    return {"breakpoints": [wishes.told(w) for w in wishes.set("data")]}


# --- trouble --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterOptions:
    filter_id: str
    condition: str | None = None


@dataclass(frozen=True)
class SetExceptionBreakpointsArguments:
    filters: list[str]
    filter_options: list[FilterOptions] = field(default_factory=list)


@request(
    "setExceptionBreakpoints",
    capability="supportsExceptionFilterOptions",
    advertises={
        "exceptionBreakpointFilters": [
            {
                "filter": name,
                "label": label,
                "default": default,
                "supportsCondition": True,
                "conditionDescription": "an expression over the names in the op's graph; "
                "`value` is the op's result",
            }
            for name, (label, default, _) in FILTERS.items()
        ]
    },
    states=KNOWN,
)
def set_exception_breakpoints(
    session: Session, arguments: SetExceptionBreakpointsArguments
) -> dict[str, Any]:
    """Kinds of trouble that stop the run. Of a kind that is asked for twice, the wider holds."""
    from opstep.runtime.expressions import ExpressionError, parse

    wishes = session.kept(Wishes)
    given = [FilterOptions(name) for name in arguments.filters] + arguments.filter_options
    wanted: dict[str, str | None] = {}
    anywhere: set[str] = set()
    told: list[dict[str, Any]] = []
    for one in given:
        condition = text(one.condition)
        try:
            if one.filter_id not in FILTERS:
                raise DapError(f"there is no filter {one.filter_id[:80]}")
            if condition:
                parse(condition)
        except (DapError, ExpressionError) as error:
            told.append({"verified": False, "message": str(error), "reason": "failed"})
            continue
        kind = FILTERS[one.filter_id][2]
        if not one.filter_id.endswith("-origin"):
            anywhere.add(kind)
        wanted[kind] = condition
        told.append({"verified": True})
    wishes.filters, wishes.origin_only = wanted, set(wanted) - anywhere
    wishes.set_filters()
    return {"breakpoints": told}
