"""``prune``: runs that are not needed any more."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from opstep.cli.common import OK, amount, console, option, say, size
from opstep.cli.options import Size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.runs import RecordedRun
    from opstep.trace.workspace.workspace import Workspace

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _age(value: str) -> float:
    """``30d``: a number and s, m, h, d or w, in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", value.strip())
    if found is None or float(found[1]) * _UNITS[found[2]] > 1e9:
        raise click.BadParameter(f"{value!r} is not an age: write 30d, 12h or 2w.")
    return float(found[1]) * _UNITS[found[2]]


@verb(
    "prune",
    examples=[
        ("opstep ws runs.db prune --older-than 30d", "by age, after confirmation"),
        ("opstep ws runs.db prune --keep-last 10 --yes", "all but the last ten, without asking"),
        ("opstep ws runs.db prune --larger-than 1G --dry-run", "which runs would be removed"),
        ("opstep ws runs.db prune --run 3f2a --run 5", "these two"),
        ("opstep ws runs.db prune --checkpoints 1", "only checkpoints"),
    ],
    codes={OK: "success, also if there was nothing to remove"},
)
@option("--older-than AGE", "Runs that started before this: 12h, 30d.", _age)
@option("--larger-than SIZE", "Runs that use more space than this: 500M, 2G.", Size())
@option("--keep-last N", "All runs but the last N.", click.IntRange(0))
@option("--run -r RUN…", "This run. Can be given several times.", to="named")
@option(
    "--checkpoints N",
    "Of the other runs, checkpoints of training but for the last N, the first, and the best.",
    click.IntRange(1),
)
@option("--dry-run", "Only list what would be removed.")
@option("--yes -y", "Do not ask for confirmation.")
def prune(
    file: str,
    older_than: float | None,
    larger_than: int | None,
    keep_last: int | None,
    named: tuple[str, ...],
    checkpoints: int | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove runs and free their space.

    Several conditions must all hold; runs named by --run are always removed. A run in progress is
    removed only if it is named. Tensors saved by hand stay.
    """
    from opstep.runtime.ir.errors import InputError

    conditions = (older_than, larger_than, keep_last, checkpoints)
    if not named and all(condition is None for condition in conditions):
        hint = "--older-than 30d, --larger-than 1G, --keep-last 10 or --run RUN"
        raise InputError("which runs?", hint=hint)
    with shown.workspace(file) as ws:
        sizes = ws.run_bytes()
        chosen = choose(ws, sizes, older_than, larger_than, keep_last, named)
        thinned = 0 if checkpoints is None else _superfluous(ws, chosen, checkpoints)
        if not (chosen or thinned):
            say("nothing to remove")
            return OK
        if chosen:
            console().print(shown.runs_table(chosen, sizes))
        told = [amount(len(chosen), "run")] if chosen else []
        told += [amount(thinned, "checkpoint")] if thinned else []
        if dry_run:
            say(f"would remove {' and '.join(told)}")
            return OK
        if not (yes or agreed(" and ".join(told))):
            return OK
        done = ws.prune(chosen, checkpoints=checkpoints)
    if done.runs:
        say(f"removed {amount(done.runs, 'run')} and {amount(done.tensors, 'tensor')}")
    if done.checkpoints:
        say(f"removed {amount(done.checkpoints, 'checkpoint')}")
    if done.compacted:
        say(f"{file} is {size(done.freed)} smaller: {size(ws.nbytes)}")
    else:
        say("the room is used by the next runs: the file is in use and could not be made smaller")
    return OK


def _superfluous(ws: Workspace, chosen: list[RecordedRun], keep: int) -> int:
    """How many checkpoints would go that are not of the chosen runs."""
    from opstep.trace.workspace.checkpoints import superfluous

    others = (r for r in ws.runs if r.id not in {c.id for c in chosen} and not r.under_way)
    return sum(len(superfluous(ws.checkpoints(r.id), keep)) for r in others)


def agreed(what: str) -> bool:
    """Asks; who cannot be asked has to say it on the command line."""
    from opstep.runtime.ir.errors import InputError

    if not sys.stdin.isatty():
        raise InputError("cannot ask: standard input is not a terminal", hint="add --yes")
    return click.confirm(f"Remove {what}?", err=True)


def choose(
    ws: Workspace,
    sizes: dict[int, int],
    older_than: float | None,
    larger_than: int | None,
    keep_last: int | None,
    named: tuple[str, ...],
) -> list[RecordedRun]:
    """The runs that are meant."""
    chosen = {ws.run(reference).id for reference in named}
    runs = ws.runs
    latest = {r.id for r in runs[len(runs) - keep_last :]} if keep_last else set()
    before = None
    if older_than is not None:
        before = datetime.now(UTC) - timedelta(seconds=older_than)
    by_rule = older_than is not None or larger_than is not None or keep_last is not None
    found = []
    for run in runs:
        fits = by_rule and not run.under_way and run.id not in latest
        fits = fits and (before is None or _began(run) < before)
        fits = fits and (larger_than is None or sizes[run.id] > larger_than)
        if fits or run.id in chosen:
            found.append(run)
    return found


def _began(run: RecordedRun) -> datetime:
    began = datetime.fromisoformat(run.began)
    return began if began.tzinfo else began.replace(tzinfo=UTC)
