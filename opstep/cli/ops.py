"""``opstep ops``: what ops there are, from their declarations."""

from __future__ import annotations

import inspect
from typing import Any

import click

from opstep.cli.common import command, console, emit_json, json_option, names_listed
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.op import OPS, Op


@command(
    "ops",
    short_help="List the ops, or describe one.",
    examples=[
        ("opstep ops", "all ops by family"),
        ("opstep ops conv2d", "one op: operands, attributes, formula, gradient"),
        ("opstep ops --family reduce", "one family"),
        ("opstep ops --json", "all declarations, for a machine"),
    ],
)
@click.argument("name", required=False)
@click.option("--family", help="Only the ops of this family.")
@json_option
def ops(name: str | None, family: str | None, as_json: bool) -> None:
    """List the ops, or describe one.

    What is shown comes from the op's declaration, which the checker, the planner, the devices and
    the tests read as well.
    """
    import opstep.kernels  # noqa: F401 - declares the ops

    if name is not None:
        if name not in OPS:
            raise InputError(f"there is no op {name}", hint=did_you_mean(name, OPS))
        if as_json:
            emit_json(record(OPS[name]))
        else:
            describe(OPS[name])
        return
    families = sorted({op.family for op in OPS.values()})
    if family is not None and family not in families:
        hint = did_you_mean(family, families) or f"there are {names_listed(families, 20)}"
        raise InputError(f"there is no family {family}", hint=hint)
    chosen = [op for op in OPS.values() if family in (None, op.family)]
    if as_json:
        emit_json([record(op) for op in chosen])
    else:
        show_list(chosen)


def record(op: type[Op]) -> dict[str, Any]:
    """A declaration as JSON."""
    return {
        "name": op.name,
        "family": op.family,
        "signature": op.signature,
        "doc": inspect.getdoc(op) or "",
        "formula": op.formula,
        "source": op.source,
        "operands": [s._asdict() for s in op.operands],
        "attributes": [
            {"name": a.name, "type": a.type, "required": a.required, "default": shown(a.default)}
            for a in op.attrs
        ],
        "results": list(op.results),
        "differentiable": getattr(op, "grad", None) is not None,
    }


def shown(value: Any) -> Any:
    """A default as the language writes it, where JSON has no word for it."""
    if isinstance(value, (int, float, str, bool, tuple)) or value is None:
        return value
    return str(value)


def show_list(chosen: list[type[Op]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("op", "what it does", box=None, pad_edge=False, header_style="bold")
    last = ""
    for op in sorted(chosen, key=lambda op: (op.family, op.name)):
        if op.family != last:
            table.add_row(Text(f"\n{op.family}", style="bold cyan"))
            last = op.family
        table.add_row(Text(op.name), Text(first_line(op)))
    console().print(table)


def first_line(op: type[Op]) -> str:
    return (inspect.getdoc(op) or "").partition("\n")[0]


def describe(op: type[Op]) -> None:
    from rich.text import Text

    out = console()
    out.print(Text(op.signature, style="bold"))
    out.print(Text(f"\n{inspect.getdoc(op) or ''}"))
    if op.formula:
        out.print(Text(f"\n  {op.formula}"))
    if op.source:
        out.print(Text(f"\nFrom: {op.source}", style="dim"))
    has = "has a gradient rule" if getattr(op, "grad", None) is not None else "has no gradient"
    moves = ", moves elements bit for bit" if op.moves else ""
    out.print(Text(f"\nFamily {op.family}, {has}{moves}. Gives {', '.join(op.results)}."))
