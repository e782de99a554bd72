"""Breakpoints: on lines, on graphs, ops and values by name, on tensors, on kinds of trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.dap.client import Source
from opstep.dap.client_breakpoints import ClientBreakpoints
from opstep.dap.registry import BAD_ARGUMENTS, INITIALIZED, DapError, request

if TYPE_CHECKING:
    from opstep.dap.session import Session

MOST = 100_000  # breakpoints of one request


class Filter(NamedTuple):
    """An exception filter. `kind`: what its condition is about; `default`: whether it is on."""

    label: str
    default: bool
    kind: str
    description: str


FILTERS = {
    "nan": Filter(
        "NaN: any op that computes one", False, "nan",
        "Stop behind every op with a NaN in its result, also where it came in with an operand.",
    ),
    "nan-origin": Filter(
        "NaN, only where it is born", True, "nan",
        "Stop behind an op that makes a NaN of operands that have none there.",
    ),
    "inf": Filter(
        "Infinity: any op that computes one", False, "inf",
        "Stop behind every op with an infinity in its result, also where it came in.",
    ),
    "inf-origin": Filter(
        "Infinity, only where it is born", True, "inf",
        "Stop behind an op that makes an infinity of finite operands.",
    ),
    "uninitialised": Filter(
        "Uninitialised memory in a result", True, "uninitialised",
        "Stop behind an op that left elements of its result unwritten, or read memory that nobody "
        "wrote. It is a bug of the op's kernel.",
    ),
    "assert": Filter("Failed asserts", True, "assert", "Stop where an assert of the graph fails."),
    "device": Filter(
        "Errors of the device", True, "device", "Stop where memory runs out or a kernel fails."
    ),
}  # fmt: skip


# --- lines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceBreakpoint:
    line: int
    column: int | None = None
    condition: str | None = None
    hit_condition: str | None = None
    log_message: str | None = None


@request(
    "setBreakpoints",
    capability=(
        "supportsConditionalBreakpoints",
        "supportsHitConditionalBreakpoints",
        "supportsLogPoints",
    ),
    states=INITIALIZED,
)
def set_breakpoints(
    session: Session,
    source: Source,
    breakpoints: list[SourceBreakpoint] | None = None,
    lines: list[int] | None = None,
) -> dict[str, Any]:
    """Those of one file, in place of those that it had."""
    from opstep.runtime.debugger.breakpoints import Wanted

    of_client = session.per_session(ClientBreakpoints)
    path = path_of(session, source)
    if breakpoints is None:
        breakpoints = [SourceBreakpoint(line) for line in lines or []]
    check_count(breakpoints)
    line = session.client.our_line
    of_client.lines[path] = [
        of_client.new(
            Wanted(line(b.line), "", text(b.condition), text(b.hit_condition), text(b.log_message))
        )
        for b in breakpoints
    ]
    bodies = [of_client.body(b) for b in of_client.set("lines", path)]
    if not of_client.lines[path]:
        del of_client.lines[path]
    return {"breakpoints": bodies}


def path_of(session: Session, source: Source) -> str:
    """The path that a client's ``Source`` means: of a file, or of a text that it was shown."""
    if source.source_reference:
        return session.sources.name(source.source_reference)
    if not source.path:
        raise DapError("a source needs a path or a sourceReference", BAD_ARGUMENTS)
    return session.client.our_path(source.path)


def text(value: str | None) -> str | None:
    """Clients send "" for none."""
    return value if value and value.strip() else None


def check_count(breakpoints: Sequence[Any]) -> None:
    if len(breakpoints) > MOST:
        raise DapError(
            f"{len(breakpoints):,} breakpoints; at most {MOST:,} are taken", BAD_ARGUMENTS
        )


@request("breakpointLocations", capability="supportsBreakpointLocationsRequest", states=INITIALIZED)
def breakpoint_locations(
    session: Session, source: Source, line: int, end_line: int | None = None
) -> dict[str, Any]:
    """The statements between two lines."""
    breakpoints = session.per_session(ClientBreakpoints).of_run
    if breakpoints is None:
        return {"breakpoints": []}
    client, path = session.client, path_of(session, source)
    first = client.our_line(line)
    last = first if end_line is None else client.our_line(end_line)
    return {
        "breakpoints": [
            {
                "line": client.line(at),
                "column": client.column(column),
                "endLine": client.line(end),
                "endColumn": client.column(end_column),
            }
            for at, column, end, end_column in breakpoints.locations(path, first, last)
        ]
    }


