"""Runs, tensors and findings of a workspace as a tree shows them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from opstep.trace.workspace.records import TensorRecord
from opstep.trace.workspace.runs import RecordedRun


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
