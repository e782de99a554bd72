"""``compare``: where two runs diverge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import (
    OK,
    PROGRAM,
    FloatRange,
    amount,
    console,
    json_option,
    option,
    present,
)
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.compare import Comparison, Difference, Figure

LINES = 12  # of a diff of two programs


@verb(
    "compare",
    examples=[
        ("opstep ws runs.db compare 3f2a last", "to the bit"),
        ("opstep ws runs.db compare 1 2 --rtol 1e-5", "with a tolerance"),
    ],
    codes={OK: "the same", PROGRAM: "they differ"},
)
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@option(
    "--rtol FRACTION",
    "Allowed relative difference of statistics; 0: the same bits.",
    FloatRange(0, 1),
    default=0.0,
    show_default=True,
)
@json_option
def compare(file: str, first: str, second: str, rtol: float, as_json: bool) -> int:
    """Report the first op where two runs differ.

    Ops are matched by step and site (position in the program); first means first in order of
    execution. Counts of NaNs and infinities must always be equal.
    """
    with shown.workspace(file) as ws:
        found = ws.compare(first, second, rtol)
    present(found, record, show, as_json)
    return OK if found.same else PROGRAM


def show(found: Comparison) -> None:
    from rich.text import Text

    out = console()
    out.print(Text.assemble((found.a.key, "bold"), " and ", (found.b.key, "bold"), ": ",
                            ("same", "bold green") if found.same else ("they differ", "bold red"),
                            f", {amount(found.compared, 'tensor')} compared"))  # fmt: skip
    if found.settings:
        out.print()
        show_settings(out, found)
    if found.initial:
        named = ", ".join(f"{d.op} {d.value}" for d in found.initial)
        out.print(Text(f"differ before the first step: {named}"))
    if found.first:
        out.print()
        show_first(out, found, found.first)
    elif not found.compared:
        out.print(Text("no statistics of the same steps and ops are in both", "yellow"))
    if found.tensors:
        names = ", ".join(f.name for f in found.tensors)
        out.print()
        out.print(Text(f"differ at the end: {names}"))


def show_settings(out: Any, found: Comparison) -> None:
    """What differs in how they ran."""
    rows = shown.table("how they ran", found.a.key, found.b.key)
    for name, a, b in found.settings:
        if name != "program":
            rows.add_row(name, *("" if v is None else str(v) for v in (a, b)))
    if rows.row_count:
        out.print(rows)
    if any(f.name == "program" for f in found.settings):
        for line in difference(found):
            out.print(line, markup=False)


def difference(found: Comparison) -> list[str]:
    """Unified diff of the two programs."""
    from difflib import unified_diff

    a, b = (run.program.splitlines() for run in (found.a, found.b))
    names = [f"program of {run.key}" for run in (found.a, found.b)]
    lines = list(unified_diff(a, b, names[0], names[1], lineterm="", n=1))
    more = len(lines) - LINES
    return lines[:LINES] + ([f"… {more} more lines"] if more > 0 else [])


def show_first(out: Any, found: Comparison, first: Difference) -> None:
    from rich.text import Text

    turn = f", time {first.turn + 1}" if first.turn else ""
    what = f" gives {first.value} in step {first.step}{turn} "
    out.print(Text.assemble("first: ", (first.op, "bold"), what, (f"({first.site})", "dim")))
    out.print(Text.assemble(f"  {first.file}:{first.line}: ", (first.statement or "", "cyan")))
    if first.only:
        out.print(Text(f"  only run {first.only} has it"))
        return
    rows = shown.table("", found.a.key, found.b.key, "difference",
                       right=(found.a.key, found.b.key, "difference"))  # fmt: skip
    for name, a, b in first.figures:
        exact = _bins if name == "histogram" else _exact
        rows.add_row(f"  {name}", exact(a), exact(b), _apart(a, b))
    out.print(rows)
    out.print(f"{amount(found.differing, 'tensor')} of this step differ")


def _exact(value: Any) -> str:
    """All digits: two figures that differ must not look alike."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else repr(value)


def _bins(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _apart(a: Any, b: Any) -> str:
    if isinstance(a, str) or a is None or b is None:
        return ""
    return f"{b - a:+.3g}"


def record(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON."""

    def pairs(figures: list[Figure]) -> dict[str, list[Any]]:
        return {f.name: [f.first, f.second] for f in figures}

    first = None
    if found.first:
        names = ("step", "turn", "op", "site", "value", "file", "line", "statement", "only")
        first = {name: getattr(found.first, name) for name in names}
        first["figures"] = pairs(found.first.figures)
    return {
        "runs": [found.a.key, found.b.key],
        "same": found.same,
        "settings": pairs(found.settings),
        "given": [d.value for d in found.initial],
        "first": first,
        "compared": found.compared,
        "differing": found.differing,
        "tensors": pairs(found.tensors),
    }
