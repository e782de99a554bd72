"""Completion: what could stand at the cursor, what is likely first."""

from __future__ import annotations

from collections.abc import Callable

from lsprotocol import types

from opstep.api.catalogue import text_of
from opstep.lsp.completions import arguments, callees, declarations
from opstep.lsp.completions.cursor import Cursor, read
from opstep.lsp.completions.proposals import Proposals
from opstep.lsp.completions.scope import Scope, head
from opstep.lsp.hovers.markdown import block, paragraphs, prose
from opstep.lsp.hovers.operation import declaration
from opstep.lsp.occurrences import op_named
from opstep.lsp.project import Project
from opstep.lsp.registry import feature

_AT: dict[str, Callable[[Proposals], None]] = {
    "item": declarations.propose_item,
    "statement": callees.propose_statement,
    "callee": callees.propose_callee,
    "argument": arguments.propose_argument,
    "value": arguments.propose_value,
    "operand": arguments.propose_update,
    "condition": arguments.propose_condition,
    "returned": arguments.propose_returned,
    "type": declarations.propose_type,
    "family": declarations.propose_family,
    "results": declarations.propose_results,
    "initialiser": declarations.propose_initialiser,
    "sharding": declarations.propose_sharding,
    "mesh axis": declarations.propose_mesh_axis,
    "dim": lambda out: arguments.propose_symbols(out, (",", "]")),
}
# A sign brings the list up only where something must follow it: a blank in the indentation, or the
# = before the blank of `y = `, does not.
_TRIGGERS = {
    "(": ("argument",),
    "=": ("value",),
    "[": ("value", "dim", "mesh axis"),
    '"': ("value",),
    " ": ("callee", "argument", "value", "operand", "condition", "returned", "type", "results",
          "initialiser", "dim", "family", "mesh axis"),
}  # fmt: skip


_NEAR = 1_000  # statements above the cursor that are looked at while nothing is typed


@feature(
    types.TEXT_DOCUMENT_COMPLETION,
    types.CompletionOptions(trigger_characters=list(_TRIGGERS), resolve_provider=True),
)
def completion(project: Project, params: types.CompletionParams) -> types.CompletionList | None:
    """What could stand at the cursor."""
    file = project.file(params.text_document.uri)
    offset = file.offset(params.position)
    cursor = read(file, offset)
    propose = _AT.get(cursor.context)
    if propose is None or not _is_expected(params, cursor, file.text[max(0, offset - 2) : offset]):
        return None
    most = None if cursor.word else _NEAR
    scope = Scope.at(file, file.item_at(offset), cursor.statement, most)
    out = Proposals(cursor, scope, supports_snippets(project))
    propose(out)
    more = out.cut or out.cut_short or not scope.complete
    return types.CompletionList(is_incomplete=more, items=out.items)


@feature(types.COMPLETION_ITEM_RESOLVE)
def resolve(project: Project, item: types.CompletionItem) -> types.CompletionItem:
    """Adds the documentation, which is made for the item that is looked at alone."""
    data = item.data if isinstance(item.data, dict) else {}
    text = ""
    op = op_named(str(data.get("op", "")))
    if op is not None:
        spec = next((a for a in op.attrs if a.name == data.get("attribute")), None)
        about = f"{spec.name}: {arguments.describe(spec)}" if spec is not None else ""
        text = paragraphs([prose(about), declaration(op)])
    elif "graph" in data and "uri" in data:
        graph = project.file(str(data["uri"])).environment.graphs.get(str(data["graph"]))
        if graph is not None:
            item.detail = head(graph)
            text = paragraphs([block(f"graph {head(graph)}"), prose(text_of(graph))])
    if text:
        item.documentation = types.MarkupContent(types.MarkupKind.Markdown, text)
    return item


def supports_snippets(project: Project) -> bool:
    """Whether the client knows tab stops."""
    document = getattr(project.capabilities, "text_document", None)
    supported = getattr(getattr(document, "completion", None), "completion_item", None)
    return bool(getattr(supported, "snippet_support", None))


def _is_expected(params: types.CompletionParams, cursor: Cursor, before: str) -> bool:
    """Whether a list is to come up, where it was a sign that asked for it."""
    context = params.context
    if context is None or context.trigger_kind != types.CompletionTriggerKind.TriggerCharacter:
        return True
    if before.isspace():  # the indentation of a broken list
        return False
    return cursor.context in _TRIGGERS.get(context.trigger_character or "", ())
