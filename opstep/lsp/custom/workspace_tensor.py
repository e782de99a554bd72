"""Tensors that a workspace keeps: their statistics and elements, as the debugger's requests of the
same names tell those of a run that stands.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.lsp.registry import feature
from opstep.lsp.workspaces import given
from opstep.lsp.workspaces.given import Params
from opstep.lsp.workspaces.kept import KeptTensors, find, part, strides
from opstep.lsp.workspaces.per import PerProject
from opstep.lsp.workspaces.told import figure, tensor_told
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.records import TensorRecord

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_BYTES = 48 << 20  # of a slice
MOST_BINS = 4096
_kept = PerProject(KeptTensors)


def elements(project: Project, params: Params) -> tuple[TensorRecord, np.ndarray]:
    """The tensor that ``tensor`` names: its number in the file, or NAME@RUN:STEP."""
    reference = params.get("tensor")
    if isinstance(reference, bool) or not isinstance(reference, (int, str)):
        raise InputError("tensor: expected a number, or NAME@RUN:STEP")
    with given.opened(params) as ws:
        record = find(ws, reference)
        return record, _kept.of(project).elements(ws, record)


@feature("opstep/workspace/tensor", thread=True)
def tensor(project: Project, params: Params) -> dict[str, Any]:
    """What is known of a tensor, with all figures of its elements."""
    from opstep.runtime.device.cpu import statistics_of
    from opstep.runtime.statistics import LOWEST

    record, array = elements(project, params)
    statistics = statistics_of(array)
    told = {k: v for k, v in asdict(statistics).items() if v is not None}
    told = {k: figure(v) if isinstance(v, float) else v for k, v in told.items()}
    told |= {"histogram": list(statistics.histogram), "lowestExponent": LOWEST}
    return {"tensor": tensor_told(record), "type": record.type, "statistics": told}


@feature("opstep/workspace/tensorSlice", thread=True)
def tensor_slice(project: Project, params: Params) -> dict[str, Any]:
    """Elements as bytes in base64, little-endian, the last axis fastest: of the whole tensor, or of
    the part that `index` says, thinned out by strides to `maxElements`.
    """
    record, array = elements(project, params)
    index = params.get("index", [])
    if not isinstance(index, list):
        raise InputError("index: expected a list")
    array = part(array, index)
    most = given.number(params, "maxElements", low=1) if "maxElements" in params else None
    steps = strides(array.shape, most)
    taken = array[tuple(slice(None, None, s) for s in steps)]
    if taken.nbytes > MOST_BYTES:
        text = f"{record.type} is more than {MOST_BYTES:,} bytes: take a part, or maxElements"
        raise InputError(text)
    data = np.ascontiguousarray(taken).tobytes()
    return {
        "dtype": record.dtype,
        "shape": list(taken.shape),
        "of": list(array.shape),
        "steps": steps,
        "data": base64.b64encode(data).decode("ascii"),
    }


@feature("opstep/workspace/histogram", thread=True)
def histogram(project: Project, params: Params) -> dict[str, Any]:
    """Bins of equal width over the finite elements."""
    bins = given.number(params, "bins", 64, low=1, high=MOST_BINS)
    record, array = elements(project, params)
    flat = array.reshape(-1).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    told = {"type": record.type, "counts": [], "edges": [], "finite": len(flat)}
    if not len(flat):
        return told
    low, high = (
        float(params[name]) if isinstance(params.get(name), (int, float)) else float(extreme)
        for name, extreme in (("low", flat.min()), ("high", flat.max()))
    )
    if low > high:
        raise InputError("low is above high")
    try:
        counts, edges = np.histogram(flat, bins, (low, high))
    except ValueError as error:  # f64 cannot hold the width of the range, or of a bin
        raise InputError(f"no histogram of this range: {error}") from None
    return told | {"counts": counts.tolist(), "edges": edges.tolist()}
