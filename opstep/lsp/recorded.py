"""What the last recorded run found out about a value: its statistics, from a workspace.

Workspaces are looked at while somebody waits for a hover: they are opened to read only, never
brought up to date, and one that is locked or no workspace gives nothing. What was read is
remembered until the file changes.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.workspace import Workspace

if TYPE_CHECKING:
    from opstep.lsp.project import Project

_PATIENCE_S = 0.01
_MOST_FILES = 8  # of those that lie about, the newest
_MOST_REMEMBERED = 512

_LIMIT_S = 0.2  # of a question
_MOST_RUNS = 4  # of a program, looked back for a value that not every run computes
_MOST_STEPS = 16  # looked back for a value that not every step computes

_RUNS = "select id, key, began, file from runs order by id desc limit 50"
_PLACES = """
select op, result, ops.site, ops.line from ops join results using (run, op)
where run = :run and results.name = :value and ops.site glob :site
  and (ops.graph = :graph or :graph is null and ops.name in ('param', 'state', 'update'))
"""
# Rows are found by run, step and op: to ask for the last step of an op would read the whole run.
_STEP = "select max(step) from stats where run = :run and step < :before"
_ROWS = """
select op, result, count, min, max, mean, std, nan, posinf + neginf, zero from stats
where run = :run and step = :step and op in ({ops}) order by execution desc
"""


class Recorded(NamedTuple):
    """Statistics of a value, the last time that it was computed."""

    workspace: str
    run: str  # its key
    began: str
    step: int  # -1: before the first
    count: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    zero: int
    site: str
    line: int | None


class RecordedValue(NamedTuple):
    """A value of a program. `site` is a pattern: which of the graph's calls is meant."""

    graph: str | None  # None: a param or state
    value: str
    site: str = "*"


_Stamp = tuple[int, ...]


@dataclass
class Records:
    """Reads workspaces for one server."""

    log: Callable[[str], object]
    _remembered: OrderedDict[tuple, Recorded | None] = field(default_factory=OrderedDict)
    _complained: set[str] = field(default_factory=set)

    def last(self, program: Path, value: RecordedValue, files: Iterable[Path]) -> Recorded | None:
        """The last statistics of a value of `program`, from the first of `files` that has some."""
        for path in files:
            key = (path, _stamp(path), program, value)
            if key not in self._remembered:
                self._remembered[key] = self._read(path, program, value)
                if len(self._remembered) > _MOST_REMEMBERED:
                    self._remembered.popitem(last=False)
            if found := self._remembered[key]:
                return found
        return None

    def _read(self, path: Path, program: Path, value: RecordedValue) -> Recorded | None:
        try:
            with Workspace(path, update=False, patience=_PATIENCE_S) as workspace:
                return _last(workspace, path, program, value)
        except (InputError, sqlite3.Error, OSError, ValueError) as error:
            if str(path) not in self._complained:
                self._complained.add(str(path))
                self.log(f"no statistics from {path}: {error}")
            return None


def _last(workspace: Workspace, path: Path, program: Path, value: RecordedValue) -> Recorded | None:
    own = (run for run in _ask(workspace, _RUNS) if _is_of(run[3], path, program))
    for id, key, began, _ in islice(own, _MOST_RUNS):
        if found := _of_run(workspace, id, value):
            step, row, (site, line) = found
            return Recorded._make((str(path), key, began, step, *row, site, line))
    return None


def _of_run(
    workspace: Workspace, run: int, value: RecordedValue
) -> tuple[int, tuple, tuple] | None:
    parameters = {"run": run, "graph": value.graph, "value": value.value, "site": value.site}
    sites = {(op, k): (site, line) for op, k, site, line in _ask(workspace, _PLACES, parameters)}
    if not sites:
        return None
    rows = _ROWS.format(ops=",".join(str(op) for op, _ in sites))
    before = 2**62
    for _ in range(_MOST_STEPS):
        ((step,),) = _ask(workspace, _STEP, {"run": run, "before": before})
        if step is None:
            return None
        for op, result, *row in _ask(workspace, rows, {"run": run, "step": step}):
            if (op, result) in sites:
                return step, tuple(row), sites[op, result]
        # Inputs, params and states that no op reads are looked at before the first step alone.
        before = 0 if all(op < 0 for op, _ in sites) and step > 0 else step
    return None


def _ask(workspace: Workspace, text: str, parameters: dict | None = None) -> list:
    return workspace.sql(text, parameters or {}, timeout=_LIMIT_S).rows


def _is_of(file: str | None, workspace: Path, program: Path) -> bool:
    """Whether a run's file is `program`. A path that was given in part is held against its end."""
    if not file:
        return False
    if PurePath(file).is_absolute():
        return Path(file) == program
    try:
        if (workspace.parent / file).resolve() == program:
            return True
    except (OSError, ValueError, RuntimeError):  # a path that cannot be one, links in a circle
        return False
    parts = tuple(part for part in PurePath(file).parts if part not in (".", ".."))
    return program.parts[-len(parts) :] == parts


def _stamp(path: Path) -> _Stamp:
    """Changes when the file does, or what is written beside it."""
    found: list[int] = []
    for file in (path, Path(f"{path}-wal")):
        try:
            status = file.stat()
            found += [status.st_mtime_ns, status.st_size]
        except OSError:
            found.append(0)
    return tuple(found)


def workspaces_near(program: Path, folders: Iterable[Path], setting: str = "") -> list[Path]:
    """Where statistics may be: the workspace of the settings or, without one, the newest *.db files
    beside the program and in the folders that are open.
    """
    folders = list(folders)
    if setting:
        bases = (*folders, program.parent)
        named = [Path(setting.replace("${workspaceFolder}", str(base))) for base in bases]
        paths = [base / path.expanduser() for base, path in zip(bases, named, strict=True)]
        return list(dict.fromkeys(path for path in paths if path.exists()))
    found: dict[Path, float] = {}
    for folder in (program.parent, *folders):
        try:
            for path in folder.glob("*.db"):
                found[path] = path.stat().st_mtime
        except OSError:
            continue  # a folder that went away
    return sorted(found, key=found.__getitem__, reverse=True)[:_MOST_FILES]


# --- of a server ----------------------------------------------------------------------------------

_of_projects: WeakKeyDictionary[Project, Records] = WeakKeyDictionary()


def records_of(project: Project) -> Records:
    """Those of one server."""
    if project not in _of_projects:
        _of_projects[project] = Records(project.log)
    return _of_projects[project]
