"""What can be asked of a workspace: its tables and views, and names of what it holds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from opstep.trace.workspace import query
from opstep.trace.workspace.browsing.examples import EXAMPLES
from opstep.trace.workspace.runs import read_runs
from opstep.trace.workspace.schema import TABLES
from opstep.trace.workspace.store import PATIENCE_S, open_reading
from opstep.trace.workspace.views import VIEWS

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
