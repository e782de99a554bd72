"""Fields of an answer, runs and tensors as JSON has them: short, and nothing that a client would
read wrongly.

Most are what they are. What JSON or JavaScript has no word for is an object with one key that names
it: ``{"int": "9007199254740993"}``, ``{"float": "inf"}``, ``{"bytes": 4096}``; a long text is
``{"text": its beginning, "length": all of it}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.wording import worded
from opstep.trace.workspace.query import Ended, Refused
from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.runs import RecordedRun
from opstep.trace.workspace.store import FileProblem

LONGEST = 500  # characters of a text that are sent with its row
_EXACT = 1 << 53  # what a double holds exactly

Cell = None | int | float | str | dict[str, Any]


def cell(value: Any) -> Cell:
    """One field as it is sent."""
    if isinstance(value, str):
        if len(value) <= LONGEST:
            return value
        return {"text": value[:LONGEST], "length": len(value)}
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else {"int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return value


def json_rows(rows: Iterable[Sequence[Any]]) -> list[list[Cell]]:
    """Rows as they are sent."""
    return [[cell(value) for value in row] for row in rows]


def column_kinds(rows: Sequence[Sequence[Any]], columns: int) -> list[str]:
    """Of each column ``number``, ``text``, ``bytes`` or ``mixed``, as these rows have it; ``""``
    where all are null.
    """
    found: list[str] = []
    for k in range(columns):
        kinds = {_kind(row[k]) for row in rows} - {""}
        found.append(kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "")
    return found


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else "bytes"


def run_json(run: RecordedRun) -> dict[str, Any]:
    """A row of `runs`, without the program's text. A run whose process is gone was killed."""
    names = [f.name for f in fields(run) if not f.name.startswith("_") and f.name != "program"]
    fields_by_name = {name: getattr(run, name) for name in names}
    under_way = run.under_way
    killed = run.status == "running" and not under_way
    return fields_by_name | {"status": "killed" if killed else run.status, "underWay": under_way}


def tensor_json(tensor: TensorRecord) -> dict[str, Any]:
    """A tensor, without its elements."""
    return {
        "id": tensor.id,
        "name": tensor.name,
        "reference": tensor.reference,
        "type": tensor.type,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "kind": tensor.kind,
        "run": tensor.key,
        "step": tensor.step,
        "nbytes": tensor.nbytes,
        "digest": tensor.digest,
        "saved": tensor.saved,
    }


def program_path(database: Path, recorded: str | None) -> str | None:
    """The file that a run's program came from, as a path that can be opened: one that was given
    relatively was meant from where the run began, which is often the workspace's folder.
    """
    if not recorded or recorded.startswith("<"):
        return None
    path = Path(recorded)
    if path.is_absolute():
        return str(path)
    for folder in database.absolute().parents:
        if (folder / path).is_file():
            return str(folder / path)
    return str(database.absolute().parent / path)


# --- what went wrong ------------------------------------------------------------------------------


_READS = "this view only reads; on the command line, `opstep ws FILE sql … --write` can change it"


def problem_json(error: OpstepError, text: str = "") -> dict[str, Any]:
    """``kind`` (a kind of `FileProblem`, ``refused``, ``stopped``, or ``wrong``), ``message``,
    ``hint``, and ``start`` and ``end`` in `text`, in units of UTF-16, where the place is known.
    """
    first = error.diagnostics[0]
    hint = worded(first.hint, lambda argument: None)  # a view has no arguments
    if isinstance(error, Refused) and error.writes:
        hint = _READS
    described: dict[str, Any] = {
        "kind": _problem_kind(error),
        "message": first.message,
        "hint": hint,
    }
    if first.span is not None and text:
        described |= {"start": units(text, first.span.start), "end": units(text, first.span.end)}
    return described


def _problem_kind(error: OpstepError) -> str:
    if isinstance(error, FileProblem):
        return error.kind
    if isinstance(error, Refused):
        return "refused"
    return "stopped" if isinstance(error, Ended) else "wrong"


def units(text: str, offset: int) -> int:
    """An offset in characters as JavaScript counts it: those beyond U+FFFF are two."""
    return offset + sum(c > "\uffff" for c in text[:offset])
