"""Tensors that a workspace keeps, as the debugger's requests of the same names tell those of a run:
one view shows both.

Each request names a ``tensor`` by its number in the file, and has an ``expression`` over it and the
tensors that were kept with it: ``w``, ``w[0, ::2]``, ``w - w@"3f2a"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opstep.editors import views
from opstep.editors.views import MOST_BINS, Viewed, statistics_json
from opstep.lsp import arguments
from opstep.lsp.arguments import Params
from opstep.lsp.project import PerProject
from opstep.lsp.registry import feature
from opstep.trace.workspace.browsing import runs
from opstep.trace.workspace.browsing.json_fields import tensor_json
from opstep.trace.workspace.browsing.saved_tensors import SavedScope, TensorCache, evaluate, find

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_ENTRIES = 10_000
_caches = PerProject(TensorCache)


@contextmanager
def viewed(project: Project, params: Params) -> Iterator[Viewed]:
    """The tensor that the request is about."""
    with arguments.workspace(params) as ws:
        record = find(ws, arguments.number(params, "tensor"))
        scope = SavedScope(ws, _caches.of(project), record.key, record.step, record)
        yield evaluate(scope, arguments.text(params, "expression", "value"))


@feature("opstep/workspace/tensor", thread=True)
def tensor(project: Project, params: Params) -> dict[str, Any]:
    """What is known of a kept tensor, without its elements."""
    with arguments.workspace(params) as ws:
        return {"tensor": tensor_json(find(ws, arguments.number(params, "tensor")))}


@feature("opstep/workspace/tensorType", thread=True)
def tensor_type(project: Project, params: Params) -> dict[str, Any]:
    """``type``, ``dtype`` and ``shape``."""
    with viewed(project, params) as found:
        return views.type_json(found)


@feature("opstep/workspace/tensorSlice", thread=True)
def tensor_slice(project: Project, params: Params) -> dict[str, Any]:
    """Elements as bytes in base64, little-endian, the last axis fastest, thinned out by strides to
    `maxElements`.
    """
    most = arguments.number(params, "maxElements", low=1) if "maxElements" in params else None
    with viewed(project, params) as found:
        return views.sliced(found, most)


@feature("opstep/workspace/statistics", thread=True)
def statistics(project: Project, params: Params) -> dict[str, Any]:
    """All figures of a tensor's elements."""
    with viewed(project, params) as found:
        return {"type": str(found.type), "statistics": statistics_json(found.statistics())}


@feature("opstep/workspace/histogram", thread=True)
def histogram(project: Project, params: Params) -> dict[str, Any]:
    """Bins of equal width over the finite elements."""
    bins = arguments.number(params, "bins", 64, low=1, high=MOST_BINS)
    low, high = arguments.real(params, "low"), arguments.real(params, "high")
    with viewed(project, params) as found:
        return views.histogram(found, bins, low, high)


@feature("opstep/workspace/statisticsHistory", thread=True)
def statistics_history(project: Project, params: Params) -> dict[str, Any]:
    """The figures of the tensor `name` over the steps of the same run, as they were recorded: the
    last `count`, oldest first.
    """
    count = arguments.number(params, "count", 1_000, low=1, high=MOST_ENTRIES)
    with arguments.workspace(params) as ws:
        record = find(ws, arguments.number(params, "tensor"))
        name = arguments.text(params, "name", record.name)
        return {"entries": runs.statistics_history(ws, record, name, count)}
