"""What is looked for behind each op: NaNs, infs, elements that were never written."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Node, Producer
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.diagnostics import OpstepError


class Problem(NamedTuple):
    """Why a run stopped. `kind`: nan, inf, uninitialised, assert, device, or error for the rest;
    `node`: the result that shows it; `position`: the one behind the op.
    """

    kind: str
    message: str
    node: Node | None
    position: int
    error: OpstepError | None = None


class Unwritten(NamedTuple):
    """Elements of a result that its op never wrote; `first` are the first few indices."""

    node: Node
    count: int
    first: list[tuple[int, ...]]


MOST = 8  # indices told


def unwritten(executor: Executor, producer: Producer) -> list[Unwritten]:
    """Elements that an op left as they were. An element that has the bits of filled memory is only
    a suspect, so the op runs again over other bits: what shows both was not written.
    """
    device, results = executor.device, producer.results
    if not producer.step.launches or producer.step.op.reinterprets:
        return []
    values = producer.plan.values
    read = {values[v].buffer for v in producer.step.operands if v is not None}
    written = {values[v].buffer for v in producer.step.results}
    if read & written or any(n.memory is None for n in results):
        return []  # what takes over an operand's memory was not filled
    if not any(device.holds_payload(n.memory, n.offset, n.type) for n in results):
        return []
    others = []
    for node in results:
        other = Node(node.type, node.name, device.alloc(node.type.nbytes, "a second run of an op"))
        device.write(other.memory, 0, node.type, 0)
        others.append(other)
    for operand in producer.operands:
        if operand is not None:
            executor.ensure(operand)
    nbytes = producer.plan.buffers[producer.step.workspace].nbytes
    scratch = device.alloc(nbytes if producer.step.workspace >= 0 else 0)
    device.run_now(executor.bound(producer, others, scratch.address))
    found = []
    for node, other in zip(results, others, strict=True):
        mark = payload(node.type.dtype)
        first = executor.array(node).view(mark.dtype) == mark
        second = device.read(other.memory, 0, node.type).view(mark.dtype) == 0
        places = np.argwhere(first & second)
        if len(places):
            told = [tuple(map(int, p)) for p in places[:MOST]]
            found.append(Unwritten(node, len(places), told))
    return found


def is_origin(executor: Executor, producer: Producer, kind: str) -> bool:
    """Whether no operand of an op has what its result has: NaNs, or infs."""
    which = ("nan", "inf").index(kind)
    return not any(executor.odd(o)[which] for o in producer.operands if o is not None)


def amount_of(executor: Executor, node: Node, kind: str) -> int:
    s = executor.statistics(node)
    return s.nan if kind == "nan" else s.posinf + s.neginf
