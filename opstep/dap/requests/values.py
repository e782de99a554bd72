"""`opstep/values`: what a frame has, as the rows of a table. A request of our own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opstep.dap.frames import FrameHandle, handle_of
from opstep.dap.registry import BAD_ARGUMENTS, DapError, request
from opstep.dap.source_view import python_place
from opstep.dap.variables import EAGER_ELEMENTS, EAGER_S, SMALL_COUNT, SMALL_ELEMENTS
from opstep.dap.visible_names import VisibleNames
from opstep.editors.views import figure
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.lexer import quote_name

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame

ASKED_S = 0.02  # in which statistics are taken: a step that comes in between waits no longer
MOST = 20_000  # rows of one response
MOST_GRAPHS = 16  # of which lines are kept
FIGURES = ("nan", "posinf", "neginf", "unwritten", "min", "max", "mean", "std")


@request("opstep/values", custom=True)
def values(
    session: Session,
    frame_id: int | None = None,
    names: list[str] | None = None,
    most: int = MOST,
    start: int = 0,
    count: int = 0,
) -> dict[str, Any]:
    """Inputs, values and named tensors of a frame, with the statistics that are known. `names`:
    only these rows, and their statistics are taken as far as time allows; without names, `most`
    rows, of values the newest, of which few statistics are taken; of those `count` (0: all) from
    `start` on.
    """
    if most < 1 or start < 0 or count < 0:
        raise DapError("most is at least 1; start and count are not negative", BAD_ARGUMENTS)
    handle = handle_of(session, frame_id)
    graph = handle.of_graph() if handle.frame.python else handle
    rows = Rows(session, graph)
    found, total = rows.names(min(most, MOST))
    asked = names is not None
    if names is not None:
        wanted = set(names)
        found = [name for name in found if name in wanted]
    found = found[start:][: count or MOST]
    rows.take(found, ASKED_S if asked else EAGER_S, asked)
    return {
        "graph": graph.frame.graph.name.text,
        "source": session.source_of(graph.frame),
        "hasRun": has_run(session, handle.frame),
        "total": total,
        "values": [row for name in found if (row := rows.row(name)) is not None],
    }


def has_run(session: Session, frame: Frame) -> bool:
    """Whether the op that a frame shows is behind it; of frames around it, none is."""
    stop_point = session.debugger.of(frame).stop_point
    if frame.number:
        return False
    return stop_point.after_op or stop_point.machine.history.next_point() is None


class Rows:
    """The rows of a frame: `take` takes statistics, `row` writes one."""

    def __init__(self, session: Session, graph: FrameHandle):
        self.session = session
        self.frame = graph.frame
        self.lines = session.per_session(Lines).of(session, graph.frame)
        self.inputs = {b.name.text for b in graph.frame.graph.inputs}
        self.tensors = graph.frame.machine.host.tensors

    def names(self, most: int) -> tuple[list[str], int]:
        """In the order of the program, and how many there are; where there are more than `most`,
        values that were computed early are left out.
        """
        visible = self.session.per_stop(VisibleNames).names(self.frame)
        total = len(visible) + len(self.tensors)
        inputs = [name for name in visible if name in self.inputs]
        computed = [name for name in visible if name not in self.inputs]
        found = [*inputs, *self.tensors]
        room = max(most - len(found), most // 2)
        return [*inputs, *computed[-room:], *self.tensors][:most], total

    def take(self, names: list[str], seconds: float, asked: bool) -> None:
        """Statistics of the newest first, for so long, and of a few small ones in any case; those
        of values that would have to be computed again, or that take long, only if `asked` for.
        """
        from opstep.runtime.debugger.scope import shown

        executor, until = self.frame.machine.executor, time.perf_counter() + seconds
        small = 0 if asked else SMALL_COUNT
        for name in reversed(names):
            handle = shown(self.frame, name)
            for node in handle.nodes if handle is not None else ():
                size: Any = node.type.size
                if node.figures is not None:
                    continue
                if not asked and (not node.present or size > EAGER_ELEMENTS):
                    continue
                if size <= SMALL_ELEMENTS and small > 0:
                    small -= 1
                elif time.perf_counter() > until:
                    return
                executor.statistics(node)
                self.session.check_cancelled()

    def row(self, name: str) -> dict[str, Any] | None:
        """None for a name that has no value."""
        from opstep.runtime.debugger.scope import shown
        from opstep.runtime.expressions.text import type_text

        handle = shown(self.frame, name)
        if handle is None:
            return None
        found: dict[str, Any] = {
            "name": name,
            "kind": self._kind(name),
            "type": type_text(handle),
            "bytes": handle.type.nbytes,
            **self.lines.get(name, {}),
        }
        expression = quote_name(name)
        if expression != name:
            found["expression"] = expression
        present = all(node.present for node in handle.nodes)
        if not present:
            found["dropped"] = True
        if all(node.figures is not None for node in handle.nodes):
            found |= self._figures(handle, present)
        return found

    def _kind(self, name: str) -> str:
        if self.frame.value(name) is None:
            return self.tensors[name].kind
        return "input" if name in self.inputs else "value"

    def _figures(self, handle: Any, present: bool) -> dict[str, Any]:
        from opstep.runtime.expressions.text import FEW, figures_text, value_text

        s, t = handle.statistics(), handle.type
        is_short = t.size and t.size <= FEW and present
        text = value_text(handle) if is_short or not t.shape else figures_text(t, s)
        told = {name: figure(v) for name in FIGURES if (v := getattr(s, name)) is not None}
        return {"text": text, "statistics": told}


class Lines:
    """``session.per_session(Lines)``: where the names of a graph are written, by client lines."""

    def __init__(self, _: Session):
        self._by_graph: dict[tuple[int, bool], tuple[Any, dict[str, dict[str, Any]]]] = {}

    def of(self, session: Session, frame: Frame) -> dict[str, dict[str, Any]]:
        """By name: the line in the graph's text; and `python`, source and line, where that is
        shown in its place.
        """
        key = id(frame.graph), session.debugger.stop_point.shows_python
        if key not in self._by_graph:
            if len(self._by_graph) >= MOST_GRAPHS:
                self._by_graph.clear()
            self._by_graph[key] = frame.graph, self._read(session, frame)
        return self._by_graph[key][1]

    def _read(self, session: Session, frame: Frame) -> dict[str, dict[str, Any]]:
        source, client = frame.source, session.client
        if source is None:
            return {}
        found: dict[str, dict[str, Any]] = {}

        def add(name: Any, **more: Any) -> None:
            found[name.text] = {"line": client.line(source.locate(name.span.start)[0]), **more}

        texts = frame.machine.host.texts() if hasattr(frame.machine.host, "texts") else []
        if texts and texts[0].source.path == source.path:
            for tensor in frame.machine.host.tensors.values():
                add(tensor.name)
        for binding in frame.graph.inputs:
            add(binding.name)
        for statement in frame.graph.body:
            place = python_place(session, frame.graph, statement)
            for result in statement.results if isinstance(statement, Apply) else ():
                add(result.name, **({"python": place} if place else {}))
        return found
