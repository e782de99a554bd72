"""``plot``: figures by step as a picture."""

from __future__ import annotations

import click

from opstep.cli.common import OK, amount, option, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown


@verb(
    "plot",
    examples=[
        ('opstep ws runs.db plot "stats.absmax where op=relu"', "the last run, as plot.png"),
        ("opstep ws runs.db plot loss", "the loss of the last training run"),
        ('opstep ws runs.db plot "loss where run=*" -o loss.svg', "of all runs"),
        ('opstep ws runs.db plot "stats.std where value=conv*, step=0..99" -o std.png', "less"),
        ('opstep ws runs.db plot "executions.seconds where op=conv2d|linear"', "times"),
    ],
)
@click.argument("what", metavar="WHAT")
@option("--output -o FILE", "A .png, .svg or .pdf file.", default="plot.png")
@option("--log", "Logarithmic scale, for values above 0.")
def plot(file: str, what: str, output: str, log: bool) -> int:
    """Plot values by step, one line per tensor.

    WHAT is TABLE.COLUMN, optionally followed by "where" and conditions KEY=VALUE, separated by
    commas. Tables and columns: stats (count min max mean std l2 absmax nan posinf neginf zero
    subnormal unwritten), executions (seconds), metrics (the metric's name, or value for all). The
    name of a metric alone is enough. A run that was resumed is drawn with the steps before. Keys:
    run (default: last; * is all), op (name or site), value (name of the tensor), name (of a
    metric), graph, stream, step (4 or 0..99). Names may contain * and ?; A|B matches either. Needs
    opstep[viewer].
    """
    from opstep.cli.inputs import check_target
    from opstep.trace.workspace import figures, picture

    path = check_target(output, f"--output {output}", picture.FORMATS)
    query = figures.parse(what)
    with shown.workspace(file) as ws:
        lines = ws.lines(query)
        picture.draw(path, query, lines, " ".join(what.split()), log)
    points = sum(len(line.xs) for line in lines)
    drawn = f"{amount(len(lines), 'line')}, {amount(points, 'point')}"
    say(f"wrote {output}: {drawn}, {size(path.stat().st_size)}")
    return OK
