"""How two arrays differ, as commands show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.cli.common import amount

if TYPE_CHECKING:
    from opstep.differing.elements import Elements


def show_elements(out: Any, found: Elements) -> None:
    from opstep.cli.ws.shown import table

    at = f"[{', '.join(map(str, found.first))}]" if found.first else "its only element"
    out.print(f"  {found.differing:,} of {amount(found.of, 'element')} differ", markup=False)
    figures = table("", "a", "b", right=("a", "b"))
    figures.add_row(f"  first, at {at}", repr(found.a), repr(found.b))
    if any(found.nan):
        figures.add_row("  NaNs", *(f"{n:,}" for n in found.nan))
    out.print(figures)
    if found.unlike:
        out.print(f"  {found.unlike:,} of them are NaN or infinite on one side alone", markup=False)
    if found.unlike == found.differing:
        return
    ulps = f", {found.most_ulp:,} units in the last place" if found.most_ulp else ""
    relative = f", relative to b {found.most_relative:.3g}" if found.most_relative else ""
    out.print(f"  apart at most {found.most:.6g}{relative}{ulps}", markup=False)
