"""``opstep export``: a graph as a model of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opstep.cli.common import COMMAND, PROGRAM, amount, command, option, say, size
from opstep.cli.options import fallback_option, import_option, load_program, symbol_option


@command(
    "export",
    examples=[
        ("opstep export model.opg", "to model.onnx, for ONNX Runtime or Netron"),
        ("opstep export model.opg -g loss -o loss.onnx", "another graph, to another file"),
        ("opstep export model.opg -s N=1", "for one size of a dimension"),
        ("opstep export model.opg --updates", "new values of params and states as results"),
    ],
    codes={
        PROGRAM: "errors in the program, or statements that ONNX cannot say",
        COMMAND: "usage, or files that exist",
    },
)
@click.argument("file", metavar="FILE")
@option("--output -o FILE.onnx", "Default: FILE.onnx beside FILE.")
@option("--graph -g NAME", "The graph to export. Default: the only one, or main.")
@symbol_option
@option(
    "--updates",
    "Params and states that the graph updates become further inputs, and their new values further "
    "results.",
)
@option("--drop-asserts", "Leave asserts out: ONNX has none.")
@option(
    "--external/--inline",
    "Weights in a file beside the model, or inside. Default: beside it above 64 MiB.",
    default=None,
)
@option("--force -f", "Replace files that exist.")
@fallback_option
@import_option
def export(
    file: str, output: str | None, graph: str | None, symbols: tuple[str, ...], updates: bool,
    drop_asserts: bool, external: bool | None, force: bool, **options: Any,
) -> None:  # fmt: skip
    """Write a graph as a model of ONNX.

    The model has the weights that the graph reads. Graphs that it calls become functions, as do ops
    that ONNX needs several nodes for; values keep their names. What ONNX cannot say is told with
    its lines, and nothing is written. docs/onnx-export.md has it all.
    """
    from opstep.api.sources import parse_symbols
    from opstep.frontends.onnx.exporting import to_onnx
    from opstep.runtime.ir.errors import InputError

    target = Path(output) if output else Path(file).with_suffix(".onnx")
    beside = target.with_name(f"{target.name}.data")
    there = [p for p in (target, beside) if p.exists()]
    if there and not force:
        listed = ", ".join(map(str, there))
        raise InputError(f"{listed} exist: nothing was written", hint="replace them with --force")
    program = load_program(file, options)
    written = to_onnx(
        program, target, graph, symbols=parse_symbols(symbols), updates=updates,
        drop_asserts=drop_asserts, external=external,
    )  # fmt: skip
    if beside not in written:
        beside.unlink(missing_ok=True)  # of the model that was replaced
    sizes = ", ".join(f"{p} ({size(p.stat().st_size)})" for p in written)
    say(f"{amount(len(program.params), 'param')}: wrote {sizes}")
