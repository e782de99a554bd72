"""Tensors that a workspace keeps, as the debugger's requests of the same names tell those of a run:
one view shows both.

Each request names a ``tensor`` by its number in the file, and has an ``expression`` over it and the
tensors that were kept with it: ``w``, ``w[0, ::2]``, ``w - w@"3f2a"``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.kept import Kept, KeptScope, KeptTensors, Shown, evaluated, find, strides
from opstep.lsp.workspaces.per import PerProject
from opstep.lsp.workspaces.told import figure, tensor_told
from opstep.runtime.ir.errors import InputError
from opstep.runtime.statistics import LOWEST, Statistics
from opstep.trace.workspace.runs import FIGURES

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_BYTES = 48 << 20  # of a slice
MOST_BINS = 4096
MOST_ENTRIES = 10_000
_kept = PerProject(KeptTensors)


@contextmanager
def looked_at(project: Project, params: Params) -> Iterator[Kept | Shown]:
    """The tensor that the request is about."""
    with given.opened(params) as ws:
        record = find(ws, given.number(params, "tensor"))
        scope = KeptScope(ws, _kept.of(project), record.key, record.step, record)
        yield evaluated(scope, given.text(params, "expression", "value"))


@feature("opstep/workspace/tensor", thread=True)
def tensor(project: Project, params: Params) -> dict[str, Any]:
    """What is known of a kept tensor, without its elements."""
    with given.opened(params) as ws:
        return {"tensor": tensor_told(find(ws, given.number(params, "tensor")))}


@feature("opstep/workspace/tensorType", thread=True)
def tensor_type(project: Project, params: Params) -> dict[str, Any]:
    """``type``, ``dtype`` and ``shape``."""
    with looked_at(project, params) as found:
        t = found.type
        return {"type": str(t), "dtype": t.dtype.name, "shape": list(t.shape)}


@feature("opstep/workspace/tensorSlice", thread=True)
def tensor_slice(project: Project, params: Params) -> dict[str, Any]:
    """Elements as bytes in base64, little-endian, the last axis fastest, thinned out by strides to
    `maxElements`.
    """
    most = given.number(params, "maxElements", low=1) if "maxElements" in params else None
    with looked_at(project, params) as found:
        shape: tuple[int, ...] = found.array().shape
        steps = strides(shape, most)
        taken = found.part(tuple(slice(None, None, s) for s in steps))
        if taken.nbytes > MOST_BYTES:
            text = f"{found.type} is more than {MOST_BYTES:,} bytes: take a part, or maxElements"
            raise InputError(text)
        data = np.ascontiguousarray(taken).tobytes()
        return {
            "dtype": found.type.dtype.name,
            "shape": list(taken.shape),
            "of": list(shape),
            "steps": steps,
            "data": base64.b64encode(data).decode("ascii"),
        }


@feature("opstep/workspace/statistics", thread=True)
def statistics(project: Project, params: Params) -> dict[str, Any]:
    """All figures of a tensor's elements."""
    with looked_at(project, params) as found:
        return {"type": str(found.type), "statistics": _figures(found.statistics())}


def _figures(s: Statistics) -> dict[str, Any]:
    return _told(asdict(s)) | {"histogram": list(s.histogram)}


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as JSON has them, without what is not known."""
    told = {k: v for k, v in figures.items() if v is not None}
    told = {k: figure(v) if isinstance(v, float) else v for k, v in told.items()}
    return told | {"histogram": [], "lowestExponent": LOWEST}


@feature("opstep/workspace/histogram", thread=True)
def histogram(project: Project, params: Params) -> dict[str, Any]:
    """Bins of equal width over the finite elements."""
    bins = given.number(params, "bins", 64, low=1, high=MOST_BINS)
    with looked_at(project, params) as found:
        flat = found.array().reshape(-1).astype(np.float64)
        told = {"type": str(found.type), "counts": [], "edges": []}
    flat = flat[np.isfinite(flat)]
    told |= {"finite": len(flat)}
    if not len(flat):
        return told
    try:
        low, high = (
            float(params[name]) if isinstance(params.get(name), (int, float)) else float(extreme)
            for name, extreme in (("low", flat.min()), ("high", flat.max()))
        )
    except OverflowError:
        raise InputError("low and high: expected numbers that f64 can hold") from None
    if low > high:
        raise InputError("low is above high")
    try:
        counts, edges = np.histogram(flat, bins, (low, high))
    except ValueError as error:  # f64 cannot hold the width of the range, or of a bin
        raise InputError(f"no histogram of this range: {error}") from None
    return told | {"counts": counts.tolist(), "edges": edges.tolist()}


@feature("opstep/workspace/statisticsHistory", thread=True)
def statistics_history(project: Project, params: Params) -> dict[str, Any]:
    """The figures of the tensor `name` over the steps of the same run, as they were recorded: the
    last `count`, oldest first.
    """
    count = given.number(params, "count", 1_000, low=1, high=MOST_ENTRIES)
    with given.opened(params) as ws:
        record = find(ws, given.number(params, "tensor"))
        if record.key is None:
            return {"entries": []}
        run = ws.run(record.key)
        columns = ", ".join(f'"{name}"' for name in FIGURES)
        rows = ws.sql(
            f"select step, {columns} from stat_history where run = ? and value = ? and step >= ? "
            "order by step, execution",
            (run.id, given.text(params, "name", record.name), max(-1, run.steps - count)),
        ).rows
    entries = [
        {
            "step": step,
            "type": record.type,
            "statistics": _told(dict(zip(FIGURES, row, strict=True))),
        }
        for step, *row in rows
    ]
    return {"entries": entries[-count:]}
