"""Code lenses above each graph: what can be done with it, and what it is to others."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from lsprotocol import types

from opstep.lsp.item import Item
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.lsp.settings import flag
from opstep.runtime.ir.graph import Apply, Graph
from opstep.runtime.ir.op import Ref

COMMANDS = (
    ("Run", "opstep.run", "Runs the graph at full speed"),
    ("Debug", "opstep.debug", "Steps through the graph"),
    ("Hunt NaN", "opstep.hunt", "Finds where the first NaN or infinity is born"),
    ("Plan", "opstep.plan", "Shows what is allocated, launched and waited for"),
    ("Graph", "opstep.openGraph", "Draws the data flow"),
)

_calls: WeakKeyDictionary[Item, tuple[Any, frozenset[str]]] = WeakKeyDictionary()


@feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=True))
def code_lens(project: Project, params: types.CodeLensParams) -> list[types.CodeLens]:
    """Run, Debug, Hunt NaN, Plan and Graph above each graph, then how large and how used it is."""
    if not flag(project, "codeLens", True):
        return []
    file = project.file(params.text_document.uri)
    found: list[types.CodeLens] = []
    for item in file.items:
        node = item.node
        if not isinstance(node, Graph):
            continue
        span = item.span(node.name.span)
        name = node.name.text
        for title, command, tooltip in COMMANDS:
            arguments = [{"uri": file.uri, "graph": name}]
            found.append(
                types.CodeLens(
                    span, types.Command(title, command, tooltip=tooltip, arguments=arguments)
                )
            )
        found.append(types.CodeLens(span, data={"uri": file.uri, "graph": name}))
    return found


@feature(types.CODE_LENS_RESOLVE)
def resolve(project: Project, lens: types.CodeLens) -> types.CodeLens:
    """Counts for those lenses that are in view: ``12 ops · called by 2 graphs``."""
    data = lens.data if isinstance(lens.data, dict) else {}
    file = project.file(str(data.get("uri", "")))
    name = str(data.get("graph", ""))
    item = file.graphs.get(name)
    if item is None or not isinstance(item.node, Graph):
        lens.command = types.Command("", "")  # it was renamed since
        return lens
    ops = sum(isinstance(s, Apply) for s in item.node.body)
    callers = sum(name in called(other) for other in file.items)
    parts = ["1 op" if ops == 1 else f"{ops} ops"]
    if callers:
        parts.append("called by 1 graph" if callers == 1 else f"called by {callers} graphs")
    lens.command = types.Command(" · ".join(parts), "")  # nothing to be clicked
    return lens


def called(item: Item) -> frozenset[str]:
    """The names that a graph calls, by themselves or in attributes. Kept until it changes."""
    node = item.node
    cached = _calls.get(item)
    if cached is not None and cached[0] is node:
        return cached[1]
    names: set[str] = set()
    for s in node.body if isinstance(node, Graph) else ():
        if isinstance(s, Apply):
            names.add(s.callee.text)
            for a in s.attrs:
                for value in a.value if type(a.value) is tuple else (a.value,):
                    if isinstance(value, Ref):
                        names.add(value.name)
    _calls[item] = node, frozenset(names)
    return _calls[item][1]
