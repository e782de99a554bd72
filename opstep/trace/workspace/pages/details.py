"""Plots of what was taken of a tensor beyond its statistics: quantiles, signs, channels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from opstep.trace.workspace.pages.cells import read_bins
from opstep.trace.workspace.pages.data import Row, ask
from opstep.trace.workspace.pages.histograms import binned, heatmap
from opstep.trace.workspace.pages.plot import Band, Line, Panel
from opstep.trace.workspace.pages.series import as_float

if TYPE_CHECKING:
    from datasette.app import Datasette

_TAKEN = """
select x.* from steps t
cross join {} x on x.run = t.run and x.step = t.step and x.op = :op
where t.run = :run and (t.step / :every % :stride = 0 or t.step < 0)
order by x.step, x.execution
"""
_LAST = """
select step, result, channel, min(min) as min, max(max) as max, sum(zero) as zero,
  sum(finite) as finite
from channels where run = :run and op = :op and step = (
  select step from channels where run = :run and op = :op order by step desc limit 1
)
group by result, channel order by result, channel
"""


async def plots(datasette: Datasette, given: Mapping[str, Any]) -> dict[int, list[Markup]]:
    """By result of an op. `given`: run, op, and which steps are drawn: every, stride."""
    found: dict[int, list[Markup]] = {}
    for table, drawn in (("quantiles", quantile_plots), ("signed", signed_plots)):
        rows = await ask(datasette, _TAKEN.format(table), given)
        for result, own in by_result(rows).items():
            found.setdefault(result, []).extend(drawn(own))
    last = await ask(datasette, _LAST, {k: given[k] for k in ("run", "op")})
    for result, own in by_result(last).items():
        found.setdefault(result, []).extend(channel_plots(own))
    return found


def by_result(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["result"], []).append(row)
    return found


def quantile_plots(rows: list[Row]) -> list[Markup]:
    """Where the elements lie, and how large they are."""
    band = [(r["step"], r["p1"], r["p99"]) for r in rows if r["p1"] is not None]
    median = Line("median", [(r["step"], as_float(r["p50"])) for r in rows])
    sizes = [
        Line(name, [(r["step"], as_float(r[column])) for r in rows])
        for name, column in (("99 %", "abs_p99"), ("median", "abs_p50"), ("1 %", "abs_p1"))
    ]
    return [
        Panel("median", [median], [Band("1 % to 99 %", band)]).svg(),
        Panel("quantiles of |x|", sizes, log=True).svg(),
    ]


def signed_plots(rows: list[Row]) -> list[Markup]:
    """Positive elements upwards from the middle, negative ones downwards."""
    ends = [r[f"{s}_lowest"] for r in rows for s in ("negative", "positive")]
    low = min((e for e in ends if isinstance(e, int)), default=0)

    def read(row: Row) -> dict[int, int]:
        found = {}
        for side, turned in (("positive", 0), ("negative", -1)):
            bins = read_bins(row[side], row[f"{side}_lowest"])
            for exponent, n in enumerate(bins.counts, bins.lowest) if bins else ():
                found[(exponent - low) ^ turned] = n  # 0, 1, … upwards, -1, -2, … downwards
        return found

    def name(k: int) -> str:
        return f"2^{k + low}" if k >= 0 else f"-2^{~k + low}"

    return [heatmap("elements by sign and magnitude", binned(rows, read), name)]


def channel_plots(rows: list[Row]) -> list[Markup]:
    """Each channel's range and zeros at one step, as bars."""
    at = f"channels at step {rows[0]['step']}"
    drawn = [bars(f"{at}: range", "min to max", [(r["channel"], r["min"], r["max"]) for r in rows])]
    if any(r["zero"] for r in rows):
        shares = [(r["channel"], 0.0, r["zero"] / max(1, r["finite"])) for r in rows]
        drawn.append(bars(f"{at}: share of zeros", "zeros", shares))
    return drawn


def bars(title: str, label: str, ranges: Iterable[tuple[int, Any, Any]]) -> Markup:
    """One from low to high at each whole x; none where these are None."""
    points = []
    for x, low, high in ranges:
        if low is not None:
            points += [(x - 0.4, low, high), (x + 0.4, low, high), (x + 0.5, math.nan, math.nan)]
    return Panel(title, [], [Band(label, points)]).svg()
