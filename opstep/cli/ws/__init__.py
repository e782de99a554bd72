"""``opstep ws``: what runs have left behind in a workspace."""

from __future__ import annotations

import click

from opstep.cli.common import COMMAND, MACHINE, OK, PROGRAM, json_option
from opstep.cli.verbs import command_with_verbs

VERBS = {
    "list": ("opstep.cli.ws.tensors", "List the tensors or the runs."),
    "load": ("opstep.cli.ws.tensors", "Write tensors to a file, or look at one."),
    "save": ("opstep.cli.ws.tensors", "Keep arrays of files under a name."),
    "export": ("opstep.cli.ws.export", "Write a table, or what is known of a run, to a file."),
    "sql": ("opstep.cli.ws.sql", "Ask a question in SQL."),
    "plot": ("opstep.cli.ws.plot", "Draw figures by step: a line a tensor."),
    "compare": ("opstep.cli.ws.compare", "Name the first op where two runs differ."),
    "rerun": ("opstep.cli.ws.rerun", "Repeat a run from the workspace alone."),
    "prune": ("opstep.cli.ws.prune", "Remove runs, and give their room back."),
    "open": ("opstep.cli.ws.serve", "Look at it in the browser (Datasette)."),
}


def damage(file: str) -> Exception | None:
    """What is wrong with the rows of a workspace."""
    from pathlib import Path

    from opstep.trace.workspace.damage import damage

    return damage(Path(file))


@command_with_verbs(
    "ws",
    verbs=VERBS,
    examine=damage,
    short_help="Ask a workspace: runs, tensors, statistics; compare, plot and repeat runs.",
    examples=[
        ("opstep ws runs.db", "what is in it"),
        ("opstep ws runs.db list", "the tensors and the runs"),
        ('opstep ws runs.db sql "select * from first_bad"', "a question in SQL"),
        ("opstep ws runs.db compare last 3f2a", "where two runs diverge"),
        ("opstep ws runs.db rerun last", "the same run again, from the file alone"),
        ("opstep ws runs.db plot --help", "more of a verb"),
    ],
    codes={
        OK: "all went well; compare, rerun: the same",
        PROGRAM: "compare, rerun: they differ",
        COMMAND: "usage; a file that is absent, foreign, damaged, newer or in use; wrong SQL",
        MACHINE: "out of memory",
    },
)
@click.argument("file", metavar="FILE.db")
@json_option
def ws(file: str, as_json: bool) -> int:
    """Ask a workspace: runs, tensors, statistics; compare, plot and repeat runs.

    Without a verb: a summary. RUN is the id of a run, its key, the beginning of its key, or last. A
    tensor is NAME, NAME@RUN or NAME@RUN:STEP. The file is only read, also while runs write to it;
    save, prune, rerun --record and sql --write change it.
    """
    from opstep.cli.ws import summary

    return summary.show(file, as_json)