# --- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionBreakpoint:
    name: str
    condition: str | None = None
    hit_condition: str | None = None


@request("setFunctionBreakpoints", capability="supportsFunctionBreakpoints", states=INITIALIZED)
def set_function_breakpoints(
    session: Session, breakpoints: list[FunctionBreakpoint]
) -> dict[str, Any]:
    """On graphs, ops and values by their names."""
    from opstep.runtime.debugger.breakpoints import Wanted

    check_count(breakpoints)
    of_client = session.per_session(ClientBreakpoints)
    of_client.functions = [
        of_client.new(Wanted(0, b.name.strip(), text(b.condition), text(b.hit_condition)))
        for b in breakpoints
    ]
    return {"breakpoints": [of_client.body(b) for b in of_client.set("functions")]}


# --- tensors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataBreakpoint:
    data_id: str
    access_type: str | None = None
    condition: str | None = None
    hit_condition: str | None = None


PREDICATE = " if "


@request("setDataBreakpoints", capability="supportsDataBreakpoints", states=INITIALIZED)
def set_data_breakpoints(session: Session, breakpoints: list[DataBreakpoint]) -> dict[str, Any]:
    """Predicates on tensors. A ``dataId`` is a tensor's name or ``*``, as ``dataBreakpointInfo``
    tells it, and may bring its predicate: ``loss if nan(value)``. A condition is a predicate, too.
    """
    from opstep.runtime.debugger.breakpoints import Wanted

    check_count(breakpoints)
    of_client = session.per_session(ClientBreakpoints)
    of_client.data = []
    for b in breakpoints:
        name, _, predicate = b.data_id.partition(PREDICATE)
        both = [c for c in (text(predicate), text(b.condition)) if c]
        condition = both[0] if len(both) == 1 else " and ".join(f"({c})" for c in both)
        requested = Wanted(0, name.strip(), condition or None, text(b.hit_condition))
        of_client.data.append(of_client.new(requested))
    return {"breakpoints": [of_client.body(b) for b in of_client.set("data")]}


# --- trouble --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterOptions:
    filter_id: str
    condition: str | None = None


@request(
    "setExceptionBreakpoints",
    capability="supportsExceptionFilterOptions",
    advertises={
        "exceptionBreakpointFilters": [
            {
                "filter": name,
                "label": one.label,
                "description": one.description,
                "default": one.default,
                "supportsCondition": True,
                "conditionDescription": "an expression over the names in the op's graph; "
                "`value` is the op's result",
            }
            for name, one in FILTERS.items()
        ]
    },
    states=INITIALIZED,
)
def set_exception_breakpoints(
    session: Session, filters: list[str], filter_options: list[FilterOptions] | None = None
) -> dict[str, Any]:
    """Kinds of trouble that stop the run. Of a kind that is asked for twice, the wider holds."""
    from opstep.runtime.expressions import ExpressionError, parse

    breakpoints = session.per_session(ClientBreakpoints)
    conditions: dict[str, str | None] = {}
    anywhere: set[str] = set()
    bodies: list[dict[str, Any]] = []
    for one in [*map(FilterOptions, filters), *(filter_options or ())]:
        condition = text(one.condition)
        try:
            if one.filter_id not in FILTERS:
                raise DapError(f"there is no filter {one.filter_id[:80]}")
            if condition:
                parse(condition)
        except (DapError, ExpressionError) as error:
            bodies.append({"verified": False, "message": str(error), "reason": "failed"})
            continue
        kind = FILTERS[one.filter_id].kind
        if not one.filter_id.endswith("-origin"):
            anywhere.add(kind)
        conditions[kind] = condition
        bodies.append({"verified": True})
    breakpoints.filters, breakpoints.origin_only = conditions, set(conditions) - anywhere
    breakpoints.set_filters()
    return {"breakpoints": bodies}
