"""Runs of commands in workspaces and timelines: opened as options say, and told of at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from opstep.cli.common import amount, is_explicit, say, size

if TYPE_CHECKING:
    from opstep.trace.recording import Recording
    from opstep.trace.sink import SinkReport

OF_WORKSPACE = ("stats", "stats_every", "stats_also", "name", "tags", "keep_inputs")


def opened_recording(options: dict[str, Any]) -> Recording | None:
    """A recording in the files that were asked for."""
    from opstep.runtime.ir.errors import InputError

    steps = window(options)
    if options["workspace"] is None and options["trace"] is None:
        for name in OF_WORKSPACE:
            if is_explicit(name):
                flag = f"--{name.replace('_', '-')}".replace("tags", "tag")
                raise InputError(f"{flag} needs a workspace", hint="add --workspace FILE.db")
        return None
    from opstep.trace.recording import Recording

    given = {name: options[name] for name in ("workspace", "trace", *OF_WORKSPACE)}
    given |= {"trace_steps": steps, "tags": dict(options["tags"])}
    return Recording(**given)


def window(options: dict[str, Any]) -> range | None:
    """The steps of a timeline: ``--trace-steps 100:110``. Raises `InputError`."""
    from opstep.runtime.ir.errors import InputError

    text = options["trace_steps"]
    if text is None:
        return None
    if not options["trace"]:
        raise InputError("--trace-steps needs a timeline", hint="add --trace FILE.pftrace")
    low, colon, high = (part.strip() for part in text.partition(":"))
    numbers = all(n.isascii() and (n.isdigit() or not n) and len(n) < 16 for n in (low, high))
    if not colon or not numbers or (high and int(high) <= int(low or 0)):
        raise InputError(
            f"--trace-steps {text}: expected LO:HI", hint="100:110 are the ten steps from 100 on"
        )
    return range(int(low or 0), int(high) if high else sys.maxsize)


def recorded_as(recording: Recording | None, reports: list[SinkReport]) -> dict[str, Any]:
    """For JSON: the run's name and the files that know of it."""
    if recording is None:
        return {}
    files = [
        {"path": str(w.path), "bytes": w.nbytes, **dict(w.counts), "problem": w.problem}
        for w in reports
    ]
    return {"run": recording.runs[0].key if recording.runs else None, "recorded": files}


def show_recording(recording: Recording) -> None:
    """Says what was written, how large it is, and how to look at it."""
    files = recording.close()
    if not recording.runs:  # what the run was given did not fit: that is told
        return
    key = recording.runs[0].key
    for report in files:
        counts = ", ".join(amount(n, noun) for noun, n in report.counts)
        if report.nbytes:
            say(f"wrote {report.path}: {size(report.nbytes)}{', ' if counts else ''}{counts}")
        if report.problem:
            say(f"error: {report.path} is incomplete: {report.problem}")
        elif report.path == recording.files.get("trace"):
            say(f"  opstep trace {report.path}          # the timeline, in the browser")
            say(f"  opstep trace {report.path} summary  # as text")
        else:
            say(f"  opstep ws {report.path}  # summary; this run is {key}")
        for found in report.findings:
            say(f"found: {found}")
