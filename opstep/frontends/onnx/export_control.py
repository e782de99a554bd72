"""Control flow as ONNX has it: If and Loop, whose graphs call functions of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, helper

from opstep.frontends.onnx.export_nodes import GRAPH_DOMAIN, Node, Unsayable, value_info
from opstep.runtime.ir.calls import resolve_call
from opstep.runtime.ir.types import TensorType, boolean, i64
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from opstep.frontends.onnx.export_writer import Writer

_FLAG, _COUNT = TensorType(boolean, ()), TensorType(i64, ())


def control(
    writer: Writer, op: str, attrs: Mapping[str, Any], operands: Sequence[Var], names: Sequence[str]
) -> None:
    """Appends the nodes of a `cond`, `switch` or `while`, whose results get these names."""
    if op == "while":
        _loop(writer, attrs, operands, names)
        return
    selector, *rest = operands
    if op == "cond":
        _choose(writer, selector, attrs["then"].name, attrs["else"].name, rest, names)
    else:
        _switch(writer, selector, [case.name for case in attrs["cases"]], rest, names)


# --- branches ---


def _choose(
    writer: Writer, flag: Var, then: str, other: str, operands: Sequence[Var], names: Sequence[str]
) -> None:
    _, updates = writer.functions.effects([then, other])
    outputs, updated = _results(writer, names, updates)
    branches: dict[str, Any] = {
        f"{word}_branch": _branch(writer, word, lambda g=graph: _call(writer, g, operands, updates))
        for word, graph in (("then", then), ("else", other))
    }
    writer.body.node("If", [flag.name], outputs, **branches)
    writer.current.update(updated)


def _switch(
    writer: Writer, index: Var, cases: Sequence[str], operands: Sequence[Var],
    names: Sequence[str],
) -> None:  # fmt: skip
    """Each case in the else branch of the one before. An index that no case has is taken out of a
    list that is too short for it, which ends the run.
    """
    b = writer.body
    wide = b.cast(index, dtype=i64)
    count = len(cases)
    outside = b.where(b.less(wide, 0), count, wide)
    checked = b.onnx("Gather", b.value(range(count)), outside, out=_COUNT, axis=0)
    _, updates = writer.functions.effects(cases)
    outputs, updated = _results(writer, names, updates)

    def case(k: int) -> list[Var]:
        if k == count - 1:
            return _call(writer, cases[k], operands, updates)
        now = Var(b.fresh(f"{b.stem}/is{k}"), _FLAG)
        b.node("Equal", [checked.name, b.value(k).name], [now.name])
        results = [Var(b.fresh(f"{n}/from{k}"), t) for n, t in kinds]
        branches: dict[str, Any] = {
            "then_branch": _branch(
                writer, f"case{k}", lambda: _call(writer, cases[k], operands, updates)
            ),
            "else_branch": _branch(writer, f"after{k}", lambda: case(k + 1)),
        }
        b.node("If", [now.name], [r.name for r in results], **branches)
        return results

    kinds = [
        *((n, writer.type_of(n)) for n in names),
        *((u, writer.current[u].type) for u in updates),
    ]
    for k in range(count):  # known to all branches
        b.value(k)
    for r, o in zip(case(0), outputs, strict=True):
        b.node("Identity", [r.name], [o])
    writer.current.update(updated)


def _results(
    writer: Writer, names: Sequence[str], updates: Sequence[str]
) -> tuple[list[str], dict[str, Var]]:
    """Names of the outputs, and what the named tensors are then."""
    updated = {u: Var(writer.body.fresh(f"{u}/next"), writer.current[u].type) for u in updates}
    return [*names, *(v.name for v in updated.values())], updated


def _call(
    writer: Writer, graph: str, operands: Sequence[Var], updates: Sequence[str],
    current: Mapping[str, Var] | None = None,
) -> list[Var]:  # fmt: skip
    """Nodes that call a graph's function: its results, and then what `updates` are behind it."""
    b = writer.body
    now = {**writer.current, **(current or {})}
    found = writer.functions.verified.graphs[graph].graph
    resolved, symbols = resolve_call(found, [o.type for o in operands])
    callee = writer.functions.callee(graph, symbols)
    inputs = [o.name for o in operands] + [now[n].name for n in callee.touches]
    results = [Var(b.fresh(f"{b.stem}/{graph}"), t) for t in resolved.results]
    changed = {u: Var(b.fresh(f"{u}/then"), now[u].type) for u in callee.updates}
    b.node(callee.name, inputs, [r.name for r in [*results, *changed.values()]], GRAPH_DOMAIN)
    return [*results, *(changed.get(u, now[u]) for u in updates)]


def _branch(writer: Writer, name: str, write: Callable[[], list[Var]]) -> GraphProto:
    """A graph without inputs, of the nodes that `write` appends."""
    nodes, results = writer.body.apart(write)
    outputs = _outputs(writer, nodes, results, set())
    return helper.make_graph(
        [n.proto() for n in nodes], name, [], [value_info(o.name, o.type, False) for o in outputs]
    )


def _outputs(
    writer: Writer, nodes: list[Node], results: Sequence[Var], taken: set[str]
) -> list[Var]:
    """The results by names that only this graph gives."""
    own = {o for n in nodes for o in n.outputs}
    found: list[Var] = []
    for r in results:
        if r.name not in own or r.name in taken:
            copy = Var(writer.body.fresh(f"{r.name}/result"), r.type)
            nodes.append(Node("Identity", [r.name], [copy.name], {}))
            r = copy
        taken.add(r.name)
        found.append(r)
    return found


# --- loops ---


def _loop(
    writer: Writer, attrs: Mapping[str, Any], operands: Sequence[Var], names: Sequence[str]
) -> None:
    """The test is computed ahead of the loop, and behind the body for the next turn.

    A loop that does not end is an error here, and has no limit there: one that stopped with a wrong
    value would be worse.
    """
    test, turn = attrs["test"].name, attrs["body"].name
    b = writer.body
    _, updates = writer.functions.effects([test, turn])
    outputs, updated = _results(writer, names, updates)
    flag, *before = _call(writer, test, operands, updates)
    carried = [*operands, *before]

    def body() -> list[Var]:
        states = dict(zip(updates, inner[len(operands) :], strict=True))
        found = _call(writer, turn, inner[: len(operands)], updates, states)
        results, after = found[: len(operands)], found[len(operands) :]
        more, *after = _call(writer, test, results, updates, dict(zip(updates, after, strict=True)))
        return [more, *results, *after]

    inner = [Var(b.fresh(f"{x.name}/now"), x.type) for x in carried]
    count, go = Var(b.fresh("turn"), _COUNT), Var(b.fresh("go"), _FLAG)
    nodes, results = b.apart(body)
    results = _outputs(writer, nodes, results, set())
    inputs = [count, go, *inner]
    graph = helper.make_graph(
        [n.proto() for n in nodes], turn,
        [value_info(v.name, v.type, False) for v in inputs],
        [value_info(v.name, v.type, False) for v in results],
    )  # fmt: skip
    if len(results) != len(inputs) - 1:
        raise Unsayable("the loop's graphs do not fit")
    b.node("Loop", ["", flag.name, *(x.name for x in carried)], outputs, body=graph)
    writer.current.update(updated)
