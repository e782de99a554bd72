"""``opstep import``: a model of PyTorch or in ONNX as a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opstep.cli.common import COMMAND, amount, command, option, say
from opstep.cli.options import fallback_option, import_option, load_program


@command(
    "import",
    examples=[
        (
            "opstep import model.pt2",
            "to model.opg, model.safetensors and model.example.safetensors",
        ),
        ("opstep import model.onnx", "to model.opg and model.safetensors"),
        ("opstep import model.pt2 -o net.opg", "to net.opg and the files beside it"),
        ("opstep import model.pt2 --force", "again: replace the files"),
        ("opstep import model.pt2 --fallback torch", "PyTorch runs ops without a counterpart"),
    ],
    codes={COMMAND: "usage; no model, an op without a counterpart, files that exist"},
)
@click.argument("file", metavar="FILE")
@option("--output -o FILE.opg", "Default: beside FILE, as .opg.")
@option("--force -f", "Replace files that exist.")
@fallback_option
@import_option
def importing(file: str, output: str | None, force: bool, **options: Any) -> None:
    """Translate a PyTorch or ONNX model to a program, with its weights beside it.

    FILE is what torch.export.save wrote (.pt2), or a model in ONNX's format (.onnx). It is read
    without running code that it may hold. Weights keep their names; the example inputs of a .pt2
    are saved, too: opstep run FILE.opg --input example. The other commands take FILE as well.
    docs/pytorch.md and docs/onnx.md describe it all.
    """
    from opstep.api.files import IMPORTERS, Files
    from opstep.runtime.ir.errors import InputError

    source = Path(file)
    if source.suffix.lower() not in IMPORTERS:
        raise InputError(
            f"{file}: models are imported from {' and '.join(IMPORTERS)} files",
            hint="torch.export.save(torch.export.export(model, args), FILE.pt2)",
        )
    target = Path(output) if output else source.with_suffix(".opg")
    files = Files(target)
    there = [p for p in (target, files.weights, files.example) if p is not None and p.exists()]
    if there and not force:
        listed = ", ".join(map(str, there))
        raise InputError(f"{listed} exist: nothing was written", hint="replace them with --force")
    program = load_program(file, options)
    written = program.save(target)
    graphs = amount(len(program.graphs), "graph")
    say(f"{graphs}, {amount(len(program.params), 'param')}: wrote {', '.join(map(str, written))}")
