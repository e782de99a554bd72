"""How the parts of a workspace are shown: by several verbs alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.cli.common import duration, size
from opstep.trace.workspace.runs import EAGER

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from opstep.trace.workspace.records import TensorRecord
    from opstep.trace.workspace.runs import RecordedRun
    from opstep.trace.workspace.workspace import Workspace

STATUS = {"done": "green", "failed": "bold red", "interrupted": "yellow", "running": "cyan"}
STATUS["killed"] = STATUS["incomplete"] = STATUS["interrupted"]


@contextmanager
def workspace(file: str) -> Iterator[Workspace]:
    """The workspace; what SQLite says of a file that is damaged or in use becomes a message."""
    from opstep.runtime.ir.errors import InputError
    from opstep.trace.workspace.workspace import Workspace

    with Workspace(file) as ws:
        try:
            yield ws
        except sqlite3.Error as error:
            raise InputError(f"{file}: {error}") from None


def table(*headings: str, right: Iterable[str] = ()) -> Table:
    """An empty table; columns in `right` hold numbers, which are never broken over two lines."""
    from rich.table import Table

    rows = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    numbers = set(right)
    for heading in headings:
        unbroken = heading in numbers or heading == "line"
        right_ = "right" if heading in numbers else "left"
        rows.add_column(heading, justify=right_, no_wrap=unbroken)
    return rows


def runs_table(runs: Iterable[RecordedRun], sizes: Mapping[int, int] | None = None) -> Table:
    """A row a run; `sizes`: bytes by id."""
    from rich.text import Text

    rows = table(
        "run", "id", "began", "program", "graph", "how", "steps", "time", "status",
        right=("id", "steps", "time"),
    )  # fmt: skip
    if sizes is not None:
        rows.add_column("size, about", justify="right")
    for run in runs:
        rows.add_row(
            Text.assemble((run.key, "bold"), f" {run.name}" if run.name else ""),
            str(run.id),
            moment(run.began),
            Text(Path(run.file).name if run.file else ""),
            Text(run.graph),
            how(run),
            f"{run.steps or 0:,}",
            "" if run.seconds is None else duration(run.seconds),
            Text(status(run), STATUS.get(status(run), "")),
            *([] if sizes is None else [size(sizes[run.id])]),
        )
    return rows


def status(run: RecordedRun) -> str:
    """Its status; one whose process is gone without a word was killed."""
    return "killed" if run.status == "running" and not run.under_way else run.status


def how(run: RecordedRun) -> str:
    """``cpu, 4 streams, seed 0``: what differs from the usual is named."""
    if (run.streams, run.alloc, run.fill, run.sync) == (1, "fresh", "nan", "op"):
        return f"{run.device}, debug, seed {run.seed}"
    if run.device == EAGER:
        return "eager PyTorch"
    parts = [run.device, f"{run.streams} stream{'' if run.streams == 1 else 's'}"]
    odd = {"alloc": ("reuse", run.alloc), "fill": ("none", run.fill), "sync": ("none", run.sync)}
    parts += [f"{name} {is_}" for name, (usual, is_) in odd.items() if is_ != usual]
    return ", ".join([*parts, f"seed {run.seed}"])


def moment(iso: str | None) -> str:
    """A moment in the time of this place, to the second."""
    if not iso:
        return ""
    try:
        return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return iso


def run_record(run: RecordedRun) -> dict[str, Any]:
    """A run for JSON, without its program's text."""
    names = [f.name for f in fields(run) if not f.name.startswith("_")]
    return {name: getattr(run, name) for name in names if name != "program"}


def tensor_record(tensor: TensorRecord) -> dict[str, Any]:
    """A tensor for JSON."""
    names = ("name", "key", "step", "kind", "dtype", "shape", "nbytes", "digest", "saved")
    return {"reference": tensor.reference} | {name: getattr(tensor, name) for name in names}


def number(value: Any) -> str:
    """A figure as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.6g}"
    return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.6g}"


def field_text(value: Any, width: int = 60) -> Text:
    """One field of an SQL answer."""
    from rich.text import Text

    from opstep.runtime.ir.diagnostics import visible

    if value is None:
        return Text("null", "dim")
    if isinstance(value, bytes):
        return Text(f"<{len(value):,} bytes>", "dim")
    if isinstance(value, float):
        return Text(f"{value:.9g}")
    shown = visible(str(value).replace("\n", "⏎"))
    return Text(shown if len(shown) <= width else f"{shown[: width - 1]}…")
