"""``opstep check``: every error of a program, without running it."""

from __future__ import annotations

from typing import Any

import click

from opstep.cli.common import (
    COMMAND,
    OK,
    PROGRAM,
    amount,
    colors,
    command,
    emit_json,
    in_switches,
    json_option,
    say,
)
from opstep.cli.options import ranks_options
from opstep.runtime.ir.diagnostics import Diagnostic, OpstepError, render_all
from opstep.runtime.ir.errors import InputError


@command(
    "check",
    examples=[
        ("opstep check model.opg", "all errors of a file, each with its line"),
        ("opstep check examples/*.opg", "several files"),
        ("opstep check --json model.opg", "for an editor or a CI job"),
    ],
    codes={PROGRAM: "errors were found", OK: "no errors"},
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@ranks_options
@json_option
def check(files: tuple[str, ...], ranks: int | None, mesh: tuple, as_json: bool) -> int:
    """Report every error in programs, without running them.

    Syntax, names, types and shapes are checked, for all sizes that a named dimension can have, on
    the mesh of ranks that a program declares.
    """
    found: list[tuple[str, Diagnostic]] = []
    code = OK
    for path in files:
        try:
            found += [(path, d) for d in diagnose(path, ranks, dict(mesh))]
        except InputError as error:  # the file cannot be read: the others still are
            found += [(path, d) for d in error.diagnostics]
            code = COMMAND
    errors = [d for _, d in found if d.severity == "error"]
    if errors and code == OK:
        code = PROGRAM
    if as_json:
        emit_json(
            {"ok": not errors, "files": len(files), "diagnostics": [record(*f) for f in found]}
        )
        return code
    if found:
        import sys

        say(render_all([d for _, d in found], colors(sys.stderr), in_switches))
    wrong = len({path for path, d in found if d.severity == "error"})
    verdict = f"{amount(len(errors), 'error')} in {wrong} of " if errors else "no errors in "
    click.echo(verdict + amount(len(files), "file"))
    return code


def diagnose(path: str, ranks: int | None, mesh: dict[str, int]) -> tuple[Diagnostic, ...]:
    """What there is to say about a file; raises InputError where it cannot be read, or where the
    mesh does not fit.
    """
    from opstep.api.program import load

    try:
        program = load(path, ranks=ranks, mesh=mesh)
    except InputError:
        raise
    except OpstepError as error:
        return error.diagnostics
    if program.graphs:
        return ()
    hint = "a graph begins with graph name(x: f32[N]) -> f32[N] {"
    return (
        Diagnostic("warning", "there is no graph in this file", None, program.module.source, hint),
    )


def record(path: str, d: Diagnostic) -> dict[str, Any]:
    """A message as JSON: lines and columns count from 1, the end is behind the last character."""
    out: dict[str, Any] = {"file": d.source.path if d.source else path, "severity": d.severity}
    if d.source is not None and d.span is not None:
        (line, column), (end_line, end_column) = map(d.source.locate, d.span)
        out |= {"line": line, "column": column, "end_line": end_line, "end_column": end_column}
    return out | {"message": d.message, "hint": d.hint}
