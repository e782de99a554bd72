"""Going from a name to where it is defined, declared, typed or implemented.

The definition of an op is the class that declares it; its implementations are that class's kernels.
The type of a value is decided where it is written or else by the callee: a graph's signature, or
the shape rule of an op.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

from lsprotocol import types

from opstep.lsp.locations import graph_item, op_location
from opstep.lsp.occurrences import Occurrence, at, definition, op_named
from opstep.lsp.project import Project, uri_of
from opstep.lsp.registry import feature
from opstep.runtime.ir.graph import Apply, Binding, Declaration, Graph

_KERNELS = ("cpu", "cuda", "vendor")
Locations = list[types.Location]
_Params = (
    types.DefinitionParams
    | types.DeclarationParams
    | types.TypeDefinitionParams
    | types.ImplementationParams
)


@feature(types.TEXT_DOCUMENT_DEFINITION)
def go_to_definition(project: Project, params: types.DefinitionParams) -> Locations:
    """Where the name under the cursor comes from."""
    return _defined(project, _found(project, params))


@feature(types.TEXT_DOCUMENT_DECLARATION)
def go_to_declaration(project: Project, params: types.DeclarationParams) -> Locations:
    """The same: a name is declared where it is defined."""
    return _defined(project, _found(project, params))


@feature(types.TEXT_DOCUMENT_TYPE_DEFINITION)
def go_to_type(project: Project, params: types.TypeDefinitionParams) -> Locations:
    """What decides the type of a value."""
    found = _found(project, params)
    if found is None:
        return []
    if found.kind in ("graph", "op"):
        return _typed_by(project, found, found.name)
    defined = definition(found.file, found.thing)
    if defined is None or found.kind not in ("value", "param", "state"):
        return _defined(project, found)
    binding = _binding(defined)
    if binding is not None and binding.type is not None:
        return [types.Location(found.file.uri, defined.item.span(binding.type_span))]
    if isinstance(defined.part, Declaration):
        return [types.Location(found.file.uri, defined.item.span(defined.part.type_span))]
    if isinstance(defined.part, Apply):
        return _typed_by(project, defined, defined.part.callee.text)
    return _defined(project, found)


@feature(types.TEXT_DOCUMENT_IMPLEMENTATION)
def go_to_implementation(project: Project, params: types.ImplementationParams) -> Locations:
    """An op's kernels; of a graph its text, of a value the statement that computes it."""
    found = _found(project, params)
    if found is None:
        return []
    if found.kind == "op":
        kernels = _functions(found.name, _KERNELS)
        return kernels or _defined(project, found)
    return _defined(project, found)


# --- where ----------------------------------------------------------------------------------------


def _found(project: Project, params: _Params) -> Occurrence | None:
    file = project.file(params.text_document.uri)
    return at(file, file.offset(params.position))


def _defined(project: Project, found: Occurrence | None) -> Locations:
    if found is None:
        return []
    if found.kind == "op":
        return _class(found.name)
    if found.kind == "attribute":
        return _class(found.mark.owner)
    if found.kind == "graph":
        location = graph_item(project, found.file, found.name)
        if location is None or location.item.node is None:
            return []
        return [types.Location(location.file.uri, location.item.span(location.item.node.name.span))]
    defined = definition(found.file, found.thing)
    if defined is None or found.kind not in ("value", "param", "state", "symbol"):
        return []
    return [types.Location(found.file.uri, found.file.range(defined.start, defined.end))]


def _class(op: str) -> Locations:
    location = op_location(op)
    return [types.Location(uri_of(str(location[0])), location[1])] if location is not None else []


def _typed_by(project: Project, found: Occurrence, callee: str) -> Locations:
    """The signature of a graph, or the shape rule of an op."""
    if op_named(callee) is not None:
        return _functions(callee, ("infer", "resolve_call")) or _class(callee)
    location = graph_item(project, found.file, callee)
    if location is None or not isinstance(location.item.node, Graph):
        return []
    graph = location.item.node
    span = graph.results_span if graph.results else graph.name.span
    return [types.Location(location.file.uri, location.item.span(span))]


def _functions(name: str, names: Iterable[str]) -> Locations:
    """The functions of an op's class that have these names, as far as Python knows them."""
    op = op_named(name)
    locations: dict[tuple[str, int], types.Location] = {}
    for function in (getattr(op, key, None) for key in names):
        try:
            path = inspect.getsourcefile(function) if callable(function) else None
            if path is None:
                continue
            lines, first = inspect.getsourcelines(function)  # pyright: ignore[reportArgumentType]
        except (OSError, TypeError):
            continue
        shift, line = next(
            ((k, text) for k, text in enumerate(lines) if "def " in text), (0, lines[0])
        )
        row, column = first - 1 + shift, len(line) - len(line.lstrip())
        start = types.Position(row, column)
        end = types.Position(row, len(line.rstrip()))
        locations.setdefault((path, row), types.Location(_uri(path), types.Range(start, end)))
    return list(locations.values())


def _uri(path: str) -> str:
    return uri_of(str(Path(path)))


def _binding(defined: Occurrence) -> Binding | None:
    part, start = defined.part, defined.mark.start
    bindings: tuple[Binding, ...] = ()
    if isinstance(part, Graph):
        bindings = part.inputs
    elif isinstance(part, Apply):
        bindings = part.results
    return next((b for b in bindings if b.name.span.start == start), None)
