"""Where the NaNs and infinities of a tensor come from: back through the ops that carried them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.dap.tensor_origins import ComputedTensor
from opstep.dap.variables import memory_reference

if TYPE_CHECKING:
    from opstep.dap.frames import FrameHandle
    from opstep.dap.session import Session
    from opstep.runtime.debugger.debugger import Debugger
    from opstep.runtime.debugger.node import Node, Producer
    from opstep.runtime.nan.verdict import Verdict

MOST = 64  # ops that are followed back
ELEMENTS = 3  # told of each


class Link(NamedTuple):
    """A tensor on the way. `kind`: origin (bad elements were born in its op), propagated, or
    given (it came from outside).
    """

    kind: str
    node: Node
    verdict: Verdict | None
    text: str


class NanReport(NamedTuple):
    """`links`: from the tensor that was asked about back to where it all began."""

    text: str
    links: list[Link]

    @property
    def origins(self) -> list[Link]:
        return [link for link in self.links if link.kind != "propagated"]


def report_on(debugger: Debugger, node: Node) -> NanReport:
    """Follows what is wrong with a tensor. Copies the bad tensors on the way, and their op's
    operands; no others.
    """
    links, seen, todo = [], {id(node)}, [node]
    while todo and len(links) < MOST:
        link, sources = _link(debugger, todo.pop(0))
        links.append(link)
        for source in sources:
            if id(source) not in seen:
                seen.add(id(source))
                todo.append(source)
    lines = [links[0].text]
    lines += [link.text for link in links[1:] if link.kind != "propagated"]
    way = [link.node.name for link in links]
    if len(way) > 1:
        lines.append(f"way back: {' <- '.join(way)}")
    if todo:
        lines.append(f"and on, over more than {MOST} ops")
    return NanReport("\n".join(lines), links)


def _link(debugger: Debugger, node: Node) -> tuple[Link, list[Node]]:
    from opstep.runtime.debugger.rerun import on_device
    from opstep.runtime.nan.verdict import judge

    executor, producer = debugger.machine.executor, node.producer
    if producer is None:
        s = executor.statistics(node)
        bad = s.nan + s.posinf + s.neginf
        text = f"{node.name} came in with {bad:,} of {s.count:,} elements NaN or infinite"
        return Link("given", node, None, text), []
    operands = [None if o is None else executor.array(o) for o in producer.operands]
    results = [executor.array(r) for r in producer.results]
    again = on_device(executor, producer)
    verdict = judge(producer.step, operands, results, node.index, again)
    if verdict is None:
        return Link("propagated", node, None, f"{node.name} is finite"), []
    kind = "origin" if verdict.is_origin else "propagated"
    indices = dict.fromkeys((*verdict.carried, *verdict.caused))
    sources = [s for j in indices if (s := producer.operands[j]) is not None]
    return Link(kind, node, verdict, _describe(debugger, node, verdict, kind)), sources


def _describe(debugger: Debugger, node: Node, verdict: Verdict, kind: str) -> str:
    from opstep.runtime.expressions.text import tensor_text
    from opstep.runtime.ir.printer import print_statement

    producer = node.producer
    assert producer is not None
    statement = print_statement(producer.step.statement)
    head = f"{kind}: {node.name}, the result of {producer.step.op.name}"
    lines = [f"{head}: {verdict.count:,} of {verdict.size:,} elements are NaN or infinite"]
    lines.append(f"  {statement}")
    for rule, count in verdict.rules:
        lines.append(f"  {rule}: {count:,} of the elements looked at")
    for element in verdict.elements[:ELEMENTS]:
        blamed = ", ".join(
            f"{_name(producer, b.operand)}{list(b.place)} = {b.value:g}" for b in element.blamed
        )
        of = f" of {blamed}" if blamed else ""
        lines.append(f"  {node.name}{list(element.place)} = {element.value:g}{of}: {element.rule}")
    for operand in producer.operands:
        if operand is not None:
            statistics = debugger.machine.executor.statistics(operand)
            lines.append(f"  {operand.name or 'literal'}: {tensor_text(operand.type, statistics)}")
    return "\n".join(lines)


def _name(producer: Any, j: int) -> str:
    operand = producer.operands[j]
    return operand.name if operand is not None else f"operand {j}"


def record(session: Session, frame_handle: FrameHandle, link: Link) -> dict[str, Any]:
    """A link as JSON can hold it; what has a name in the frame is told with it."""
    producer, verdict = link.node.producer, link.verdict
    told: dict[str, Any] = {"kind": link.kind, **_tensor(session, frame_handle, link.node)}
    told["text"] = link.text
    if producer is not None:
        told |= {"op": producer.step.op.name, **_location(session, producer)}
        operands = [(j, node) for j, node in enumerate(producer.operands) if node is not None]
        told["operands"] = [{"operand": j} | _tensor(session, frame_handle, n) for j, n in operands]
    if verdict is not None:
        told |= {"bad": verdict.kind, "count": verdict.count, "born": verdict.own}
        told["rules"] = [{"rule": rule, "elements": n} for rule, n in verdict.rules]
        told["elements"] = [
            {
                "place": list(e.place),
                "value": e.value,
                "rule": e.rule,
                "of": [
                    {
                        "name": _name(producer, b.operand),
                        "operand": b.operand,
                        "place": list(b.place),
                        "value": b.value,
                    }
                    for b in e.blamed
                ],
            }
            for e in verdict.elements
        ]
    return told


def _tensor(session: Session, frame_handle: FrameHandle, node: Node) -> dict[str, Any]:
    """What a tensor is and where its elements are; with the name by which the frame knows it."""
    from opstep.runtime.debugger.scope import Handle

    handle = Handle(session.debugger.machine.executor, node)
    told: dict[str, Any] = {
        "name": node.name,
        "type": str(node.type),
        "memoryReference": memory_reference(session, ComputedTensor(handle, "", frame_handle)),
    }
    if node.name and frame_handle.lookup(node.name) is node:
        told["expression"] = node.name
    return told


def _location(session: Session, producer: Producer) -> dict[str, Any]:
    """Where an op is written."""
    from opstep.runtime.ir.printer import print_statement

    plan, step = producer.plan, producer.step
    graph = plan.frames[step.frame].graph.name.text
    told: dict[str, Any] = {"graph": graph, "statement": print_statement(step.statement)}
    source = plan.sources.get(graph)
    if source is not None:
        told["source"] = session.source(source.path, source.text)
        told["line"] = session.client.line(source.locate(step.statement.span.start)[0])
    return told
