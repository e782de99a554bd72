"""``opstep ops``: what ops there are, from their declarations, and the graphs of the library."""

from __future__ import annotations

from typing import Any

import click

from opstep.api.catalogue import Entry, catalogue, family_notes, family_of, summary, text_of
from opstep.cli.common import command, console, emit_json, json_option, option
from opstep.runtime.ir.diagnostics import did_you_mean, names_listed
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph


@command(
    "ops",
    examples=[
        ("opstep ops", "all ops by family"),
        ("opstep ops conv2d", "one op: operands, attributes, formula, gradient"),
        ("opstep ops attention", "a graph of the standard library: its text"),
        ("opstep ops --family reduce", "one family"),
        ("opstep ops --json", "all declarations as JSON"),
    ],
)
@click.argument("name", required=False)
@option("--family NAME", "Only the ops of this family.")
@json_option
def ops(name: str | None, family: str | None, as_json: bool) -> None:
    """List the ops, or describe one.

    The description comes from the op's declaration, which the checker, the planner, the devices and
    the tests read as well. Graphs of the standard library are called like ops, and listed as the
    family library.
    """
    entries = catalogue()
    if name is not None:
        if name not in entries:
            hint = did_you_mean(name, entries) or "opstep ops lists them all"
            raise InputError(f"there is no op {name}", hint=hint)
        if as_json:
            emit_json(record(entries[name]))
        else:
            describe(entries[name])
        return
    families = sorted({family_of(entry) for entry in entries.values()})
    if family is not None and family not in families:
        hint = did_you_mean(family, families) or f"there are {names_listed(families, 40)}"
        raise InputError(f"there is no family {family}", hint=hint)
    chosen = {n: e for n, e in entries.items() if family in (None, family_of(e))}
    if as_json:
        emit_json([record(entry) for entry in chosen.values()])
    else:
        show_list(chosen)


def record(op: Entry) -> dict[str, Any]:
    """A declaration as JSON."""
    if isinstance(op, Graph):
        from opstep.runtime.ir.printer import print_graph

        return {"name": op.name.text, "family": "library", "doc": text_of(op),
                "text": print_graph(op)}  # fmt: skip
    return {
        "name": op.name,
        "family": op.family,
        "signature": op.signature,
        "doc": text_of(op),
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


def show_list(chosen: dict[str, Entry]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("op", "what it does", box=None, pad_edge=False, header_style="bold")
    last = ""
    for name, entry in sorted(chosen.items(), key=lambda e: (family_of(e[1]), e[0])):
        if family_of(entry) != last:
            last = family_of(entry)
            table.add_row(Text(f"\n{last}", style="bold cyan"))
        table.add_row(Text(name), Text(summary(entry)))
    console().print(table)


def describe(op: Entry) -> None:
    from rich.text import Text

    out = console()
    if isinstance(op, Graph):
        out.print(Text(record(op)["text"].rstrip()))
        return
    out.print(Text(op.signature, style="bold"))
    out.print(Text(f"\n{text_of(op)}"))
    if op.formula:
        out.print(Text(f"\n  {op.formula}"))
    if op.source:
        out.print(Text(f"\nFrom: {op.source}", style="dim"))
    has = "has a gradient rule" if getattr(op, "grad", None) is not None else "has no gradient"
    moves = ", moves elements bit for bit" if op.traits.moves else ""
    gives = ", ".join(op.results)
    if gives.endswith("..."):
        gives = f"one {gives.removesuffix('...')} or several"
    out.print(Text(f"\nFamily {op.family}, {has}{moves}. Gives {gives}."))
    if notes := family_notes(op):
        out.print(Text(f"\n{notes}", style="dim"))
