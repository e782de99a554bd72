"""``opstep diff --b f64``: where a graph loses precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.cli.common import amount, console

if TYPE_CHECKING:
    from opstep.differing.errors import Error
    from opstep.differing.precision import Loss, Precision

SHOWN = 10  # ops


def show(found: Precision) -> None:
    from rich.text import Text

    from opstep.cli.ws.shown import table

    out = console()
    verdict = ("loses more than its types must", "bold red")
    if found.fine:
        verdict = ("as exact as its types let it be", "bold green")
    elif found.unmeasured and not found.outside:
        verdict = ("not known: not all of it was measured", "bold yellow")
    steps = amount(found.steps, "step")
    out.print(Text.assemble("b: f64; ", verdict, f", {amount(len(found.losses), 'op')}, {steps}"))
    for name, error in found.outputs.items():
        allowed = found.allowed[name]
        style = "red" if name in found.outside else ""
        out.print(Text(f"  {name}: {_error(error)}, of {allowed:.2g} allowed", style))
    for place in found.unmeasured:
        out.print(Text(f"not measured: {place}", "yellow"))
    if found.error:
        out.print(Text(f"it did not end: {found.error.diagnostics[0].message}"))
    out.print()
    losses = table("", "added", "came in", "own", "", right=("added", "came in", "own"))
    for one in found.losses[:SHOWN]:
        losses.add_row(_source_line(one), *_figures(one), Text(one.what, "yellow"))
    out.print(losses)
    if len(found.losses) > SHOWN:
        out.print(Text(f"{len(found.losses) - SHOWN:,} more ops add less; --json has them", "dim"))


def _source_line(one: Loss) -> Any:
    from rich.text import Text

    runs = f" ({one.runs:,} runs)" if one.runs > 1 else ""
    return Text.assemble(f"{one.file or '<text>'}:{one.line}: ", (one.statement, "cyan"), runs)


def _figures(one: Loss) -> list[str]:
    return [f"{number:.2g}" for number in (max(one.added, 0.0), one.came, one.own.most)]


def _error(error: Error) -> str:
    unlike = (
        f", {error.unlike:,} of {error.size:,} elements NaN or infinite" if error.unlike else ""
    )
    return f"relative error {error.most:.2g}{unlike}"


def record(found: Precision) -> dict[str, Any]:
    """As JSON."""
    losses = []
    for one in found.losses:
        entry = one._asdict() | {"added": one.added, "what": one.what}
        losses.append(entry | {"own": one.own._asdict(), "total": one.total._asdict()})
    return {
        "a": "debug",
        "b": "f64",
        "same": found.fine,
        "steps": found.steps,
        "outputs": {n: e._asdict() for n, e in found.outputs.items()},
        "allowed": found.allowed,
        "losses": losses,
        "unmeasured": found.unmeasured,
        "error": found.error.diagnostics[0].message if found.error else None,
    }
