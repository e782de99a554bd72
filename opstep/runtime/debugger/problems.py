"""What is looked for behind each op: NaNs, infs, elements that were never written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.meeting import MetProducer
from opstep.runtime.debugger.rerun import run_over
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
    """Elements of a result that its op never wrote, or made of memory that nobody wrote; `first`
    are the first few indices, `mask` has all.
    """

    node: Node
    count: int
    first: list[tuple[int, ...]]
    mask: np.ndarray


MOST = 8  # indices told
JUNK = 0xFF  # in each byte of working memory: a NaN of any float


def unwritten(executor: Executor, producer: Producer) -> list[Unwritten]:
    """Elements that depend on what the memory held before the op ran. Only a suspect is run again,
    over memory that holds other bits: what differs then, nobody wrote.
    """
    step, results = producer.step, producer.results
    if not step.launches or step.op.traits.reinterprets or isinstance(producer, MetProducer):
        return []
    values = producer.plan.values
    read = {values[v].buffer for v in step.operands if v is not None}
    buffers = {values[v].buffer for v in step.results}
    if read & buffers or any(n.memory is None for n in results):
        return []  # what takes over an operand's memory was not filled
    if step.workspace < 0 and not any(_suspect(executor, n) for n in results):
        return []
    others = run_over(executor, producer, producer.operands, lambda node: 0, JUNK)
    found = []
    for node, other in zip(results, others, strict=True):
        word = f"u{node.type.dtype.itemsize}"
        mask = np.asarray(executor.array(node).view(word) != other.view(word))
        if mask.any():
            places = np.argwhere(mask)
            shown = [tuple(map(int, p)) for p in places[:MOST]]
            found.append(Unwritten(node, len(places), shown, mask))
    return found


def _suspect(executor: Executor, node: Node) -> bool:
    """Whether a result may have been made of filled memory: then floats are NaN; of integers nobody
    knows.
    """
    return not node.type.dtype.is_float or executor.nonfinite(node)[0]


def is_origin(executor: Executor, operands: Iterable[Node | None], kind: str) -> bool:
    """Whether no operand of an op has what its result has: NaNs, or infs."""
    which = ("nan", "inf").index(kind)
    return not any(executor.nonfinite(o)[which] for o in operands if o is not None)


def amount_of(executor: Executor, node: Node, kind: str) -> int:
    s = executor.statistics(node)
    return s.nan if kind == "nan" else s.posinf + s.neginf
