"""What happens at lines of a program, asked by conditions of breakpoints that the proxy sets on
them: watched expressions are looked at, and lists of ops begin anew.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opstep.debuggee.stops import op_stops
from opstep.frontends.debugging.breakpoints import Breakpoint
from opstep.frontends.debugging.listed import Listing, listed
from opstep.frontends.debugging.watches import Watch

_NO_NAMES = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


_watches: dict[int, Watch] = {}
_latest: dict[str, Any] = {}  # of the stop at hand


def set_watches(breakpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In place of those before, of which one with the same number is kept as it is. For each a
    complaint, or the lines at which it is looked at.
    """
    found = {}
    answers = []
    for one in breakpoints:
        point = Breakpoint(
            one["id"], one["expression"], one.get("condition") or "", one.get("hitCondition") or ""
        )
        text = point.complaint()
        try:
            lines, first = lines_around(one["path"], one["line"])
            watch = Watch(point, one["path"], frozenset(lines), first)
        except (SyntaxError, ValueError, OSError) as error:
            answers.append({"complaint": text or str(error), "lines": []})
            continue
        if not text:
            kept = _watches.get(point.id)
            if kept is not None:
                kept.point = point
            found[point.id] = kept or watch
        answers.append({"complaint": text, "lines": sorted(watch.lines)})
    _watches.clear()
    _watches.update(found)
    _watch_tensors()
    return answers


def begin(number: int, values: dict[str, Any], more: dict[str, Any]) -> str:
    """What a watched expression gives now; in the script's thread. Gives why that is not known."""
    watch = _watches.get(number)
    if watch is None:
        return ""
    watch.look({**more, **values})
    _watch_tensors()
    return watch.error


def at(path: str, line: int, values: dict[str, Any], more: dict[str, Any]) -> bool:
    """Whether the program stops at a line that is about to begin, with these locals and globals."""
    if (path, line) in listed:
        listed[path, line].is_over = True
    here = [w for w in _watches.values() if w.path == path and line in w.lines]
    ids, text = [], ""
    for one in here:
        if change := one.look({**more, **values}):
            is_hit, error = one.point.meets({**more, **values})
            ids += [one.point.id] * is_hit
            text = text or error or f"{one.point.pattern} {change}"
    if any(one.is_place for one in here):
        _watch_tensors()
    if ids:
        _latest.update(ids=ids, text=text, reason="data breakpoint", description="Paused on change")
    return bool(ids)


def latest() -> dict[str, Any]:
    """The stop at hand, if it is one of ours; once."""
    found = dict(_latest)
    _latest.clear()
    return found


def _watch_tensors() -> None:
    """Ops that write them stop the program, too."""
    op_stops.watch_tensors([w for w in _watches.values() if w.tensor is not None])


# --- ops of lines ---------------------------------------------------------------------------------


def list_lines(places: list[tuple[str, int]], at_start: bool) -> None:
    """Their ops are listed from now on, and no others'; in the script's thread. `at_start`: the
    program stands at the start of the last one.
    """
    for place in [*listed]:
        if place not in places:
            del listed[place]
    for place in places:
        if place not in listed:
            listed[place] = Listing()
            op_stops.list_op(place)
    if at_start:
        listed[places[-1]].is_over = True
    if op_stops.changed():
        op_stops.begin()


def listing(path: str, line: int) -> dict[str, Any]:
    return vars(listed.get((path, line), Listing()))


# --- lines of functions ---------------------------------------------------------------------------


def lines_around(path: str, line: int) -> tuple[set[int], int]:
    """Those of the function around a line that can be stopped at, and the first of it."""
    source = Path(path).read_text("utf-8")
    every = [c for c in _codes(compile(source, path, "exec")) if c.co_name not in _NO_NAMES]
    around = [c for c in every if line in _lines_of(c)]
    if not around:
        raise ValueError(f"line {line} of {path} has no code")
    code = max(around, key=lambda c: c.co_firstlineno)
    lines = _lines_of(code)
    if code.co_name != "<module>":
        lines.discard(code.co_firstlineno)
    return lines, code.co_firstlineno


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _lines_of(code: types.CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line}
