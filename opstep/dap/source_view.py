"""Which source frames show: Python's, or the graph's text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.ir.graph import Graph, Statement

View = Literal["python", "graph", "auto"]


class SourceView:
    """``session.per_session(SourceView)``: what the client wants to see."""

    def __init__(self, session: Session):
        self.session = session
        self.view: View = "auto"
        self._reported: set[str] = set()

    def report_changed(self, frame: Frame) -> None:
        """Says once of each file that it is not what was imported."""
        python = frame.python
        if python is not None and python.at.changed and python.at.path not in self._reported:
            self._reported.add(python.at.path)
            self.session.output(
                f"{python.at.path} has changed since the program was imported from it: lines may "
                "not be those that run. Import it again."
            )


def python_place(session: Session, graph: Graph, statement: Statement) -> dict[str, Any]:
    """The source and the line of Python that frames show for a statement; empty where none is."""
    stop_point = session.debugger.stop_point
    origin = stop_point.lines.shown(graph, statement) if stop_point.shows_python else None
    if origin is None:
        return {}
    at = origin.lines[-1]
    return {"source": session.source(at.path), "line": session.client.line(at.line)}
