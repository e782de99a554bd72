"""Which graph calls which without condition: calls without end, and calls that multiply."""

from __future__ import annotations

from collections.abc import Mapping

from opstep.runtime.ir.diagnostics import Note
from opstep.runtime.ir.graph import Apply, Graph
from opstep.runtime.ir.reporting import Reporter
from opstep.runtime.ir.verified import VerifiedGraph

MOST_STEPS = 20_000_000  # ops of a graph with its calls inlined


def check_calls(graphs: Mapping[str, VerifiedGraph], reporter: Reporter) -> None:
    """Reports recursion that nothing can stop, and sets the `steps` of each graph.

    Calls through while, cond and switch do not count: they happen only if a value says so.
    """
    calls = {name: _calls(v.graph, graphs) for name, v in graphs.items()}
    for name in _callees_first(calls, graphs, reporter):
        total = sum(
            graphs[s.callee.text].steps if s.callee.text in calls[name] else 1
            for s in graphs[name].graph.body
            if isinstance(s, Apply)
        )
        graphs[name].steps = min(total, MOST_STEPS + 1)
        if total > MOST_STEPS and all(graphs[c].steps <= MOST_STEPS for c in calls[name]):
            reporter.error(
                graphs[name].source,
                graphs[name].graph.name.span,
                f"graph {name} comes to more than {MOST_STEPS:,} ops when its calls are inlined",
            )


def _calls(graph: Graph, graphs: Mapping[str, VerifiedGraph]) -> dict[str, Apply]:
    """The first call of each graph that this one calls."""
    found: dict[str, Apply] = {}
    for s in graph.body:
        if isinstance(s, Apply) and s.callee.text in graphs:
            found.setdefault(s.callee.text, s)
    return found


def _callees_first(
    calls: dict[str, dict[str, Apply]], graphs: Mapping[str, VerifiedGraph], reporter: Reporter
) -> list[str]:
    """All graphs, each behind those it calls. Reports each cycle; chains may be of any length."""
    order: list[str] = []
    done: set[str] = set()
    for root in calls:
        if root in done:
            continue
        path = {root: None}  # the calls that led here, in order
        todo = [(root, iter(calls[root]))]
        while todo:
            name, rest = todo[-1]
            callee = next(rest, None)
            if callee is None:
                todo.pop()
                del path[name]
                done.add(name)
                order.append(name)
            elif callee in path:
                names = list(path)
                _report_cycle(names[names.index(callee) :], calls, graphs, reporter)
            elif callee not in done:
                path[callee] = None
                todo.append((callee, iter(calls[callee])))
    return order


def _report_cycle(
    cycle: list[str],
    calls: dict[str, dict[str, Apply]],
    graphs: Mapping[str, VerifiedGraph],
    reporter: Reporter,
) -> None:
    following = [*cycle[1:], cycle[0]]
    steps = [(a, b, calls[a][b]) for a, b in zip(cycle, following, strict=True)]
    *others, (last, first, call) = steps
    notes = tuple(
        Note(f"{a} calls {b} here", s.callee.span, graphs[a].source) for a, b, s in others[:8]
    )
    reporter.error(
        graphs[last].source,
        call.callee.span,
        f"calling {first} never ends: {' -> '.join([*cycle, first])}",
        "only a call through cond, switch or while can come to an end",
        notes,
    )
