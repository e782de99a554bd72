"""Messages as the protocol has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from opstep.lsp.checking import messages
from opstep.lsp.item import Item, ItemSource
from opstep.lsp.unused import UNUSED
from opstep.runtime.ir.diagnostics import Diagnostic, Note
from opstep.runtime.ir.graph import Span
from opstep.runtime.ir.wording import shortened

if TYPE_CHECKING:
    from opstep.lsp.file import File

SOURCE = "opstep"
_SEVERITY = {"error": 1, "warning": 2, "note": 3, "hint": 4}


def diagnostics_json(file: File, unused: bool = True) -> list[dict[str, Any]]:
    """All messages about a file, in order, as plain JSON: there may be many, and the protocol's
    classes are slow. `unused`: also those about what nothing uses.
    """
    return [_json(file, d) for d in messages(file) if unused or d.code != UNUSED]


def lsp_diagnostic(file: File, d: Diagnostic) -> types.Diagnostic:
    """One message. The hint stands on a line of its own."""
    record = _json(file, d)
    related = [
        types.DiagnosticRelatedInformation(
            types.Location(r["location"]["uri"], _range(r["location"]["range"])), r["message"]
        )
        for r in record.get("relatedInformation", ())
    ]
    return types.Diagnostic(
        range=_range(record["range"]),
        message=record["message"],
        severity=types.DiagnosticSeverity(record["severity"]),
        code=record.get("code"),
        source=record["source"],
        tags=[types.DiagnosticTag(tag) for tag in record.get("tags", ())] or None,
        related_information=related or None,
    )


def _range(found: dict[str, dict[str, int]]) -> types.Range:
    return types.Range(types.Position(**found["start"]), types.Position(**found["end"]))


def _json(file: File, d: Diagnostic) -> dict[str, Any]:
    elsewhere = isinstance(d.source, ItemSource) and d.source.item.file is not file
    message, hint = shortened(d.message), shortened(d.hint)
    message = f"{d.where()}: {message}" if elsewhere else message
    record: dict[str, Any] = {
        "range": _range_in(file, d),
        "message": f"{message}\n{hint}" if hint else message,
        "severity": _SEVERITY.get(d.severity, 3),
        "source": SOURCE,
    }
    if d.code:
        record["code"] = d.code
    if d.code == UNUSED:
        record["tags"] = [types.DiagnosticTag.Unnecessary.value]
    if related := [r for note in d.notes if (r := _related(d, Note(*note)))]:
        record["relatedInformation"] = related
    return record


def _range_in(file: File, d: Diagnostic) -> dict[str, Any]:
    """Where a message is shown: in this file. One about another file is shown at its beginning."""
    source = d.source
    if d.span is not None and isinstance(source, ItemSource) and source.item.file is file:
        return _item_range(source.item, d.span)
    return {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}


def _item_range(item: Item, span: Span) -> dict[str, Any]:
    start, end = (item.file.lines.line_and_column(item.start + offset) for offset in span)
    return {
        "start": {"line": start[0], "character": start[1]},
        "end": {"line": end[0], "character": end[1]},
    }


def _related(d: Diagnostic, note: Note) -> dict[str, Any] | None:
    source = note.source or d.source
    if not isinstance(source, ItemSource):
        return None
    location = {"uri": source.item.file.uri, "range": _item_range(source.item, note.span)}
    return {"location": location, "message": shortened(note.message)}
