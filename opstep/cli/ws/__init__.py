"""``opstep ws``: what runs have left behind in a workspace."""

from __future__ import annotations

import click

from opstep.cli.common import COMMAND, OK, PROGRAM, json_option
from opstep.cli.verbs import command_with_verbs

VERBS = {
    "list": ("opstep.cli.ws.tensors", "List the tensors or the runs."),
    "load": ("opstep.cli.ws.tensors", "Write tensors to a file, or show one."),
    "save": ("opstep.cli.ws.tensors", "Save arrays from files under a name."),
    "export": ("opstep.cli.ws.export", "Write a table, or the rows of a run, to a file."),
    "sql": ("opstep.cli.ws.sql", "Run a SQL query."),
    "plot": ("opstep.cli.ws.plot", "Plot values by step, one line per tensor."),
    "checkpoints": ("opstep.cli.ws.checkpoints", "List the checkpoints of training runs."),
    "checkpoint": ("opstep.cli.ws.checkpoints", "Write a checkpoint's params to a file."),
    "compare": ("opstep.cli.ws.compare", "Report the first op where two runs differ."),
    "why": ("opstep.cli.ws.why", "Report the tensors that left their usual range first."),
    "rerun": ("opstep.cli.ws.rerun", "Rerun a run from the workspace alone."),
    "prune": ("opstep.cli.ws.prune", "Remove runs and free their space."),
    "open": ("opstep.cli.ws.serve", "Open the workspace in the browser (Datasette)."),
}


def damage(file: str) -> Exception | None:
    """What is wrong with the rows of a workspace."""
    from pathlib import Path

    from opstep.trace.workspace.damage import damage

    return damage(Path(file))


@command_with_verbs(
    "ws",
    verbs=VERBS,
    instead={what: f"list {what}" for what in ("runs", "tensors")},
    examine=damage,
    examples=[
        ("opstep ws runs.db", "a summary"),
        ("opstep ws runs.db list", "the tensors and the runs"),
        ('opstep ws runs.db sql "select * from first_bad"', "a question in SQL"),
        ("opstep ws runs.db compare last 3f2a", "where two runs diverge"),
        ("opstep ws runs.db rerun last", "rerun from the file alone"),
        ("opstep ws runs.db plot --help", "help for a verb"),
    ],
    codes={
        OK: "success; compare, rerun: no difference",
        PROGRAM: "compare, rerun: they differ",
        COMMAND: "usage; a file that is missing, foreign, damaged, newer or in use; invalid SQL",
    },
)
@click.argument("file", metavar="FILE.db")
@json_option
def ws(file: str, as_json: bool) -> int:
    """Query a workspace: runs, tensors, statistics; compare, plot and rerun runs.

    Without a verb: a summary. RUN is the id of a run, its key, the start of its key, or last. A
    tensor is NAME, NAME@RUN or NAME@RUN:STEP. You can read the file while runs write to it; only
    save, prune, rerun --record and sql --write change it.
    """
    from opstep.cli.ws import summary

    return summary.show(file, as_json)
