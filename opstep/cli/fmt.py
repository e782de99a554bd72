"""``opstep fmt``: programs in the standard layout."""

from __future__ import annotations

import sys

import click

from opstep.cli.common import OK, PROGRAM, amount, command, option, say


@command(
    "fmt",
    examples=[
        ("opstep fmt model.opg", "format a file"),
        ("opstep fmt --check examples/*.opg", "only list the files that differ, for a CI job"),
        ("opstep fmt --diff model.opg", "show what would change"),
        ("cat model.opg | opstep fmt -", "from standard input to standard output"),
    ],
    codes={PROGRAM: "with --check, a file differs; else a file has syntax errors"},
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@option("--check", "Write nothing; exit with 1 if a file would change.")
@option("--diff", "Write nothing; show what would change.")
def fmt(files: tuple[str, ...], check: bool, diff: bool) -> int:
    """Format programs.

    Formatting changes neither the meaning nor the comments. Files are replaced atomically; files
    with syntax errors are not changed.
    """
    from opstep.runtime.arrays import replace_text

    different = []
    for path in files:
        old = read(path)
        new = layout(old, path)
        if path == "-" and not (check or diff):
            click.echo(new, nl=False)
        elif new != old:
            different.append(path)
            if diff:
                click.echo(difference(path, old, new), nl=False)
            elif check:
                say(f"{path}: differs from the standard layout")
            else:
                replace_text(path, new)
                say(f"{path}: rewritten")
    if check or diff:
        same = len(files) - len(different)
        say(f"{amount(len(different), 'file')} would change, {same:,} would not")
    return PROGRAM if different and check else OK


def read(path: str) -> str:
    """The text of a file, or of standard input where `path` is ``-``."""
    from opstep.api.files import check_not_python
    from opstep.runtime.ir.reading import read_source

    if path == "-":
        return sys.stdin.read()
    check_not_python(path)
    return read_source(path)


def layout(text: str, path: str) -> str:
    """The text as the printer writes it; raises OpstepError with all syntax errors."""
    from opstep.runtime.ir.parser import parse
    from opstep.runtime.ir.printer import print_module

    return print_module(parse(text, path))


def difference(path: str, old: str, new: str) -> str:
    """Unified diff."""
    from difflib import unified_diff

    now, standard = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(unified_diff(now, standard, f"{path} (now)", f"{path} (standard)"))
