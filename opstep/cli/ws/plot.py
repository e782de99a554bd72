"""``plot``: figures by step as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from opstep.cli.common import OK, amount, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown


@verb(
    "plot",
    short_help="Draw figures by step: a line a tensor.",
    examples=[
        ('opstep ws runs.db plot "stats.absmax where op=relu"', "of the last run, to plot.png"),
        ('opstep ws runs.db plot "metrics.loss where run=*" -o loss.svg', "the loss of all runs"),
        ('opstep ws runs.db plot "stats.std where value=conv*, step=0..99" -o std.png', "less"),
        ('opstep ws runs.db plot "executions.seconds where op=conv2d|linear"', "times"),
    ],
)
@click.argument("what", metavar="WHAT")
@click.option(
    "--output",
    "-o",
    default="plot.png",
    show_default=True,
    metavar="FILE",
    help="A .png, .svg or .pdf file.",
)
@click.option("--log", is_flag=True, help="A logarithmic scale, for figures above 0.")
def plot(file: str, what: str, output: str, log: bool) -> int:
    """Draw figures by step: a line a tensor.

    WHAT is TABLE.FIGURE, and after "where" conditions KEY=VALUE, with commas between them. Tables
    and figures: stats (count min max mean std l2 absmax nan posinf neginf zero subnormal
    unwritten), executions (seconds), metrics (the metric's name, or value for all). Keys: run
    (last where not given; * is all), op (name or site), value (name of the tensor), name (of a
    metric), graph, stream, step (4 or 0..99). Names take * and ?; A|B is either. Needs
    opstep[viewer].
    """
    from opstep.cli.inputs import check_target
    from opstep.runtime.ir.errors import InputError
    from opstep.trace.workspace import figures, picture

    path = Path(output)
    if path.suffix not in picture.FORMATS:
        raise InputError(f"--output {output}: write to a .png, .svg or .pdf file")
    check_target(path, f"--output {output}", [])
    query = figures.parse(what)
    with shown.workspace(file) as ws:
        lines = ws.lines(query)
        picture.draw(path, query, lines, " ".join(what.split()), log)
    points = sum(len(line.xs) for line in lines)
    drawn = f"{amount(len(lines), 'line')}, {amount(points, 'point')}"
    say(f"wrote {output}: {drawn}, {size(path.stat().st_size)}")
    return OK
