"""The kind of a file, before it is shown, and what can be asked of a workspace: tables and views,
names of what it holds, and questions to begin with, those of docs/workspace.md, about the last run
of a file. Nothing is changed in it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.trace.workspace import query
from opstep.trace.workspace.browsing.json_fields import problem_json
from opstep.trace.workspace.runs import read_runs
from opstep.trace.workspace.schema import APPLICATION, TABLES
from opstep.trace.workspace.store import PATIENCE_S, file_bytes, open_reading
from opstep.trace.workspace.views import VIEWS


class Example(NamedTuple):
    title: str
    what: str
    sql: str


_LAST = "(select max(id) from runs)"

EXAMPLES = (
    Example("Runs", "What ran, and how it ended.",
            "select id, key, began, status, graph, device, steps, seconds\n"
            "from runs order by id desc"),
    Example("Where did the first NaN come from?",
            "The earliest op of the first step in which a NaN or an infinity was seen.",
            "select run, step, statement, nan, posinf, neginf, count, verdict,\n"
            "  file, line, site, value\nfrom first_bad"),
    Example("Which lines took the time?", "All ops of a line together.",
            "select statement, sum(total_ns) as total_ns,\n"
            "  sum(executions) as executions, file, line\n"
            f"from slowest_ops where run = {_LAST}\n"
            "group by file, line order by total_ns desc limit 20"),
    Example("How did the metrics go?", "A row per step; plot value over step, by name.",
            f"select step, name, value from metrics\nwhere run = {_LAST}\norder by step, name"),
    Example("A tensor step by step", "Put the name of your tensor in place of loss.",
            "select step, mean, std, absmax, nan from stat_history\n"
            f"where run = {_LAST} and value = 'loss'"),
    Example("What grew most?", "From the first step to the last, by greatest magnitude.",
            "select o.site, a.absmax as first, b.absmax as last, o.file, o.line\n"
            "from runs as r\n"
            "join stats as a on a.run = r.id and a.step = 0\n"
            "join stats as b on b.run = r.id and b.step = r.steps - 1\n"
            "  and b.op = a.op and b.result = a.result\n"
            "join ops as o on o.run = r.id and o.op = a.op\n"
            f"where r.id = {_LAST} and a.absmax > 0\n"
            "order by b.absmax / a.absmax desc limit 20"),
    Example("Dead relus", "More than 95 % of what they gave was 0.",
            "select o.site, s.step, round(1.0 * s.zero / s.count, 4) as dead, o.file, o.line\n"
            "from ops as o join stats as s on s.run = o.run and s.op = o.op\n"
            f"where o.run = {_LAST} and o.name = 'relu' and s.zero > 0.95 * s.count"),
    Example("Where do the last two runs diverge?",
            "The first ops whose statistics are not the same in both.",
            "select c.step, c.value, c.mean, c.other_mean, o.file, c.line, c.site\n"
            "from run_compare as c join ops as o on o.run = c.run and o.op = c.op\n"
            f"where c.run = {_LAST}\n"
            "  and c.other = (select id from runs order by id desc limit 1 offset 1)\n"
            "  and c.same = 0\norder by c.op limit 20"),
    Example("What took the most memory?", "The op of each run while which most was in use.",
            "select run, statement, live_bytes, arena_bytes, param_bytes, file, line, site\n"
            "from memory_peak"),
    Example("How busy was each stream?", "Time of kernels in each step.",
            "select step, e.stream, sum(end_ns - start_ns) as busy_ns\n"
            "from executions as e join ops as o using (run, op)\n"
            f"where run = {_LAST} and e.stream >= 0 and o.fused_into is null\n"
            "group by step, e.stream"),
)  # fmt: skip


_NAMES = {
    "op": "select distinct name from ops where op >= 0 order by 1 limit 300",
    "value": "select distinct name from results order by 1 limit 1000",
    "graph": "select distinct graph from ops order by 1 limit 300",
    "metric": "select distinct name from metrics order by 1 limit 300",
}


_PLOTTED = ("metrics", "stats", "executions")


def catalog(path: Path) -> dict[str, Any]:
    """Tables and views with their columns and what they mean; for plots the names of ops and
    metrics, the last runs, and which tables hold anything; and questions to begin with.
    """
    described = {t.name: (t.what, {c.name: (c.type, c.what) for c in t.columns}) for t in TABLES}
    views = {v.name: (v.what, {n: ("", what) for n, what in v.columns}) for v in VIEWS}
    described |= views
    with closing(open_reading(path, update=False, patience=PATIENCE_S)) as connection:
        tables = []
        for name in query.tables_of(connection):
            what, columns = described.get(name, ("", {}))
            listed = []
            for column in query.columns_of(connection, name):
                type_, meaning = columns.get(column, ("", ""))
                listed.append({"name": column, "type": type_, "what": meaning})
            kind = "view" if name in views else "table"
            tables.append({"name": name, "kind": kind, "what": what, "columns": listed})
        names = {key: [n for (n,) in connection.execute(text)] for key, text in _NAMES.items()}
        runs = read_runs(connection)[:-51:-1]
        recorded = [
            t for t in _PLOTTED if connection.execute(f"select 1 from {t} limit 1").fetchone()
        ]
    examples = [{"title": e.title, "sql": e.sql, "what": e.what} for e in EXAMPLES]
    return {
        "tables": tables,
        "names": names,
        "runs": [run.key for run in runs],
        "titles": {run.key: f"{run.key} {run.name or run.graph}" for run in runs},
        "recorded": recorded,
        "examples": examples,
    }


# --- what a file is -------------------------------------------------------------------------------


def is_workspace(path: Path) -> bool:
    """Whether the first look at a file says that it is a workspace, of whatever version.

    A look at the first page: folders have databases of all kinds, and to read one leaves no file
    beside it. One that was just made has its mark in the log alone, so that the log is read too.
    """
    try:
        if not path.is_file():  # a pipe would make us wait
            return False
        name = quote(str(path.absolute()))
        with closing(sqlite3.connect(f"file:{name}?immutable=1", uri=True)) as connection:
            if connection.execute("pragma application_id").fetchone() == (APPLICATION,):
                return True
    except (OSError, ValueError, sqlite3.Error):  # ValueError: a name that no file can have
        return False
    if not path.with_name(path.name + "-wal").exists():
        return False
    try:
        with closing(open_reading(path, update=False, patience=0.1)):
            return True
    except (OpstepError, sqlite3.Error):
        return False


def file_status(path: Path) -> dict[str, Any]:
    """``kind``: ``workspace``, or why it is none (`FileProblem`), with ``message`` and ``hint``."""
    status: dict[str, Any] = {"path": str(path), "kind": "workspace", "message": "", "hint": ""}
    try:
        with closing(open_reading(path, update=False, patience=PATIENCE_S)) as connection:
            (runs, last, running), *_ = connection.execute(
                "select count(*), max(began), sum(status = 'running') from runs"
            ).fetchall()
    except OpstepError as error:
        return status | problem_json(error)
    except sqlite3.Error as error:
        return status | {"kind": "damaged", "message": f"{path}: it is damaged ({error})"}
    more = {"runs": runs, "last": last, "running": running or 0, "bytes": file_bytes(path)}
    return status | more


def file_stamp(path: Path) -> tuple:
    """Another one whenever the file was written to."""
    found = []
    for each in (path, Path(f"{path}-wal")):
        try:
            stat = each.stat()
        except OSError:
            continue
        if not stat.st_size:
            continue  # a reader makes an empty log, and takes it away
        found.append((stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(found)
