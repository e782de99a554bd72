"""Messages about a file, as the protocol has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from opstep.lsp.item import ItemSource
from opstep.runtime.ir.diagnostics import Diagnostic, Note, in_order

if TYPE_CHECKING:
    from opstep.lsp.file import File

SOURCE = "opstep"
_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}


def diagnostics(file: File) -> list[types.Diagnostic]:
    """All messages about a file, in order: of syntax; where there are none, the verifier's."""
    found = [d for item in file.items for d in item.syntax]
    if not found:
        found = [d for item in file.items for d in item.problems]
    return [converted(file, d) for d in in_order(found)]


def converted(file: File, d: Diagnostic) -> types.Diagnostic:
    """A message as the protocol has it. The hint stands on a line of its own."""
    where = types.Range(types.Position(0, 0), types.Position(0, 0))
    if d.span is not None and isinstance(d.source, ItemSource):
        where = d.source.item.span(d.span)
    related = []
    for note in d.notes:
        source = Note(*note).source or d.source
        if isinstance(source, ItemSource):
            item = source.item
            place = types.Location(item.file.uri, item.span(Note(*note).span))
            related.append(types.DiagnosticRelatedInformation(place, Note(*note).message))
    return types.Diagnostic(
        range=where,
        message=f"{d.message}\n{d.hint}" if d.hint else d.message,
        severity=_SEVERITY.get(d.severity, types.DiagnosticSeverity.Information),
        source=SOURCE,
        related_information=related or None,
    )
