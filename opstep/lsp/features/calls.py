"""The call hierarchy: which graphs call a graph, and which it calls, through while, cond and switch
as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lsprotocol import types

from opstep.lsp.calls import calls_from, calls_to
from opstep.lsp.file import File
from opstep.lsp.folders import folder_files
from opstep.lsp.hovers.graph import signature
from opstep.lsp.item import Item
from opstep.lsp.locations import ItemInFile, graph_item, is_library
from opstep.lsp.occurrences import Occurrence, at
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph


@feature(types.TEXT_DOCUMENT_PREPARE_CALL_HIERARCHY)
def prepare(
    project: Project, params: types.CallHierarchyPrepareParams
) -> list[types.CallHierarchyItem] | None:
    """The graph whose name is under the cursor or else, on no name of one, that is around it."""
    file = project.file(params.text_document.uri)
    found = at(file, file.offset(params.position))
    name = found.name if found is not None and found.kind == "graph" else ""
    if not name and found is not None:
        name = found.item.name if found.item.kind == "graph" else ""
    location = graph_item(project, file, name) if name else None
    return [_item(project, location, file)] if location is not None else None


@feature(types.CALL_HIERARCHY_INCOMING_CALLS)
def incoming(
    project: Project, params: types.CallHierarchyIncomingCallsParams
) -> list[types.CallHierarchyIncomingCall]:
    """The graphs that call one; of the standard library's, those of other files as well."""
    asking, name = _origin(project, params.item)
    location = graph_item(project, asking, name)
    if location is None:
        return []
    files = {asking.uri: asking}
    if is_library(project, location.file):
        files |= {file.uri: file for file in (*project.library, *folder_files(project))
                  if name not in file.graphs or file is location.file}  # fmt: skip
    found = []
    for file in files.values():
        callers: dict[int, list[Occurrence]] = {}
        for call in calls_to(file, name):
            callers.setdefault(call.item.start, []).append(call)
        for calls in callers.values():
            caller = ItemInFile(file, calls[0].item)
            if isinstance(caller.item.node, Graph):
                found.append(
                    types.CallHierarchyIncomingCall(_item(project, caller, file), _ranges(calls))
                )
    return found


@feature(types.CALL_HIERARCHY_OUTGOING_CALLS)
def outgoing(
    project: Project, params: types.CallHierarchyOutgoingCallsParams
) -> list[types.CallHierarchyOutgoingCall]:
    """The graphs that one calls, each once."""
    asking, name = _origin(project, params.item)
    called: dict[str, list[Occurrence]] = {}
    for call in calls_from(project, asking, name):
        called.setdefault(call.name, []).append(call)
    found = []
    for callee, calls in called.items():
        location = graph_item(project, asking, callee)
        if location is not None:
            item = _item(project, location, asking)
            found.append(types.CallHierarchyOutgoingCall(item, _ranges(calls)))
    return found


def _item(project: Project, location: ItemInFile, asking: File) -> types.CallHierarchyItem:
    file, item = location
    graph = item.node
    assert isinstance(graph, Graph)
    return types.CallHierarchyItem(
        name=graph.name.text,
        kind=types.SymbolKind.Function,
        uri=file.uri,
        range=item.span(graph.span),
        selection_range=item.span(graph.name.span),
        detail=_detail(project, file, item),
        data={"asking": asking.uri},
    )


def _detail(project: Project, file: File, item: Item) -> str:
    head = " ".join(signature(item).split()).removeprefix(f"graph {item.name}")
    return f"{head} (standard library)" if is_library(project, file) else head


def _origin(project: Project, item: types.CallHierarchyItem) -> tuple[File, str]:
    """The file that an item was shown for, and the graph's name."""
    data: Any = item.data
    uri = data.get("asking") if isinstance(data, dict) else None
    try:
        return project.file(uri if isinstance(uri, str) else item.uri), item.name
    except InputError:
        return project.file(item.uri), item.name


def _ranges(calls: Iterable[Occurrence]) -> list[types.Range]:
    return [call.file.range(call.start, call.end) for call in calls]
