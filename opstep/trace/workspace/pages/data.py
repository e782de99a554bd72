"""Questions that the pages ask of the workspace, through Datasette's read-only connections."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opstep.trace.workspace.pages.cells import RunLabel
from opstep.trace.workspace.pages.metadata import DATABASE

if TYPE_CHECKING:
    from datasette.app import Datasette

Row = dict[str, Any]
_RUN = "select * from runs where key = :run or id = :run order by key <> :run limit 1"
LABELS_S = 1.0  # how long the list of runs is kept
POINTS = 400  # of a plot: of longer runs each so many-th step is shown

_labels: WeakKeyDictionary[Any, tuple[float, dict[int, RunLabel]]] = WeakKeyDictionary()


async def ask(datasette: Datasette, sql: str, given: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows; none where the answer takes longer than Datasette's limit."""
    from datasette.database import QueryInterrupted

    try:
        found = await datasette.get_database(DATABASE).execute(sql, dict(given or {}))
    except QueryInterrupted:
        return []
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


async def labels(datasette: Datasette) -> dict[int, RunLabel]:
    """Key and status of every run, by its number."""
    kept = _labels.get(datasette)
    if kept is None or time.monotonic() - kept[0] > LABELS_S:
        rows = await ask(datasette, "select id, key, status, file, began_ns from runs")
        kept = time.monotonic(), {r.pop("id"): RunLabel(**r) for r in rows}
        _labels[datasette] = kept
    return kept[1]


async def run_row(datasette: Datasette, run: str) -> Row:
    """A row of `runs`, by number or key. Raises Datasette's NotFound."""
    from datasette.utils.asgi import NotFound

    rows = await ask(datasette, _RUN, {"run": run})
    if not rows:
        raise NotFound(f"There is no run {run} in this workspace")
    return rows[0]


async def choices(datasette: Datasette, run: str, most: int = 300) -> dict[str, list[Row]]:
    """Values and meanings for the parameters of questions about a run; the last one if empty."""
    given = {"run": run, "most": most}
    chosen = "(select id from runs where :run in ('', key) or id = :run order by id desc limit 1)"
    runs = await ask(
        datasette,
        "select key as value, status || ', ' || graph || ' of ' || file as what from runs "
        "order by id desc limit :most",
        given,
    )
    found = {"run": runs, "other": runs}
    for parameter, sql in (
        ("tensor", "select name as value, min(dtype || shape) as what from results"),
        ("op_name", "select name as value, count(*) || ' ops' as what from ops"),
        ("name", "select name as value, '' as what from metrics"),
    ):
        first = " and step = 0" if parameter == "name" else ""
        found[parameter] = await ask(
            datasette, f"{sql} where run = {chosen}{first} group by name limit :most", given
        )
    return found


async def metrics(
    datasette: Datasette, run: int, steps: int | None, most: int = POINTS
) -> dict[str, list[tuple[float, float | None]]]:
    """Points of each metric of a run, by name."""
    rows = await ask(
        datasette,
        "select name, step, value from metrics where run = :run and step % :every = 0 "
        "order by step",
        {"run": run, "every": max(1, -(-(steps or 1) // most))},
    )
    found: dict[str, list[tuple[float, float | None]]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append((row["step"], row["value"]))
    return found
