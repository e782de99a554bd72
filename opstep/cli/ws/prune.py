"""``prune``: runs that are not needed any more."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from opstep.cli.common import OK, amount, console, say, size
from opstep.cli.verbs import verb
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.runs import RecordedRun
    from opstep.trace.workspace.workspace import Workspace

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Age(click.ParamType):
    """``30d``: a number and s, m, h, d or w, in seconds."""

    name = "age"

    def convert(self, value, param, ctx) -> float:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", str(value).strip())
        if found is None or float(found[1]) * _UNITS[found[2]] > 1e9:
            self.fail(f"{value!r} is not an age: write 30d, 12h or 2w.", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Size(click.ParamType):
    """``500M``, ``1.5 GiB``, in bytes."""

    name = "size"

    def convert(self, value, param, ctx) -> int:
        text = str(value).strip().upper()
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", text)
        if found is None:
            self.fail(f"{value!r} is not a size: write 500M or 2G.", param, ctx)
        return int(float(found[1]) * _SIZES[found[2]])


@verb(
    "prune",
    short_help="Remove runs and free their space.",
    examples=[
        ("opstep ws runs.db prune --older-than 30d", "by age, after confirmation"),
        ("opstep ws runs.db prune --keep-last 10 --yes", "all but the last ten, without asking"),
        ("opstep ws runs.db prune --larger-than 1G --dry-run", "which runs would be removed"),
        ("opstep ws runs.db prune --run 3f2a --run 5", "these two"),
    ],
    codes={OK: "success, also if there was nothing to remove"},
)
@click.option(
    "--older-than", type=Age(), metavar="AGE", help="Runs that started before this: 12h, 30d."
)
@click.option(
    "--larger-than",
    type=Size(),
    metavar="SIZE",
    help="Runs that use more space than this: 500M, 2G.",
)
@click.option("--keep-last", type=click.IntRange(0), metavar="N", help="All runs but the last N.")
@click.option(
    "--run",
    "-r",
    "named",
    multiple=True,
    metavar="RUN",
    help="This run. Can be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def prune(
    file: str,
    older_than: float | None,
    larger_than: int | None,
    keep_last: int | None,
    named: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove runs and free their space.

    Several conditions must all hold; runs named by --run are always removed. A run in progress is
    removed only if it is named. Tensors saved by hand stay.
    """
    from opstep.runtime.ir.errors import InputError

    if not named and older_than is None and larger_than is None and keep_last is None:
        hint = "--older-than 30d, --larger-than 1G, --keep-last 10 or --run RUN"
        raise InputError("which runs?", hint=hint)
    with shown.workspace(file) as ws:
        sizes = ws.run_bytes()
        chosen = choose(ws, sizes, older_than, larger_than, keep_last, named)
        if not chosen:
            say("nothing to remove")
            return OK
        console().print(shown.runs_table(chosen, sizes))
        if dry_run:
            return OK
        if not (yes or agreed(len(chosen))):
            return OK
        done = ws.prune(chosen)
    say(f"removed {amount(done.runs, 'run')} and {amount(done.tensors, 'tensor')}")
    if done.compacted:
        say(f"{file} is {size(done.freed)} smaller: {size(ws.nbytes)}")
    else:
        say("the room is used by the next runs: the file is in use and could not be made smaller")
    return OK


def agreed(count: int) -> bool:
    """Asks; who cannot be asked has to say it on the command line."""
    from opstep.runtime.ir.errors import InputError

    if not sys.stdin.isatty():
        raise InputError("cannot ask: standard input is not a terminal", hint="add --yes")
    return click.confirm(f"Remove {amount(count, 'run')}?", err=True)


def choose(
    ws: Workspace,
    sizes: dict[int, int],
    older_than: float | None,
    larger_than: int | None,
    keep_last: int | None,
    named: tuple[str, ...],
) -> list[RecordedRun]:
    """The runs that are meant."""
    wanted = {ws.run(reference).id for reference in named}
    runs = ws.runs
    kept = {r.id for r in runs[len(runs) - keep_last :]} if keep_last else set()
    before = None
    if older_than is not None:
        before = datetime.now(UTC) - timedelta(seconds=older_than)
    by_rule = older_than is not None or larger_than is not None or keep_last is not None
    found = []
    for run in runs:
        fits = by_rule and not run.under_way and run.id not in kept
        fits = fits and (before is None or _began(run) < before)
        fits = fits and (larger_than is None or sizes[run.id] > larger_than)
        if fits or run.id in wanted:
            found.append(run)
    return found


def _began(run: RecordedRun) -> datetime:
    began = datetime.fromisoformat(run.began)
    return began if began.tzinfo else began.replace(tzinfo=UTC)
