"""Where NaNs and infinities of a tensor come from: opstep/nanReport; and there: opstep/goToOp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opstep.dap.frames import handle_of
from opstep.dap.python_variables import value_name
from opstep.dap.registry import BAD_ARGUMENTS, DapError, request
from opstep.dap.requests.execution import resume
from opstep.dap.requests.memory import origin_of
from opstep.dap.source_view import python_place
from opstep.dap.tensor_origins import ComputedTensor
from opstep.dap.variables import memory_reference
from opstep.runtime.debugger.applied import producer_of
from opstep.runtime.debugger.checks import Problem

if TYPE_CHECKING:
    from opstep.dap.frames import FrameHandle
    from opstep.dap.session import Session
    from opstep.runtime.debugger.activation import Node, Producer
    from opstep.runtime.nan.backtrace import Backtrace
    from opstep.runtime.nan.findings import Link
    from opstep.runtime.nan.verdict import Verdict


def report_json(session: Session, frame_handle: FrameHandle, found: Backtrace) -> dict[str, Any]:
    """All of it; values that have a name in the frame are shown with it."""
    links = [
        _link(session, frame_handle, link, node)
        for link, node in zip(found.links, found.nodes, strict=True)
    ]  # fmt: skip
    return {"found": True, "text": found.text, "links": links}


def _link(session: Session, frame_handle: FrameHandle, link: Link, node: Node) -> dict[str, Any]:
    from opstep.runtime.nan.backtrace import describe

    producer, verdict = producer_of(node), link.verdict
    tensor = _tensor(session, frame_handle, node)
    record: dict[str, Any] = {"kind": link.kind, **tensor, "name": link.value}
    record["text"] = describe(link)
    if producer is None:
        return record
    record |= {"op": link.op, **_source(session, producer)}
    if link.where and link.where.backward:
        record["backward"] = link.where.backward
    if session.debugger.stop_point.stands_behind(node):
        record["here"] = True
    through = link.where.through if link.where else ()
    record["through"] = [{"path": p, "line": session.client.line(line)} for p, line in through]
    operands = [(j, node) for j, node in enumerate(producer.operands) if node is not None]
    record["operands"] = [{"operand": j} | _tensor(session, frame_handle, n) for j, n in operands]
    if verdict is None:
        return record
    before = _before(session, producer, verdict) if link.kind == "origin" else {}
    return record | _verdict(link, verdict) | before


def _before(session: Session, producer: Producer, verdict: Verdict) -> dict[str, Any]:
    """Losses without a sign on the way to elements that were born bad."""
    from opstep.runtime.nan.dataflow import cause_of

    found = cause_of(session.debugger.machine.executor, producer, verdict.elements)
    made = None if found is None else producer_of(found.node)
    if found is None or made is None:
        return {}
    place = list(found.place) or ""
    source = _source(session, made)
    record = {"name": found.node.name, "op": made.op.name, "line": source.get("line")}
    record["path"] = source.get("source", {}).get("path")
    record["text"] = f"{found.node.name}{place} = {found.value:g}: {found.text}"
    return {"before": {k: v for k, v in record.items() if v is not None}}


def _verdict(link: Link, verdict: Verdict) -> dict[str, Any]:
    from opstep.runtime.nan.backtrace import operand_name
    from opstep.runtime.nan.findings import advice

    elements = [
        {
            "place": list(e.place),
            "value": e.value,
            "rule": e.rule,
            "of": [
                {
                    "name": operand_name(link, b.operand),
                    "operand": b.operand,
                    "place": list(b.place),
                    "value": b.value,
                }
                for b in e.blamed
            ],
        }
        for e in verdict.elements
    ]
    backward = link.where.backward if link.where else ""
    rules = [
        {"rule": rule, "elements": n, "advice": advice(rule, backward, verdict.elements)}
        for rule, n in verdict.rules
    ]
    figures: dict[str, Any] = {"bad": verdict.kind, "count": verdict.count, "born": verdict.own}
    figures |= {"nan": verdict.nan, "size": verdict.size, "explained": verdict.explained}
    figures["caused"] = [operand_name(link, j) for j in verdict.caused]
    return figures | {"rules": rules, "elements": elements}


def _tensor(session: Session, frame_handle: FrameHandle, node: Node) -> dict[str, Any]:
    """The type of a tensor and where its elements are, with its name in the frame."""
    from opstep.runtime.debugger.scope import Handle

    handle = Handle(session.debugger.machine.executor, node)
    record: dict[str, Any] = {
        "name": node.name,
        "type": str(node.type),
        "memoryReference": memory_reference(session, ComputedTensor(handle, "", frame_handle)),
    }
    if node.name and frame_handle.lookup(node.name) is node:
        record["expression"] = node.name
    return record


def _source(session: Session, producer: Producer) -> dict[str, Any]:
    """Where an op is written."""
    from opstep.runtime.ir.printer import print_statement

    plan, step = producer.plan, producer.step
    graph, source = plan.frames[step.frame].graph, plan.frames[step.frame].source
    record: dict[str, Any] = {"graph": graph.name.text}
    record["statement"] = print_statement(step.statement)
    if source is not None:
        record["source"] = session.source(source.path, source.text)
        record["line"] = session.client.line(source.locate(step.statement.span.start)[0])
    return record | python_place(session, graph, step.statement)


NO_TENSOR = 2250


@dataclass(frozen=True)
class NanReportArguments:
    """`name`: a tensor of the frame; or the `memory_reference` of one; without both, the one that
    stopped the run.
    """

    name: str | None = None
    frame_id: int | None = None
    memory_reference: str | None = None


@request("opstep/nanReport", custom=True)
def nan_report(session: Session, arguments: NanReportArguments) -> dict[str, Any]:
    """Where the NaNs and infinities of a tensor were born, of which elements and by which rule, and
    which way they came. `kind` of the first link: finite, origin, propagated or given.
    """
    from opstep.runtime.nan.backtrace import trace_back

    node = _suspect(session, arguments)
    s = session.debugger.machine.executor.statistics(node)
    if not s.nan + s.posinf + s.neginf:
        return {"found": False, "text": f"{node.name} is finite", "links": []}
    frame_handle = handle_of(session, arguments.frame_id)
    return report_json(session, frame_handle, trace_back(session.debugger.machine.executor, node))


@request("opstep/goToOp", custom=True)
def go_to_op(session: Session, memory_reference: str) -> None:
    """Goes back to behind the op that computed a tensor, and stops there for its NaNs.
    `memory_reference`: of a tensor that a report names.
    """
    node = origin_of(session, memory_reference).node()
    producer = None if node is None else producer_of(node)
    if node is None or producer is None:
        raise DapError("it came from outside: no op of this run made it", NO_TENSOR)
    debugger, op = session.debugger, producer.op.name
    s = debugger.machine.executor.statistics(node)
    counts = {"nan": s.nan, "inf": s.posinf + s.neginf}
    kind = "nan" if s.nan else "inf"
    told = " and ".join(f"{n:,} {'NaN' if k == 'nan' else k}" for k, n in counts.items() if n)
    message = f"{node.name}, the result of {op}: {told} of {node.type.size:,} elements"
    stop = debugger.stand_behind(node, lambda position: Problem(kind, message, node, position))
    resume(session, lambda: stop, announced=True)


def present(session: Session, node: Node) -> Node:
    """What a value of the innermost graph is now: something before it may have been set."""
    calls = session.debugger.calls()
    found = calls[0].lookup(node.name) if calls and node.name else None
    return found if found is not None and found.type == node.type else node


def _suspect(session: Session, arguments: NanReportArguments) -> Node:
    if arguments.memory_reference is not None:
        node = origin_of(session, arguments.memory_reference).node()
        if node is None:
            raise DapError("it was computed for an answer: no op made it", NO_TENSOR)
        return node
    if arguments.name is None:
        stop = session.debugger.stop
        if stop is None or stop.exception is None or stop.exception.node is None:
            raise DapError("name: which tensor? The run is not stopped at a NaN", BAD_ARGUMENTS)
        return present(session, stop.exception.node)
    frame_handle = handle_of(session, arguments.frame_id)
    node = frame_handle.lookup(value_name(session, frame_handle, arguments.name))
    if node is None:
        raise DapError(f"{arguments.name[:80]} has no value here", NO_TENSOR)
    return node
