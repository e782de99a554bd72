"""Which graph calls which without condition: calls without end, and calls that multiply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from opstep.runtime.ir.diagnostics import Note
from opstep.runtime.ir.graph import Apply, Graph
from opstep.runtime.ir.reporting import Reporter
from opstep.runtime.ir.verified import VerifiedGraph

MOST_STEPS = 20_000_000  # ops of a graph with its calls inlined


def check_calls(
    graphs: Mapping[str, VerifiedGraph],
    reporter: Reporter,
    callees: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """Reports recursion that nothing can stop, and sets the `steps` of each graph.

    Calls through while, cond and switch do not count: they happen only if a value says so.
    `callees`: what each graph applies, ops among it, and how often, where that is known already.
    """
    if callees is None:
        callees = {name: callees_of(v.graph) for name, v in graphs.items()}
    calls = {name: [c for c in callees[name] if c in graphs] for name in graphs}
    for name in _callees_first(calls, graphs, reporter):
        applied = callees[name]
        total = sum(applied.values())
        total += sum(applied[c] * (graphs[c].steps - 1) for c in calls[name])
        graphs[name].steps = min(total, MOST_STEPS + 1)
        if total > MOST_STEPS and all(graphs[c].steps <= MOST_STEPS for c in calls[name]):
            reporter.error(
                graphs[name].source,
                graphs[name].graph.name.span,
                f"graph {name} comes to more than {MOST_STEPS:,} ops when its calls are inlined",
            )


def callees_of(graph: Graph) -> dict[str, int]:
    """What a graph applies, ops among it, and how often; in the order of the first time."""
    return Counter(s.callee.text for s in graph.body if isinstance(s, Apply))


def _call(graph: Graph, callee: str) -> Apply:
    """The first call of another graph."""
    return next(s for s in graph.body if isinstance(s, Apply) and s.callee.text == callee)


def _callees_first(
    calls: Mapping[str, list[str]], graphs: Mapping[str, VerifiedGraph], reporter: Reporter
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
                _report_cycle(names[names.index(callee) :], graphs, reporter)
            elif callee not in done:
                path[callee] = None
                todo.append((callee, iter(calls[callee])))
    return order


def _report_cycle(
    cycle: list[str], graphs: Mapping[str, VerifiedGraph], reporter: Reporter
) -> None:
    following = [*cycle[1:], cycle[0]]
    steps = [(a, b, _call(graphs[a].graph, b)) for a, b in zip(cycle, following, strict=True)]
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
