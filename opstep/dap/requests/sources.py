"""Texts: loadedSources, source, locations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.dap.client import Source
from opstep.dap.registry import LAUNCHED, STOPPED, DapError, request
from opstep.dap.variables import Location

if TYPE_CHECKING:
    from opstep.dap.session import Session

NO_SOURCE = 2220
MIME = "text/x-opstep"


@request("loadedSources", capability="supportsLoadedSourcesRequest", states=LAUNCHED)
def loaded_sources(session: Session) -> dict[str, Any]:
    """The program's texts: its file, and graphs that were generated or come with opstep."""
    return {"sources": [session.source(t.path, t.text) for t in _texts(session)]}


def _texts(session: Session) -> list[Any]:
    debuggee = session.debuggee
    if debuggee is None or debuggee.debugger is None:
        return []
    return [t.source for t in debuggee.debugger.host.texts()]


@request("source", states=LAUNCHED)
def source(session: Session, source_reference: int, source: Source | None = None) -> dict[str, Any]:
    """A text by its number; by its path only one of the program's own."""
    number = source_reference
    if not number and source is not None:
        number = source.source_reference or 0
    if number:
        return {"content": session.sources.text(number), "mimeType": MIME}
    path = source.path if source else None
    if not path:
        raise DapError("source: a sourceReference or a path is needed", NO_SOURCE)
    requested = Path(session.client.our_path(path))
    for text in _texts(session):
        if session.folder / text.path == session.folder / requested:
            return {"content": text.text, "mimeType": MIME}
    raise DapError(f"{path[:200]} is not a text of this program", NO_SOURCE)


@request("locations", states=STOPPED)
def locations(session: Session, location_reference: int) -> dict[str, Any]:
    """Where a variable is declared."""
    frame_handle = session.references.get(location_reference, Location, "location")
    found = frame_handle.find()
    if found is None:
        raise DapError("it is written nowhere", NO_SOURCE)
    text, span = found
    client = session.client
    line, column = text.locate(span.start)
    end_line, end_column = text.locate(span.end)
    return {
        "source": session.source(text.path, text.text),
        "line": client.line(line),
        "column": client.column(column),
        "endLine": client.line(end_line),
        "endColumn": client.column(end_column),
    }
