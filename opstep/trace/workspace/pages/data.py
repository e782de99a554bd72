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


async def views(datasette: Datasette) -> list[str]:
    return await datasette.get_database(DATABASE).view_names()


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
