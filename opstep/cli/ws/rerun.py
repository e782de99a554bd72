"""``rerun``: a run again, from the workspace alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import (
    OK,
    PROGRAM,
    amount,
    console,
    emit_json,
    ended_in_order,
    json_option,
    option,
    say,
    watch_compiler,
)
from opstep.cli.options import fallback_option, import_modules, import_option, library_of
from opstep.cli.verbs import verb
from opstep.cli.ws import shown
from opstep.runtime.ir.diagnostics import names_listed

if TYPE_CHECKING:
    from opstep.trace.workspace.rerun import Repeated


@verb(
    "rerun",
    examples=[
        ("opstep ws runs.db rerun last", "check that the bits are the same"),
        ("opstep ws runs.db rerun 3f2a --record", "record the second run as well, to compare"),
        ("opstep ws runs.db rerun 3f2a --step 40", "from a step saved by --keep-inputs"),
    ],
    codes={OK: "the same bits", PROGRAM: "they differ"},
)
@click.argument("run", metavar="RUN")
@option(
    "--step N",
    "Start with this step, one of those saved by --keep-inputs.",
    click.IntRange(0),
    default=0,
    show_default=True,
)
@option("--record", "Record it in the same workspace.")
@fallback_option
@import_option
@json_option
@ended_in_order()
def rerun(file: str, run: str, step: int, record: bool, as_json: bool, **options: Any) -> int:
    """Rerun a run from the workspace alone.

    The program, inputs, params, seed and switches come from the file. The last outputs, and the
    params and states after the last step, are compared bit by bit with the saved ones. A run that
    failed must fail in the same way. If a loop in Python passed different inputs to each step, the
    steps with the first inputs are rerun or, with --step, that step.
    """
    from opstep.cli.run import progress
    from opstep.trace.recording import Recording

    recording = None
    import_modules(options["imports"])
    with shown.workspace(file) as ws:
        original = ws.run(run)
        if record:
            recording = Recording(
                workspace=file,
                stats=original.selection,
                stats_every=original.every,
                stats_also=original.also or "",
            )
        try:
            with watch_compiler(), progress(max(1, original.repeatable)) as on_step:
                repeated = ws.rerun(
                    original, recording=recording, on_step=on_step, step=step,
                    fallback=library_of(options),
                )  # fmt: skip
        finally:
            if recording:
                recording.close()
    key = recording.runs[0].key if recording and recording.runs else None
    if as_json:
        emit_json(as_record(repeated, key))
    else:
        show(file, repeated, key)
    return OK if repeated.identical else PROGRAM


def as_record(repeated: Repeated, key: str | None) -> dict[str, Any]:
    return {
        "run": repeated.run.key,
        "recorded_as": key,
        "steps": repeated.steps,
        "identical": repeated.identical,
        "same": repeated.same,
        "different": repeated.different,
        "error": repeated.error,
        "expected_error": repeated.expected,
        "cut": repeated.cut,
    }


def show(file: str, repeated: Repeated, key: str | None) -> None:
    from rich.text import Text

    out = console()
    run = repeated.run
    head = [(run.key, "bold"), f", {run.graph}, {amount(repeated.steps, 'step')} again: "]
    compared = len(repeated.same) + len(repeated.different)
    if repeated.identical and (compared or repeated.error):
        what = f", {amount(compared, 'result')} compared" if compared else ""
        end = [("same bits" if compared else "same error", "bold green"), what]
    elif repeated.identical:
        end = [("nothing was kept that could be compared", "yellow")]
    elif repeated.different:
        named = names_listed(repeated.different)
        end = [("differs", "bold red"), f": {named} ({len(repeated.same)} the same)"]
    else:
        end = [("ended otherwise", "bold red")]
    out.print(Text.assemble(*head, *end))
    for label, error in (("then", repeated.expected), ("now", repeated.error)):
        if not repeated.identical and repeated.error != repeated.expected:
            out.print(Text(f"  {label}: {(error or 'no error').splitlines()[0]}"))
    if run.repeatable < run.steps and repeated.steps > 1:
        later = amount(run.steps - run.repeatable, "later step")
        say(f"  {later} had inputs of their own, which are not kept")
    if repeated.cut:
        say(f"  {repeated.cut}")
    if key:
        say(f"recorded as {key}: opstep ws {file} compare {run.key} {key}")
    elif not repeated.identical:
        say(f"  the first op that differs: opstep ws {file} rerun {run.key} --record, then compare")
