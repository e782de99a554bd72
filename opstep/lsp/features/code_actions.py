"""Quick fixes: what can be done about the messages at a place, and about all that are sure."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from opstep.lsp.checking import messages
from opstep.lsp.diagnostics import lsp_diagnostic
from opstep.lsp.file import File
from opstep.lsp.fixes.fix import Edit, Fix, fixes
from opstep.lsp.item import Item, ItemSource
from opstep.lsp.project import Project
from opstep.lsp.registry import feature
from opstep.runtime.ir.diagnostics import Diagnostic

_KINDS = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
_MOST_FIXED = 200  # messages that are looked at for one "fix all"


@feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(_KINDS))
def code_action(project: Project, params: types.CodeActionParams) -> list[types.CodeAction]:
    """Fixes of the messages that touch a range."""
    file = project.file(params.text_document.uri)
    only = params.context.only
    found: list[types.CodeAction] = []
    everything = messages(file)
    if _is_requested(types.CodeActionKind.QuickFix, only):
        start, end = file.offset(params.range.start), file.offset(params.range.end)
        for item, d in _of_file(file, everything):
            if d.span and item.start + d.span.start <= end and start <= item.start + d.span.end:
                found += [_action(file, item, d, fix) for fix in fixes(item, d)]
    if only is not None and _is_requested(types.CodeActionKind.SourceFixAll, only):
        found += _fix_all(file, everything)
    return found


def _is_requested(kind: types.CodeActionKind, only: object) -> bool:
    if not isinstance(only, (list, tuple)):
        return True
    return any(kind.value == k or kind.value.startswith(f"{k}.") for k in map(_text, only))


def _text(kind: object) -> str:
    return str(getattr(kind, "value", kind))


def _of_file(file: File, found: list[Diagnostic]) -> Iterator[tuple[Item, Diagnostic]]:
    """The messages with the items that they are about."""
    for d in found:
        if isinstance(d.source, ItemSource) and d.source.item.file is file:
            yield d.source.item, d


def _action(file: File, item: Item, d: Diagnostic, fix: Fix) -> types.CodeAction:
    return types.CodeAction(
        fix.title,
        types.CodeActionKind.QuickFix,
        diagnostics=[lsp_diagnostic(file, d)],
        is_preferred=fix.likely or None,
        edit=types.WorkspaceEdit({file.uri: [_edit(item, e) for e in fix.edits]}),
    )


def _edit(item: Item, e: Edit) -> types.TextEdit:
    return types.TextEdit(item.file.range(item.start + e.start, item.start + e.end), e.text)


def _fix_all(file: File, found: list[Diagnostic]) -> list[types.CodeAction]:
    """One action that does all that can be done unseen."""
    edits: list[types.TextEdit] = []
    last = -1  # where the edits so far end: two at one place would be a guess
    for item, d in list(_of_file(file, found))[:_MOST_FIXED]:
        fix = next((f for f in fixes(item, d) if f.safe), None)
        if fix is not None and item.start + fix.edits[0].start > last:
            edits += [_edit(item, e) for e in fix.edits]
            last = item.start + max(e.end for e in fix.edits)
    if not edits:
        return []
    title = "Fix all that can be fixed without a choice"
    change = types.WorkspaceEdit({file.uri: edits})
    return [types.CodeAction(title, types.CodeActionKind.SourceFixAll, edit=change)]
